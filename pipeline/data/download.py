"""Download files and unpack archives; the result is complete and verified, or does not exist."""

import contextlib
import lzma
import os
import stat
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from urllib3.exceptions import HTTPError

from pipeline import files
from pipeline.errors import DAMAGED, DataError, FedReproError
from pipeline.schema import shorten

BLOCK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte
TRIES = 5
# seconds before the second try, doubled from try to try
PAUSE = 2.0
# HTTP answers that another try does not change
FINAL = {400, 401, 403, 404, 405, 410, 451}
MIB = 1 << 20
# first bytes of an archive -> what it is
HEADS = {b"PK\x03\x04": ".zip", b"\x1f\x8b": ".tar.gz", b"BZh": ".tar.bz2", b"\xfd7zXZ\x00": ".tar.xz"}
# where a tar says what it is
USTAR = 257
AGAIN = "remove it and get it again"
# an archive that unpacks to more than this many times its size ...
LARGEST = 200
# ... and to more than this is refused
SMALL = 1024 * MIB


def fetch(
    url: str,
    target: Path,
    checksum: str,
    *,
    tries: int = TRIES,
    pause: float = PAUSE,
    timeout: float = TIMEOUT,
) -> Path:
    """Download `url` to `target` and return it; nothing is done when a verified `target` is there already.

    checksum: "md5:..." or "sha256:...", or both with a blank between, compared before the file gets its final
    name. A cut download stays as `<target>.part` and goes on from there. Only http and https. Raises
    DataError for a wrong checksum or when the last try failed, FedReproError when the disk is full.
    """
    target = Path(target)
    if target.exists():
        check(target, checksum)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    for attempt in range(1, tries + 1):
        try:
            _transfer(url, part, timeout)
            break
        except (OSError, HTTPError) as error:
            cause, final = _cause(error)
            if attempt == tries or final:
                raise DataError(f"{url}: cannot be downloaded ({cause})") from None
            say(f"{target.name}: {cause}; trying again ({attempt + 1} of {tries})")
            time.sleep(pause * 2 ** (attempt - 1))
    try:
        check(part, checksum, final=target, origin=f" from {url}")
    except DataError:
        part.unlink()  # a wrong file cannot be continued into a right one
        raise
    os.replace(part, target)
    return target


def check(path: Path, checksum: str, final: Path | None = None, origin: str = "") -> None:
    """Raise DataError if the file does not have the checksum ("md5:..." or "sha256:..."), or not each."""
    for each in checksum.split():
        algorithm, expected = each.split(":")
        actual = files.checksum(path, algorithm)
        if actual != expected:
            advice = "" if final else "; remove it and run again"
            raise DataError(
                f"{shorten(final or path)}{origin}: {algorithm} {actual}, expected {expected}{advice}"
            )


def _transfer(url: str, part: Path, timeout: float) -> None:
    """One try: append to `part` what is still missing. OSError or HTTPError when the connection breaks."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "FedRepro", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, timeout=timeout, stream=True) as answer:
        span = answer.headers.get("Content-Range", "")
        if answer.status_code == 416 and span == f"bytes */{have}":
            return  # it was complete already
        if answer.status_code == 416:
            part.unlink()
            raise ConnectionError("the server holds another file than the one begun")
        answer.raise_for_status()
        if answer.status_code != 206 or not span.startswith(f"bytes {have}-"):
            have = 0  # the server ignored Range and sends the whole file
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        answer.raw.enforce_content_length = False  # what came before a cut is kept
        with _progress(part.name.removesuffix(".part"), have, total) as advance:
            received = have + _append(answer.raw, part, have, advance)
    if total is not None and received < total:
        raise ConnectionError(f"the connection was cut after {received:,} of {total:,} bytes")


def _append(answer: Any, part: Path, start: int, advance: Callable[[int], None]) -> int:
    """Copy the answer's body to `part` from byte `start` on; returns the number of bytes copied."""
    copied = 0
    with _writing(part):
        file = open(part, "r+b" if start else "wb")
    with file:
        file.seek(start)
        while block := answer.read1(BLOCK):
            with _writing(part):
                file.write(block)
                file.flush()
            copied += len(block)
            advance(len(block))
        os.fsync(file.fileno())
    return copied


@contextlib.contextmanager
def _writing(part: Path) -> Iterator[None]:
    """A failing write is no network failure: another try would not help."""
    try:
        yield
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FedReproError(f"{shorten(part)}: cannot be written: {error.strerror or error}") from error


def _cause(error: Exception) -> tuple[str, bool]:
    """In words, and whether another try would end the same."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        answer = error.response
        return f"HTTP {answer.status_code} {answer.reason}", answer.status_code in FINAL
    return " ".join(str(error).split()), isinstance(error, ValueError)  # no address of http or https


@contextlib.contextmanager
def _progress(name: str, have: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere a line at the beginning and none in between."""
    console = Console(stderr=True)
    if not console.is_terminal:
        size = f"{total / MIB:,.1f} MiB" if total else "size unknown"
        say(f"downloading {name} ({size}{f', going on from {have / MIB:,.1f} MiB' if have else ''})")
        yield lambda count: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=total, completed=have)
        yield lambda count: bar.update(task, advance=count)


def say(text: str) -> None:
    """Print a line on stderr for the user who waits."""
    print(text, file=sys.stderr, flush=True)


