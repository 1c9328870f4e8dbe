"""The corrupted set on disk, and what is trained and tested on it."""

import dataclasses
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from federation import image_clients
from reporting import described
from test_corruptions import grid, photos

import stages.corrupt as stage
from pipeline.cells import inputs, loading, progress
from pipeline.cells.evaluation import TestSet, measure
from pipeline.data import corrupted, store
from pipeline.data.corruptions import KINDS, corrupt, corrupt_set, weather
from pipeline.data.partition import Parts
from pipeline.engine.handle import Batch
from pipeline.errors import DataError
from pipeline.methods.rahfl import RAHFL
from pipeline.schema import load_paper


def test_corrupt_set_draws_types_severities_and_an_order():
    images = np.broadcast_to(grid(), (3000, 32, 32, 3))[:, :, :, :]
    made = corrupt_set(np.ascontiguousarray(images), seed=3)
    assert np.sort(made.rank).tolist() == list(range(3000)) and not np.array_equal(made.rank, np.arange(3000))
    assert np.bincount(made.kind, minlength=15) == pytest.approx(200, abs=60)  # over 4 standard deviations
    assert np.bincount(made.severity, minlength=6)[[0, 5]].tolist() == [0, 0]
    assert np.bincount(made.severity)[1:] == pytest.approx(750, abs=100)
    for i in (0, 17, 2999):
        alone = corrupt(images[i : i + 1], KINDS[made.kind[i]], int(made.severity[i]), seed=3, indices=[i])
        assert np.array_equal(made.images[i], alone[0])
    images, seen = np.repeat(photos(), 20, 0), []
    one = corrupt_set(images, 0, progress=seen.append)
    two = corrupt_set(images, 0)
    test = corrupt_set(images, 0, part="test")
    five = corrupt_set(images, 0, max_severity=5)
    assert all(np.array_equal(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one))
    assert not np.array_equal(one.kind, test.kind) and not np.array_equal(one.rank, test.rank)
    assert set(five.severity) == {1, 2, 3, 4, 5} and seen[-1] == len(images) and seen == sorted(seen)
    assert len(corrupt_set(images[:0], 0).rank) == 0


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """data/tiny (32x32 RGB, 100 training and 20 test images) and data/tiny-corrupted."""
    root = tmp_path_factory.mktemp("root")
    images = np.repeat(photos(12), 10, 0)
    split = (np.arange(120) % 6 == 5).astype(np.uint8)
    meta = described("tiny", deviation="small")
    store.write(root / "data" / "tiny", images, np.arange(120) % 2, np.zeros(120), split, meta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ROOT", root)
        stage.corrupt("tiny")
    return root


def test_rates_choose_exactly_so_many_images(federation):
    clean = store.verify(federation / "data" / "tiny")
    dirty = corrupted.verify(federation / "data" / "tiny-corrupted")
    train = clean.split == 0
    before = np.zeros(120, bool)
    for xi, count in ((0.0, 0), (0.005, 0), (0.29, 29), (0.5, 50), (0.999, 99), (1.0, 100)):
        chosen = dirty.chosen(xi)
        assert chosen[train].sum() == count and chosen[~train].all() and (chosen | ~before).all()
        before = chosen & train
    assert (dirty.images != clean.images).any((1, 2, 3)).mean() > 0.95
    with pytest.raises(ValueError, match="rate 1.5"):
        dirty.chosen(1.5)


def test_the_corrupted_set_keeps_labels_and_says_how_it_was_made(federation):
    clean = store.verify(federation / "data" / "tiny")
    other = store.verify(federation / "data" / "tiny-corrupted")
    assert np.array_equal(clean.labels, other.labels) and np.array_equal(clean.split, other.split)
    facts = other.meta["corruption"]
    assert facts == {
        "of": "tiny",
        "clean": clean.meta["digest"],
        "seed": 0,
        "max_severity": 4,
        "kinds": list(KINDS),
        "frost": "photographs of the package imagecorruptions",
        "digest": facts["digest"],
    }
    assert other.meta["deviation"] == "small"
    assert other.meta["inputs"] == {"tiny": clean.meta["digest"], **weather.find_ice().inputs}


def test_what_chooses_the_teachers_of_a_column_is_what_it_prints():
    """RAHFL as released: a client's accuracy by which it teaches is its printed number, column by column."""
    clients, rng = image_clients((20, 33)), torch.Generator().manual_seed(1)
    tests = tuple(
        TestSet(name, torch.randn(40, 1, 16, 16, generator=rng), torch.arange(40) % 10)
        for name in ("clean", "corrupted")
    )
    scenario = load_paper("rahfl").scenarios["mini"]
    actual = loading.Federation(
        tuple(clients), tests, 10, None, None, Batch(tests[1].images, tests[1].labels), ""
    )
    world = loading._world(scenario, actual, 0)
    models = world.new_models()
    printed, _ = measure(models, world, tests, "pooled")
    for column in ("clean", "corrupted"):
        assert world.test_sets[column].images is {test.name: test for test in tests}[column].images
        chosen = RAHFL(acc_source=f"test_{column}").accuracies(models, world)[f"test_{column}"]
        assert [100 * share for share in chosen.tolist()] == [printed[f"{column}.c{k}"] for k in (0, 1)]
    protocol = dataclasses.replace(scenario.evaluation, tests="domains")
    by_domain = dataclasses.replace(scenario, evaluation=protocol)
    assert not loading._world(by_domain, actual, 0).test_sets


def pictures(federation, corruption=0.5):
    """The images of the mini scenario's clients, of data/tiny; stored and corrupted set."""
    scenario = load_paper("rahfl").scenarios["mini"]
    data = dataclasses.replace(scenario.data, set="tiny", channels=3)
    evaluation = dataclasses.replace(scenario.evaluation, tests="clients")
    scenario = dataclasses.replace(scenario, data=data, evaluation=evaluation, corruption=corruption)
    stored = store.verify(federation / "data" / "tiny")
    dirty = corruption and corrupted.verify(federation / "data" / "tiny-corrupted")
    checked = inputs.Inputs(None, stored, None, None, dirty)
    return scenario, loading._Pictures(scenario, checked, torch.device("cpu")), stored, dirty


def test_a_client_tests_on_its_images_as_it_has_them(federation):
    """As tuning does: half of its private images are corrupted, and so of those that it validates on."""
    scenario, images, stored, dirty = pictures(federation)
    at = np.flatnonzero(stored.split == 0)
    (test,) = loading._tests(scenario, Parts([("a", "tiny")], [at[:0]], [at], {}), at, images)
    changed = (test.images != images.clean(at)[0]).flatten(1).any(1).numpy()
    assert changed.sum() >= 45 and not (changed & ~dirty.chosen(0.5)[at]).any()


def test_every_test_image_is_known_by_its_corruption_and_severity(federation):
    _, images, _, dirty = pictures(federation)
    at = np.array([5, 11, 119])
    kinds, severities = images.corruption(at)
    assert kinds.tolist() == [KINDS[dirty.kind[i]] for i in at]
    assert severities.tolist() == dirty.severity[at].tolist()
    assert pictures(federation, None)[1].corruption(at) is None


def test_missing_and_damaged_files_are_named(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    subprocess.run(["cp", "-r", federation / "data" / "tiny", tmp_path / "data"], check=True)
    folder = tmp_path / "data" / "tiny-corrupted"
    with pytest.raises(DataError, match="meta.json is missing; .*: python -m stages.corrupt tiny"):
        corrupted.verify(folder)
    monkeypatch.setattr(stage, "HIGHEST", 5)
    stage.corrupt("tiny")
    read, paths = Path.read_text, []
    monkeypatch.setattr(Path, "read_text", lambda path, **more: paths.append(path) or read(path, **more))
    assert corrupted.verify(folder).severity.max() == 5 and paths == [folder / "meta.json"]
    for name in ("rank", "severity", "kind"):
        np.save(folder / f"{name}.npy", np.load(folder / f"{name}.npy")[::-1].copy())
        with pytest.raises(DataError, match=f"{name}.npy was altered"):
            corrupted.verify(folder)
    subprocess.run(["cp", folder.with_name("tiny") / "meta.json", folder], check=True)
    with pytest.raises(DataError, match="meta.json: corruption: expected a mapping"):
        corrupted.read_meta(folder)


def test_the_stage_makes_the_same_twice_and_keeps_the_old_if_it_fails(
    federation, tmp_path, monkeypatch, capsys
):
    folder = federation / "data" / "tiny-corrupted"
    before = corrupted.read_meta(folder)["corruption"]["digest"]
    monkeypatch.setattr(stage, "ROOT", federation)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    stage.corrupt("tiny")
    output = capsys.readouterr()
    assert corrupted.read_meta(folder)["corruption"]["digest"] == before and before[:12] in output.out
    assert "data/tiny-corrupted: 120 of 120" in output.err
    monkeypatch.setattr(
        corrupted.files, "sync", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(Exception, match="No space left"):
        stage.corrupt("tiny")
    assert corrupted.read_meta(folder)["corruption"]["digest"] == before
    assert sorted(path.name for path in (federation / "data").iterdir()) == ["tiny", "tiny-corrupted"]
