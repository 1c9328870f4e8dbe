"""The papers' pages from the committed results, for the tests of several formats."""

import pytest
from drawn import drawn, paper  # noqa: F401  (fixtures)

from pipeline.cells.results import survey
from pipeline.report.page import page
from pipeline.report.study import studies


@pytest.fixture(scope="session")
def pages():
    """{paper: its page}."""
    actual, problems = survey()
    return {name: page(study) for name, study in studies(actual, problems=problems).items()}
