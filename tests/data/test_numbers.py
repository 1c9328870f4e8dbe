"""Data sets that are not of images: rows of a table, signals, tokens; from the reader to the network."""

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import torch
from all_methods import of
from federation import close, finite, on_both, run, training
from reporting import described
from torch import nn

from pipeline import methods
from pipeline.cells import inputs
from pipeline.data import formats, gate, splits, store
from pipeline.data.registry import DataSet
from pipeline.data.store import Arrays
from pipeline.data.tensors import Pixels, Scale, numbers
from pipeline.engine import Batch, Client, World
from pipeline.errors import DataError, ParamError, TrainingError
from pipeline.models import Network
from pipeline.models.layers import projector
from pipeline.schema import Data, Public, check
from pipeline.schema.scenario import Scenario
from pipeline.sealing import seal
from pipeline.training import final_models

ROWS = DataSet("rows", domains=["all"], shape=[3], dtype="float32", classes=2)
SIGNALS = DataSet("signals", domains=["all"], shape=[2, 5], dtype="float32", classes=2)
TOKENS = DataSet("tokens", domains=["all"], shape=[4], dtype="int64", classes=2)
BYTES = DataSet("bytes", domains=["all"], shape=[2, 2], dtype="uint8", classes=2)


def samples(entry: DataSet, n: int = 4) -> np.ndarray:
    count = n * int(np.prod(entry.shape))
    return (np.arange(count) % 97).reshape(n, *entry.shape).astype(entry.dtype)


