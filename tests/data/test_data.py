"""The form on disk, bundled sets, mirror files, composites, which source serves; frozen features, computed
once, checked against the images they were made of and read by every method."""

import dataclasses
import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from federation import close
from official import names, png
from PIL import Image
from reporting import described
from repository import run

from pipeline import files, methods
from pipeline.cells import inputs
from pipeline.cells.experiment import Experiment
from pipeline.data import bundled, features, registry, sources, store
from pipeline.data.store import Stored
from pipeline.data.tensors import to_tensor
from pipeline.engine.phase import Client
from pipeline.engine.world import World
from pipeline.errors import DataError
from pipeline.schema import ROOT, Cell, Data, Model, load_paper

MIRROR = Path(os.environ.get("FEDREPRO_MIRROR") or ROOT.parent / "shared" / "datasets")
MIRRORED = [name for name, entry in registry.sets().items() if entry.mirror]
needs_mirror = pytest.mark.skipif(
    not (MIRROR / "mnist.npz").exists(), reason="no mirror folder: set FEDREPRO_MIRROR"
)


def tiny(name="tiny", n=4, side=2, channels=1, **meta):
    """Arguments of store.write for a small set of two classes and two domains."""
    labels, domains, split = np.arange(n) % 2, np.arange(n) // 2 % 2, np.array([0, 0, 0, 1] * (n // 4))
    images = np.arange(n * side * side * channels, dtype=np.uint8).reshape(n, side, side, channels)
    return images, labels, domains, split, described(name, domains=["x", "y"]) | meta


def test_what_is_written_is_read(tmp_path):
    images, labels, domains, split, meta = tiny()
    written = store.write(tmp_path / "tiny", images, labels, domains, split, meta)
    stored = store.verify(tmp_path / "tiny")
    assert not stored.images.flags.writeable
    for name, expected in (("images", images), ("labels", labels), ("domains", domains), ("split", split)):
        assert np.array_equal(getattr(stored, name), expected)
    dtypes = [getattr(stored, name).dtype for name in ("images", "labels", "domains", "split")]
    assert dtypes == [np.uint8, np.int64, np.int64, np.uint8]
    assert stored.meta == written
    assert stored.meta["shape"] == [4, 2, 2, 1]
    assert len(stored) == 4
    assert stored.meta["digests"]["labels.npy"] == files.sha256(tmp_path / "tiny" / "labels.npy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(images=a["images"][:3]), "3 images for 4 labels"),
        (lambda a: a.update(images=a["images"].astype(np.float32)), "float32"),
        (
            lambda a: a.update(images=iter([a["images"][:2], np.zeros((2, 3, 3, 1), np.uint8)])),
            r"\(3, 3, 1\), expected uint8",
        ),
        (lambda a: a.update(images=iter([])), "no images"),
        (lambda a: a.update(images=np.zeros((4, 2, 2, 2), np.uint8)), r"expected \(N, H, W, 1 or 3\)"),
        (lambda a: a.update(labels=np.array([0, 1, 2, 0])), "labels.npy holds 0 to 2, expected -1 to 1"),
        (lambda a: a.update(domains=np.array([0, 1, -1, 0])), "domains.npy holds -1 to 1"),
        (lambda a: a.update(split=np.array([0, 1, 2, 0])), "split.npy holds 0 to 2"),
        (lambda a: a.update(split=np.zeros(3)), r"split.npy holds uint8 \(3,\), expected uint8 \(4,\)"),
    ],
)
def test_arrays_that_do_not_fit_are_not_written(tmp_path, change, message):
    arguments = dict(zip(("images", "labels", "domains", "split", "meta"), tiny(), strict=True))
    change(arguments)
    with pytest.raises(DataError, match=message):
        store.write(tmp_path / "tiny", **arguments)
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", [*store.ARRAYS, "meta.json"])
def test_a_missing_or_cut_file_is_named_with_the_command_that_makes_it(tmp_path, name):
    meta = store.write(tmp_path / "tiny", *tiny())
    path = tmp_path / "tiny" / name
    whole, command = path.read_bytes(), "; .* fedrepro run data/dvc.yaml:fetch@tiny$"
    for content in (whole[:-3], b"", whole.replace(b"{", b"(", 1)):  # NumPy's parser: tokenize.TokenError
        path.write_bytes(content)
        altered = f"was altered: SHA-256 {files.sha256(path)}, expected {meta['digests'].get(name)}"
        with pytest.raises(DataError, match=f"{name} ({altered}|cannot be read.*){command}"):
            store.verify(tmp_path / "tiny")
    path.unlink()
    with pytest.raises(DataError, match=f"{name} is missing{command}"):
        store.verify(tmp_path / "tiny")


