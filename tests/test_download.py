"""Downloads from a server on this machine, archives that want to escape, and the readers of the official
formats."""

import bz2
import contextlib
import dataclasses
import errno
import gzip
import hashlib
import io
import struct
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from pipeline import files
from pipeline.data import download, registry, sources, store
from pipeline.errors import DataError, FedReproError

CONTENT = bytes(range(256)) * 8000  # 2 MB, more than one block


def md5(content):
    return "md5:" + hashlib.md5(content).hexdigest()


CHECKSUM = md5(CONTENT)


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Server:
    """Serves `content` by path. Behaviour to set: `cut` (bytes after which the first so many answers break
    off), `ranges` (whether Range is understood), `status` (answer of the first so many requests),
    `redirect`."""

    def __init__(self):
        self.content, self.cut, self.cuts, self.ranges, self.status, self.redirect, self.asked = (
            {},
            0,
            0,
            True,
            [],
            {},
            [],
        )
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def url(self, name):
        return f"http://127.0.0.1:{self.http.server_port}/{name}"

    def answer(self, request):
        name, asked = request.path[1:], request.headers.get("Range")
        self.asked.append(asked)
        if name in self.redirect:
            request.send_response(302)
            request.send_header("Location", self.redirect[name])
            return request.end_headers()
        status = self.status.pop(0) if self.status else 200 if name in self.content else 404
        if status != 200:
            return request.send_error(status)
        content = self.content[name]
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if start >= len(content) > 0 and start:
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(content)}")
            return request.end_headers()
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        end = None
        if self.cuts:
            self.cuts -= 1
            end = start + self.cut
        with contextlib.suppress(ConnectionError):
            request.wfile.write(content[start:end])


@pytest.fixture
def server(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def fetch(server, target, checksum=CHECKSUM, name="file", **more):
    return download.fetch(server.url(name), target, checksum, pause=0, **more)


# -- fetching ----------------------------------------------------------------------------------------------


def test_a_file_is_downloaded_once(server, tmp_path, capsys):
    server.content["file"] = CONTENT
    target = tmp_path / "raw" / "file"
    assert fetch(server, target) == target and target.read_bytes() == CONTENT
    fetch(server, target, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert len(server.asked) == 1 and names(tmp_path) == ["raw/file"]
    assert capsys.readouterr().err == "downloading file (2.0 MiB)\n"


def test_a_terminal_sees_a_bar(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    server.content["file"] = CONTENT
    fetch(server, tmp_path / "file")
    shown = capsys.readouterr().err
    assert "━" in shown and "2.0/2.0 MB" in shown


def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path, capsys):
    server.content["file"], server.cut, server.cuts = CONTENT, 700_000, 2
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=700000-", "bytes=1400000-"]
    assert "cut after 700,000 of 2,048,000 bytes; trying again (2 of 5)" in capsys.readouterr().err
    assert names(tmp_path) == ["file"]


def test_a_later_run_goes_on_too(server, tmp_path):
    server.content["file"], server.cut, server.cuts = CONTENT, 100, 1
    with pytest.raises(DataError, match="cut after 100 of 2,048,000 bytes"):
        fetch(server, tmp_path / "file", tries=1)
    assert names(tmp_path) == ["file.part"] and (tmp_path / "file.part").stat().st_size == 100
    fetch(server, tmp_path / "file")
    assert server.asked[-1] == "bytes=100-" and names(tmp_path) == ["file"]


def test_a_server_that_ignores_range_sends_all_of_it(server, tmp_path):
    server.content["file"], server.ranges = CONTENT, False
    (tmp_path / "file.part").write_bytes(b"x" * 3_000_000)  # longer than the file
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=3000000-"]


def test_a_part_that_was_complete_needs_no_more(server, tmp_path):
    server.content["file"] = CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT


def test_a_part_of_another_file_is_begun_again(server, tmp_path):
    server.content["file"] = CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT + b"more")
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == ["bytes=2048004-", None]


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.content["file"] = CONTENT[:-1]
    with pytest.raises(
        DataError, match=f"file from http.*: md5 {md5(CONTENT[:-1])[4:]}, expected {md5(CONTENT)[4:]}"
    ):
        fetch(server, tmp_path / "file")
    assert names(tmp_path) == []


def test_a_file_that_changed_later_is_noticed(server, tmp_path):
    (tmp_path / "file").write_bytes(b"altered")
    with pytest.raises(
        DataError, match=f"file: md5 .*, expected {md5(CONTENT)[4:]}; remove it and run again"
    ):
        fetch(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"altered" and not server.asked


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, 3)])
def test_what_another_try_cannot_mend_is_not_tried(server, tmp_path, status, requests):
    server.status = [status] * 9
    with pytest.raises(DataError, match=rf"/file: cannot be downloaded \(HTTP {status} "):
        fetch(server, tmp_path / "file", tries=3)
    assert len(server.asked) == requests and names(tmp_path) == []


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.content["file"], server.status = CONTENT, [503, 429]
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT


