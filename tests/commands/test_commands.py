"""The command `fedrepro` as a user meets it, and whose code it runs. Bad input: test_mistakes.py."""

import contextlib
import csv
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import click
import pytest
import yaml
from click.testing import CliRunner
from dvc.repo import Repo
from repository import RESULTS, checkout, copy_of_the_repository, edited, run, stage

from pipeline.cells import choices
from pipeline.commands import export, new, reproduce, variants
from pipeline.commands import run as run_command
from pipeline.commands.cli import HEADINGS, main
from pipeline.commands.new import PARTS
from pipeline.commands.options import Commands, Name
from pipeline.commands.sync import show_grids, sync, written
from pipeline.errors import FedReproError, ParamError
from pipeline.place import surroundings
from pipeline.schema import COMPUTED, MINIATURES, ROOT, Cell, load_paper, papers, planned
from pipeline.schema.cell import ExtraSeeds

NESTED = [
    (name, *inner)
    for name, command in main.commands.items()
    for inner in [(), *((name,) for name in getattr(command, "commands", {}))]
]
COPIED = (
    "pipeline stages params.yaml dvc.yaml sources.yaml pyproject.toml data .gitignore .dvc reports"
).split()


# What no stage is declared in.
NO_STAGE = (*RESULTS, "reports/*", "docs/*", "*/dvc.lock")


def fedrepro(*words: str) -> list[str]:
    """Lines of what a command printed in this repository."""
    done = CliRunner(env={"COLUMNS": "80"}).invoke(main, words, prog_name="fedrepro")
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout.splitlines()


@pytest.mark.parametrize("words", [(), *NESTED], ids=" ".join)
def test_help_is_a_screen_with_an_example(words):
    lines = fedrepro(*words, "--help")
    assert max(map(len, lines)) <= 80
    assert "  Example:" in lines
    assert lines[-1].startswith("    ")
    assert "fedrepro " + " ".join(words) in lines[-1]
    assert not [line for line in lines[1:] if line.endswith("...")], "a sentence is cut off"


def test_help_shows_every_command_under_a_heading_that_says_what_it_is_for():
    lines = fedrepro("--help")
    listed = lines[lines.index("Run:") : lines.index("  Example:")]
    assert [line for line in listed if line.endswith(":")] == [f"{heading}:" for heading in HEADINGS]
    assert sorted(line.split()[0] for line in listed if line.startswith("  ")) == sorted(main.commands)


def test_a_command_of_no_heading_is_shown_last():
    group = Commands("x", headings={"One": ["a", "none"]})
    group.add_command(click.Command("b", help="Second."))
    group.add_command(click.Command("a", help="First."))
    done = CliRunner().invoke(group, ["--help"])
    assert done.output.split("One:")[1].split() == ["a", "First.", "More:", "b", "Second."]


def test_help_imports_nothing_large():
    code = (
        "import sys\nfrom pipeline.commands.cli import main\n"
        "for words in {words}:\n"
        "    try:\n        main([*words, '--help'], 'fedrepro')\n"
        "    except SystemExit as end:\n        assert not end.code\n"
        "print(*{{'torch', 'pandas', 'dvc', 'numpy', 'mlflow', 'jinja2'}} & sys.modules.keys(), "
        "file=sys.stderr)"
    )
    assert run(ROOT, sys.executable, "-c", code.format(words=[(), *NESTED])).stderr.strip() == ""


def test_a_name_with_capitals_is_known_in_any_case(monkeypatch):
    paper = SimpleNamespace(scenarios={"Dir-01": None}, methods={"FedMine": None})
    monkeypatch.setattr("pipeline.schema.folders", lambda: ["Mine"])
    monkeypatch.setattr("pipeline.schema.load_paper", lambda key: {"Mine": paper}[key])
    for typed in ("Mine/Dir-01/FedMine", "mine/dir-01/fedmine", "MINE/DIR-01/FEDMINE"):
        assert Name().convert(typed, None, None) == "Mine/Dir-01/FedMine"


