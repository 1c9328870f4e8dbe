"""Hash before trusting: what a cell trains on and what it keeps, altered in every way once accepted."""

import dataclasses
import json
import os
import random
import shutil
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from chaos.mutate import damaged
from repository import CELL, forget, outputs, python, stage

from pipeline.cells import results
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import _check_tests, verify
from pipeline.cells.loading import load
from pipeline.clusters.cluster import Mark
from pipeline.commands.status import failures, read_result
from pipeline.data import features, partition, store
from pipeline.engine.state import pack
from pipeline.errors import DataError, FedReproError, ParamError, TrainingError
from pipeline.locks import mend_rwlock
from pipeline.provenance import identity
from pipeline.schema import Cell, Tuned, load_paper
from pipeline.sealing import seal
from pipeline.training.checkpoint import SeedFiles, fingerprint
from pipeline.training.seeds import Job, train_seed
from pipeline.training.trainer import plan, train_seeds

PARTS = "papers/fedcrl/partitions/mini"
CPU = torch.device("cpu")
CONTENT = {
    "state": pack({"weights": torch.arange(6.0).reshape(2, 3), "on": torch.tensor([True, False])}),
    "rows": [{"round": 0, "loss": 0.5}],
    "own": [None, 12.5],
    "seconds": 3.0,
}


@pytest.fixture
def mended(project):
    """The project, with its data and partition as before after the test."""
    saved = {name: project / name for name in ("data/digits", PARTS)}
    for name, folder in saved.items():
        shutil.copytree(folder, project / "saved" / name)
    yield project
    for name, folder in saved.items():
        shutil.rmtree(folder)
        shutil.copytree(project / "saved" / name, folder)
    shutil.rmtree(project / "saved")


def altered_labels(project):
    labels = np.load(project / "data/digits/labels.npy")
    np.save(project / "data/digits/labels.npy", labels[::-1])


def test_altered_data_is_not_trained_on(mended):
    """Refused in one line, also where times and size are the old ones."""
    forget(mended)
    verify(Experiment.of(Cell.parse(CELL), mended))
    file = mended / "data/digits/labels.npy"
    before = file.stat()
    altered_labels(mended)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused = stage(mended, "train", CELL, expect=2)
    assert refused.stderr.count("\n") == 1
    assert "data/digits/labels.npy was altered" in refused.stderr
    assert not list(mended.glob("papers/fedcrl/runs/mini/fedprox/*"))


def with_arrays(project, change, reseal=True):
    """Change the partition's arrays; with `reseal`, its digest as one would who means it."""
    folder = project / PARTS
    parts, meta = partition.read(folder)
    arrays = partition.to_arrays(parts)
    change(arrays)
    np.savez_compressed(folder / "indices.npz", **arrays)
    if reseal:
        meta["digest"] = partition.content_digest(arrays, {"data": meta["data"], "public": None})
        (folder / "meta.json").write_text(json.dumps(meta))


