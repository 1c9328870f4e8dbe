"""benchmarks/mutants.py: which faults it plants, and that the document tells what its list holds."""

import ast
import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import mutants

ROOT = Path(__file__).resolve().parent.parent


def changed(source: str) -> list[str]:
    """The module with each of its faults."""
    tree = ast.parse(source)
    return [ast.unparse(mutants.planted(tree, number, new)) for _, number, new in mutants.faults(tree)]


@pytest.mark.parametrize(
    "source, wanted",
    [
        ("a < b", ["pass", "a <= b"]),
        ("x = a + b", ["x = a - b"]),
        ("x = a / b", ["x = a * b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = not a", ["x = a"]),
        ("x = -a", ["x = a"]),
        ("x = b if a else c", ["x = b if not a else c"]),
        ("x = True", ["x = False"]),
        ("x = 0.5", ["x = 1.5"]),
        ("x += y", ["pass"]),
        ("f()", ["pass"]),
        ("raise error", ["pass"]),
        ("def f():\n    return x", ["def f():\n    return None"]),
    ],
)
def test_what_is_planted(source, wanted):
    assert changed(source) == wanted


@pytest.mark.parametrize(
    "source", ["x: Literal[1] = y", "def f() -> Literal[1]:\n    x = y", '"""A text."""']
)
def test_annotations_and_documentation_are_left_alone(source):
    assert changed(source) == []


def test_a_fault_is_in_one_place():
    assert changed("x = 1\ny = 1") == ["x = 2\ny = 1", "x = 1\ny = 2"]


@pytest.fixture(scope="module")
def listed() -> list[dict[str, str]]:
    with mutants.LIST.open() as file:
        return list(csv.DictReader(file))


def test_every_fault_that_nothing_noticed_is_explained(listed):
    assert [row for row in listed if row["outcome"] == "survived" and not row["note"]] == []


def test_the_document_tells_what_the_list_holds(listed):
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([\w.]+)` \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    told = {name: [int(number) for number in numbers] for name, *numbers in table}
    of = Counter(), Counter(), Counter()
    for row in listed:
        package = "pipeline.methods" if row["module"].startswith("pipeline.methods.") else row["module"]
        of[0][package] += 1
        of[1][package] += row["outcome"] != "survived"
        of[2][package] += row["outcome"] == "survived"
    assert told == {package: [count[package] for count in of] for package in of[0]}