@pytest.mark.parametrize(
    "command",
    [["stages.results", "../../x"], ["stages.data", "a;b"], ["stages.figures", "fedlsa", "x/../../y"]],
)
def test_what_a_stage_takes_becomes_no_other_path(command):
    error = run(ROOT, sys.executable, "-m", *command, expect=2).stderr
    assert error.startswith("error: ")
    assert "must be a name" in error
    assert error.count("\n") == 1


def test_committed_stages_are_what_would_be_written():
    assert fedrepro("sync", "--check") == []
    assert len(written()) >= len(papers())
    # Named in the schema, so that sync need not import what computes them.
    from pipeline.report import geometry

    assert set(COMPUTED) == {"embedding", *geometry.COLUMNS}


@pytest.fixture(scope="module")
def visible(tmp_path_factory):
    """A copy in which DVC sees every stage; none has run."""
    folder = copy_of_the_repository(tmp_path_factory.mktemp("visible"), without=NO_STAGE)
    show_grids(folder)
    return folder


def index(folder: Path):
    with pytest.importorskip("dvc.repo").Repo(str(folder), uninitialized=True) as opened:
        return opened.index


@pytest.fixture(scope="module")
def committed_index():
    """What DVC sees in this repository."""
    return index(ROOT)


@pytest.fixture(scope="module")
def stages(visible):
    """Every stage: its address -> (command, what it writes)."""
    with contextlib.chdir(visible):  # addresses are relative to it
        return {
            stage.addressing: (
                str(stage.cmd),
                {str(Path(out.fs_path).relative_to(visible)) for out in stage.outs},
            )
            for stage in index(visible).stages
        }


@pytest.mark.parametrize("paper", papers())
def test_dvc_has_a_stage_for_every_planned_cell_and_no_other(paper, stages):
    def outputs(cell: Cell) -> set[str]:
        paths = [cell.folder() / "result.json", cell.folder() / "history.csv"]
        paths += [cell.representations()] * (cell.scenario not in MINIATURES)  # which a fresh clone lacks
        return {str(path.relative_to(ROOT)) for path in paths}

    train = f"python -m stages.train {paper}/"
    actual = {
        address: (Cell.parse(command.split()[-1]), outs)
        for address, (command, outs) in stages.items()
        if command.startswith(train)
    }
    assert actual == {cell.stage(load_paper(paper)): (cell, outputs(cell)) for cell in planned(paper)}
    cut = {
        command.split("/")[-1]
        for command, _ in stages.values()
        if command.startswith(f"python -m stages.partition {paper}/")
    }
    assert cut == set(load_paper(paper).scenarios) - {"across"}


def test_the_miniature_waits_for_no_method_of_another_paper(committed_index):
    """`dvc repro` runs what ./dvc.yaml needs, which must stay as short as it is."""
    from networkx import descendants

    upstream = {
        stage.addressing: {needed.addressing for needed in descendants(committed_index.graph, stage)}
        for stage in committed_index.stages
        if ":" not in stage.addressing
    }
    root = {name for names in upstream.values() for name in names} | upstream.keys()
    assert "report" in upstream
    assert "papers/fedcrl/dvc.yaml:mini@fedcrl" in upstream["report"]
    of_papers = [name for name in root if name.startswith("papers/")]
    kinds = {name.partition("@")[0].rpartition(":")[2].removesuffix("-mini") for name in of_papers}
    figures = {f"figure{number}" for number in (1, 2, 4, 5, 8, 9)}
    assert kinds == {"sources", "partition", "mini", "results", "severities"} | figures
    assert not [name for name in of_papers if "figure" in name and "-mini" not in name]


def test_a_fresh_clone_shows_dvc_no_output_that_a_remote_would_need(committed_index):
    """Plain `dvc push` and `pull` complain of every cached output that was never made there."""
    assert not [str(out) for out in committed_index.outs if out.use_cache]


def test_a_hand_edit_is_named(toy):
    path = toy / "papers/toy/dvc.yaml"
    before = path.read_text()
    path.write_text(before.replace("wdir: ../..", "wdir: .", 1))
    reply = here(toy, "sync", "--check", expect=1).stdout
    assert reply.startswith("papers/toy/dvc.yaml: ")
    assert "fedrepro sync" in reply
    assert "wdir: ." in path.read_text()
    assert here(toy, "sync").stdout == "papers/toy/dvc.yaml: written\n"
    assert path.read_text() == before
    assert here(toy, "sync").stdout == ""


