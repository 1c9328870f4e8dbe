"""Why a result is stale, in words: definitions with their commits, parameters, partitions, data and seeds."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from repository import CELL, commit, git

from pipeline.cells.experiment import Experiment
from pipeline.commands import check, explain, status
from pipeline.data import partition
from pipeline.provenance import changes, identity
from pipeline.schema import Cell

FILE = "pipeline/methods/fedprox.py"
TEXT = """class FedProx:
    mu = 0.01

    def loss(self, x):
        return x + self.mu

    def copies(self):
        return 3


def helper():
    return 1
"""
DEFINITIONS = {"pipeline.methods.fedprox": "FedProx 1a, FedProx.copies 2b, FedProx.loss 3c, helper 4d"}
PARAMETERS = {"training.optimiser.lr": 0.01, "training.rounds": 10, "hyper.mu": 0.1}
SETS = {"data": {"set": "digits", "digest": "d"}, "public": None}


@pytest.fixture
def root(tmp_path):
    """A repository with one method."""
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(TEXT)
    commit(tmp_path)
    return tmp_path


@pytest.fixture
def experiment(root, monkeypatch):
    """A cell of two seeds, with today's digests as results record them."""
    today = {"definitions": dict(DEFINITIONS), "parameters": dict(PARAMETERS)}
    monkeypatch.setattr(identity, "recorded", lambda *of: today)
    here = {"altered": "", **SETS}
    monkeypatch.setattr(changes, "_today", lambda experiment, seed: {"digest": f"p{seed}"} | here)
    scenario = SimpleNamespace(seeds=[0, 1], partition=SimpleNamespace(fixed=False))
    cell = Cell.parse("fedcrl/mini/fedprox")
    return SimpleNamespace(root=root, cell=cell, algorithm="fedprox", scenario=scenario)


def result(experiment, **others) -> dict:
    digests = {"definitions": dict(DEFINITIONS), "parameters": dict(PARAMETERS)}
    state = {"commit": git(experiment.root, "rev-parse", "HEAD"), "dirty": False}
    stored = {"seeds": [0, 1], "partitions": ["p0", "p1"], "executor": "sequential", "precision": "fp32"}
    return stored | {"git": state, "digests": digests, **SETS} | others


def lines(stored, experiment) -> list[str]:
    return list(changes.lines(stored, experiment))


def test_where_nothing_differs_nothing_is_said(experiment):
    assert lines(result(experiment), experiment) == []


def test_a_changed_definition_is_named_with_the_commit_that_changed_it(experiment, root):
    stored = result(experiment)
    stored["digests"]["definitions"]["pipeline.methods.fedprox"] = DEFINITIONS[
        "pipeline.methods.fedprox"
    ].replace("3c", "0f")
    for text in (
        TEXT.replace("return 1", "return 2"),
        TEXT.replace("x + self", "x - self"),
        TEXT + "\n# end\n",
    ):
        (root / FILE).write_text(text)
        git(root, "commit", "-qam", "a change")
    two = git(root, "rev-parse", "--short", "HEAD~1")
    agreed, changed = lines(stored, experiment)
    assert agreed.startswith(
        f"its code agrees with today's up to {git(root, 'rev-parse', '--short', 'HEAD~2')}"
    )
    # the last commit takes the change back, but for a comment
    assert "FedProx.loss of pipeline.methods.fedprox changed (commit " in changed
    assert two in changed or git(root, "rev-parse", "--short", "HEAD") in changed


def test_a_changed_parameter_has_both_values(experiment):
    stored = result(experiment)
    stored["digests"]["parameters"]["training.optimiser.lr"] = 0.02
    assert lines(stored, experiment) == ["training.optimiser.lr 0.02 -> 0.01"]


def test_another_partition_names_the_seed(experiment):
    assert lines(result(experiment, partitions=["p0", "other"]), experiment) == ["partition of seed 1"]


def test_another_data_set_is_named_once(experiment):
    other = {"set": "digits", "digest": "of yesterday"}
    assert lines(result(experiment, data=other), experiment) == ["data set digits"]


def test_seeds_that_are_missing_are_listed(experiment):
    experiment.scenario.seeds = [0, 1, 2, 3]
    assert lines(result(experiment), experiment) == ["seeds 2, 3 are not in it"]


def test_partitions_that_are_not_here_are_not_compared(experiment, monkeypatch):
    monkeypatch.setattr(changes, "_today", lambda experiment, seed: None)
    assert lines(result(experiment, partitions=["other", "other"]), experiment) == []


def test_of_an_older_result_the_definitions_are_read_from_git(experiment, root, monkeypatch):
    stored = result(experiment)
    del stored["digests"]
    monkeypatch.setattr(changes, "_parameters_since", lambda *of: iter(()))
    (root / FILE).write_text(TEXT.replace("mu = 0.01", "mu = 0.02"))
    git(root, "commit", "-qam", "another default")
    when = git(root, "show", "-s", "--format=%h, %as")
    assert lines(stored, experiment)[1:] == [f"FedProx of pipeline.methods.fedprox changed (commit {when})"]


def test_without_the_commit_nothing_is_compared(experiment):
    stored = result(experiment, git={"commit": "0" * 40})
    del stored["digests"]
    assert lines(stored, experiment) == [
        "the commit that trained it is not here, so that nothing can be compared"
    ]


