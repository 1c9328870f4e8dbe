"""Papers and methods are found where they lie: the code lists neither, a paper needs its folder alone."""

import math
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from federation import image_world
from reporting import write_run
from repository import commit, edit, git, reread

from pipeline import methods
from pipeline.cells import results
from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import described, hyper_parameters
from pipeline.cells.test_sets import TestSet
from pipeline.commands import explain
from pipeline.commands.bring import bring, other_checkout, trust
from pipeline.commands.sync import sync
from pipeline.data.partition import partition
from pipeline.data.parts import Pool
from pipeline.data.registry import sets
from pipeline.errors import FedReproError, ParamError, TrainingError
from pipeline.files import machine
from pipeline.methods.fedavg import FedAvg
from pipeline.provenance import identity
from pipeline.schema import ROOT, Cell, discovery, folders, load_module, load_paper, method_names, papers
from pipeline.training import metrics
from pipeline.training.checks import check_names
from pipeline.training.evaluation import measure

OURS = '''"""Ours: FedAvg with a separate number."""
from dataclasses import dataclass

from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Positive


class Sums(dict):
    pass


@dataclass(frozen=True)
class Ours(FedAvg):
    """As FedAvg."""
    headline = "weighted"
    rate: Positive = 0.5

    def round(self, state, world):
        return super().round(state, world)
'''


@pytest.fixture(scope="module")
def two_papers(tmp_path_factory) -> Path:
    """A repository of two papers under other names than here, one of which has a separate method; not to be
    changed."""
    folder = tmp_path_factory.mktemp("two_papers")
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "stages").symlink_to(ROOT / "stages")
    shutil.copy(ROOT / "params.yaml", folder)
    for name, order in (("zeta", 1), ("alpha", 2)):
        copy_of_a_paper(folder, name, order)

    def with_ours(paper):
        paper["methods"]["ours"] = {"rate": 0.25}
        paper["miniature"]["methods"].append("ours")

    change(folder, "alpha", with_ours)
    (folder / "papers/alpha/methods").mkdir()
    (folder / "papers/alpha/methods/ours.py").write_text(OURS)
    return folder


@pytest.fixture
def root(two_papers, tmp_path) -> Path:
    """A copy of it that a test may change."""
    return shutil.copytree(two_papers, tmp_path, symlinks=True, dirs_exist_ok=True)


def copy_of_a_paper(root: Path, name: str, order: int) -> None:
    (root / "papers" / name).mkdir(parents=True)
    shutil.copy(ROOT / "papers/fedlsa/paper.yaml", root / "papers" / name)
    shutil.copytree(ROOT / "papers/fedlsa/published", root / "papers" / name / "published")

    def shorten(paper):
        paper["order"] = order
        paper["miniature"]["methods"] = ["fedavg", "fedlsa"]

    change(root, name, shorten)


def change(root: Path, name: str, how) -> None:
    edit(root / "papers" / name / "paper.yaml", how)


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_papers_are_the_folders_with_a_paper_yaml_in_their_order(root, tmp_path_factory):
    (root / "papers/notes").mkdir()
    (root / "papers/notes/dvc.yaml").write_text("stages: {}\n")
    (root / "papers/README.md").write_text("no folder\n")
    assert papers(root) == ("zeta", "alpha")
    copy_of_a_paper(root, "mine", 1)
    assert papers(root) == ("mine", "zeta", "alpha")  # of one order: by name
    shutil.rmtree(root / "papers/zeta")
    assert papers(root) == ("mine", "alpha")
    elsewhere = tmp_path_factory.mktemp("repository") / "theirs"
    shutil.copytree(root / "papers/mine", elsewhere)
    (root / "papers/theirs").symlink_to(elsewhere)
    assert papers(root) == ("mine", "theirs", "alpha")


@pytest.mark.parametrize("name", ["my paper", "mine@2", "mini", "across", "index"])
def test_a_folder_that_no_stage_or_page_can_be_named_after_is_one_line(root, name):
    copy_of_a_paper(root, ".backup", 9)
    assert papers(root) == ("zeta", "alpha")
    copy_of_a_paper(root, name, 9)
    with pytest.raises(ParamError) as error:
        papers(root)
    assert f"papers/{name}" in one_line(error)


