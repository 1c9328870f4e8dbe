"""Readers of the official formats of data sets."""

import bz2
import dataclasses
import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from official import archived, encoded, grey, make_tar, make_zip, md5, png
from PIL import Image
from scipy.io import savemat

from pipeline import files
from pipeline.data import formats, image_trees, registry, sources, store
from pipeline.errors import DataError

RANDOM = np.random.default_rng(0)
PARTS = ("train", "test")


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + np.asarray(array, np.uint8).tobytes())


@pytest.fixture
def official(server, tmp_path, monkeypatch):
    """Put small official files of a set on the server (without an address: into raw/) and prepare it."""
    monkeypatch.delenv("FEDREPRO_MIRROR", raising=False)

    def prepare(name, contents, counts, **changes):
        entry = registry.sets()[name]
        base, raw = [server.url("")] if entry.canonical.base else [], tmp_path / "data" / "raw" / name
        packed = {
            Path(path).name: content for path, content in zip(entry.canonical.files, contents, strict=True)
        }
        server.content |= packed if base else {}
        for file, content in packed.items() if not base else ():
            files.write_bytes(raw / file, content)
        listed = {file: md5(content) if base else "" for file, content in packed.items()}
        canonical = dataclasses.replace(entry.canonical, files=listed, base=base)
        changed = dataclasses.replace(entry, canonical=canonical, counts=counts, **changes)
        monkeypatch.setitem(registry.sets(), name, changed)
        meta = sources.prepare(name, tmp_path / "data" / name)
        assert meta["source"] == "canonical"
        assert meta["inputs"] == {file: hashlib.sha256(packed[file]).hexdigest() for file in packed}
        assert {path.name for path in raw.iterdir()} == packed.keys()
        return store.verify(tmp_path / "data" / name)

    return prepare


def idx_files():
    """Images and labels of five training and three test images."""
    return pixels(5, 28, 28), np.arange(5), pixels(3, 28, 28), np.arange(3)


def of_mnist():
    arrays = idx_files()
    return map(idx, arrays), np.concatenate([arrays[0], arrays[2]])[..., None], [0, 1, 2, 3, 4, 0, 1, 2]


def of_emnist():
    arrays = idx_files()
    kinds = [f"{part}-{kind}" for part in PARTS for kind in ("images-idx3", "labels-idx1")]
    members = {
        f"gzip/emnist-balanced-{kind}-ubyte.gz": idx(array) for kind, array in zip(kinds, arrays, strict=True)
    }
    members["gzip/emnist-digits-train-images-idx3-ubyte.gz"] = b"not unpacked"
    upright = np.concatenate([arrays[0], arrays[2]]).swapaxes(1, 2)[..., None]
    return [archived(make_zip, members)], upright, [0, 1, 2, 3, 4, 0, 1, 2]


def of_usps():
    texts = [[f"{v:.6f}" for v in row] for row in RANDOM.uniform(-1, 1, (8, 256))]
    texts[0][:3] = ["-1", "0", "1"]
    rows = (" ".join(f"{j + 1}:{text}" for j, text in enumerate(row)) for row in texts)
    lines = [f"{i + 1} {row}" for i, row in enumerate(rows)]
    contents = [bz2.compress("\n".join([*part, ""]).encode()) for part in (lines[:5], lines[5:])]
    # torchvision's conversion: parsed as float32, cut off
    grey = ((np.array(texts, np.float32) + 1) / 2 * 255).astype(np.uint8)
    return contents, grey.reshape(-1, 16, 16, 1), list(range(8))


def of_svhn():
    images, labels = pixels(8, 32, 32, 3), np.array([10, 1, 9, 2, 3, 2, 10, 1], np.uint8)
    contents = [
        encoded(savemat, {"X": images[part].transpose(1, 2, 3, 0), "y": labels[part, None]})
        for part in (slice(5), slice(5, 8))
    ]
    return contents, images, (labels % 10).tolist()


def of_synth_digits():
    images, labels = pixels(8, 32, 32, 3), np.array([0, 9, 1, 2, 0, 3, 4, 5])
    parts = {"train": slice(5), "test": slice(5, 8)}
    content = {f"{name}_data": images[part] for name, part in parts.items()}
    content |= {f"{name}_label": labels[part, None] for name, part in parts.items()}
    return [encoded(savemat, content)], images, labels.tolist()