def written(folder, entry: DataSet, values: np.ndarray) -> store.Stored:
    labels, zeros = np.arange(len(values)) % 2, np.zeros(len(values), np.int64)
    split = np.array([0, 0, 0, 1] * (len(values) // 4))
    meta = described("set") | {"dtype": entry.dtype}
    store.write(folder, values, labels, zeros, split, meta)
    return store.verify(folder)


# -- on disk -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [ROWS, SIGNALS, TOKENS, BYTES], ids=lambda entry: entry.title)
def test_what_is_written_is_read(tmp_path, entry):
    values = samples(entry)
    stored = written(tmp_path / "set", entry, values)
    assert stored.images.dtype == entry.dtype
    assert np.array_equal(stored.images, values)
    assert stored.meta["shape"] == [4, *entry.shape]
    assert not entry.images


def test_a_set_of_images_has_no_type_in_its_meta(tmp_path):
    """Its bytes are those from before there were others."""
    zeros, images = np.zeros(4, np.int64), np.zeros((4, 2, 2, 1), np.uint8)
    meta = store.write(tmp_path / "tiny", images, zeros, zeros, zeros, described("tiny"))
    assert "dtype" not in meta
    assert (tmp_path / "tiny/images.npy").read_bytes()[:60].count(b"'descr': '|u1'") == 1
    assert DataSet("images", shape=[8, 8, 3]).images
    assert not DataSet("maps", shape=[3, 8, 8]).images


@pytest.mark.parametrize("dtype", ["float16", None])
def test_another_type_is_one_line(tmp_path, dtype):
    written(tmp_path / "set", ROWS, samples(ROWS))
    path = tmp_path / "set/meta.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(seal({**meta, "dtype": dtype})))
    with pytest.raises(DataError, match=f"dtype: unknown value '{dtype}'"):
        store.verify(tmp_path / "set")


@pytest.mark.parametrize(
    "entry, values, message",
    [
        (ROWS, np.zeros((4, 2)), r"has the shape \(4, 2\), expected \(N, 3\)"),
        (SIGNALS, np.zeros((4, 5, 2)), r"expected \(N, 2, 5\)"),
        (ROWS, np.array([[0, 1, np.nan]]), "no numbers"),
        (ROWS, np.array([[0, 1, 1e300]]), "which float32 does not hold"),
        (TOKENS, np.array([[0, 1, 2, 0.5]]), "holds float64 from 0 to 2, which int64 does not hold"),
        (BYTES, np.full((1, 2, 2), 256), "holds int64 from 256 to 256, which uint8 does not hold"),
        (ROWS, np.array([["a", "b", "c"]]), "holds <U1, expected numbers"),
        (dataclasses.replace(ROWS, shape=[]), np.zeros(4), "at least one number"),
    ],
)
def test_what_has_no_rule_is_refused(entry, values, message):
    with pytest.raises(DataError, match=message):
        gate.numbers(entry, {"the samples": values})


@pytest.mark.parametrize("entry", [ROWS, TOKENS], ids=lambda entry: entry.title)
def test_the_gate_converts_types_and_looks_at_no_grey_level(tmp_path, entry):
    values = samples(entry).astype(np.float64)
    labels, zeros = np.array([0, 1, 0, 1]), np.zeros(4, np.int64)
    arrays, found = gate.admit(entry, Arrays(values, labels, zeros, zeros, ["a", "b"]), tmp_path)
    (block,) = arrays.images
    assert block.dtype == entry.dtype
    assert np.array_equal(block, values)
    assert found.document(arrays) == {}


def test_the_reader_of_npz_takes_any_shape(tmp_path):
    parts = {f"x_{part}": samples(SIGNALS).astype(np.float64) for part in ("train", "test")}
    labels = {f"y_{part}": np.array([0, 1, 0, 1]) for part in ("train", "test")}
    np.savez(tmp_path / "s.npz", **parts, **labels)
    arrays = formats.arrays([tmp_path / "s.npz"], tmp_path, SIGNALS)
    assert arrays.images.shape == (8, 2, 5)
    assert arrays.images.dtype == np.float32


def test_pfllib_has_the_samples_as_they_are(tmp_path):
    stored = written(tmp_path / "set", SIGNALS, samples(SIGNALS) / 7)
    train, test = [np.array([0, 2]), np.array([1])], [np.array([3]), np.array([], np.int64)]
    splits.write_pfllib(train, test, stored, tmp_path / "theirs")
    back = splits.read(tmp_path / "theirs", stored)
    assert [part.tolist() for part in back[0]] == [[0, 2], [1]]
    assert back[1][0].tolist() == [3]


# -- to the network ------------------------------------------------------------------------------------------


def test_the_scale_is_that_of_columns_and_channels():
    rows = np.array([[1, 5], [3, 5]], np.float32)
    scale = Scale.of(rows)
    close(scale.mean, [2, 5])
    close(scale.deviation, [1, 1])  # the second column never varies
    close(numbers(rows, scale), [[-1, 0], [1, 0]])
    signals = np.array([[[0, 2], [7, 7]], [[4, 6], [7, 9]]], np.float32)
    scale = Scale.of(signals)
    close(scale.mean, [[3], [7.5]])
    close(scale.deviation, [[5**0.5], [0.75**0.5]])
    close(numbers(signals, scale)[:, 0], (torch.tensor([[0, 2], [4, 6]]) - 3) / 5**0.5)


def test_types_that_networks_get():
    assert numbers(samples(TOKENS), None).dtype == torch.int64
    assert numbers(samples(BYTES), None).dtype == torch.float32
    assert numbers(samples(ROWS), None).dtype == torch.float32
    assert numbers(samples(TOKENS), Scale.of(samples(TOKENS))).dtype == torch.float32


def test_views_of_what_is_no_image_are_one_line():
    with pytest.raises(TrainingError, match=r"are of images \(C, H, W\), not of the shape \(3,\)"):
        Pixels().bytes(torch.zeros(2, 3))


# -- what a scenario says ------------------------------------------------------------------------------------

SCENARIO = {
    "data": {"set": "rows", "normalise": "standard"},
    "partition": {"kind": "iid", "clients": 2},
    "training": {"rounds": 5, "batch_size": 2},
    "evaluation": {"tests": "clients"},
    "model": {"name": "lenet"},
}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"data": SCENARIO["data"] | {"augmentation": "crop_flip"}}, "'augmentation' needs images"),
        ({"data": SCENARIO["data"] | {"features": "vit_tiny"}}, "'features' needs images"),
        (
            {"corruption": 0.5, "partition": {"kind": "iid", "clients": 2, "pool": "train"}},
            "'corruption' needs",
        ),
        ({"public": {"set": "rows", "augmentation": "weak"}}, "'public.augmentation' needs images"),
        (
            {"evaluation": {"tests": "clients", "attack": {"eps": 0.1, "step": 0.1, "steps": 1}}},
            "needs images in",
        ),
    ],
)
def test_keys_of_images_are_refused(change, message):
    with pytest.raises(ParamError, match=message):
        check(Scenario, SCENARIO | change, "here")


def test_methods_that_need_images_say_so():
    scenario = check(Scenario, SCENARIO, "here")
    assert "images" not in scenario.provides
    assert "pixels in [0, 1]" not in scenario.provides
    images = check(Scenario, SCENARIO | {"data": {"set": "digits"}}, "here")
    assert "images" in images.provides
    needing = {name for name in methods.method_names() if not of(name).requires.isdisjoint(OF_IMAGES)}
    assert needing == {"aughfl", "rahfl", "fedmatch", "fedavg_plus", "fedccl_plus"}