@pytest.mark.rest
@pytest.mark.parametrize("stage", ["sources", "toy/more/fedavg"])
def test_run_writes_the_stages_that_paper_yaml_asks_for(toy, stage):
    """Whatever was in their place, and before a name is looked for among them."""
    path, more = toy / "papers/toy/dvc.yaml", toy / "papers/toy/grids/dvc.yaml"
    before = path.read_text()
    path.write_bytes(b"\xfc" + before.encode())

    def change(document):
        document["scenarios"]["more"] = document["miniature"]["scenario"] | {"seeds": [0]}
        document["grids"]["more"] = {"scenarios": ["more"], "methods": ["fedavg"]}

    with edited(toy / "papers/toy/paper.yaml", change):
        done = here(toy, "run", stage if "/" in stage else f"papers/toy/dvc.yaml:{stage}")
        assert more.exists()
        assert path.read_text() == before
    for name in ("dvc.yaml", "grids/dvc.yaml"):
        assert f"papers/toy/{name}: written, as paper.yaml says\n" in done.stdout
    more.unlink()
    assert (toy / "papers/toy/runs/more/fedavg/result.json").exists() == ("/" in stage)


def test_a_grid_of_scenarios_that_read_different_sets_is_one_line(tmp_path):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "papers/mine").mkdir(parents=True)
    document = yaml.safe_load((ROOT / "papers/rahfl/paper.yaml").read_text())
    plain, corrupted = list(document["scenarios"])[:2]
    del document["scenarios"][plain]["corruption"]
    document["grids"]["both"] = {
        "scenarios": [plain, corrupted],
        "methods": [next(iter(document["methods"]))],
    }
    (tmp_path / "papers/mine/paper.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ParamError) as error:
        sync(tmp_path)
    assert "\n" not in str(error.value)
    assert "papers/mine/paper.yaml: grids.both" in str(error.value)
    assert not (tmp_path / "papers/mine/dvc.yaml").exists()


def entries(lines: list[str]) -> dict[str, list[str]]:
    """`state:    measured` -> {"state": ["measured"]}, of the lines above the first section."""
    actual: dict[str, list[str]] = {}
    for line in itertools.takewhile(str.strip, lines):
        name, colon, text = line[:10].partition(":")
        if colon:
            actual.setdefault(name, []).append(line[10:])
    return actual


def test_a_cell_is_explained_with_its_numbers():
    cell = Cell("fedlsa", "mini", "fedlsa")
    result = json.loads((cell.folder() / "result.json").read_text())
    lines = fedrepro("explain", str(cell))
    reply, values = entries(lines), result["measures"][result["headline"]]
    assert reply["measured"][0].startswith(
        f"{fmean(values):.2f} ({result['headline']}; seeds 0, 1: {values[0]:.2f}, {values[1]:.2f})"
    )
    assert reply["command"] == [f"fedrepro run {cell}"]
    assert reply["stage"] == [cell.stage(load_paper("fedlsa"))]
    assert reply["page"] == ["reports/fedlsa.html"]
    assert reply["state"][0].startswith("measured, ")
    for name, value in result["hyper"].items():
        assert re.search(rf"^  {name} +{re.escape(str(value))}\b", "\n".join(lines), re.MULTILINE), name


def test_a_tuned_cell_is_explained_with_what_was_chosen():
    cell = next(choices.tuned_cells())
    document = choices.read(cell)
    reply = " ".join(" ".join(fedrepro("explain", str(cell))).split())
    values = document["configurations"][document["chosen"]]["values"]
    assert f" with {', '.join(f'{name} {value}' for name, value in values.items())}: " in reply
    count, file = len(document["configurations"]), choices.path(cell).relative_to(ROOT)
    assert f"best of {count} configurations in {file}" in reply
    untuned = json.loads((choices.published(cell).folder() / "result.json").read_text())
    before = fmean(untuned["measures"][untuned["headline"]])
    seeds = ", ".join(map(str, untuned["seeds"]))
    assert re.search(rf"untuned: (stale: )?{before:.2f} \({untuned['headline']}; seeds {seeds}:", reply)


def test_words_of_a_table_lead_to_its_numbers():
    reply = entries(fedrepro("explain", "fedcrl", "table II", "CIFAR-10", "FedProx", "practical"))
    with (ROOT / "papers/fedcrl/published/table2.csv").open(newline="") as file:
        printed = [
            row["value"]
            for row in csv.DictReader(file)
            if (row["dataset"], row["method"]) == ("CIFAR-10", "FedProx") and "practical" in row["setting"]
        ]
    assert reply["cell"] == ["fedcrl/cifar10-dir-01/fedprox: FedProx (fedprox) of FedCRL"]
    assert [text.split()[0] for text in reply["printed"]] == printed
    assert len(reply["measured"]) == len(printed) > 0


def test_words_that_name_many_cells_are_answered_with_commands():
    first, *commands = fedrepro("explain", "fedcrl", "II", "CIFAR-10")
    assert first.startswith(f"table II has {len(commands)} cells")
    assert len(commands) > 2
    words = commands[-1].split()
    assert words[:2] == ["fedrepro", "explain"]
    assert entries(fedrepro(*words[1:]))["cell"][0].startswith(words[2])


def here(project: Path, *words: str, expect: int = 0) -> subprocess.CompletedProcess:
    return run(project, sys.executable, "-m", "pipeline", *words, expect=expect)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """A checkout without papers but for a new one, `toy`, of one round; everything else is committed."""
    helpers = [f"tests/{path.name}" for path in (ROOT / "tests").glob("[!t]*.py")]
    project = checkout(tmp_path_factory.mktemp("checkout"), COPIED, *helpers)
    here(project, "new", "paper", "toy")
    return project


def changed(project: Path) -> list[str]:
    """The files that git sees."""
    return sorted(
        line[3:] for line in run(project, "git", "status", "--porcelain", "-uall").stdout.splitlines()
    )


def test_a_stage_mends_a_lock_file_that_an_earlier_one_has_copied(toy):
    """As in a plain `dvc repro` after one that was killed."""
    lock, text = toy / "papers/toy/dvc.lock", "schema: '2.0'\nstages:\n  one:\n    cmd: python one\n"
    copies = toy / ".cells/locks"
    shutil.rmtree(copies, ignore_errors=True)  # of a run of another test
    (toy / ".dvc/tmp").mkdir(exist_ok=True)
    lock.write_text(text)
    assert stage(toy, "sources", "toy").stderr == ""
    lock.write_text("")
    assert stage(toy, "sources", "toy").stderr.startswith("warning: papers/toy/dvc.lock is empty")
    assert lock.read_text() == text
    lock.unlink()
    shutil.rmtree(copies)


def test_clients_that_are_not_here_are_dealt_by_their_stage_from_any_folder(tmp_path, monkeypatch):
    cell, asked, codes = Cell("fedlsa", "mini", "fedavg"), [], [1, 0]
    monkeypatch.setattr(run_command, "ROOT", tmp_path)
    monkeypatch.setattr(run_command, "main", lambda stages: asked.append((stages, Path.cwd())) or codes.pop())
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    run_command.bring_partition(cell)
    assert asked == [(["papers/fedlsa/dvc.yaml:partition-mini"], tmp_path)]
    assert Path.cwd().name == "sub"
    with pytest.raises(FedReproError, match="fedlsa/mini: its clients cannot be drawn here"):
        run_command.bring_partition(cell)
    (tmp_path / "papers/fedlsa/partitions/mini").mkdir(parents=True)
    run_command.bring_partition(cell)
    assert len(asked) == 2


def test_extra_seeds_deal_their_clients_from_any_folder(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(variants.arithmetic, "adopt", lambda *kinds: None)
    monkeypatch.setattr(variants, "check_environment", lambda: None)
    monkeypatch.setattr(run_command, "main", lambda stages, jobs: asked.append((stages, Path.cwd())) or 1)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedReproError, match="could not be made"):
        variants.train([ExtraSeeds("fedlsa", "mini", "fedavg", (7,))], None)
    assert asked == [(["papers/fedlsa/dvc.yaml:partition-mini"], ROOT)]
    assert Path.cwd() == tmp_path


def test_a_model_is_exported_in_a_fresh_clone(monkeypatch):
    monkeypatch.setattr(export.arithmetic, "adopt", lambda kind: None)
    monkeypatch.setattr(export, "check_environment", lambda: None)
    monkeypatch.setattr(export, "verify", lambda experiment: pytest.fail("before its clients are dealt"))

    def bring(cell):
        raise FedReproError(f"{cell} is brought")

    monkeypatch.setattr(run_command, "bring_partition", bring)
    with pytest.raises(FedReproError, match="fedlsa/mini/fedavg is brought"):
        export.model("fedlsa/mini/fedavg", None, None)


def test_a_new_project_has_what_its_stages_depend_on(tmp_path):
    """Each dependency is a file of the project or what another stage writes."""
    new.project(str(tmp_path / "mine"))
    index = Repo(str(tmp_path / "mine")).index
    made = [Path(out.fs_path) for out in index.outs]
    read = {Path(dep.fs_path) for stage in index.stages for dep in stage.deps}
    lacking = {path for path in read if not path.exists() and not {path, *path.parents}.intersection(made)}
    # folders into which stages write files
    lacking -= {path for path in lacking if any(path in out.parents for out in made)}
    assert len(index.stages) > 10
    assert lacking == set()


def test_a_new_project_has_the_pages_that_its_files_name(tmp_path):
    new.project(str(tmp_path / "mine"))
    named = {
        page
        for pattern in ("pipeline/**/*.py", "papers/**/*.yaml", "dvc.yaml")
        for file in (tmp_path / "mine").glob(pattern)
        for page in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text(encoding="utf-8"))
    }
    assert "docs/adding-a-paper.md" in named
    assert [page for page in sorted(named) if not (tmp_path / "mine" / page).is_file()] == []


