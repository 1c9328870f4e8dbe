"""What an import binds."""

import ast

import pytest

from pipeline.provenance import syntax


@pytest.mark.parametrize(
    "line, module",
    [
        ("from other import f", "other"),
        ("from .other import f", "a.b.other"),
        ("from ..other import f", "a.other"),
    ],
)
def test_an_import_is_of_the_package_that_its_points_name(line, module):
    assert syntax._bound(ast.parse(line).body[0], "a.b") == {"f": (module, "f")}