@pytest.mark.parametrize(
    "change, output",
    [
        ({"classes": 3}, "classes: expected a list"),
        ({"domains": [["a"]]}, r"domains\[0\]: expected str"),
        ({"shape": None}, "shape: expected a list"),
        ({"digests": []}, "digests: expected a mapping"),
        ({"digests": {}}, "was altered"),
        ({"digest": "a\n\nb"}, "digest: must be 64 hexadecimal digits"),
    ],
)
def test_a_meta_of_other_types_is_one_line(tmp_path, change, output):
    store.write(tmp_path / "tiny", *tiny())
    path = tmp_path / "tiny" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=f"meta.json.* {output}") as refused:
        store.verify(tmp_path / "tiny")
    assert "\n" not in str(refused.value)


def test_reading_needs_neither_torch_nor_scipy():
    """What trains reads the sets; SciPy and the corruptions are for the stages alone."""
    heavy = "{'torch', 'sklearn', 'scipy', 'rich', 'pandas', 'pipeline.data.corruptions'}"
    code = f"import sys, pipeline.data.store, pipeline.data.corrupted; print({heavy} & {{*sys.modules}})"
    assert run(ROOT, sys.executable, "-c", code).stdout == "set()\n"


def test_every_set_can_be_had_and_has_checksums():
    checksum = "md5:[0-9a-f]{32}( sha256:[0-9a-f]{64})?|sha256:[0-9a-f]{64}"
    for name, entry in registry.sets().items():
        assert entry.bundled or entry.parts or entry.canonical, name
        assert {*entry.expected("canonical")} <= {*entry.domains}, name
        assert len({*entry.domains}) == len(entry.domains), name
        assert not entry.names or len(entry.names) == entry.classes, name
        assert all(part in registry.sets() for part in entry.parts), name
        for path, digest in entry.canonical.files.items() if entry.canonical else ():
            urls = entry.canonical.urls(path)
            assert not urls or re.fullmatch(checksum, digest), (name, path)
            assert all(url.startswith(("https://", "http://")) for url in urls), (name, path)


def test_the_command_that_makes_a_set_names_a_stage_that_is_there():
    here, below = (
        yaml.safe_load((ROOT / file).read_text())["stages"] for file in ("dvc.yaml", "data/dvc.yaml")
    )
    sets, stages = registry.sets(), set(below) - {"fetch", "features", "corrupted"}
    bundled, unions = {n for n, e in sets.items() if e.bundled}, {n for n, e in sets.items() if e.parts}
    assert {*here["data"]["matrix"]["set"]} == {*store.BUNDLED} == bundled
    assert stages == {*store.UNIONS} == unions
    assert {*below["fetch"]["matrix"]["set"]} == sets.keys() - bundled - unions
    assert store.remake(Path("data/digits")) == "dvc repro data@digits"
    assert store.remake(Path("data/digit5")) == "fedrepro run data/dvc.yaml:digit5"
    assert store.remake(Path("data/mnist")) == "fedrepro run data/dvc.yaml:fetch@mnist"
    for union in unions:
        assert {*below[union]["deps"]} == {f"data/{part}" for part in sets[union].parts}


def test_checksums_that_torchvision_knows_agree():
    folder = Path(importlib.util.find_spec("torchvision").origin).parent / "datasets"
    for name in ("mnist", "fashion_mnist", "emnist_balanced", "usps", "svhn"):
        source = (folder / f"{name if name in ('usps', 'svhn') else 'mnist'}.py").read_text()
        for file, digest in registry.sets()[name].canonical.files.items():
            assert digest.partition(" ")[0].removeprefix("md5:") in source, (name, file)


def test_an_unknown_set_names_the_nearest(tmp_path):
    with pytest.raises(DataError, match=r"unknown data set 'fashionmnist' \(nearest: 'fashion_mnist'\)"):
        sources.prepare("fashionmnist", tmp_path / "x")
    with pytest.raises(DataError, match=r"unknown source 'miror' \(nearest: 'mirror'\)"):
        sources.prepare("mnist", tmp_path / "mnist", "miror")
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", store.BUNDLED)
def test_bundled_sets_need_nothing_and_are_deterministic(tmp_path, monkeypatch, name):
    monkeypatch.delenv("FEDREPRO_MIRROR", raising=False)
    meta = sources.prepare(name, tmp_path / "a" / name, "auto")
    again = sources.prepare(name, tmp_path / "b" / name, "canonical")
    stored = store.verify(tmp_path / "a" / name)
    assert meta["digest"] == again["digest"]
    assert meta["source"] == "bundled"
    assert stored.meta["domains"] == registry.sets()[name].domains
    assert meta["shape"][1:] == registry.sets()[name].shape
    assert all(len(digest) == 64 for digest in meta["inputs"].values())
    assert meta["inputs"]


