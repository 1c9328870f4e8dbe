"""MLflow's server without uploads, through which any local user could write files with the rights of the
owner.

Importing MLflow takes seconds; meanwhile `fedrepro ui` makes the database. A line on this process's standard
input says that the database is complete; from then on the server answers. If `fedrepro ui` ends instead, the
server ends.
"""

import sys

from flask import abort, request
from mlflow.server import app as flask
from mlflow.server.fastapi_app import app  # noqa: F401

UPLOADS = "/mlflow/upload-artifact"  # stays open with MLflow's own `--no-serve-artifacts`


@flask.before_request
def refuse_uploads() -> None:
    """403 for every upload into a run's folder, which may lie anywhere."""
    if request.path.endswith(UPLOADS):
        abort(403)


if not sys.stdin.readline():
    sys.exit(1)