def test_a_server_that_is_not_there(server, tmp_path):
    server.http.server_close()
    with pytest.raises(DataError, match="cannot be downloaded .*refused"):
        fetch(server, tmp_path / "file", tries=2)


def test_a_silent_server_is_given_up(tmp_path, server):
    def silent(request):
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"a")
        request.wfile.flush()
        released.wait(5)

    released, server.answer = threading.Event(), silent
    with pytest.raises(DataError, match="timed out"):
        fetch(server, tmp_path / "file", tries=1, timeout=0.2)
    released.set()


def test_only_http_is_spoken(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with pytest.raises(DataError, match="unknown url type: file"):
        download.fetch(secret.as_uri(), tmp_path / "file", md5(b"secret"), pause=0)
    for target in (secret.as_uri(), "ftp://127.0.0.1/x", "data:,x"):
        server.redirect["file"] = target
        with pytest.raises(DataError, match="cannot be downloaded"):
            fetch(server, tmp_path / "file", tries=1)
    server.redirect, server.content = {"file": server.url("other")}, {"other": CONTENT}
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT


def test_a_full_disk_ends_the_download_and_leaves_nothing(server, tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(path, mode):
        path.write_bytes(b"")
        return Full()

    server.content["file"] = CONTENT
    monkeypatch.setattr(download, "open", full, raising=False)
    with pytest.raises(FedReproError, match="file.part: cannot be written: No space left on device"):
        fetch(server, tmp_path / "file")
    assert len(server.asked) == 1 and names(tmp_path) == []


# -- unpacking ---------------------------------------------------------------------------------------------


def make_zip(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def make_tar(path, members, mode="w:gz"):
    """members: {name: bytes or a TarInfo}."""
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_archive_is_unpacked_whole_or_in_part(tmp_path, make):
    archive = make(tmp_path / "archive", {"a/b.txt": b"1", "a/c.txt": b"2"})
    download.extract(archive, tmp_path / "all")
    download.extract(archive, tmp_path / "some", lambda name: name.endswith("c.txt"))
    assert names(tmp_path / "all") == ["a/b.txt", "a/c.txt"] and names(tmp_path / "some") == ["a/c.txt"]


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "a\\..\\..\\evil", "C:\\evil", "c:evil"]
)
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_archive_cannot_write_outside(tmp_path, make, name):
    archive = make(tmp_path / "archive", {"good": b"1", name: b"2"})
    with pytest.raises(DataError, match="would be written outside the target folder; refused"):
        download.extract(archive, tmp_path / "deep" / "target")
    assert names(tmp_path) == ["archive"] and not (tmp_path / "deep" / "target").exists()


@pytest.mark.parametrize(
    "member",
    [
        special("link", tarfile.SYMTYPE, "/etc"),
        special("link", tarfile.SYMTYPE, "good"),
        special("link", tarfile.LNKTYPE, "../../archive"),
        special("pipe", tarfile.FIFOTYPE),
        special("device", tarfile.CHRTYPE),
    ],
    ids=lambda member: member.name,
)
def test_links_and_devices_are_refused(tmp_path, member):
    archive = make_tar(tmp_path / "archive", {"good": b"1", member.name: member})
    with pytest.raises(DataError, match="is a link or a device; refused"):
        download.extract(archive, tmp_path / "target")
    assert names(tmp_path) == ["archive"]


def test_a_link_in_a_zip_is_refused(tmp_path):
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="is a link or a device; refused"):
        download.extract(tmp_path / "archive", tmp_path / "target")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_bomb_is_refused(tmp_path, make, monkeypatch):
    monkeypatch.setattr(download, "SMALL", 1000)
    monkeypatch.setattr(download, "LARGEST", 5)
    archive = make(tmp_path / "archive", {"zeros": bytes(100_000)})
    if make is make_zip:
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as again:
            again.writestr("zeros", bytes(100_000))
    with pytest.raises(DataError, match="over 5 times its size; refused"):
        download.extract(archive, tmp_path / "target")