def test_derived_domains_share_no_scan_and_hold_every_class():
    scans, labels, _ = bundled._scans()
    arrays, facts = bundled.make("digit_domains")
    assert "derived" in facts["deviation"]
    assert np.bincount(arrays.domains).tolist() == [450, 449, 449, 449]
    for domain in range(4):
        for part in (0, 1):
            chosen = arrays.labels[(arrays.domains == domain) & (arrays.split == part)]
            assert np.bincount(chosen, minlength=10).min() >= (8 if part else 30)
    # A scan is recognised by its enlarged form, which the first domain holds unchanged.
    enlarged = {
        np.asarray(Image.fromarray(scan).resize((16, 16), Image.Resampling.BILINEAR)).tobytes()
        for scan in scans
    }
    scanned = arrays.images[arrays.domains == 0]
    assert all(image[..., 0].tobytes() in enlarged for image in scanned)
    assert len(arrays.labels) == len(scans)
    assert np.bincount(arrays.labels).tolist() == np.bincount(labels).tolist()


@needs_mirror
@pytest.mark.parametrize("name", MIRRORED)
def test_the_mirror_files_load(tmp_path, monkeypatch, name):
    monkeypatch.setenv("FEDREPRO_MIRROR", str(MIRROR))
    entry = registry.sets()[name]
    meta = sources.prepare(name, tmp_path / name)
    stored = store.verify(tmp_path / name)
    assert meta["source"] == "mirror"
    assert meta["inputs"] == {entry.mirror.file: entry.mirror.sha256}
    assert bool(meta["deviation"]) == (name != "mnist")
    assert len(meta["classes"]) == entry.classes
    for i, domain in enumerate(entry.domains):
        here = stored.domains == i
        counts = (int((here & (stored.split == 0)).sum()), int((here & (stored.split == 1)).sum()))
        assert counts == entry.expected("mirror")[domain]
        assert set(stored.labels[here]) == set(range(entry.classes))
        if not entry.official_split:
            assert (np.diff(stored.labels[here]) >= 0).all()  # the order of a class-sorted folder
    assert stored.images[:200].std() > 30
    if name == "cifar10":  # lossless mosaics: the published channel means, to seven digits
        means = stored.images[stored.split == 0].mean(axis=(0, 1, 2), dtype=np.float64) / 255
        assert np.round(means, 7).tolist() == [0.4913997, 0.4821584, 0.4465309]