@pytest.mark.parametrize(
    "options, files",
    [
        ((), ["pipeline/methods/fedmine.py", "tests/methods/test_fedmine.py"]),
        (("toy",), ["papers/toy/methods/ours.py", "papers/toy/tests/test_ours.py"]),
    ],
)
def test_a_new_method_is_a_file_with_a_test_that_passes(toy, options, files):
    name, before = Path(files[0]).stem, changed(toy)
    new.method(name, *options, root=toy)
    assert set(changed(toy)) - set(before) == set(files)
    assert "1 passed" in run(toy, sys.executable, "-m", "pytest", "-q", files[1]).stdout
    assert here(toy, "sync", "--check").stdout == ""
    with pytest.raises(FedReproError, match=f"{files[0]}: there is such a file already"):
        new.method(name, *options, root=toy)


def test_a_new_cluster_is_a_class_with_a_test_that_passes_and_a_row_in_the_table(toy):
    before = changed(toy)
    here(toy, "new", "cluster", "night_shift")
    test = "tests/clusters/test_night_shift.py"
    files = {"pipeline/clusters/__init__.py", "pipeline/clusters/night_shift.py", test}
    assert set(changed(toy)) - set(before) == files
    assert "2 passed" in run(toy, sys.executable, "-m", "pytest", "-q", test).stdout
    run(toy, sys.executable, "-m", "ruff", "check", "--quiet", *files)
    run(toy, sys.executable, "-m", "ruff", "format", "--check", "--quiet", *files)
    (line,) = here(toy, "new", "cluster", "night_shift", expect=2).stderr.splitlines()
    assert line == "error: pipeline/clusters/night_shift.py: there is such a file already"
    run(toy, "git", "checkout", "--", "pipeline/clusters/__init__.py")
    (toy / "pipeline/clusters/night_shift.py").unlink()
    (toy / test).unlink()


