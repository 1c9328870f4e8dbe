"""Frozen features: computed once, checked against the images they were made of, read by every method."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from federation import close
from reporting import described
from repository import run

from pipeline import methods
from pipeline.cells import inputs
from pipeline.cells.experiment import Experiment
from pipeline.data import features, store
from pipeline.data.store import Stored
from pipeline.data.tensors import to_tensor
from pipeline.engine.phase import Client
from pipeline.engine.world import World
from pipeline.errors import DataError
from pipeline.schema import ROOT, Cell, Data, Model, load_paper

pytest.importorskip("timm")


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Stored:
    folder = tmp_path_factory.mktemp("data") / "tiny"
    images = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    store.write(folder, images, np.arange(6) % 2, np.zeros(6), np.repeat([0, 1], 3), described("tiny"))
    return store.verify(folder)


@pytest.fixture(scope="module")
def folder(stored, tmp_path_factory):
    target = tmp_path_factory.mktemp("features") / "tiny-vit_tiny"
    features.write(target, stored, pretrained=False)
    return target


def test_untrained_features_are_marked_and_repeatable(stored, folder, tmp_path):
    vectors, meta = features.read(folder, stored)
    assert vectors.shape == (6, 192) and vectors.dtype == np.float32
    assert np.isfinite(vectors).all() and vectors.std() > 0
    assert meta["trained"] is False and meta["images"] == stored.meta["digest"]
    again = features.write(tmp_path / "tiny-vit_tiny", stored, pretrained=False)
    assert again == meta and np.array_equal(features.read(tmp_path / "tiny-vit_tiny", stored)[0], vectors)


def test_the_class_token_of_the_resized_image_is_the_representation(stored, folder):
    """As FedPCL's code: 224 x 224, mean and deviation 0.5, token after the final norm, evaluation mode."""
    model, _ = features.vit_tiny(pretrained=False)
    assert not model.training
    assert sum(p.numel() for p in model.parameters()) == 5_524_416
    assert not any(p.requires_grad for p in model.parameters())
    with torch.inference_mode():
        token = model.forward_features(to_tensor(stored.images[:1], Data("tiny", size=224)))[0, 0]
    close(features.read(folder, stored)[0][0], token, 1e-5)


OTHER = {"images": "x", "width": 192, "digest": "x", "trained": True}


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "features.npy").unlink(), "features.npy"),
        (lambda f: np.save(f / "features.npy", np.zeros((5, 192), np.float32)), "was altered"),
        (lambda f: (f / "meta.json").write_text("{"), "meta.json cannot be read"),
        (lambda f: (f / "meta.json").write_text(json.dumps(OTHER)), "other images"),
    ],
)
def test_damaged_or_foreign_features_are_refused(stored, folder, tmp_path, damage, message):
    copy = tmp_path / "tiny-vit_tiny"
    shutil.copytree(folder, copy)
    damage(copy)
    with pytest.raises(DataError, match=message):
        features.read(copy, stored)


def test_weights_that_cannot_be_had_are_one_clear_line(tmp_path):
    code = (
        "from pipeline.data import features\nfrom pipeline.errors import DataError\n"
        "try: features.vit_tiny(True)\nexcept DataError as error: print(error)"
    )
    done = run(ROOT, sys.executable, "-c", code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert "data.weights: untrained" in done.stdout and done.stdout.count("\n") == 1
    assert not done.stderr.strip()


def test_a_cell_on_features_trains_the_head_alone():
    """FedCCL's inter-domain protocol: the frozen network is never in the federation."""
    scenario = load_paper("fedccl").scenarios["office10-balanced"]
    assert scenario.model == Model("vit_head") and scenario.data.features == "vit_tiny"
    images, labels = torch.randn(4, 192), torch.tensor([0, 1, 0, 1])
    clients = [Client(f"c{k}", "only", scenario.model, images, labels) for k in range(2)]
    world = World.create(clients, scenario.training, 10, 0, data=scenario.data)
    method = methods.load("fedccl", {"tau": 0.07}, "x")
    state = method.init(world)
    for number in (1, 2):
        state = method.round(state, world.at(number))
    assert world.scalars() == 192 * 128 + 128 + 128 * 10 + 10
    parts = ("features.projector.0", "head")
    assert set(state.model) == {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")}


def test_results_say_that_features_are_untrained(tmp_path, monkeypatch, folder):
    scenario = load_paper("fedccl").scenarios["office10-balanced"]
    cell = Cell("fedccl", "office10-balanced", "fedavg")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{scenario.data.set}-vit_tiny").symlink_to(folder)
    partition = {"digest": "p", "data": {"deviation": "as mirrored"}, "public": None, "warnings": []}
    monkeypatch.setattr(inputs.partition, "read", lambda _: (None, json.loads(json.dumps(partition))))
    monkeypatch.setattr(Cell, "resolve", lambda self, root: (scenario, "fedavg", {}))
    actual = inputs.inputs(Experiment.of(cell, tmp_path), 0)
    assert actual["data"]["deviation"].startswith("as mirrored; features of an untrained")
    assert actual["digest"] != "p"
