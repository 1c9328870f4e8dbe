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


@pytest.mark.parametrize(
    "text, acts",
    [
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import other\n", False),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    import other\n", True),
        ("TYPE_CHECKING = True\nif TYPE_CHECKING:\n    import other\n", True),
        ("from other import TYPE_CHECKING\nif TYPE_CHECKING:\n    import other\n", True),
    ],
)
def test_what_a_type_checker_alone_imports_does_not_act_on_import(text, acts):
    module = syntax.parsed(text.encode(), "a", "a.py")
    assert bool(module.effects) is acts