CHANGES = {
    "was altered": (lambda a: a.update({"train.0": a["train.0"][1:]}), False),
    "go from -1": (lambda a: a["train.0"].__setitem__(0, -1), True),
    "go from": (lambda a: a["own_test.2"].__setitem__(0, 10**6), True),
    "client 3 has no training images": (lambda a: a.update({"train.3": a["train.3"][:0]}), True),
    "name an image twice": (lambda a: a["train.1"].__setitem__(1, a["train.1"][0]), True),
    "are among the test images": (lambda a: a["train.0"].__setitem__(0, a["own_test.1"][0]), True),
    "belongs to two clients": (lambda a: a["train.0"].__setitem__(0, a["train.1"][0]), True),
    "expected a list of indices": (lambda a: a.update({"train.0": a["train.0"] + 0.5}), True),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_partition_that_is_not_the_scenarios(mended, said):
    change, reseal = CHANGES[said]
    with_arrays(mended, change, reseal)
    with pytest.raises(FedReproError, match=said):
        verify(Experiment.of(Cell.parse(CELL), mended))


def test_clients_and_data_of_the_partition_are_the_scenarios(mended):
    meta = json.loads((mended / PARTS / "meta.json").read_text())
    for said, changed in (
        ("other clients than", meta | {"clients": [["x", "all"], *meta["clients"][1:]]}),
        ("cannot be read", meta | {"clients": [["0"], *meta["clients"][1:]]}),
        ("warnings", meta | {"warnings": [7]}),
        ("was altered", meta | {"data": meta["data"] | {"digest": "0" * 64}}),
        ("other data than", meta | {"data": meta["data"] | {"source": "canonical"}}),
        ("other data than", meta | {"data": meta["data"] | {"deviation": ""}}),
        ("other data than", meta | {"data": {"digest": meta["data"]["digest"]}}),
        ("client 0 is of the domain 'x'", meta | {"clients": [["0", "x"], *meta["clients"][1:]]}),
        ("expected a list", meta | {"data": None, "clients": None}),
        ("expected a mapping", [meta]),
    ):
        (mended / PARTS / "meta.json").write_text(json.dumps(changed))
        with pytest.raises(FedReproError, match=said):
            verify(Experiment.of(Cell.parse(CELL), mended))


def test_a_damaged_archive_of_indices_is_one_line(mended):
    """After any accident the partition is refused by a DataError or is the same."""
    file, draw = mended / PARTS / "indices.npz", random.Random(3)
    good, refused = file.read_bytes(), 0
    for _ in range(60):
        file.write_bytes(damaged(good, draw))
        try:
            parts, _ = partition.verify(mended / PARTS)
        except DataError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    "key, value",
    [
        ("digests", {}),
        ("classes", [*"0123456789", "ten"]),
        ("domains", ["other"]),
        ("official_split", False),
        ("source", "canonical"),
        ("deviation", ""),
    ],
)
def test_an_altered_description_of_a_set_is_refused(mended, key, value):
    """One more class would widen every network by an output."""
    path = mended / "data/digits/meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(DataError, match="data/digits/meta.json"):
        verify(Experiment.of(Cell.parse(CELL), mended))


def test_a_class_more_is_refused_without_a_seal_too(mended):
    """Sets that were written before descriptions had seals are still read."""
    path = mended / "data/digits/meta.json"
    meta = {key: value for key, value in json.loads(path.read_text()).items() if key != "self"}
    path.write_text(json.dumps(meta))
    verify(Experiment.of(Cell.parse(CELL), mended))
    for classes in (meta["classes"] + ["ten"], meta["classes"][:-1], []):
        path.write_text(json.dumps(meta | {"classes": classes}))
        with pytest.raises(DataError, match="data/digits/meta.json|data/digits/labels.npy"):
            verify(Experiment.of(Cell.parse(CELL), mended))


def test_data_altered_while_a_seed_trains_reach_no_later_seed(mended, monkeypatch):
    """Whatever the file's times say."""
    monkeypatch.setenv("FEDREPRO_WORKERS", "1")
    # A fork of this process could not train where another test has used autograd in it.
    monkeypatch.setattr("pipeline.training.trainer.get_context", lambda kind: get_context("spawn"))
    experiment, file = Experiment.of(Cell.parse(CELL), mended), mended / "data/digits/labels.npy"
    seeds, before = [], file.stat()

    def alter(row):
        if not seeds:
            altered_labels(mended)
        seeds.append(row["seed"])
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(DataError, match="data/digits/labels.npy was altered"):
        list(train_seeds([Job(experiment, seed, "later") for seed in (0, 1)], alter))
    assert {*seeds} == {0}
    shutil.copy(mended / "saved/data/digits/labels.npy", file)
    mapped = np.load(file, mmap_mode="r+")  # on some file systems this changes no time
    mapped[:] = mapped[::-1].copy()
    mapped.flush()
    with pytest.raises(DataError, match="data/digits/labels.npy was altered"):
        load(experiment, 1)


def test_a_partition_replaced_after_the_digests_were_taken_is_not_trained_on(mended):
    """Whole and sound, yet another than the one whose digest the seed will carry."""
    job = plan(Experiment.of(Cell.parse(CELL), mended)).jobs[0]
    job = dataclasses.replace(job, digest="none")  # of which no seed is finished
    with_arrays(mended, lambda arrays: arrays.__setitem__(key := "train.0", arrays[key][1:]))
    with pytest.raises(TrainingError, match="its partition or data changed while it trained"):
        train_seed(job)


