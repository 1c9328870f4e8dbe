"""Fixtures of the tests of clusters."""

import locale

import pytest


@pytest.fixture
def ascii_locale():
    """Files that are opened without an encoding hold ASCII alone, as on a machine without settings."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)
