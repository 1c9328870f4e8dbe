"""Killed and resumed, for methods that carry more than a model: the same rows, bit for bit."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from repository import copy_of_the_repository, edit, edited, python

from pipeline.cells.experiment import Experiment
from pipeline.engine.sequential import Sequential
from pipeline.engine.state import unpack
from pipeline.errors import TrainingError
from pipeline.schema import Cell
from pipeline.schema.cell import Variant
from pipeline.training import cache, trainer
from pipeline.training.checkpoint import SeedFiles
from pipeline.training.seeds import Job, train_seed

ROUNDS = 4
# What a method carries besides models, and must find again; of all methods: test_every_method.py.
CARRIED = {
    "fedlsa/mini/fedlsa": {"network", "anchors"},
    # its matrix of round 1 serves in rounds 2 and 3
    "rahfl/mini/asymhfl-every-3": {"accuracies", "matrix"},
}


def small(papers: dict[str, dict]) -> None:
    """Both miniatures with a few images and one seed."""
    for scenario in papers.values():
        scenario["training"] |= {"rounds": ROUNDS, "local_epochs": 2, "batch_size": 8}
        scenario["evaluation"]["last"] = 2
        scenario["data"]["size"] = 16
    papers["fedlsa"]["partition"] |= {"share": 0.02, "test_per_class": 5}
    papers["rahfl"]["partition"] |= {
        "sizes": dict.fromkeys(papers["rahfl"]["partition"]["sizes"], 20),
        "heldout": 20,
        "test_per_class": 5,
    }
    papers["rahfl"]["data"].pop("size")  # corrupted images have one size
    papers["rahfl"]["training"] |= {"pretraining": 1, "local_epochs": 1}
    papers["rahfl"]["public"] |= {"size": 32, "batch_size": 16}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy with two short miniatures partitioned."""
    papers = ("fedlsa", "rahfl")
    copy = copy_of_the_repository(tmp_path_factory.mktemp("project"), *papers)
    # this process, which has torch loaded, computes as the stages do
    (copy / "params.yaml").write_text("miniature: {seeds: [0]}\n")
    documents = {name: yaml.safe_load((copy / f"papers/{name}/paper.yaml").read_text()) for name in papers}
    small({name: document["miniature"]["scenario"] for name, document in documents.items()})
    for name, document in documents.items():
        (copy / f"papers/{name}/paper.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    calls = [
        ("data", ["digits", "digit_domains", "photo_patches"]),
        ("corrupt", ["digits"]),
        ("partition", ["fedlsa/mini", "rahfl/mini"]),
    ]
    # One interpreter for all of them: starting it is most of their time.
    lines = [
        f"from stages.{name} import {name}; {name}({what!r})" for name, all_of in calls for what in all_of
    ]
    code = "\n".join(["import sys; sys.path[:0] = ['.']", *lines])
    python(copy, code)
    return copy


def stopped(cell: Cell, project: Path, monkeypatch) -> Job:
    """A seed that was stopped dead after the second round's checkpoint."""
    monkeypatch.setenv("FEDREPRO_CHECKPOINT_SECONDS", "0")
    job = Job(Experiment.of(cell, project), 0, f"stopped-{cell.method}")

    def stop(row):
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_seed(job, stop)
    assert job.files.checkpoint.exists()
    assert not job.files.finished.exists()
    return job


@pytest.mark.parametrize("text", CARRIED)
def test_a_resumed_seed_has_the_rows_of_one_that_ran_through(project, text, monkeypatch):
    cell = Cell.parse(text)
    whole = train_seed(Job(Experiment.of(cell, project), 0, f"whole-{cell.method}"))
    job = stopped(cell, project, monkeypatch)
    saved = torch.load(job.files.checkpoint, weights_only=True)["content"]
    state = unpack(saved["state"])
    assert saved["rows"][-1]["round"] == 2
    assert CARRIED[text] <= state.keys()
    assert all(state[name] is not None for name in CARRIED[text])

    def again(*_):
        raise AssertionError("the resumed run starts anew")

    monkeypatch.setattr("pipeline.engine.world.World.new_models", again)  # no pretraining either
    monkeypatch.setattr("pipeline.engine.world.World.new_model", again)
    trained = []
    resumed = train_seed(job, trained.append)
    assert [row["round"] for row in trained] == list(range(3, ROUNDS + 1))
    assert [resumed[name] for name in SAME] == [whole[name] for name in SAME]
    assert not job.files.checkpoint.exists()
    assert len({row["loss"] for row in whole["rows"][1:]}) == ROUNDS