SHAPES = [
    *("[]", "7", "null", '"x"', "{", "\x00", "[" * 100_000, '{"self": {}}', "9" * 5000),
    '{"cell": 7, "seeds": 3, "rounds": [], "executor": [], "self": "x"}',
    '{"cell": "fedcrl/mini/fedprox", "precision": {}, "executor": ["x"], "error": 7}',
]


@pytest.mark.parametrize("text", SHAPES)
def test_a_document_of_any_shape_ends_no_reader(mended, reference, text, capsys):
    """What stands where a document should: refused in one line, or not counted."""
    cell, experiment = Cell.parse(CELL), Experiment.of(Cell.parse(CELL), mended)
    features_folder = mended / "data/digits-vit_tiny"
    names = (PARTS + "/meta.json", ".cells/x/error.json", "data/digits/meta.json", "mark", "rwlock")
    files = [cell.folder(mended) / "result.json", features_folder / "meta.json", *map(mended.joinpath, names)]
    before = {path: path.read_bytes() for path in files if path.exists()}
    for path in files:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    try:
        assert failures(mended) == {}
        assert not read_result(cell, mended)
        assert identity.code_of(experiment)
        assert Mark.read(mended / "mark") is None
        mend_rwlock(mended / "rwlock")
        for read in (
            lambda: results.read(files[0]),
            lambda: partition.read(mended / PARTS),
            lambda: features.meta(features_folder),
            lambda: store.verify(mended / "data/digits"),
        ):
            with pytest.raises(FedReproError) as error:
                read()
            assert "\n" not in str(error.value)
    finally:
        shutil.rmtree(mended / ".cells/x")
        shutil.rmtree(features_folder)
        for path, content in before.items():
            path.write_bytes(content)


@pytest.mark.parametrize("cells", ["5", "{mini: 5}", "{mini: {fedprox: [1]}}", "null"])
def test_digests_noted_in_another_shape_are_none(tmp_path, cells):
    (tmp_path / "papers/p").mkdir(parents=True)
    (tmp_path / "papers/p/sources.yaml").write_text(f"cells: {cells}\n")
    assert identity.noted("p", tmp_path) == {}


@pytest.mark.parametrize("rate", ["x", -1, True, float("nan"), 10**400, [0.1]])
def test_a_tuned_learning_rate_is_a_number(rate):
    with pytest.raises(ParamError, match="learning_rate"):
        Tuned.of(Cell.parse(CELL), (("learning_rate", rate),)).resolve()


@pytest.mark.parametrize("module", ["papers/fedcrl/methods/mine.py", "pipeline/methods/mine.py"])
def test_a_method_of_the_same_size_and_time_runs_as_it_is_written(project, module):
    file = project / module
    file.parent.mkdir(exist_ok=True)
    code = """from pipeline.methods import load
print(load("mine", {}, "here", "fedcrl").mu)"""
    for value in ("0.5", "0.7"):
        file.write_text(
            "from dataclasses import dataclass\nfrom pipeline.methods.fedprox import FedProx\n\n\n"
            f"@dataclass(frozen=True)\nclass Mine(FedProx):\n    mu: float = {value}\n"
        )
        os.utime(file, (1, 1))
        assert python(project, code).stdout.strip() == value
    file.unlink()


