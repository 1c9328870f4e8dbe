"""`make test` and `make test-rest` are together every test, and no test is in both."""

import re

import pytest
from kinds import FIXTURES, REST, mark
from repository import run

from pipeline.schema import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def recipe(target):
    """The lines of a target's commands, with what $(PYTEST) stands for."""
    [command] = re.findall("^PYTEST := (.*)$", MAKEFILE, re.MULTILINE)
    [lines] = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    return lines.strip().replace("$(PYTEST)", command)


def test_the_two_commands_differ_in_not_alone():
    assert recipe("test").replace('-m "not rest"', "-m rest") == recipe("test-rest")
    assert recipe("test") != recipe("test-rest")


def test_only_the_tests_of_clusters_and_servers_are_in_neither():
    assert re.findall(r"--ignore (\S+)", recipe("test")) == ["tests/scale"]
    assert "tests/scale" in recipe("test-scale")


def test_both_commands_are_run_together():
    assert re.search("^test-all: test test-rest", MAKEFILE, re.MULTILINE)


def test_ci_runs_first_what_a_contributor_runs_and_then_the_rest():
    commands = re.findall("^make .*", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands[:3] == ["make check", "make test", "make test-rest"]


def test_tests_of_an_imported_paper_wait_until_it_is_trusted(tmp_path):
    for paper in ("mine", "imported"):
        (tmp_path / "papers" / paper / "tests").mkdir(parents=True)
    (tmp_path / "papers/imported/.untrusted").touch()
    (tmp_path / "Makefile").write_text(f'include {ROOT}/Makefile\nshow:\n\t@echo "$(TESTS)"\n')
    assert run(tmp_path, "make", "-s", "show").stdout.split() == ["tests", "papers/mine/tests"]
    assert "$(TESTS)" in recipe("test")


def test_every_name_of_a_kind_is_a_file():
    assert not REST - {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


def test_a_test_of_this_file_is_not_in_the_rest(request):
    assert request.node.get_closest_marker("rest") is None


@pytest.mark.parametrize(
    "name, fixtures, rest",
    [
        ("test_wheel", [], True),
        ("test_kinds", ["tmp_path"], False),
        ("test_kinds", ["project", "prepared"], True),
    ],
)
def test_a_test_of_a_kind_has_the_marker(name, fixtures, rest):
    class Item:
        path, fixturenames, markers = ROOT / f"tests/{name}.py", fixtures, []

        def add_marker(self, marker):
            self.markers.append(marker)

    item = Item()
    mark(item)
    assert item.markers == ["rest"] * rest


@pytest.mark.parametrize("name", sorted(FIXTURES))
def test_every_name_of_a_fixture_is_one(name):
    """Of a file of tests, or of all."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    assert [text for text in texts if re.search(rf"^@pytest\.fixture.*\ndef {name}\(", text, re.MULTILINE)]