def test_mosaics_come_back_by_domain_and_class(tmp_path, monkeypatch):
    """A mirror folder with a small file in mosaics; the registry knows its digest."""
    entry = registry.sets()["office_caltech10"]
    images = np.random.default_rng(0).integers(0, 256, (53, 8, 8, 3), dtype=np.uint8)
    tiles = []
    for part in (images[:50], images[50:]):
        padded = np.zeros((-(-len(part) // 40) * 40, 8, 8, 3), np.uint8)
        padded[: len(part)] = part
        mosaic = padded.reshape(-1, 40, 8, 8, 3).swapaxes(1, 2).reshape(-1, 320, 3)
        tiles.append(png(mosaic))
    domain, y = np.arange(53) % 4, np.arange(53)[::-1] % 10
    folder = tmp_path / "mirror"
    folder.mkdir()
    np.savez(
        folder / entry.mirror.file,
        x_blob=np.frombuffer(b"".join(tiles), np.uint8),
        per_tile=np.int64(50),
        x_offsets=np.cumsum([0, *map(len, tiles)]),
        shape=np.array([8, 8, 3]),
        y=y,
        domain=domain,
        domains=np.array(["Caltech", "amazon", "dslr", "webcam"]),
        classes=np.array([f"c{i}" for i in range(10)]),
    )
    counts = dict(
        zip(("caltech", "amazon", "dslr", "webcam"), ((int(n), 0) for n in np.bincount(domain)), strict=True)
    )
    mirror = dataclasses.replace(entry.mirror, sha256=files.sha256(folder / entry.mirror.file), counts=counts)
    monkeypatch.setitem(registry.sets(), "office_caltech10", dataclasses.replace(entry, mirror=mirror))
    monkeypatch.setenv("FEDREPRO_MIRROR", str(folder))
    sources.prepare("office_caltech10", tmp_path / "office_caltech10")
    stored = store.verify(tmp_path / "office_caltech10")
    assert stored.meta["domains"] == ["amazon", "caltech", "dslr", "webcam"]
    assert stored.meta["official_split"] is False
    renamed = np.array([1, 0, 2, 3])[domain]
    order = sorted(range(53), key=lambda i: (renamed[i], y[i], i))
    assert np.array_equal(stored.images, images[order])
    assert np.array_equal(stored.labels, y[order])
    assert np.array_equal(stored.domains, renamed[order])


def test_a_missing_mirror_is_said_with_the_expected_digest(tmp_path, monkeypatch):
    digest = registry.sets()["mnist"].mirror.sha256
    monkeypatch.setenv("FEDREPRO_MIRROR", str(tmp_path))
    with pytest.raises(DataError, match=rf"mnist.npz is missing; expected mnist.npz \(SHA-256 {digest}\)"):
        sources.prepare("mnist", tmp_path / "mnist", "mirror")
    with pytest.raises(DataError, match="svhn: no mirror has this set"):
        sources.prepare("svhn", tmp_path / "svhn", "mirror")
    monkeypatch.delenv("FEDREPRO_MIRROR")
    with pytest.raises(DataError, match=f"FEDREPRO_MIRROR .* mnist.npz .SHA-256 {digest}"):
        sources.prepare("mnist", tmp_path / "mnist", "mirror")
    monkeypatch.setenv("FEDREPRO_MIRROR", str(tmp_path / "nowhere"))
    # a typing error must not start a download
    with pytest.raises(DataError, match="nowhere is not a folder"):
        sources.prepare("mnist", tmp_path / "mnist", "auto")
    assert names(tmp_path) == []


def test_a_composite_joins_prepared_parts(tmp_path):
    sides = {"mnist": (28, 1), "usps": (16, 1), "svhn": (32, 3), "synth_digits": (32, 3), "mnistm": (32, 3)}
    parts = {}
    for i, (name, (side, channels)) in enumerate(sides.items()):
        grey, labels = np.full((4 + i, side, side, channels), 10 * i, np.uint8), np.arange(4 + i)
        facts = {"source": "mirror" if channels == 1 else "canonical", "classes": list("0123456789")}
        facts |= {"deviation": "sample" if name == "usps" else "", "domains": [name]}
        meta = described(name, **facts)
        parts[name] = store.write(tmp_path / name, grey, labels, labels * 0, labels == 0, meta)
    meta = sources.prepare("digit5", tmp_path / "digit5")
    stored = store.verify(tmp_path / "digit5")
    assert stored.images.shape == (4 + 5 + 6 + 7 + 8, 32, 32, 3)
    assert meta["domains"] == list(sides)
    assert np.bincount(stored.domains).tolist() == [4, 5, 6, 7, 8]
    for i in range(5):
        here = stored.domains == i
        assert set(np.unique(stored.images[here])) == {10 * i}
        assert stored.labels[here].tolist() == list(range(4 + i))
        assert stored.split[here].tolist() == [1] + [0] * (3 + i)
    assert meta["source"] == "canonical + mirror"
    assert meta["deviation"] == "usps: sample"
    assert meta["inputs"] == {name: part["digest"] for name, part in parts.items()}


def test_a_composite_names_the_part_that_is_absent(tmp_path):
    store.write(tmp_path / "mnist", *tiny("mnist"))
    with pytest.raises(DataError, match="usps/meta.json is missing; .* run data/dvc.yaml:fetch@usps"):
        sources.prepare("digits4", tmp_path / "digits4")
    assert not (tmp_path / "digits4").exists()


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Stored:
    pytest.importorskip("timm")
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
    assert vectors.shape == (6, 192)
    assert vectors.dtype == np.float32
    assert np.isfinite(vectors).all()
    assert vectors.std() > 0
    assert meta["trained"] is False
    assert meta["images"] == stored.meta["digest"]
    again = features.write(tmp_path / "tiny-vit_tiny", stored, pretrained=False)
    assert again == meta
    assert np.array_equal(features.read(tmp_path / "tiny-vit_tiny", stored)[0], vectors)


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
    assert "data.weights: untrained" in done.stdout
    assert done.stdout.count("\n") == 1
    assert not done.stderr.strip()


def test_a_cell_on_features_trains_the_head_alone():
    """FedCCL's inter-domain protocol: the frozen network is never in the federation."""
    scenario = load_paper("fedccl").scenarios["office10-balanced"]
    assert scenario.model == Model("vit_head")
    assert scenario.data.features == "vit_tiny"
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
