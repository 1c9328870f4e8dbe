"""A report draws only what has changed: the same bytes as of a full drawing, whatever happened in between."""

import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest
from reporting import BALANCED, small_repository, write_run

from pipeline.errors import FedReproError
from pipeline.report import writing
from pipeline.report.unchanged import ACROSS, FILE, OVERVIEW, Drawn, Files, Inputs
from pipeline.report.writing import render
from pipeline.schema import ROOT, papers

PAPERS = list(papers())


@pytest.fixture
def drawn(monkeypatch):
    """The names of the parts that were drawn since it was cleared, in order."""
    names = []
    page, across, overview = writing._page, writing._across, writing._overview

    def of_page(one, *more):
        names.append(one.key)
        return page(one, *more)

    def of_across(*more):
        names.append(ACROSS)
        return across(*more)

    def of_overview(*more):
        names.append(OVERVIEW)
        return overview(*more)

    monkeypatch.setattr(writing, "_page", of_page)
    monkeypatch.setattr(writing, "_across", of_across)
    monkeypatch.setattr(writing, "_overview", of_overview)
    return names


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """A repository with two runs and a miniature, whose pages are drawn; not to be changed."""
    root = small_repository(tmp_path_factory.mktemp("once"))
    for method, measures in BALANCED.items():
        write_run(root, f"balanced/{method}", measures)
        write_run(root, f"mini/{method}", measures)
    render(root=root)
    return root


@pytest.fixture
def rendered(once, tmp_path):
    """A copy of it, which is as good as drawn here: notes hold digests and no places."""
    return shutil.copytree(once, tmp_path / "rendered", symlinks=True)


def train_again(root):
    """One cell has other numbers."""
    measures = {name: [value - 1 for value in values] for name, values in BALANCED["fedavg"].items()}
    write_run(root, "balanced/fedavg", measures)


def texts(out):
    files = [path for path in out.rglob("*.*") if path.is_file()]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def whole(root, folder):
    """What a full drawing of the same results writes."""
    render(root=root, out=folder)
    return texts(folder)


def test_a_second_call_draws_nothing_and_names_the_same_files(measured, drawn):
    first = render(root=measured)
    assert sorted(drawn) == sorted([*PAPERS, ACROSS, OVERVIEW])
    drawn.clear()
    assert sorted(render(root=measured)) == sorted(first)
    assert drawn == []


def test_a_changed_result_draws_its_paper_and_the_pages_over_all(rendered, drawn, tmp_path):
    before = texts(rendered / "reports")
    train_again(rendered)
    render(root=rendered)
    assert sorted(drawn) == sorted(["fedcrl", ACROSS, OVERVIEW])
    after = texts(rendered / "reports")
    assert after != before
    assert after == whole(rendered, tmp_path / "whole")


@pytest.mark.parametrize(
    "name, part",
    [
        ("fedcrl.html", "fedcrl"),
        ("fedcrl.md", "fedcrl"),
        ("metrics/fedcrl.json", "fedcrl"),
        ("tables/fedcrl-table1.tex", "fedcrl"),
        ("across.md", ACROSS),
        ("index.html", OVERVIEW),
        ("measured.csv", OVERVIEW),
    ],
)
@pytest.mark.parametrize("deleted", [True, False])
def test_a_file_that_was_edited_or_deleted_is_written_again(rendered, drawn, name, part, deleted):
    before = texts(rendered / "reports")
    file = rendered / "reports" / name
    if deleted:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes() + b"by hand")
    render(root=rendered)
    assert drawn == [part]
    assert texts(rendered / "reports") == before


def test_a_table_that_a_page_does_not_have_goes_although_nothing_else_changed(rendered):
    table = rendered / "reports/tables/fedcrl-old.tex"
    table.write_text("old")
    render(root=rendered)
    assert not table.exists()