@pytest.mark.parametrize("damage", ["cut", "no archive", "flipped"])
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_damaged_archive_is_named(tmp_path, make, damage):
    noise = np.random.default_rng(0).bytes(50_000)
    archive = make(tmp_path / "archive", {"a": noise, "b": noise[::-1]})
    content = bytearray(archive.read_bytes())
    if damage == "flipped":
        content[len(content) // 3] ^= 0xFF
    archive.write_bytes(
        content[:60_000] if damage == "cut" else b"nothing" * 99 if damage == "no archive" else content
    )
    with pytest.raises(DataError, match="archive: cannot be unpacked"):
        download.extract(archive, tmp_path / "target")
    assert names(tmp_path) == ["archive"]


# -- the official formats ----------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)


def pixels(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def idx(array):
    return gzip.compress(
        struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def archived(make, members, tmp_path):
    """The bytes of an archive."""
    path = make(tmp_path / "made", members)
    content = path.read_bytes()
    path.unlink()
    return content


@pytest.fixture
def official(server, tmp_path, monkeypatch):
    """Put small official files of a set on the server (or, for those without an address, into raw/) and
    prepare it."""
    monkeypatch.delenv("FEDREPRO_MIRROR", raising=False)

    def prepare(name, contents, counts, **changes):
        entry = registry.sets()[name]
        base, listed = [server.url("")] if entry.canonical.base else [], {}
        for file, content in zip(entry.canonical.official, contents, strict=True):
            listed[file.name] = md5(content) if base else ""
            if base:
                server.content[file.name] = content
            else:
                files.write_bytes(tmp_path / "data" / "raw" / name / file.name, content)
        canonical = dataclasses.replace(entry.canonical, files=listed, base=base)
        monkeypatch.setitem(
            registry.sets(), name, dataclasses.replace(entry, canonical=canonical, counts=counts, **changes)
        )
        meta = sources.prepare(name, tmp_path / "data" / name)
        assert meta["source"] == "canonical"
        assert meta["inputs"] == {
            file.name: hashlib.sha256(content).hexdigest()
            for file, content in zip(canonical.official, contents, strict=True)
        }
        assert sorted(path.name for path in (tmp_path / "data" / "raw" / name).iterdir()) == sorted(
            meta["inputs"]
        )
        return store.verify(tmp_path / "data" / name)

    return prepare


def idx_files(train=5, test=3):
    return pixels(train, 28, 28), np.arange(train) % 10, pixels(test, 28, 28), np.arange(test) % 10


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx(official, name):
    arrays = idx_files()
    stored = official(name, [idx(np.asarray(array, np.uint8)) for array in arrays], {name: (5, 3)})
    np.testing.assert_array_equal(stored.images[..., 0], np.concatenate([arrays[0], arrays[2]]))
    assert stored.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2] and stored.split.tolist() == [0] * 5 + [1] * 3
    assert stored.meta["deviation"] == "" and len(stored.meta["classes"]) == 10


def test_an_incomplete_official_file_is_refused(official, tmp_path):
    arrays = idx_files()
    with pytest.raises(
        DataError, match="mnist: domain mnist has 5 training and 3 test images in .*, expected 60,000 and 3"
    ):
        official("mnist", [idx(np.asarray(array, np.uint8)) for array in arrays], {"mnist": (60_000, 3)})
    with pytest.raises(DataError, match="train-labels-idx1-ubyte.gz: cannot be read"):
        contents = [idx(np.asarray(array, np.uint8)) for array in arrays]
        contents[1] = gzip.compress(gzip.decompress(contents[1])[:-2])
        (tmp_path / "data" / "raw" / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
        official("mnist", contents, {"mnist": (5, 3)})
    assert not (tmp_path / "data" / "mnist").exists()


def test_a_full_disk_while_preparing_leaves_the_download_alone(official, tmp_path, monkeypatch):
    def full(*arguments, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.np, "save", full)
    with pytest.raises(FedReproError, match="data/mnist: cannot be written: No space left on device"):
        official("mnist", [idx(np.asarray(array, np.uint8)) for array in idx_files()], {"mnist": (5, 3)})
    assert all(name.startswith("raw/mnist/") for name in names(tmp_path / "data"))


@pytest.mark.parametrize(
    ("name", "split", "first"), [("emnist_letters", "letters", 1), ("emnist_balanced", "balanced", 0)]
)
def test_emnist(official, tmp_path, name, split, first):
    train, train_labels, test, test_labels = idx_files()
    members = {
        f"gzip/emnist-{split}-train-images-idx3-ubyte.gz": idx(train),
        f"gzip/emnist-{split}-train-labels-idx1-ubyte.gz": idx((train_labels + first).astype(np.uint8)),
        f"gzip/emnist-{split}-test-images-idx3-ubyte.gz": idx(test),
        f"gzip/emnist-{split}-test-labels-idx1-ubyte.gz": idx((test_labels + first).astype(np.uint8)),
        "gzip/emnist-digits-train-images-idx3-ubyte.gz": b"not unpacked",
        "gzip/emnist-letters-mapping.txt": b"1 65 97",
    }
    stored = official(name, [archived(make_zip, members, tmp_path)], {name: (5, 3)})
    np.testing.assert_array_equal(stored.images[:5, ..., 0], train.swapaxes(1, 2))  # upright
    assert stored.labels.tolist() == [*train_labels, *test_labels] and stored.meta["classes"][10:12] in (
        ["k", "l"],
        ["A", "B"],
    )


def test_emnist_without_its_files(official, tmp_path):
    with pytest.raises(DataError, match="emnist-gzip.zip: lacks emnist-letters-test-images"):
        official("emnist_letters", [archived(make_zip, {"gzip/x.gz": b""}, tmp_path)], {})


def test_usps(official):
    values = RANDOM.uniform(-1, 1, (6, 256)).astype(np.float32)
    values[0, :3] = [-1, 0, 1]
    lines = [
        f"{i % 10 + 1} " + " ".join(f"{j + 1}:{v:.6f}" for j, v in enumerate(row))
        for i, row in enumerate(values)
    ]
    contents = [bz2.compress("\n".join([*part, ""]).encode()) for part in (lines[:4], lines[4:])]
    stored = official("usps", contents, {"usps": (4, 2)})
    # torchvision's conversion: parsed as float32, cut off
    read = np.array(
        [[np.float32(item.split(":")[1]) for item in line.split()[1:]] for line in lines], np.float32
    )
    np.testing.assert_array_equal(
        stored.images[..., 0], ((read + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16)
    )
    assert stored.images[0, 0, :3, 0].tolist() == [0, 127, 255] and stored.labels.tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]


def test_svhn(official):
    images, contents = pixels(5, 32, 32, 3), []
    for part, labels in ((images[:3], [10, 1, 9]), (images[3:], [2, 10])):
        buffer = io.BytesIO()
        savemat(buffer, {"X": part.transpose(1, 2, 3, 0), "y": np.array(labels, np.uint8)[:, None]})
        contents.append(buffer.getvalue())
    stored = official("svhn", contents, {"svhn": (3, 2)})
    np.testing.assert_array_equal(stored.images, images)
    assert stored.labels.tolist() == [0, 1, 9, 2, 0]


def test_cifar10(official, tmp_path):
    images, labels = pixels(12, 32, 32, 3), np.arange(12, dtype=np.uint8) % 10
    records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(12, -1)], axis=1).reshape(
        6, -1
    )
    members = {
        f"cifar-10-batches-bin/{name}": row.tobytes()
        for name, row in zip(
            [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], records, strict=True
        )
    }
    classes = list("abcdefghij")
    members["cifar-10-batches-bin/batches.meta.txt"] = "\n".join([*classes, "", ""]).encode()
    stored = official("cifar10", [archived(make_tar, members, tmp_path)], {"cifar10": (10, 2)})
    np.testing.assert_array_equal(stored.images, images)
    assert stored.labels.tolist() == labels.tolist() and stored.meta["classes"] == classes


def test_cifar100_takes_the_fine_label(official, tmp_path):
    images, fine = pixels(4, 32, 32, 3), np.array([3, 99, 0, 7], np.uint8)
    records = np.concatenate(
        [fine[:, None] // 5, fine[:, None], images.transpose(0, 3, 1, 2).reshape(4, -1)], axis=1
    ).astype(np.uint8)
    members = {
        "cifar-100-binary/train.bin": records[:3].tobytes(),
        "cifar-100-binary/test.bin": records[3:].tobytes(),
        "cifar-100-binary/fine_label_names.txt": "\n".join(f"c{i}" for i in range(100)).encode(),
    }
    stored = official("cifar100", [archived(make_tar, members, tmp_path)], {"cifar100": (3, 1)})
    np.testing.assert_array_equal(stored.images, images)
    assert stored.labels.tolist() == fine.tolist() and stored.meta["classes"][99] == "c99"


def cifar10_c_members(domains, stack):
    def npy(array, **more):
        buffer = io.BytesIO()
        np.save(buffer, array, **more)
        return buffer.getvalue()

    members = {f"CIFAR-10-C/{domain}.npy": npy(stack + i) for i, domain in enumerate(domains)}
    return members | {"CIFAR-10-C/labels.npy": npy(np.arange(6) % 10)}, npy


def test_cifar10_c(official, tmp_path):
    domains, stack = registry.find("cifar10_c").domains, pixels(6, 32, 32, 3)
    members, _ = cifar10_c_members(domains, stack)
    stored = official(
        "cifar10_c",
        [archived(lambda p, m: make_tar(p, m, "w"), members, tmp_path)],
        dict.fromkeys(domains, (0, 6)),
    )
    assert stored.images.shape == (6 * 19, 32, 32, 3) and stored.meta["domains"] == list(domains)
    np.testing.assert_array_equal(stored.images[stored.domains == 7], stack + 7)
    assert set(stored.split) == {1} and stored.labels[stored.domains == 3].tolist() == list(range(6))


def test_a_pickle_in_an_array_file_is_not_loaded(official, tmp_path):
    members, npy = cifar10_c_members(registry.find("cifar10_c").domains, pixels(6, 32, 32, 3))
    members["CIFAR-10-C/fog.npy"] = npy(np.array([{}] * 6), allow_pickle=True)
    with pytest.raises(DataError, match="fog.npy: cannot be read"):
        official("cifar10_c", [archived(make_tar, members, tmp_path)], {})
    assert names(tmp_path / "data") == ["raw/cifar10_c/CIFAR-10-C.tar"]


def test_mnistm(official, tmp_path):
    images = pixels(5, 32, 32, 3)
    order = {"train": [2, 0, 1], "test": [4, 3]}
    members = {
        f"mnist_m/mnist_m_{part}/{i:08}.png": png(images[i]) for part, chosen in order.items() for i in chosen
    }
    members |= {
        f"mnist_m/mnist_m_{part}_labels.txt": "".join(f"{i:08}.png {i}\n" for i in chosen).encode()
        for part, chosen in order.items()
    }
    stored = official("mnistm", [archived(make_tar, members, tmp_path)], {"mnistm": (3, 2)})
    np.testing.assert_array_equal(stored.images, images[[2, 0, 1, 4, 3]])
    assert stored.labels.tolist() == [2, 0, 1, 4, 3] and stored.split.tolist() == [0, 0, 0, 1, 1]


def test_syn(official, tmp_path, capsys):
    flat = {
        (part, digit): np.full((128, 128, 3), 20 * digit + part, np.uint8)
        for part in (0, 1)
        for digit in range(10)
    }
    members = {
        f"data/synthetic_digits/{'imgs_valid' if part else 'imgs_train'}/{digit}/{digit}_00.png": png(image)
        for (part, digit), image in flat.items()
    }
    content = archived(make_zip, members, tmp_path)
    stored = official("syn", [content], {"syn": (10, 10)})
    assert stored.images.shape == (20, 32, 32, 3)
    assert stored.labels.tolist() == [*range(10)] * 2 and stored.split.tolist() == [0] * 10 + [1] * 10
    assert stored.images[13].min() == stored.images[13].max() == 61 and "32x32" in stored.meta["deviation"]
    assert (
        f"synthetic-digits.zip: SHA-256 {hashlib.sha256(content).hexdigest()} (no official checksum"
        in capsys.readouterr().err
    )


def test_synth_digits(official):
    images, buffer = pixels(5, 32, 32, 3), io.BytesIO()
    savemat(
        buffer,
        {
            "train_data": images[:3],
            "train_label": np.array([[0], [9], [1]]),
            "test_data": images[3:],
            "test_label": np.array([[2], [0]]),
        },
    )
    stored = official("synth_digits", [buffer.getvalue()], {"synth_digits": (3, 2)})
    np.testing.assert_array_equal(stored.images, images)
    assert (
        stored.labels.tolist() == [0, 9, 1, 2, 0]
        and stored.split.tolist() == [0, 0, 0, 1, 1]
        and stored.meta["deviation"] == ""
    )


def test_tiny_imagenet(official, tmp_path):
    images, root = pixels(5, 64, 64, 3), "tiny-imagenet-200"
    members = {
        f"{root}/train/n02/images/n02_0.JPEG": png(images[2]),
        f"{root}/train/n01/images/n01_1.JPEG": png(images[1]),
        f"{root}/train/n01/images/n01_0.JPEG": png(images[0]),
        f"{root}/train/n01/n01_boxes.txt": b"",
        f"{root}/val/images/val_1.JPEG": png(images[4]),
        f"{root}/val/images/val_0.JPEG": png(images[3]),
        f"{root}/val/val_annotations.txt": b"val_1.JPEG\tn01\t0\t0\t9\t9\nval_0.JPEG\tn02\t0\t0\t9\t9\n",
        f"{root}/test/images/test_0.JPEG": b"not unpacked",
        f"{root}/words.txt": b"n00\tthing\nn01\tgoldfish\nn02\ttoad, frog\n",
    }
    stored = official(
        "tiny_imagenet", [archived(make_zip, members, tmp_path)], {"tiny_imagenet": (3, 2)}, classes=2
    )
    np.testing.assert_array_equal(stored.images, images)
    assert stored.labels.tolist() == [0, 0, 1, 1, 0] and stored.split.tolist() == [0, 0, 0, 1, 1]
    assert stored.meta["classes"] == ["goldfish", "toad, frog"]


@pytest.mark.parametrize(
    ("name", "prefix", "folders", "inner", "make"),
    [
        ("pacs", "kfold/", ("art_painting", "cartoon", "photo", "sketch"), "", make_zip),
        ("office_caltech10", "Office-main/", ("amazon", "Caltech", "dslr", "webcam"), "", make_zip),
        (
            "office_home",
            "OfficeHomeDataset_10072016/",
            ("Art", "Clipart", "Product", "Real World"),
            "",
            make_zip,
        ),
        ("office31", "", ("amazon", "dslr", "webcam"), "images/", make_tar),
    ],
)
def test_folders(official, tmp_path, name, prefix, folders, inner, make):
    members, greys = {}, []
    for d, folder in enumerate(folders):
        for c, label in enumerate(("back_pack", "mug")):
            for i in range(d + 1):
                greys.append(60 * d + 20 * c + i)
                members[f"{prefix}{folder}/{inner}{label}/{i}.{'PNG' if i else 'jpg'}"] = png(
                    np.full((30, 20, 3), greys[-1], np.uint8)
                )
    shadows = {f"__MACOSX/{member.replace('/0.jpg', '/._0.jpg')}": b"shadow" for member in members}
    members = (
        dict(reversed(members.items()))
        | shadows
        | {f"{prefix}{folders[0]}/.DS_Store": b"", f"{prefix}README.md": b""}
    )
    domains = registry.sets()[name].domains
    counts = {domain: (2 * d + 2, 0) for d, domain in enumerate(domains)}
    stored = official(name, [archived(make, members, tmp_path)], counts, classes=2, shape=(8, 8, 3))
    assert stored.images[:, 0, 0, 0].tolist() == greys and stored.images.shape[1:] == (8, 8, 3)
    assert stored.meta["classes"] == ["back_pack", "mug"] and stored.meta["domains"] == list(domains)
    assert stored.labels.tolist() == [c for d in range(len(folders)) for c in (0, 1) for _ in range(d + 1)]
    assert stored.meta["official_split"] is False and stored.split.sum() == 0 and stored.meta["deviation"]


def test_folders_that_do_not_fit(official, tmp_path):
    def attempt(members, message):
        with pytest.raises(DataError, match=message):
            official("office31", [archived(make_tar, members, tmp_path)], {}, classes=2)
        assert names(tmp_path / "data") == ["raw/office31/domain_adaptation_images.tar.gz"]

    image = png(np.zeros((4, 4, 3), np.uint8))
    good = {
        f"{domain}/images/{label}/1.jpg": image
        for domain in ("amazon", "dslr", "webcam")
        for label in ("a", "b")
    }

    def without(part):
        return {name: content for name, content in good.items() if part not in name}

    attempt(without("dslr"), "no folder in it has the subfolders amazon, dslr, webcam")
    attempt(without("dslr/images/b"), "dslr has 1 classes, a; expected 2")
    attempt(good | {"webcam/images/b/1.jpg": image[:45]}, "webcam/images/b/1.jpg: cannot be read")


def test_domainnet(official, tmp_path):
    domains = registry.sets()["domainnet"].domains
    contents = []
    for d, domain in enumerate(domains):
        images = {
            f"{domain}/{label}/{domain}_{i}.jpg": png(np.full((9, 7, 3), 40 * d + i, np.uint8))
            for i, label in enumerate(("zebra", "bird", "bird", "anvil"))
        }
        train = "".join(
            f"{domain}/{label}/{domain}_{i}.jpg {number}\n"
            for label, i, number in (("zebra", 0, 344), ("bird", 2, 22), ("anvil", 3, 5))
        )
        contents += [
            archived(make_zip, images, tmp_path),
            train.encode(),
            f"{domain}/bird/{domain}_1.jpg 22\n".encode(),
        ]
    stored = official("domainnet", contents, dict.fromkeys(domains, (2, 1)), shape=(8, 8, 3))
    assert stored.domains.tolist() == [d for d in range(6) for _ in range(3)]
    assert stored.labels.tolist() == [0, 0, 9] * 6 and stored.split.tolist() == [1, 0, 0] * 6
    assert stored.images[:, 0, 0, 0].tolist() == [40 * d + i for d in range(6) for i in (1, 2, 0)]


# -- addresses and hands -----------------------------------------------------------------------------------


def with_urls(monkeypatch, name, *urls):
    entry = registry.sets()[name]
    canonical = dataclasses.replace(entry.canonical, base=list(urls))
    monkeypatch.setitem(registry.sets(), name, dataclasses.replace(entry, canonical=canonical))


def test_the_second_address_serves_when_the_first_does_not(server, tmp_path, monkeypatch):
    server.content["good"] = CONTENT
    file = registry.File("file", (server.url("gone"), server.url("good")), md5(CONTENT))
    assert sources._official(file, tmp_path, "mnist", registry.sets()["mnist"]).read_bytes() == CONTENT


def test_a_failed_download_says_what_a_person_can_do(server, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDREPRO_MIRROR", raising=False)
    with_urls(monkeypatch, "mnist", server.url("gone"))
    with pytest.raises(
        DataError,
        match=r"mnist: http.*/gone: cannot be downloaded \(HTTP 404 Not Found\)\. By hand: get "
        r"train-images-idx3-ubyte.gz from http://yann.lecun.com/exdb/mnist/ and put it into "
        r".*/raw/mnist/; or name a folder with mnist.npz in FEDREPRO_MIRROR",
    ):
        sources.prepare("mnist", tmp_path / "data" / "mnist")
    assert names(tmp_path) == []


def test_a_file_put_there_by_hand_is_verified_where_a_checksum_is_known(server, tmp_path, monkeypatch):
    raw = tmp_path / "data" / "raw"
    files.write_bytes(raw / "office_home" / "OfficeHomeDataset_10072016.zip", b"another file")
    with pytest.raises(
        DataError, match="OfficeHomeDataset_10072016.zip: md5 .* expected b1c14819770c4448fd5b6d931031c91c"
    ):
        sources.prepare("office_home", tmp_path / "data" / "office_home", "canonical")
    files.write_bytes(raw / "mnist" / "train-images-idx3-ubyte.gz", b"cut")
    with pytest.raises(
        DataError,
        match="train-images-idx3-ubyte.gz: md5 .* expected f68b3c2dcbeaaa9fbdd348bbdeb94873; remove it",
    ):
        sources.prepare("mnist", tmp_path / "data" / "mnist", "canonical")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in registry.sets().items()
        if entry.canonical and not all(file.urls for file in entry.canonical.official)
    ],
)
def test_a_manual_step_names_page_file_folder_and_command(tmp_path, name):
    entry = registry.sets()[name]
    with pytest.raises(DataError) as caught:
        sources.prepare(name, tmp_path / name, "canonical")
    said = str(caught.value)
    assert (
        entry.canonical.page in said
        and f"as {entry.canonical.official[0].name} into" in said
        and "\n" not in said
    )
    assert f"{tmp_path}/raw/{name}/, then run: dvc repro data/dvc.yaml:fetch@{name}" in said