def test_a_new_cluster_is_the_example_of_the_page(tmp_path):
    page = (ROOT / "docs/adding-a-cluster.md").read_text(encoding="utf-8")
    (tmp_path / "pipeline/clusters").mkdir(parents=True)
    table = tmp_path / "pipeline/clusters/__init__.py"
    table.write_text("CLUSTERS = {\n}\n")
    new.cluster("background", root=tmp_path)
    code = (tmp_path / "pipeline/clusters/background.py").read_text()
    assert f"```python file=pipeline/clusters/background.py\n{code}```\n" in page
    (row,) = table.read_text().splitlines()[1:-1]
    assert f'after="CLUSTERS = {{"\n{row}\n```' in page


def test_a_table_of_clusters_that_is_not_found_is_named_before_anything_is_written(tmp_path):
    (tmp_path / "pipeline/clusters").mkdir(parents=True)
    (tmp_path / "pipeline/clusters/__init__.py").write_text("OTHERS = {}\n")
    with pytest.raises(FedReproError, match="clusters/__init__.py: expected a line `CLUSTERS = {`"):
        new.cluster("mine", root=tmp_path)
    assert [path.name for path in tmp_path.rglob("*.py")] == ["__init__.py"]


def test_a_new_part_of_a_paper_has_a_test_that_passes(toy):
    before = changed(toy)
    for what, (file, _) in PARTS.items():
        for name in (f"first_{what}", f"second_{what}"):
            reply = here(toy, "new", what, name, "--paper", "toy").stdout
            assert f"papers/toy/{file}: written" in reply
        (line,) = here(toy, "new", what, name, "--paper", "toy", expect=2).stderr.splitlines()
        assert line == f"error: papers/toy/{file}: there is {name!r} already"
    files = {f"papers/toy/{file}" for file, _ in PARTS.values()}
    tests = [f"papers/toy/tests/test_{nth}_{what}.py" for what in PARTS for nth in ("first", "second")]
    assert set(changed(toy)) - set(before) == files | {*tests}
    assert "8 passed" in run(toy, sys.executable, "-m", "pytest", "-q", *tests).stdout
    run(toy, sys.executable, "-m", "ruff", "check", "--quiet", *files)
    assert here(toy, "sync", "--check").stdout == ""