def of_cifar(folder, label_bytes, names):
    """Records of the labels, the fine one last, and three planes."""
    images, labels = pixels(8, 32, 32, 3), np.arange(8, dtype=np.uint8)
    before = [labels[:, None] // 5] * (label_bytes - 1)
    records = np.concatenate([*before, labels[:, None], images.transpose(0, 3, 1, 2).reshape(8, -1)], axis=1)
    fives = {f"data_batch_{i + 1}.bin": records[i : i + 1] for i in range(5)} | {
        "test_batch.bin": records[5:]
    }
    files = fives if label_bytes == 1 else {"train.bin": records[:5], "test.bin": records[5:]}
    members = {f"{folder}/{name}": rows.tobytes() for name, rows in files.items()}
    classes = 10 if label_bytes == 1 else 100
    members[f"{folder}/{names}"] = "\n".join([*(f"c{i}" for i in range(classes)), "", ""]).encode()
    return [archived(make_tar, members)], images, labels.tolist()


def of_mnistm():
    images, order = pixels(8, 32, 32, 3), {"train": [2, 0, 1, 5, 6], "test": [4, 3, 7]}
    members = {
        f"mnist_m/mnist_m_{part}/{i}.png": png(images[i]) for part, chosen in order.items() for i in chosen
    }
    for part, chosen in order.items():
        lines = "".join(f"{i}.png {i}\n" for i in chosen)
        members[f"mnist_m/mnist_m_{part}_labels.txt"] = lines.encode()
    labels = order["train"] + order["test"]
    return [archived(make_tar, members)], images[labels], labels


def of_syn():
    """Grey pictures of another size than the set's."""
    paths = [f"imgs_train/{name}" for name in ("0/0", "0/1", "0/2", "1/0", "1/1")]
    paths += [f"imgs_valid/{name}" for name in ("0/0", "0/1", "1/0")]
    members = {f"data/synthetic_digits/{path}.png": grey(9 * i) for i, path in enumerate(paths)}
    images = np.zeros((8, 32, 32, 3)) + 9 * np.arange(8)[:, None, None, None]
    return [archived(make_zip, members)], images, [int(path[11]) for path in paths]


def of_tiny_imagenet():
    images, root = pixels(8, 64, 64, 3), "tiny-imagenet-200"
    members = {f"{root}/train/n01/images/n01_{i}.JPEG": png(images[i]) for i in (1, 0, 2)}
    members |= {f"{root}/train/n02/images/n02_{i}.JPEG": png(images[i]) for i in (4, 3)}
    members |= {f"{root}/val/images/val_{i}.JPEG": png(images[i]) for i in (7, 6, 5)}
    listed = b"val_6.JPEG\tn01\t0\t0\t9\t9\nval_5.JPEG\tn02\t0\t0\t9\t9\nval_7.JPEG\tn02\t0\t0\t9\t9\n"
    members |= {
        f"{root}/val/val_annotations.txt": listed,
        f"{root}/train/n01/n01_boxes.txt": b"",
        f"{root}/test/images/test_0.JPEG": b"not unpacked",
        f"{root}/words.txt": b"n00\tthing\nn01\tgoldfish\nn02\ttoad, frog\n",
    }
    return [archived(make_zip, members)], images, [0, 0, 0, 1, 1, 1, 0, 1]


OFFICIAL = {  # set -> (files, images, labels), and what differs in its entry
    "mnist": (of_mnist, {}),
    "fashion_mnist": (of_mnist, {}),
    "emnist_balanced": (of_emnist, {}),
    "usps": (of_usps, {}),
    "svhn": (of_svhn, {}),
    "synth_digits": (of_synth_digits, {}),
    "cifar10": (lambda: of_cifar("cifar-10-batches-bin", 1, "batches.meta.txt"), {}),
    "cifar100": (lambda: of_cifar("cifar-100-binary", 2, "fine_label_names.txt"), {}),
    "mnistm": (of_mnistm, {}),
    "syn": (of_syn, {"classes": 2}),
    "tiny_imagenet": (of_tiny_imagenet, {"classes": 2}),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_files_of_one_domain(official, name):
    """Five training and three test images, exactly as their owner packs them."""
    make, changes = OFFICIAL[name]
    contents, images, labels = make()
    stored = official(name, list(contents), [5, 3], **changes)
    assert np.array_equal(stored.images, images)
    assert stored.labels.tolist() == labels
    assert stored.split.tolist() == [0] * 5 + [1] * 3
    assert len(stored.meta["classes"]) == registry.find(name).classes
    assert bool(stored.meta["deviation"]) == (name == "syn")
    if name == "tiny_imagenet":
        assert stored.meta["classes"] == ["goldfish", "toad, frog"]


def test_an_incomplete_official_file_is_refused(official, tmp_path):
    contents = list(of_mnist()[0])
    with pytest.raises(DataError, match="mnist: domain mnist has 5 .*, expected 60,000 and 3"):
        official("mnist", contents, [60_000, 3])
    contents[1] = gzip.compress(gzip.decompress(contents[1])[:-2])
    (tmp_path / "data" / "raw" / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte.gz: cannot be read"):
        official("mnist", contents, [5, 3])
    with pytest.raises(DataError, match="emnist-gzip.zip: lacks emnist-balanced-test-images"):
        official("emnist_balanced", [archived(make_zip, {"gzip/x.gz": b""})], [5, 3])
    assert not (tmp_path / "data" / "mnist").exists()


# the head of a MATLAB file of version 7.3, which is HDF5
MATLAB_73 = (
    b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n" + bytes(2000)
)


@pytest.mark.parametrize(
    "name, content",
    [
        ("newer.mat", MATLAB_73),
        ("pickle.npz", encoded(np.savez, x_train=np.array([{}] * 6))),
        ("altered.npz", encoded(np.savez, x_train=np.full(99, 7)).replace(b"\7", b"\6")),
        ("kind.mat", encoded(savemat, {"x_train": np.eye(9)}).replace(b"train\0\x09\0", b"train\0\x09\xff")),
        ("odd.mat", b"\x08" + encoded(savemat, {"x_train": np.eye(9)}, format="4")[1:]),
    ],
)
def test_an_array_file_with_a_pickle_or_damage_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    entry = registry.DataSet("Mine", [4, 4, 3], domains=["mine"])
    with pytest.raises(DataError, match=f"{name}: cannot be read"):
        formats.READERS["arrays"]([tmp_path / name], tmp_path / "unpacked", entry)


HOME = ("Art", "Clipart", "Product", "Real World")


@pytest.mark.parametrize(
    ("name", "prefix", "folders", "inner", "make"),
    [
        ("pacs", "kfold/", ("art_painting", "cartoon", "photo", "sketch"), "", make_zip),
        ("office_caltech10", "Office-main/", ("amazon", "Caltech", "dslr", "webcam"), "", make_zip),
        ("office_home", "OfficeHomeDataset_10072016/", HOME, "", make_zip),
        ("office31", "", ("amazon", "dslr", "webcam"), "images/", make_tar),
    ],
)
def test_folders(official, tmp_path, name, prefix, folders, inner, make):
    members, greys = {}, []
    for d, folder in enumerate(folders):
        for c, label in enumerate(("back_pack", "mug")):
            for i in range(d + 1):
                greys.append(60 * d + 20 * c + i)
                members[f"{prefix}{folder}/{inner}{label}/{i}.{'PNG' if i else 'jpg'}"] = grey(greys[-1])
    shadows = {f"__MACOSX/{member.replace('/0.jpg', '/._0.jpg')}": b"shadow" for member in members}
    others = {f"{prefix}{folders[0]}/.DS_Store": b"", f"{prefix}README.md": b""}
    content = archived(make, dict(reversed(members.items())) | shadows | others)
    domains = registry.sets()[name].domains
    counts = {domain: (2 * d + 2, 0) for d, domain in enumerate(domains)}
    stored = official(name, [content], counts, classes=2, shape=[8, 8, 3])
    assert stored.images[:, 0, 0, 0].tolist() == greys
    assert stored.images.shape[1:] == (8, 8, 3)
    assert stored.meta["classes"] == ["back_pack", "mug"]
    assert stored.meta["domains"] == domains
    assert stored.labels.tolist() == [c for d in range(len(folders)) for c in (0, 1) for _ in range(d + 1)]
    assert stored.meta["official_split"] is False
    assert stored.split.sum() == 0
    assert stored.meta["deviation"]


def test_domainnet(official, tmp_path):
    domains, contents = registry.sets()["domainnet"].domains, []
    for d, domain in enumerate(domains):
        names = [
            f"{domain}/{label}/{domain}_{i}.jpg" for i, label in enumerate("zebra bird bird anvil".split())
        ]
        images = {name: grey(40 * d + i) for i, name in enumerate(names)}
        train = "".join(f"{names[i]} 9\n" for i in (0, 2, 3))
        contents += [archived(make_zip, images), train.encode(), f"{names[1]} 22\n".encode()]
    stored = official("domainnet", contents, [2, 1], shape=[8, 8, 3])
    assert stored.domains.tolist() == [d for d in range(6) for _ in range(3)]
    assert stored.labels.tolist() == [0, 0, 9] * 6
    assert stored.split.tolist() == [1, 0, 0] * 6
    assert stored.images[:, 0, 0, 0].tolist() == [40 * d + i for d in range(6) for i in (1, 2, 0)]


def of_a_table():
    rows = "file,label,split,writer\na/1.png,cat,train,w1\na/2.png,dog,train,w2\nb.png,cat,test,w1\n"
    return {
        "t.csv": rows.encode(),
        "a.zip": archived(make_zip, {"a/1.png": grey(1), "a/2.png": grey(2), "b.png": grey(3)}),
    }


def of_an_image_folder():
    images = {"x/train/cat/1.png": grey(1), "x/train/dog/2.png": grey(2), "x/val/cat/3.png": grey(3)}
    return {"a.tar": archived(make_tar, images | {"x/val/dog/4.png": grey(4), "x/train/cat/Thumbs.db": b""})}


def of_arrays(name, write):
    images = np.ones((3, 4, 4, 3), np.uint8) * np.array([1, 2, 3], np.uint8)[:, None, None, None]
    labels = {"y_train": np.array([0, 1]), "y_test": np.array([0])}
    return {name: write({"x_train": images[:2], "x_test": images[2:], **labels})}


@pytest.mark.parametrize(
    ("reader", "contents", "labels", "split"),
    [
        ("table", of_a_table, [0, 1, 0], [0, 0, 1]),
        ("image_folder", of_an_image_folder, [0, 1, 0, 1], [0, 0, 1, 1]),
        ("arrays", lambda: of_arrays("a.npz", lambda a: encoded(np.savez, **a)), [0, 1, 0], [0, 0, 1]),
        ("arrays", lambda: of_arrays("a.mat", lambda a: encoded(savemat, a)), [0, 1, 0], [0, 0, 1]),
    ],
)
def test_a_form_of_any_data(tmp_path, monkeypatch, reader, contents, labels, split):
    listed = contents()
    canonical = registry.Canonical(reader, dict.fromkeys(listed, ""))
    entry = registry.DataSet("Mine", [4, 4, 3], domains=["mine"], canonical=canonical)
    monkeypatch.setitem(registry.sets(), "mine", entry)
    for name, content in listed.items():
        files.write_bytes(tmp_path / "raw" / "mine" / name, content)
    sources.prepare("mine", tmp_path / "mine")
    stored = store.verify(tmp_path / "mine")
    assert stored.labels.tolist() == labels
    assert stored.split.tolist() == split
    assert stored.images[:, 0, 0, 0].tolist() == list(range(1, len(labels) + 1))
    if reader == "table":
        assert stored.columns["writer"].tolist() == ["w1", "w2", "w1"]
        np.save(tmp_path / "mine" / "column-writer.npy", np.array(["w2", "w2", "w1"]))
        with pytest.raises(DataError, match="column-writer.npy was altered"):
            store.verify(tmp_path / "mine")


def test_a_table_that_names_a_file_outside_is_refused(tmp_path):
    entry = registry.DataSet("Mine", [4, 4, 3], domains=["mine"])
    (tmp_path / "t.csv").write_text("file,label\n../secret.png,cat\n")
    make_zip(tmp_path / "a.zip", {"x.png": grey(1)})
    with pytest.raises(DataError, match="t.csv:2: cannot be read .*secret.png.* lies outside"):
        formats.READERS["table"]([tmp_path / "t.csv", tmp_path / "a.zip"], tmp_path / "unpacked", entry)


IN_BOTH = ("x/a", "x/b", "y/a", "y/b")


def of_folders(tmp_path, members, domains=("x", "y"), classes=2):
    """The images and arrays of an archive with these members, as strangers pack them."""
    archive = make_zip(tmp_path / "set.zip", members)
    entry = registry.DataSet("", [8, 8, 3], classes, domains=list(domains))
    arrays = image_trees.folders([archive], tmp_path / "unpacked", entry)
    return np.concatenate(list(arrays.images)), arrays


NAMES = "照片/素描|-15/15|15/-15|Photo/photo2|صورة/رسم|é/è|a b/ab|+1/1".split("|")


@pytest.mark.parametrize("domains", [names.split("/") for names in NAMES])
def test_every_domain_is_read_from_its_folder(tmp_path, domains):
    members = {
        f"set/{name}/{label}/0.png": grey(20 + 200 * d) for d, name in enumerate(domains) for label in "ab"
    }
    images, arrays = of_folders(tmp_path, members, domains)
    assert [images[arrays.domains == d].mean() for d in (0, 1)] == [20, 220]


@pytest.mark.parametrize(
    "paths, domains, message",
    [
        (
            ["Real World/a/0.png", "real_world/a/0.png", "art/a/0.png"],
            ("realworld", "art"),
            "no folder in it has the subfolders",
        ),
        (["x/猫/0.png", "x/狗/0.png", "y/猫/0.png", "y/马/0.png"], ("x", "y"), "y has 2 classes"),
        (["x/a/0.png", "x/b/0.png", "y/a/0.png", "y/b/0.eps"], ("x", "y"), "y/b has no image"),
    ],
)
def test_what_an_archive_lacks_is_named(tmp_path, paths, domains, message):
    members = {f"set/{path}": grey(9) for path in paths}
    with pytest.raises(DataError, match=f"set.zip: {message}"):
        of_folders(tmp_path, members, domains)


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "GIF", "PPM", "BMP", "PNG", "TGA"])
def test_every_format_that_pillow_decodes_is_read(tmp_path, kind):
    end = {"TIFF": "tif"}.get(kind, kind.lower())
    picture = Image.fromarray(np.full((8, 8, 3), 40, np.uint8))
    both = {"0.png": grey(40), f"1.{end}": encoded(picture.save, kind, lossless=True)}
    members = {f"{folder}/{name}": image for folder in IN_BOTH for name, image in both.items()}
    images, arrays = of_folders(tmp_path, members)
    assert len(images) == len(arrays.labels) == 8
    assert {*images.ravel().tolist()} == {40}


def test_what_is_no_image_is_left_out_by_name(tmp_path, capsys):
    members = {f"{folder}/0.png": grey(40) for folder in IN_BOTH}
    others = {"x/a/notes.eps": b"%!PS", "x/stray.png": grey(1), "y/b/Thumbs.db": b""}
    images, _ = of_folders(tmp_path, members | others)
    output = "".join(capsys.readouterr())
    assert len(images) == 4
    assert all(name in output for name in others)


def test_sixteen_bits_keep_their_grey(tmp_path):
    ramp = np.tile(np.linspace(0, 255, 8).astype(np.uint8), (8, 1))
    deep = Image.fromarray(ramp.astype(np.uint16) * 257)
    pictures = {
        "8.png": png(ramp),
        "16.png": encoded(deep.save, "PNG"),
        "16.tif": encoded(deep.save, "TIFF"),
    }
    members = {f"{folder}/{name}": picture for folder in IN_BOTH for name, picture in pictures.items()}
    images, _ = of_folders(tmp_path, members)
    assert all((image == ramp[..., None]).all() for image in images)


def test_pixels_without_a_range_are_refused(tmp_path):
    float_image = encoded(Image.fromarray(np.full((8, 8), 0.5, np.float32)).save, "TIFF")
    with pytest.raises(DataError, match="x/a/0.tif: cannot be read"):
        of_folders(tmp_path, {f"{folder}/0.tif": float_image for folder in IN_BOTH})
