"""MLflow's server without uploads, by which any local user could write files as the owner of `ui`.

To import it takes seconds, during which `ui` makes the database. It answers once that is whole, which a line
on its standard input says; where `ui` has ended instead, it ends.
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