def test_a_walk_that_gave_other_numbers_is_the_first_cause(experiment, monkeypatch):
    entry = {
        "how": "refused, seed 0, round 2: loss is 2 instead of 1",
        "date": "2026-11-29T10:00",
        "processor": "A",
    }
    monkeypatch.setattr(identity, "refused", lambda result, experiment: entry)
    stored = result(experiment)
    assert changes.cause(stored, experiment) == changes.REFUSAL
    assert lines(stored, experiment)[0].startswith("refused, seed 0, round 2: loss is 2 instead of 1 (verify")


@pytest.mark.parametrize(
    "stored, made, wanted",
    [
        ({}, None, changes.DAMAGE),
        ({"seeds": [0]}, "m", changes.SEEDS),
        ({"seeds": [0, 1]}, "m", changes.PARTITION),
        ({"seeds": [0, 1], "partitions": ["p0", "p0"]}, None, changes.PARTITION),
        ({"seeds": [0, 1], "partitions": ["p0", "p1"]}, None, changes.PARAMETERS),
        ({"seeds": [0, 1], "partitions": ["p0", "p1"]}, "m", changes.CODE),
    ],
)
def test_a_stale_cell_has_one_cause(experiment, monkeypatch, stored, made, wanted):
    monkeypatch.setattr(identity, "made_by", lambda result, experiment: made)
    assert changes.cause(stored and stored | SETS, experiment) == wanted


# -- partitions and data that are here -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(finished, tmp_path_factory):
    """A checkout with one trained cell and no other result."""
    root = shutil.copytree(finished, tmp_path_factory.mktemp("changes") / "copy", symlinks=True)
    own = Cell.parse(CELL).folder(root)
    for folder in root.glob("papers/*/runs/*/*/"):
        if folder != own:
            shutil.rmtree(folder)
    return root


PLACE, DIGITS = "papers/fedcrl/partitions/mini", "data/digits"


def arrays(root, change, description=False):
    """Change the arrays of the first seed's partition, and the digest in its description where asked."""
    place = root / PLACE
    with np.load(place / partition.INDICES) as read:
        held = dict(read)
    change(held)
    np.savez_compressed(place / partition.INDICES, **held)
    if description:
        meta = json.loads((place / "meta.json").read_text())
        meta["digest"] = partition.content_digest(held, {key: meta[key] for key in ("data", "public")})
        (place / "meta.json").write_text(json.dumps(meta))


def swap(held):
    """An image of one client for an image of another."""
    held["train.0"][0], held["train.1"][0] = held["train.1"][0], held["train.0"][0]


def labels(root):
    file = root / DIGITS / "labels.npy"
    values = np.load(file)
    values[:2] = values[:2][::-1]
    np.save(file, values)


CHANGED = {
    "arrays with their description": (
        lambda root: arrays(root, swap, description=True),
        "partition of seed 0",
    ),
    "arrays alone": (lambda root: arrays(root, swap), f"partition {PLACE}: its arrays were altered"),
    "labels": (labels, f"labels {DIGITS}/labels.npy: they were altered"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_partition_that_changed_after_the_training_makes_the_result_stale(trained, change, capsys):
    plant, said = CHANGED[change]
    cell = Cell.parse(CELL)
    result = status.read_result(cell, trained)
    assert not status.stale(cell, result, trained)
    files = [*(trained / PLACE).rglob("*"), *(trained / DIGITS).glob("*")]
    before = {path: path.read_bytes() for path in files if path.is_file()}
    plant(trained)
    try:
        assert status.stale(cell, result, trained)
        assert status.cause(cell, result, trained) == changes.PARTITION
        text = " ".join("\n".join(explain.lines(cell, [], trained)).split())
        assert "stale: measured with other partition" in text
        assert f"differs: {said}" in text
        assert f"stale by partition: 1: {CELL}" in [*check._stale_and_stamped(["fedcrl"], trained)]
        assert changes.other_inputs(result, Experiment.of(cell, trained)) == [said]
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    assert not status.stale(cell, result, trained)


def test_a_definition_whose_module_moved_is_the_same(experiment, monkeypatch):
    moved = {"definitions": {"pipeline.training.seeds": "train_seed 1a"}, "parameters": {}}
    monkeypatch.setattr(identity, "recorded", lambda *of: moved)
    for digest, differs in (("1a", False), ("2b", True)):
        of_then = {"definitions": {"pipeline.cells.seeds": f"train_seed {digest}"}, "parameters": {}}
        said = list(changes.lines(result(experiment, digests=of_then), experiment))
        assert [
            line for line in said if "train_seed of pipeline.training.seeds changed" in line
        ] or not differs
        assert differs or not said


def test_a_definition_is_followed_to_where_its_module_lay_before(root):
    before = root / "pipeline/cells/seeds.py"
    before.parent.mkdir(parents=True)
    before.write_text("def train_seed():\n    return 1\n")
    commit(root)
    first = git(root, "rev-parse", "HEAD")
    today = root / "pipeline/training/seeds.py"
    today.parent.mkdir()
    before.rename(today)
    commit(root)
    place = "pipeline.training.seeds:train_seed"
    assert changes._digest_at(root, first, place) == changes._digest_at(root, "", place) != ""
    assert changes._commit_of(place, first, root) == ""
    today.write_text("def train_seed():\n    return 2\n")
    commit(root)
    assert changes._commit_of(place, first, root).startswith(git(root, "rev-parse", "--short", "HEAD"))