def trained(cell: Cell, name: str, project: Path, monkeypatch) -> tuple[dict, list]:
    """A seed as `train_seed` returns it, and the (stream, round) of the phases that were carried out."""
    phases = []

    def noted(self, phase):
        phases.append(phase.key[1:])
        return EACH(self, phase)

    monkeypatch.setattr(Sequential, "each", noted)
    return train_seed(Job(Experiment.of(cell, project), 0, name)), phases


EACH = Sequential.each
SAME = ("rows", "clients", "traffic", "hook")


def test_methods_of_a_scenario_share_their_pretraining(project, monkeypatch):
    """The bits of one that trains alone, its loss and seconds too; another scenario has another one."""
    shutil.rmtree(project / ".cells" / "beginnings", ignore_errors=True)
    cells = [Cell.parse(f"rahfl/mini/{method}") for method in ("fedmd", "rhfl")]
    monkeypatch.setenv("FEDREPRO_FORCE", "1")  # nobody looks what is there
    alone = [trained(cell, f"alone-{cell.method}", project, monkeypatch) for cell in cells]
    assert all(("pretraining", 0) in phases for _, phases in alone)
    monkeypatch.delenv("FEDREPRO_FORCE")
    (files,) = (project / ".cells" / "beginnings").iterdir()
    for cell, (single, carried_out) in zip(cells, alone):
        run, phases = trained(cell, f"shared-{cell.method}", project, monkeypatch)
        assert phases == [key for key in carried_out if key != ("pretraining", 0)]
        assert [run[name] for name in SAME] == [single[name] for name in SAME]
        assert run["seconds"] >= torch.load(files / "seed-0.pt", weights_only=True)["content"]["seconds"]
    longer = {"pretraining": 2}
    with edited(
        project / "papers/rahfl/paper.yaml",
        lambda document: document["miniature"]["scenario"]["training"].update(longer),
    ):
        _, phases = trained(cells[0], "longer", project, monkeypatch)
    assert ("pretraining", 0) in phases


def test_what_a_finished_seed_leaves(tmp_path, monkeypatch):
    files = SeedFiles(tmp_path, 3)
    with pytest.raises(TrainingError, match="seed 3: the models diverged, their logits are not numbers"):
        files.finish({}, {"labels": np.zeros(2, int), "logits": np.array([1.0, np.nan])})
    assert not files.finished.exists()
    files = SeedFiles(tmp_path / "digest", 3)
    files.folder.mkdir()
    files.finish({"seed": 3}, {"vectors": np.array([[1.0, 2.0], [np.nan, np.nan]], np.float16)})
    with np.load(files.representations) as file:
        assert np.isnan(file["vectors"]).any(1).tolist() == [False, True]
    # Git has its numbers and not its representations.
    monkeypatch.setattr(cache, "_committed", lambda *arguments: None)
    files = SeedFiles(tmp_path, 0)
    files.finish({"adopted": True}, {})
    for drawn in (False, True):
        monkeypatch.setattr(cache, "_drawn", lambda *arguments, drawn=drawn: drawn)
        assert cache.adopt([files], Experiment.of(Cell("fedlsa", "mini", "fedlsa")), [{}]) == []
        assert files.finished.exists() != drawn


