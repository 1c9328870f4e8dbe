"""benchmarks/mutants.py: which faults it plants, and that the document tells what its list holds."""

import ast
import csv
import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

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
        ("if a:\n    pass", ["if not a:\n    pass"]),
        ("x = f(a, b)", ["x = f(b, a)"]),
        ("x = f(a, b=c)", ["x = f(a)"]),
        ("x = f(*a, b)", []),
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


def test_the_list_holds_three_hundred_faults(listed):
    assert len(listed) >= 300


def test_no_fault_is_listed_twice(listed):
    identities = [mutants.identity(row) for row in listed]
    assert len(identities) == len(set(identities))


def test_at_least_95_of_100_faults_that_change_something_are_noticed(listed):
    noticed = sum(row["outcome"] != "survived" for row in listed)
    equivalent = sum(map(mutants.changes_nothing, listed))
    assert noticed >= 0.95 * (len(listed) - equivalent)


def test_the_document_tells_what_the_list_holds(listed):
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([\w.]+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    told = {name: [int(number) for number in numbers] for name, *numbers in table}
    assert told == mutants.counts(listed)


def test_the_document_tells_the_share_of_what_is_noticed(listed):
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    told = re.search(r"Of (\d+) faults (\d+) change nothing; of\s+the others ([\d.]+) % are noticed", text)
    noticed = sum(row["outcome"] != "survived" for row in listed)
    equivalent = sum(map(mutants.changes_nothing, listed))
    share = 100 * noticed / (len(listed) - equivalent)
    assert told.groups() == (str(len(listed)), str(equivalent), f"{share:.1f}")


@pytest.fixture
def module(monkeypatch, tmp_path):
    """A module of a project, and a list with each of its faults, which nothing noticed."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "LIST", tmp_path / "mutants.csv")
    path = tmp_path / "pipeline" / "small.py"
    path.parent.mkdir()
    path.write_text(SMALL)
    rest = {"outcome": "survived", "noticed_by": "", "note": ""}
    for about, _, _ in mutants.faults(ast.parse(SMALL)):
        mutants.write({"module": "pipeline.small", **about, **rest})
    return path


SMALL = "def f(a, b):\n    return a < b\n\n\ndef g(a, b):\n    return a + b\n"


def listed_definitions() -> list[str]:
    return [row["definition"] for row in mutants.rows()]


def test_the_list_has_each_fault_of_a_module(module):
    assert listed_definitions() == ["f", "f", "g", "g"]


def test_a_row_holds_where_its_definition_only_moved(module):
    module.write_text("X = 1\n\n\n" + SMALL)
    mutants.drop_changed(["pipeline.small"])
    assert listed_definitions() == ["f", "f", "g", "g"]


def test_a_row_does_not_hold_where_its_definition_is_another(module):
    module.write_text(SMALL.replace("a + b", "a + b + 1"))
    mutants.drop_changed(["pipeline.small"])
    assert listed_definitions() == ["f", "f"]


def test_a_fault_that_is_planted_again_keeps_its_row(module):
    mutants.write(mutants.rows()[1] | {"outcome": "killed"})
    assert [row["outcome"] for row in mutants.rows()] == ["survived", "killed", "survived", "survived"]


def test_a_function_that_was_imported_gets_its_fault(module):
    names: dict = {}
    exec(compile(SMALL, str(module), "exec"), names)
    before = ast.parse(SMALL)
    _, number, new = next(fault for fault in mutants.faults(before) if fault[0]["after"] == "a <= b")
    after = mutants.planted(before, number, new)
    assert mutants.change_functions([names["f"], names["g"]], module, before, after)
    assert names["f"](1, 1)
    assert names["g"](1, 1) == 2


def test_a_fault_outside_of_functions_needs_another_import(module):
    names: dict = {}
    exec(compile("X = 1\n" + SMALL, str(module), "exec"), names)
    before = ast.parse("X = 1\n" + SMALL)
    after = ast.parse("X = 2\n" + SMALL)
    assert not mutants.change_functions([names["f"], names["g"]], module, before, after)


@pytest.mark.parametrize(
    "work, wanted",
    [
        (lambda pipe: None, "survived"),
        (lambda pipe: 1 / 0, "killed"),
        (lambda pipe: os._exit(mutants.ANEW), "anew"),
        (lambda pipe: os.kill(os.getpid(), signal.SIGXCPU), "late"),
    ],
    ids=["ends", "fails", "cannot", "hangs"],
)
def test_how_the_process_of_a_fault_ends(work, wanted):
    assert mutants.in_a_process(work, 5)[0] == wanted


def test_a_process_without_a_sign_of_life_is_late():
    assert mutants.in_a_process(lambda pipe: time.sleep(60), 0, patience=1)[0] == "late"


def test_a_modules_own_tests_come_before_those_that_import_it():
    files = mutants.files_of("pipeline.methods.fccl")
    assert files[:2] == ["tests/methods/test_fccl.py", "tests/methods/test_collaborative.py"]


def test_tests_of_the_rest_are_left_out():
    assert "tests/clusters/test_clusters.py" not in mutants.files_of("pipeline.clusters.local")


@pytest.mark.parametrize(
    "when, outcome, passed", [("call", "passed", 1), ("call", "skipped", 0), ("setup", "passed", 0)]
)
def test_only_a_test_that_ran_can_have_noticed_nothing(when, outcome, passed):
    tests = mutants.Tests([], pipe=-1)
    report = SimpleNamespace(when=when, failed=False, passed=outcome == "passed")
    tests.pytest_runtest_logreport(report)
    assert tests.passed == passed


def test_named_tests_run_in_place_of_those_that_concern_a_module():
    given = SimpleNamespace(tests=["tests/test_x.py"])
    campaign = mutants.Campaign([], given, print)
    session = SimpleNamespace(items=[SimpleNamespace(nodeid="tests/test_x.py::test_y")])
    assert campaign.chosen(session, None, "pipeline.methods.moon") == ["tests/test_x.py::test_y"]