def test_a_papers_method_is_loaded_and_described_and_of_no_other_paper(root, capsys):
    method = methods.load("ours", {"rate": 0.25}, "test", "alpha", root)
    assert type(method).__name__ == "Ours"
    assert method.rate == 0.25
    assert method.headline == "weighted"
    method = described("ours", "alpha", root)
    assert [kind.__name__ for kind in type(method).__mro__[:2]] == ["Ours", "FedAvg"]
    assert method.rate == 0.5
    assert [
        (one.name, one.value)
        for one in hyper_parameters(Experiment.of(Cell("alpha", "mini", "ours"), root))
        if one.name == "rate"
    ] == [("rate", 0.25)]
    assert explain.explain(["alpha/mini/ours"], root) == 0
    text = capsys.readouterr().out
    assert "alpha/mini/ours: ours (ours) of FedLSA" in text
    assert "fedrepro run alpha/mini/ours" in text
    with pytest.raises(ParamError) as error:
        methods.load("ours", {}, "papers/zeta/paper.yaml: methods.ours", "zeta", root)
    assert one_line(error).startswith("papers/zeta/paper.yaml: methods.ours: unknown method 'ours'")
    assert "ours" not in method_names(root=root)
    assert "ours" in method_names("alpha", root)


def digests(root) -> dict[Cell, str]:
    reread()
    methods_of = {paper: load_paper(paper, root).miniature.methods for paper in papers(root)}
    cells = [Cell(paper, "mini", method) for paper in methods_of for method in methods_of[paper]]
    return {cell: identity.digest_of(Experiment.of(cell, root)) for cell in cells}


def test_changing_it_changes_the_digest_of_its_cells_and_of_no_other(root):
    before, path = digests(root), root / "papers/alpha/methods/ours.py"
    path.write_text(OURS.replace("as fedavg", "").replace("FedAvg with", "FedAvg, with"))
    assert digests(root) == before  # another docstring
    path.write_text(OURS.replace(".round(state, world)", ".round(super().round(state, world), world)"))
    stale = {cell for cell, digest in digests(root).items() if digest != before[cell]}
    assert stale == {Cell("alpha", "mini", "ours")}


@pytest.mark.parametrize(
    "text",
    ['"""Nothing yet."""\n', "class Ours:\n    pass\n", "def round(state, world):\n    return state\n"],
)
def test_a_file_without_a_method_is_one_line(root, text):
    (root / "papers/alpha/methods/ours.py").write_text(text)
    for look in (
        lambda: methods.load("ours", {}, "test", "alpha", root),
        lambda: explain.explain(["alpha/mini/ours"], root),
    ):
        with pytest.raises(ParamError) as error:
            look()
        assert "papers/alpha/methods/ours.py: no class of pipeline.methods.base.Method" in one_line(error)


WORST = """def worst_client(clients):
    return min(client.accuracy for client in clients)


def large(clients):
    return {}
"""


def naming(*metrics):
    return lambda paper: paper["miniature"]["scenario"]["evaluation"].update(metrics=[*metrics])


def test_a_metric_concerns_the_cells_that_name_it(root):
    before, file = digests(root), root / "papers/alpha/metrics.py"
    file.write_text(WORST.format(100))
    assert digests(root) == before
    change(root, "alpha", naming("worst_client"))
    named = digests(root)
    assert {cell.paper for cell in named if named[cell] != before[cell]} == {"alpha"}
    file.write_text(WORST.format(-1))
    assert digests(root) == named  # another metric of the file
    file.write_text(WORST.replace("min", "max").format(100))
    assert {cell.paper for cell, digest in digests(root).items() if digest != named[cell]} == {"alpha"}
    change(root, "alpha", naming("wurst_client"))
    with pytest.raises(ParamError) as error:
        check_names("alpha", root)
    assert "alpha/paper.yaml: miniature.scenario.evaluation.metrics: unknown metric" in one_line(error)