def extract(archive: Path, target: Path, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Unpack the wanted files of a .zip or .tar(.gz, .bz2, .xz) into the folder `target`, which appears whole
    or not at all. Hidden files and the shadow folders of a Mac are left out.

    Raises DataError for a damaged archive, one that would write outside `target` (absolute names, "..",
    links, devices) or one that unpacks to absurdly much.
    """
    with files.replace_folder(target) as temporary:
        try:
            _unpack(archive, temporary, wanted)
        except (*DAMAGED, RuntimeError) as error:  # RuntimeError: encrypted
            # an error of the file system; those of gzip and bz2 have no number
            if isinstance(error, OSError) and error.errno:
                raise
            reason = " ".join(str(error).split())
            raise DataError(f"{shorten(archive)}: cannot be unpacked ({reason})") from None
    return target


def _unpack(archive: Path, target: Path, wanted: Callable[[str], bool]) -> None:
    """By the first bytes where these are known: of a cut file tarfile lists in lines what it is not, and an
    archive whose last file is a .zip looks like that to zipfile."""
    with open(archive, "rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    kind = next((kind for start, kind in HEADS.items() if head.startswith(start)), "")
    plain = head[USTAR : USTAR + 5] == b"ustar"
    if kind in ("", ".zip") and not plain and zipfile.is_zipfile(archive):
        _unzip(archive, target, wanted)
    elif kind == ".zip":
        raise DataError(f"{shorten(archive)}: is a .zip archive that is cut or damaged; {AGAIN}")
    else:
        try:
            _untar(archive, target, wanted, plain=not kind)
        except (tarfile.ReadError, EOFError, zlib.error, lzma.LZMAError) as error:
            kind = kind or ".tar" * plain
            what = f"a {kind} archive that is cut or damaged; {AGAIN}" if kind else "no .zip or .tar archive"
            reason = str(error).splitlines()[0] if kind else "of an unknown kind"
            raise DataError(f"{shorten(archive)}: is {what} ({reason})") from None


def _check_once(archive: Path, members: list, name: Callable, content: Callable[[Any], bytes]) -> None:
    """DataError for two files of one name that differ: unpacked, the second would replace the first."""
    first: dict[str, Any] = {}
    for member in members:
        other = first.setdefault(os.path.normpath(name(member)), member)
        if other is not member and content(other) != content(member):
            raise DataError(f"{shorten(archive)}: holds two files of the name {name(member)!r}; refused")


def _unzip(archive: Path, target: Path, wanted: Callable[[str], bool]) -> None:
    with zipfile.ZipFile(archive) as source:
        members = []
        for member in source.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 where the archive was not made on Unix
            special = kind not in (0, stat.S_IFREG, stat.S_IFDIR)
            members.append((member, member.filename, special, member.is_dir(), member.file_size))
        chosen = _chosen(archive, members, wanted)
        _check_once(archive, chosen, lambda member: member.filename, source.read)
        source.extractall(target, chosen)


def _untar(archive: Path, target: Path, wanted: Callable[[str], bool], plain: bool) -> None:
    """plain: not compressed, so that nothing but the mark at the end tells of a cut file."""
    with tarfile.open(archive) as source:
        members = [
            (member, member.name, not (member.isfile() or member.isdir()), member.isdir(), member.size)
            for member in source
        ]
        _check_end(source, plain)
        chosen = _chosen(archive, members, wanted)
        _check_once(archive, chosen, lambda member: member.name, lambda member: _content(source, member))
        for member in chosen:
            member.mode, member.uname, member.gname = 0o644, "", ""
            member.uid, member.gid = os.getuid(), os.getgid()
        # Pythons before 3.11.4 know no filters. What this one refuses has been refused above.
        filtered: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        source.extractall(target, chosen, **filtered)


def _check_end(source: tarfile.TarFile, plain: bool) -> None:
    """Read to the very end, where gzip compares its checksum. ReadError where a tar does not end with zeros:
    it is cut, or a damaged header hides the files behind it, which tarfile passes over in silence."""
    file: Any = source.fileobj
    if plain:
        file.seek(source.offset)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("it does not end where its last file ends")
    while block := file.read(BLOCK):
        if block.count(0) < len(block):
            raise tarfile.ReadError("there is more behind its last file")


def _content(source: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = source.extractfile(member)
    return file.read() if file else b""


def _chosen(archive: Path, members: list[tuple], wanted: Callable[[str], bool]) -> list:
    """The wanted members of (member, name, special, folder, size). DataError for links, devices, absolute
    names and "..", which no data set's archive holds, wherever they point, and for a bomb."""
    chosen, unpacked = [], 0
    for member, name, special, folder, size in members:
        if special:
            raise DataError(f"{shorten(archive)}: {name!r} is a link or a device; refused")
        if files.leads_out(name):
            raise DataError(f"{shorten(archive)}: {name!r} would be written outside the target; refused")
        hidden = any(part.startswith((".", "__MACOSX")) for part in Path(name).parts)
        if not folder and not hidden and wanted(name):
            chosen.append(member)
            unpacked += size
    if unpacked > SMALL and unpacked > LARGEST * archive.stat().st_size:
        much = f"unpacks to {unpacked / MIB:,.0f} MiB, over {LARGEST} times its size"
        raise DataError(f"{shorten(archive)}: {much}; refused")
    return chosen