def test_tables_of_a_paper_whose_name_begins_with_anothers_stay(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    for name in ("fed-table1.tex", "fed-x-table1.tex", "fedcrl-table1.tex"):
        (folder / name).write_text("")
    keys = ["fed", "fed-x", "fedcrl"]
    assert writing._tables("fed", tmp_path, keys) == ["tables/fed-table1.tex"]
    assert writing._tables("fed-x", tmp_path, keys) == ["tables/fed-x-table1.tex"]


@pytest.mark.parametrize("name, drawn_again", [
    ("papers/fedcrl/claims.csv", ["fedcrl", ACROSS, OVERVIEW]),
    ("papers/fedcrl/figures/figure4-mini-fedavg.csv", ["fedcrl", ACROSS, OVERVIEW]),
    ("papers/fedcrl/verified.yaml", ["fedcrl", ACROSS, OVERVIEW]),
    ("papers/fedcrl/methods/mine.py", [*PAPERS, ACROSS, OVERVIEW]),
    ("pipeline/methods/mine.py", [*PAPERS, ACROSS, OVERVIEW]),
    ("data/twins.csv", [*PAPERS, ACROSS, OVERVIEW]),
    ("reports/processors.csv", [ACROSS, OVERVIEW]),
    ("reports/withdrawn.csv", [ACROSS, OVERVIEW]),
])  # fmt: skip
def test_a_file_counts_for_the_pages_that_may_read_it(root, name, drawn_again):
    before = Inputs.of(root)
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("other")
    after = Inputs.of(root)
    parts = [*PAPERS, ACROSS, OVERVIEW]
    assert [part for part in parts if before.part(part) != after.part(part)] == [
        part for part in parts if part in drawn_again
    ]


@pytest.mark.parametrize(
    "name", ["partitions/mini/arrays.npz", "dvc.lock", "runs/.hidden", "__pycache__/a.pyc"]
)
def test_what_no_page_reads_counts_for_none(root, name):
    before = Inputs.of(root)
    file = root / "papers/fedcrl" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("other")
    assert Inputs.of(root) == before


def test_an_edited_block_of_the_readme_is_written_again_and_other_text_draws_nothing(
    measured, drawn, monkeypatch
):
    def readme(text, pages):
        return writing.markdown.BLOCK.sub(lambda block: f"{block[1]}made\n{block[3]}", text)

    monkeypatch.setattr(writing.markdown, "readme", readme)
    block = "<!-- {0}: written by `fedrepro report` -->\n<!-- end -->\n"
    front = measured / "README.md"
    front.write_text("# Ours\n" + block.format("result") + block.format("status"))
    render(root=measured)
    made = front.read_text()
    drawn.clear()
    front.write_text(made.replace("# Ours", "# Mine"))
    render(root=measured)
    assert drawn == []
    front.write_text(made.replace("made", "edited"))
    render(root=measured)
    assert drawn == [OVERVIEW]
    assert front.read_text() == made


def test_a_problem_is_told_again_by_the_next_call(measured, drawn):
    (measured / "papers/fedcrl/runs/balanced/fedavg/result.json").write_text("{")
    for _ in range(2):
        drawn.clear()
        with pytest.raises(FedReproError, match="not whole JSON"):
            render(root=measured)
        assert OVERVIEW in drawn
    assert "fedcrl" not in drawn


def test_a_result_that_arrives_meanwhile_is_drawn_by_the_next_call(measured, monkeypatch, tmp_path):
    survey = writing.survey

    def and_then_another(root):
        found = survey(root)
        train_again(measured)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(writing, "survey", and_then_another)
        render(root=measured)
    render(root=measured)
    assert texts(measured / "reports") == whole(measured, tmp_path / "whole")


@pytest.mark.parametrize("after", [0, 3, 8])
def test_a_kill_between_two_files_leaves_what_the_next_call_mends(rendered, monkeypatch, tmp_path, after):
    train_again(rendered)
    written = []

    def killed(path, text):
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        path.write_text(text, encoding="utf-8")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "renew_text", killed)
        with pytest.raises(KeyboardInterrupt):
            render(root=rendered)
    render(root=rendered)
    assert texts(rendered / "reports") == whole(rendered, tmp_path / "whole")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"fedcrl": 1}', '{"fedcrl": {"files": 3}}', '{"fedcrl": {"files": {}}}']
)
def test_a_damaged_note_counts_for_nothing(rendered, drawn, text):
    (rendered / FILE).write_text(text)
    render(root=rendered)
    assert sorted(drawn) == sorted([*PAPERS, ACROSS, OVERVIEW])


def test_pages_that_are_written_elsewhere_are_all_drawn_and_noted_nowhere(measured, tmp_path, drawn):
    for _ in range(2):
        drawn.clear()
        render(root=measured, out=tmp_path / "elsewhere")
        assert len(drawn) == len(PAPERS) + 2
    assert not (measured / FILE).exists()


def test_a_part_that_was_drawn_keeps_the_notes_of_others(tmp_path):
    (tmp_path / "reports").mkdir()
    for name in ("a", "b"):
        (tmp_path / "reports" / f"{name}.html").write_text(name)
        Drawn(tmp_path, tmp_path / "reports").note({name: [f"{name}.html"]}, {name: "1"})
    assert json.loads((tmp_path / FILE).read_text()).keys() == {"a", "b"}
    noted = Drawn(tmp_path, tmp_path / "reports")
    assert noted.stays("a", "1") and noted.stays("b", "1")
    assert not noted.stays("a", "2")


# Where the code of a cell is.
CODE = ("pipeline/", "stages/", "papers/")
# What pages read besides their inputs: what they themselves write, and facts of the machine.
READS = """
import sys
from pathlib import Path
root, out = Path(sys.argv[1]), Path(sys.argv[2])
opened = set()
def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        opened.add(arguments[0])
sys.addaudithook(note)
from pipeline.report.writing import render
render(root=root, out=out)
print(*opened, sep="\\n")
"""


@pytest.mark.rest
def test_every_file_that_a_full_drawing_opens_counts(tmp_path):
    """Of this repository: pages must not depend on a file that is no input."""
    command = [sys.executable, "-c", READS, str(ROOT), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    opened = {os.path.relpath(os.path.join(ROOT, path), ROOT) for path in done.stdout.splitlines()}
    inside = {path for path in opened if not path.startswith(("..", ".venv")) and "__pycache__" not in path}
    files = Files.of(ROOT)
    lines = [*files.shared, *files.over, *itertools.chain(*files.of_papers.values())]
    counted = {line.partition("\0")[0] for line in lines}
    assert len(inside) > 500
    others = {path for path in inside - counted if (ROOT / path).is_file() and not path.startswith(".cells/")}
    # `RememberedCode` compares the bytes of all Python files, but follows only those that a cell may run.
    assert [path for path in sorted(others) if not path.endswith(".py") or path.startswith(CODE)] == []
