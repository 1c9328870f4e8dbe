"""Downloads from a server on this machine, archives that want to escape, and addresses."""

import dataclasses
import errno
import hashlib
import io
import tarfile
import threading
import zipfile

import numpy as np
import pytest
from official import make_tar, make_zip, md5, names

from pipeline import files
from pipeline.data import download, registry, sources
from pipeline.errors import DataError, FedReproError

CONTENT = bytes(range(256)) * 8000  # 2 MB, more than one block
CHECKSUM = md5(CONTENT)


def fetch(server, target, checksum=CHECKSUM, name="file", **more):
    return download.fetch(server.url(name), target, checksum, pause=0, **more)


def test_a_file_is_downloaded_once(server, tmp_path, capsys):
    server.content["file"] = CONTENT
    target = tmp_path / "raw" / "file"
    assert fetch(server, target) == target
    assert target.read_bytes() == CONTENT
    fetch(server, target, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert len(server.ranges_of) == 1
    assert names(tmp_path) == ["raw/file"]
    assert capsys.readouterr().err == "downloading file (2.0 MiB)\n"


def test_a_cut_download_goes_on_where_it_stopped(server, tmp_path, capsys):
    """And a busy server is tried again."""
    server.content["file"], server.cut, server.cuts, server.status = CONTENT, 700_000, 2, [503, 429]
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges_of == [None, None, None, "bytes=700000-", "bytes=1400000-"]
    assert "cut after 700,000 of 2,048,000 bytes" in capsys.readouterr().err
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("part", "ranges", "requests"),
    [
        (b"x" * 3_000_000, False, ["bytes=3000000-"]),  # longer than the file
        (CONTENT, True, ["bytes=2048000-"]),
        (CONTENT + b"more", True, ["bytes=2048004-", None]),
    ],
    ids=["range ignored", "complete", "of another file"],
)
def test_what_a_begun_file_leads_to(server, tmp_path, part, ranges, requests):
    server.content["file"], server.ranges = CONTENT, ranges
    (tmp_path / "file.part").write_bytes(part)
    assert fetch(server, tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges_of == requests


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.content["file"] = CONTENT[:-1]
    with pytest.raises(DataError, match=f"file .* {md5(CONTENT[:-1])[4:]}, expected {md5(CONTENT)[4:]}"):
        fetch(server, tmp_path / "file")
    assert names(tmp_path) == []


@pytest.mark.parametrize("wrong", ["md5", "sha256"])
def test_each_of_several_checksums_counts(server, tmp_path, wrong):
    digests = {name: hashlib.new(name, CONTENT).hexdigest() for name in ("md5", "sha256")}
    server.content["file"] = CONTENT
    good = " ".join(f"{name}:{digest}" for name, digest in digests.items())
    assert fetch(server, tmp_path / "good", good).read_bytes() == CONTENT
    digests[wrong] = "0" * len(digests[wrong])
    bad = " ".join(f"{name}:{digest}" for name, digest in digests.items())
    with pytest.raises(DataError, match=f"{wrong} .*, expected 000"):
        fetch(server, tmp_path / "bad", bad)
    assert names(tmp_path) == ["good"]


def test_what_comes_over_plain_http_has_a_checksum_that_nobody_forges():
    for name, entry in registry.sets().items():
        official = entry.canonical
        if official and any(address.startswith("http://") for address in official.base):
            assert official.base[0].startswith("https://"), name
            assert all("sha256:" in checksum for checksum in official.files.values()), name


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (403, 1), (503, 3)])
def test_what_another_try_cannot_mend_is_not_tried(server, tmp_path, status, requests):
    server.status = [status] * 9
    with pytest.raises(DataError, match=rf"/file: cannot be downloaded \(HTTP {status} "):
        fetch(server, tmp_path / "file", tries=3)
    assert len(server.ranges_of) == requests
    assert names(tmp_path) == []


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
    with pytest.raises(DataError, match="No connection adapters"):
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
    assert len(server.ranges_of) == 1
    assert names(tmp_path) == []


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "a\\..\\..\\evil", "C:\\evil", "c:evil"]
)
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_archive_cannot_write_outside(tmp_path, make, name):
    archive = make(tmp_path / "archive", {"good": b"1", name: b"2"})
    with pytest.raises(DataError, match="would be written outside the target; refused"):
        download.extract(archive, tmp_path / "deep" / "target")
    assert names(tmp_path) == ["archive"]
    assert not (tmp_path / "deep" / "target").exists()