def test_seconds_are_shared_among_the_seeds_that_train(tmp_path, monkeypatch):
    """Those that were finished before take none of them."""
    shares = []

    def together(train, jobs):
        shares.append(train.keywords["sharing"])
        return []

    monkeypatch.setattr(trainer, "executor_name", lambda device: "stacked")
    monkeypatch.setattr(trainer, "together", together)
    jobs = [
        Job(replace(Experiment.of(Cell("fedlsa", "mini", "fedlsa")), root=tmp_path), seed, "digest")
        for seed in range(3)
    ]
    for job in jobs:
        assert list(trainer.train_seeds(jobs, print)) == []
        job.files.finish({}, {})
    assert shares == [3, 2, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="only a fork costs nothing")
def test_seeds_one_after_the_other_have_separate_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDREPRO_WORKERS", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(trainer, "train_seed", lambda job, report: {"seed": job.seed, "process": os.getpid()})
    jobs = [
        Job(replace(Experiment.of(Cell("fedlsa", "mini", "fedlsa")), root=tmp_path), seed, "digest")
        for seed in range(2)
    ]
    actual = {run["seed"]: run["process"] for run in trainer.train_seeds(jobs, print)}
    assert sorted(actual) == [0, 1]
    assert len({os.getpid(), *actual.values()}) == 3
    (alone,) = trainer.train_seeds(jobs[:1], print)
    assert alone["process"] == os.getpid()


@pytest.mark.parametrize("method, begins", [("fedlsa", ROUNDS - 1), ("fedga", 1)])
def test_a_run_goes_on_where_a_shorter_or_longer_one_was(project, monkeypatch, method, begins):
    """Whichever trains first leaves its state before the first round that the shorter one reports; a step of
    FedGA depends on the number of rounds."""

    def add(document):
        scenario = document["miniature"]["scenario"] | {"seeds": [0]}
        longer = {"training": {**scenario["training"], "rounds": ROUNDS + 2}}
        document["scenarios"] |= {"few": scenario, "many": {**scenario, **longer}}
        scenarios = document["grids"]["main"]["scenarios"]
        scenarios += {"few", "many"} - {*scenarios}

    edit(project / "papers/fedlsa/paper.yaml", add)
    code = "import sys; sys.path[:0] = ['.']; from stages.partition import partition; "
    python(project, code + "partition('fedlsa/few'); partition('fedlsa/many')")
    alone, after = {}, {}
    for first, second in (("few", "many"), ("many", "few")):
        shutil.rmtree(project / ".cells" / "beginnings", ignore_errors=True)
        one, other = (Cell("fedlsa", name, method) for name in (first, second))
        alone[first], phases = trained(one, f"first-{method}-{first}", project, monkeypatch)
        assert min(number for _, number in phases) == 1
        after[second], phases = trained(other, f"second-{method}-{second}", project, monkeypatch)
        assert min(number for _, number in phases) == begins
    for run in alone:
        assert [after[run][name] for name in SAME] == [alone[run][name] for name in SAME]


def test_a_finished_cell_is_trained_on_to_more_rounds(project, monkeypatch):
    """From the last round that it does not report, to the numbers of a run with so many rounds; that one is
    trained on in its turn."""
    shutil.rmtree(project / ".cells" / "beginnings", ignore_errors=True)
    partitions = project / "papers/fedlsa/partitions"
    shutil.copytree(partitions / "mini", partitions / ".extra-seeds/mini", dirs_exist_ok=True)
    cell = Cell("fedlsa", "mini", "fedavg")

    def to(rounds: int) -> Variant:
        return Variant.of(cell, (("training.rounds", rounds),), seeds=(0,))

    alone, _ = trained(to(ROUNDS + 4), "on-alone", project, monkeypatch)
    shutil.rmtree(project / ".cells" / "beginnings")
    monkeypatch.setenv("FEDREPRO_KEEP", "state")
    trained(cell, "on-first", project, monkeypatch)
    monkeypatch.delenv("FEDREPRO_KEEP")
    for rounds, begins in ((ROUNDS + 2, ROUNDS - 1), (ROUNDS + 4, ROUNDS + 1)):
        run, phases = trained(to(rounds), f"on-{rounds}", project, monkeypatch)
        assert min(number for _, number in phases) == begins
    assert [run[name] for name in SAME] == [alone[name] for name in SAME]