def test_a_metric_gets_the_scores_of_every_client_with_test_images(root):
    (root / "papers/alpha/metrics.py").write_text(WORST.format(101))
    world = image_world((20, 33, 7))
    model = FedAvg().init(world).model
    tests = [TestSet(one.name, one.images, one.labels) for one in world.clients[:2]]
    tests.append(TestSet("c2", world.clients[2].images[:0], world.clients[2].labels[:0]))
    arguments = world.everyone(model), world, tests
    accuracies = [a for a in measure(*arguments, "clients")[1] if not math.isnan(a)]

    def scores(network, images, client):
        return network(images)

    def measured(*names) -> dict[str, float]:
        change(root, "alpha", naming(*names))
        return metrics.measured(Experiment.of(Cell("alpha", "mini", "ours"), root), *arguments, scores)

    assert measured() == {}
    assert measured("worst_client") == {"metric.worst_client": pytest.approx(min(accuracies))}
    assert len(accuracies) == 2
    assert min(accuracies) < max(accuracies)
    with pytest.raises(TrainingError, match="alpha/metrics.py: large: 101 is not a percentage"):
        measured("large")


@pytest.fixture
def theirs(root, tmp_path_factory) -> Path:
    """Another group's paper, whose files leave a mark when they run."""
    folder = tmp_path_factory.mktemp("elsewhere") / "theirs"
    shutil.copytree(root / "papers/zeta", folder)
    document = yaml.safe_load((folder / "paper.yaml").read_text())
    scenario = document["miniature"]["scenario"]
    scenario["partition"] = {"kind": "halves", "clients": 5, "power": 2.0}
    scenario["evaluation"]["metrics"] = ["worst_client"]
    document["methods"]["new"] = {}
    document["miniature"]["methods"].append("new")
    (folder / "paper.yaml").write_text(yaml.safe_dump(document))
    (folder / "methods").mkdir()
    mark = f"open({str(root / 'ran')!r}, 'a').close()\n"
    for name in THEIR_FILES:
        (folder / f"{name}.py").write_text(mark)
    (folder / "metrics.py").write_text(mark + WORST)
    (folder / "partitions.py").write_text(mark + HALVES)
    return folder


THEIR_FILES = ("data", "models", "metrics", "figures", "partitions", "methods/new")
HALVES = """
from dataclasses import dataclass

from pipeline.schema import Pooled


@dataclass(frozen=True)
class Halves(Pooled):
    kind = "halves"
    power: float = 1.0
"""


def test_a_paper_is_imported_without_running_its_code(root, theirs, capsys):
    assert bring(str(theirs), None, root) == 0
    with pytest.raises(FedReproError, match="papers/theirs: was imported, .*`fedrepro trust theirs`"):
        load_paper("theirs", root)
    with pytest.raises(FedReproError, match="papers/theirs: was imported"):
        load_module("papers.theirs.data", root / "papers/theirs/data.py")
    sets(root), sync(root), results.survey(root)
    assert "theirs" not in folders(root)
    assert not list((root / "papers/theirs").rglob("dvc.yaml"))
    assert not (root / "ran").exists()
    assert "data.py, figures.py" in capsys.readouterr().out
    trust("theirs", root)
    assert load_paper("theirs", root).scenarios["mini"].partition.power == 2.0
    assert (root / "ran").exists()


def test_a_paper_whose_name_is_papers_does_not_run_either(root, theirs):
    assert bring(str(theirs), "papers", root) == 0
    with pytest.raises(ParamError, match="papers/papers: was imported, .*`fedrepro trust papers`"):
        load_module("papers.papers.data", root / "papers/papers/data.py")
    assert not (root / "ran").exists()


@pytest.fixture
def only_read(root, theirs):
    """The temporary checkout in which this paper is read before it is imported."""
    with other_checkout(root) as checkout:
        shutil.copytree(theirs, checkout / "papers/theirs")
        yield checkout


@pytest.mark.parametrize("name", THEIR_FILES)
def test_no_python_file_runs_in_a_checkout_that_is_only_read(root, only_read, name):
    file = only_read / "papers/theirs" / f"{name}.py"
    with pytest.raises(ParamError, match=f"papers/theirs/{name}.py: nobody trusts its paper yet"):
        load_module(f"papers.theirs.{name.replace('/', '.')}", file)
    assert not (root / "ran").exists()


@pytest.mark.parametrize(
    "look",
    [
        sets,
        lambda checkout: methods.load("new", {}, "test", "theirs", checkout),
        lambda checkout: described("new", "theirs", checkout),
        lambda checkout: metrics.load(Experiment.of(Cell("theirs", "mini", "new"), checkout)),
    ],
    ids=["sets", "methods.load", "described", "metrics.load"],
)
def test_what_needs_their_code_refuses_a_checkout_that_is_only_read(root, only_read, look):
    with pytest.raises(ParamError, match="nobody trusts its paper yet"):
        look(only_read)
    assert not (root / "ran").exists()