OF_IMAGES = {"images", "pixels in [0, 1]"}


def test_images_are_not_normalised_as_if_there_were_any(tmp_path):
    stored = written(tmp_path / "rows", ROWS, samples(ROWS))
    scenario = check(Scenario, SCENARIO | {"data": {"set": "rows"}}, "here")
    with pytest.raises(ParamError, match=r"'half' is of images, and rows holds float32 of shape \(3,\)"):
        inputs._check_kind(stored, scenario, "here")
    inputs._check_kind(stored, check(Scenario, SCENARIO, "here"), "here")
    assert Data("rows", normalise="raw").of_images is False


# -- methods -------------------------------------------------------------------------------------------------


def with_norm(projected: bool, spread: int = 1) -> Network:
    """spread: 2 has features twice as wide as the head takes, as FedSR's."""
    layers = nn.Sequential(nn.Linear(13, 8 * spread), nn.BatchNorm1d(8 * spread), nn.ReLU())
    return Network(layers, nn.Linear(8, 3), projector=projector(8, 4) if projected else None)


def without_norm(projected: bool) -> Network:
    layers = nn.Sequential(nn.Linear(13, 8), nn.Tanh())
    return Network(layers, nn.Linear(8, 3), projector=projector(8, 4) if projected else None)


def rows_world(method, name: str) -> World:
    """Three clients with rows of a table, of two networks where the method allows it."""
    drawn = torch.Generator().manual_seed(0)
    projected = "projector" in method.requires
    one = partial(with_norm, projected, spread=2 if name == "fedsr" else 1)
    other = one if "one network" in method.requires else partial(without_norm, projected)
    networks = [one, other, one]
    clients = []
    for k, network in enumerate(networks):
        labels = torch.arange(12) % 3
        x = torch.randn(12, 13, generator=drawn) + labels[:, None]
        clients.append(Client(f"c{k}", "all", network, x, labels))
    public = torch.randn(16, 13, generator=drawn), Public("made up", 16, batch_size=8)
    heldout = Batch(clients[0].images, clients[0].labels)
    return World.create(clients, training(batch_size=4), 3, 0, public=public, heldout=heldout)


@pytest.mark.parametrize("name", [n for n in methods.method_names() if n != "centralised"])
def test_a_method_takes_rows_and_a_network_of_ones_own_or_says_that_it_needs_images(name):
    method = of(name)
    world = rows_world(method, name)
    if not method.requires.isdisjoint(OF_IMAGES):
        with pytest.raises(TrainingError, match="are of images|attacks need pixels"):
            run(method, world, 1)
        return
    state = run(method, world, 2)
    deployed = method.deployed(state, world)
    assert finite(deployed)
    assert world.outputs(0, deployed[0], world.clients[0].images).shape == (12, 3)


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(28, 2))


def waves() -> nn.Module:
    return nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(56, 2))


@pytest.mark.parametrize("network", [tokens, waves])
def test_both_executors_agree(network):
    drawn = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (20,), generator=drawn)
    samples_of = {
        tokens: torch.randint(0, 5, (20, 7), generator=drawn) + 5 * labels[:, None],
        waves: torch.randn(20, 3, 16, generator=drawn).double() + labels[:, None, None],
    }[network]

    def end():
        clients = [Client(f"c{k}", "all", network, samples_of[k:], labels[k:]) for k in range(3)]
        return run(of("fedavg"), World.create(clients, training(batch_size=8), 2, 0), 3)

    plain, stacked = on_both(end)
    close(stacked, plain, 1e-5)


def test_an_exported_model_takes_tokens(tmp_path, monkeypatch):
    monkeypatch.setattr(final_models, "_write_onnx", lambda *_: None)
    labels = torch.arange(20) % 2
    x = torch.arange(140).view(20, 7) % 5 + 5 * labels[:, None]
    clients = [Client(f"c{k}", "all", tokens, x, labels) for k in range(2)]
    world, method = World.create(clients, training(batch_size=8), 2, 0), of("fedavg")
    state = run(method, world, 2)
    models = method.deployed(state, world)
    (name,) = final_models.write_models(method, state, world, models, tmp_path, "pre")
    scores = torch.export.load(tmp_path / name).module()(x)
    close(scores.detach(), world.outputs(0, models[0], x), 1e-6)