def test_an_altered_finished_seed_is_trained_again(project, reference, capfd):
    """A number, a foreign cell's file, a cut one, another archive: set aside, and trained again."""
    forget(project)
    cell = Cell.parse(CELL)
    job = Job(Experiment.of(cell, project), 0, "altered")
    whole = train_seed(job)
    text = job.files.finished.read_text()
    document = json.loads(text)
    unsealed = {key: value for key, value in document.items() if key != "self"}
    for bad in (
        text.replace(str(document["rows"][-1]["average"]), "99.9"),
        json.dumps(seal(unsealed | {"cell": "other"})),
        json.dumps(seal(unsealed | {"seed": 1})),
        json.dumps(unsealed),
        text[: len(text) // 2],
        "[]",
        "",
    ):
        job.files.finished.write_text(bad)
        assert job.files.run() is None
        assert not job.files.finished.exists()
        said = capfd.readouterr().err
        assert said.count("\n") == 1
        assert "renamed to seed-0.json.damaged" in said
    job.files.finished.write_text(text)
    job.files.representations.write_bytes(b"")
    assert job.files.run() is None
    again = train_seed(job)
    assert all(again[name] == whole[name] for name in ("rows", "clients", "traffic"))


def test_a_damaged_checkpoint_is_set_aside(tmp_path, capfd):
    """After any accident it is set aside with one line, or the content is the same."""
    saved, draw = SeedFiles(tmp_path, 0), random.Random(1)
    saved.save(CONTENT)
    good, aside = saved.checkpoint.read_bytes(), 0
    for _ in range(150):
        saved.checkpoint.write_bytes(damaged(good, draw))
        actual = saved.resume(CPU)
        assert actual is None or fingerprint(actual) == fingerprint(CONTENT)
        aside += actual is None
    assert aside > 100
    assert capfd.readouterr().err.count("renamed to seed-0.pt.damaged") == aside


def test_a_foreign_checkpoint_is_set_aside(tmp_path, capfd):
    """Another seed's, another cell's, or one of an earlier version."""
    saved = SeedFiles(tmp_path / "cell", 0)
    SeedFiles(tmp_path / "other", 0).save(CONTENT)
    SeedFiles(tmp_path / "cell", 1).save(CONTENT)
    torch.save(CONTENT, tmp_path / "old.pt")
    for foreign in (tmp_path / "other/seed-0.pt", tmp_path / "cell/seed-1.pt", tmp_path / "old.pt"):
        shutil.copy(foreign, saved.checkpoint)
        assert saved.resume(CPU) is None
        assert not saved.checkpoint.exists()
    assert capfd.readouterr().err.count(".damaged") == 3


@pytest.mark.parametrize("workers", ["1", "2"])
def test_too_little_memory_is_one_line(project, workers):
    """In the process of a seed and in that of the cell."""
    code = """import resource, sys, torch
from pipeline.errors import guarded
from pipeline.training import seeds, trainer
from pipeline.schema import Cell
seeds.load_world = lambda *_: torch.empty(10**15)
guarded(lambda: trainer.train_cell(Cell.parse(sys.argv[1])))"""
    done = python(project, code, CELL, expect=2, FEDREPRO_FORCE="1", FEDREPRO_WORKERS=workers)
    assert "not enough memory" in done.stderr
    assert "Traceback" not in done.stderr


def test_forced_means_from_the_beginning(project, reference):
    """With FEDREPRO_FORCE, which `fedrepro run --force` sets, what lies under .cells does not count."""
    before = {path: path.stat().st_mtime_ns for path in project.glob(".cells/*/seed-*.json")}
    stage(project, "train", CELL)
    assert before
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    stage(project, "train", CELL, FEDREPRO_FORCE="1")
    assert all(path.stat().st_mtime_ns != time for path, time in before.items())
    assert outputs(project) == reference


@pytest.mark.parametrize(
    "domain, images, kind, says",
    [
        ("all", 0, "pooled", "its partition leaves no test image"),
        ("all", 0, "clients", "its partition leaves no test image"),
        ("all", 5, "domains", "needs a test set of 'MNIST', and the partition has only 'all'"),
        ("MNIST", 5, "domains", ""),
        ("all", 5, "pooled", ""),
    ],
)
def test_tests_that_a_partition_cannot_give_are_refused(domain, images, kind, says):
    """Before training, not after hours of it."""
    test = np.arange(images)
    parts = partition.Parts([("0", "MNIST")], [np.arange(9)], [test], {domain: test})
    where = "papers/fedlsa/paper.yaml: scenario 'mini'"
    scenario = load_paper("fedlsa").scenarios["mini"]
    scenario = replace(scenario, evaluation=replace(scenario.evaluation, tests=kind))
    if says:
        with pytest.raises(ParamError, match=f"paper.yaml: scenario 'mini': .*{says}"):
            _check_tests(parts, scenario, where)
    else:
        _check_tests(parts, scenario, where)