def test_a_checkout_that_is_only_read_has_its_parameters_and_results(root, only_read):
    write_run(only_read, "mini/new", {"average": [60.0]}, "theirs")
    scenario = load_paper("theirs", only_read).scenarios["mini"]
    found, problems = results.survey(only_read)
    assert scenario.partition.power == 2.0
    assert [*found] == [Cell("theirs", "mini", "new")]
    assert not problems
    assert not (root / "ran").exists()


def test_trust_is_for_imported_papers(root):
    with pytest.raises(FedReproError, match="papers/alpha: no imported paper that waits"):
        trust("alpha", root)


@pytest.mark.parametrize("source", ["fd::17", "ext::sh -c id", "unknown::x"])
def test_other_ways_to_fetch_than_git_s_usual_ones_are_refused(root, source):
    git(root, "init", "-q")
    with pytest.raises(FedReproError, match="git clone: "):
        bring(source, "evil", root)
    assert not list((root / "papers").glob(".*"))


def test_a_pipe_is_no_repository(root, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FedReproError, match="pipe: is no folder, no archive"):
        bring(str(tmp_path / "pipe"), "evil", root)


def test_what_a_killed_import_left_goes_with_the_next(root, theirs):
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = root / "papers" / f".import.{gone.pid}-{machine()}.new"
    (left / "papers").mkdir(parents=True)
    bring(str(theirs), None, root)
    assert not left.exists()


def test_a_paper_of_a_kind_that_its_files_do_not_have_is_not_imported(root, theirs):
    (theirs / "partitions.py").write_text(HALVES.replace('"halves"', '"thirds"'))
    with pytest.raises(FedReproError, match="papers/theirs/paper.yaml: .*unknown kind 'halves'"):
        bring(str(theirs), None, root)
    assert not (root / "papers/theirs").exists()


def test_a_paper_is_cloned_with_the_bytes_that_it_has(root, theirs, monkeypatch):
    (theirs / "data.py").unlink(), (theirs / "partitions.py").write_text(HALVES)
    commit(theirs)
    git(root, "init", "-q")
    (root / "gitconfig").write_text("[core]\nautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(root / "gitconfig"))
    bring(str(theirs), None, root)
    for path in theirs.glob("**/*.*"):
        if path.is_file() and ".git" not in path.parts:
            assert (root / "papers/theirs" / path.relative_to(theirs)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("text", ["def (\n", "\0", "-" * 100_000 + "1\n"])
def test_a_method_that_is_no_python_is_one_line(root, text):
    (root / "papers/alpha/methods/ours.py").write_text(text)
    with pytest.raises(FedReproError, match="papers/alpha/methods/ours.py: "):
        identity.digest_of(Experiment.of(Cell("alpha", "mini", "ours"), root))
    (root / "papers/alpha/models.py").write_text(text)
    with pytest.raises(ParamError, match="papers/alpha/models.py: "):
        discovery.functions("alpha", "models", root)


@pytest.mark.parametrize(
    "body", ["raise KeyError(5)", "return 5", "return [indices[:0]] * 5", "return ['x'] * 5"]
)
def test_a_kind_of_a_paper_that_fails_is_one_line(root, body):
    (root / "papers/alpha/partitions.py").write_text(
        f"{HALVES}\n    def cut(self, pool, indices, rng):\n        {body}\n"
    )
    settings = discovery.partition_kinds("alpha", root)["halves"](clients=5)
    images = Pool(np.arange(20) % 2, np.zeros(20), np.zeros(20, bool), ["all"], 2)
    with pytest.raises(ParamError, match="alpha.partition"):
        partition(settings, images, "alpha.partition")


@pytest.mark.parametrize("name, shape", [("Digits", [1]), ("raw", [1]), ("mÿ", [1]), ("mine", "x")])
def test_a_data_set_that_cannot_be_is_one_line(root, name, shape):
    """`Digits` and `digits` would share a folder on a Mac."""
    message = "shape: expected a list" if name == "mine" else ""
    text = f"from pipeline.data.registry import DataSet\n{name} = DataSet('T', {shape!r})\n"
    (root / "papers/alpha/data.py").write_text(text)
    with pytest.raises(ParamError, match=f"papers/alpha/data.py: {name}: {message}"):
        sets(root)