def test_a_papers_repository_ignores_what_is_no_result(toy):
    run(toy / "papers/toy", "git", "init", "-q")
    assert "papers/toy/.gitignore: written" in here(toy, "sync").stdout
    (toy / "papers/toy/partitions").mkdir(exist_ok=True)
    (toy / "papers/toy/partitions/x").write_text("")
    assert "partitions/" not in run(toy / "papers/toy", "git", "status", "--short").stdout
    shutil.rmtree(toy / "papers/toy/.git")


def test_the_installed_command_runs_the_checkout_that_one_is_in(toy):
    """Installed from this repository, called in the copy, in its paper's folder and outside of any."""
    code = "import sys; sys.argv[1:] = {}; from pipeline.commands.cli import here; here()"

    def installed(folder: Path, *words: str) -> str:
        command = (sys.executable, "-P", "-c", code.format([*words]))
        return run(folder, *command, PYTHONPATH=str(ROOT)).stdout

    for folder in (toy, toy / "papers/toy"):
        reply = installed(folder, "status")
        assert "\ntoy " in reply
        assert papers()[0] not in reply
    assert "fedlsa/mini/fedavg" in installed(toy.parent, "explain", "fedlsa/mini/fedavg")


@pytest.mark.parametrize(
    "words", [("pipeline", "status"), ("pipeline", "sync", "--check"), ("stages.sources", "toy")]
)
def test_the_code_of_another_checkout_is_refused(toy, words):
    before, elsewhere = changed(toy), {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)}
    done = run(toy / "papers", sys.executable, "-m", *words, expect=2, **elsewhere)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert str(toy) in done.stderr
    assert str(ROOT) in done.stderr
    assert changed(toy) == before


def test_children_run_the_code_of_their_parent(toy, monkeypatch):
    """Of `reproduce` that of the clone, of `run` this one, before whatever else PYTHONPATH names."""
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    for environment, root in ((reproduce._environment(ROOT, toy), toy), (surroundings(ROOT), ROOT)):
        assert environment["PYTHONPATH"].split(os.pathsep) == [str(root), "elsewhere"]
        code = "import pipeline; print(pipeline.__file__)"
        reply = run(
            ROOT.parent, sys.executable, "-P", "-c", code, PYTHONPATH=environment["PYTHONPATH"]
        ).stdout
        assert reply.strip() == str(root / "pipeline/__init__.py")