@pytest.mark.parametrize(
    "member",
    [
        special("link", tarfile.SYMTYPE, "/etc"),
        special("link", tarfile.SYMTYPE, "good"),
        special("link", tarfile.LNKTYPE, "../../archive"),
        special("pipe", tarfile.FIFOTYPE),
        special("device", tarfile.CHRTYPE),
        zipfile.ZipInfo("link"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, member):
    archive = tmp_path / "archive"
    if isinstance(member, tarfile.TarInfo):
        make_tar(archive, {"good": b"1", member.name: member})
    else:
        member.external_attr = 0o120777 << 16
        make_zip(archive, {member: "/etc/passwd"})
    with pytest.raises(DataError, match="is a link or a device; refused"):
        download.extract(archive, tmp_path / "target")
    assert names(tmp_path) == ["archive"]


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


@pytest.mark.parametrize("damage", ["cut", "no archive", "flipped", "name"])
@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_a_damaged_archive_is_named(tmp_path, make, damage):
    noise = np.random.default_rng(0).bytes(50_000)
    archive = make(tmp_path / "archive", {"a": noise, "bé": noise[::-1]})
    content = bytearray(archive.read_bytes())
    if damage == "flipped":
        content[len(content) // 3] ^= 0xFF
    if damage == "name":
        archive = make_tar(archive, {"bé": noise}, "w") if make is make_tar else archive
        content = archive.read_bytes().replace("é".encode(), b"\xff\0")
    other = {"cut": content[:60_000], "no archive": b"nothing" * 99}
    archive.write_bytes(other.get(damage, content))
    with pytest.raises(DataError, match="archive: (cannot be unpacked|is )"):
        download.extract(archive, tmp_path / "target")
    assert names(tmp_path) == ["archive"]


def test_another_address_serves_and_a_failed_download_says_what_a_person_can_do(
    server, tmp_path, monkeypatch
):
    server.content["good"] = CONTENT
    canonical = registry.Canonical("idx", {"file": CHECKSUM}, base=[server.url("gone"), server.url("good")])
    sources._fetch(canonical, "file", tmp_path / "file", "", "")
    assert (tmp_path / "file").read_bytes() == CONTENT
    monkeypatch.delenv("FEDREPRO_MIRROR", raising=False)
    entry = registry.sets()["mnist"]
    canonical = dataclasses.replace(entry.canonical, base=[server.url("gone")])
    monkeypatch.setitem(registry.sets(), "mnist", dataclasses.replace(entry, canonical=canonical))
    message = "mnist: .*/gone: .*404.* train-images-idx3-ubyte.gz .*/raw/mnist/; .*FEDREPRO_MIRROR"
    with pytest.raises(DataError, match=message):
        sources.prepare("mnist", tmp_path / "data" / "mnist")
    assert names(tmp_path) == ["file"]


def test_a_file_put_there_by_hand_is_verified_where_a_checksum_is_known(server, tmp_path, monkeypatch):
    raw = tmp_path / "data" / "raw"
    files.write_bytes(raw / "office_home" / "OfficeHomeDataset_10072016.zip", b"another file")
    with pytest.raises(DataError, match="OfficeHomeDataset_10072016.zip: .* b1c14819770c4448fd5b6d931031"):
        sources.prepare("office_home", tmp_path / "data" / "office_home", "canonical")
    files.write_bytes(raw / "mnist" / "train-images-idx3-ubyte.gz", b"cut")
    with pytest.raises(DataError, match="train-images-idx3-ubyte.gz: .* f68b3c2dcbeaaa9fbdd348bbdeb94873;"):
        sources.prepare("mnist", tmp_path / "data" / "mnist", "canonical")


@pytest.mark.parametrize(
    "name",
    [name for name, entry in registry.sets().items() if entry.canonical and not entry.canonical.base],
)
def test_a_manual_step_names_page_file_folder_and_command(tmp_path, name):
    entry = registry.sets()[name]
    with pytest.raises(DataError) as caught:
        sources.prepare(name, tmp_path / name, "canonical")
    message = str(caught.value)
    assert entry.canonical.page in message
    assert next(iter(entry.canonical.files)) in message
    assert f"{tmp_path}/raw/{name}/" in message
    assert f"data/dvc.yaml:fetch@{name}" in message
