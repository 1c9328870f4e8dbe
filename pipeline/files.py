"""Write files and folders atomically, read and write CSV, compute checksums.

Everything is written under a temporary name in the same folder, flushed to the disk and renamed; then the
folder is flushed. After a power cut there is either the old or the new content, complete.
"""

import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath

from pipeline.errors import FedReproError, ParamError, warn
from pipeline.schema import shorten
from pipeline.schema.checker import CONTROL

# of some shared file systems
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# of file systems that synchronise no folder
NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EACCES, errno.EPERM)
# seconds
WEEK = 7 * 86400.0
# with which a spreadsheet's formula begins
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Hexadecimal digest of a file. md5 serves only to compare with what a data set's owner published."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def sha256(path: Path) -> str:
    return checksum(path, "sha256")


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes; all or nothing. The folder is made where it is missing.

    Raises FedReproError naming `path` when the file system refuses (no space, no permission); on any failure
    the temporary file goes away and an older `path` stays as it was.
    """
    path = Path(path)
    with _one_line_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path)
        try:
            temporary.write_bytes(content)
            sync(temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with line ends as given; all or nothing, see `write_bytes`."""
    write_bytes(path, text.encode("utf-8"))


def renew_text(path: Path, text: str) -> None:
    """As `write_text`, but a file that has this text already is not touched."""
    with contextlib.suppress(OSError):
        if Path(path).read_bytes() == text.encode("utf-8"):
            return
    write_text(path, text)


def write_json(path: Path, value: object) -> None:
    """Write JSON with sorted keys; all or nothing. FedReproError for NaN and infinity."""
    try:
        text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise FedReproError(f"{shorten(path)}: not written: {error}") from None
    write_text(path, text + "\n")


def as_text(value: object) -> object:
    """A cell of a CSV: a text that a spreadsheet would take for a formula gets a ' in front."""
    if not isinstance(value, str) or value[:1] not in FORMULA:
        return value
    with contextlib.suppress(ValueError):
        float(value)  # -1.5
        return value
    return f"'{value}"


def read_csv(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> list[tuple[int, dict[str, str]]]:
    """(line, row) of a CSV in UTF-8 with exactly these columns; a row's line is its last one where a text
    spans several. A column of `optional` may be missing, and is then empty in every row. FileNotFoundError,
    or ParamError naming file and line of what is not such a table."""
    file, content = shorten(path), Path(path).read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ParamError(f"{file}:{line}: not UTF-8: byte {content[error.start]:#x}") from None
    if stray := CONTROL.search(text):
        line = text.count("\n", 0, stray.start()) + 1
        raise ParamError(f"{file}:{line}: holds the control character U+{ord(stray[0]):04X}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ParamError(f"{file}:{reader.line_num}: {error}") from None
    if not rows:
        raise ParamError(f"{file}: is empty, the columns must be {','.join(columns)}")
    (_, header), *rows = rows
    if [name for name in header if name not in optional] != list(columns) or len(header) > len(set(header)):
        lost = [f"the column {name!r} is missing; " for name in columns if name not in header]
        raise ParamError(f"{file}:1: {(lost or [''])[0]}the columns must be {','.join(columns)}")
    for line, row in rows:
        if len(row) != len(header):
            raise ParamError(f"{file}:{line}: {len(row)} fields, the columns are {len(header)}")
    return [(line, dict.fromkeys(optional, "") | dict(zip(header, row))) for line, row in rows]


@contextlib.contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Give an empty folder next to `target`; on success it becomes `target`, on failure it goes away.

    An older `target` stays until the new one is complete. What a killed run left there is removed first.
    Raises FedReproError when the file system refuses.
    """
    target = Path(target)
    with _one_line_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(target)
        temporary.mkdir()
        try:
            yield temporary
            _swap(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """A folder next to `target`, which goes away afterwards; what a killed process left there goes first."""
    temporary = _temporary(target)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(new: Path, target: Path) -> None:
    """Rename `new` over `target`, which steps aside first: no folder replaces a full one."""
    sync_tree(new)
    if not target.exists():
        os.replace(new, target)
        sync_folder(target.parent)
        return
    old = _temporary(target, "old")
    os.replace(target, old)
    try:
        os.replace(new, target)
    except BaseException:
        os.replace(old, target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


@cache
def machine() -> str:
    """What tells this system from others that share the file system, in names of what a process leaves:
    containers may have a name and process numbers in common, but not both a start of the system and a
    namespace of numbers."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):  # not Linux
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        parts += [started[:8], os.readlink("/proc/self/ns/pid")[5:-1]]
    return re.sub(r"\W", "_", "-".join(parts))


def _temporary(target: Path, kind: str = "new") -> Path:
    """A free name next to `target` that holds this process's number and machine; names of dead processes of
    this machine, and those that are a week old, are cleared."""
    left_over = re.compile(rf"\.{re.escape(target.name)}\.(\d+)-(\w+)\.{kind}")
    for left in target.parent.iterdir():
        if not (match := left_over.fullmatch(left.name)):
            continue
        if match[2] == machine():
            dead = int(match[1]) == os.getpid() or not alive(int(match[1]))
        else:
            dead = left.exists() and time.time() - left.stat().st_mtime > WEEK
        if dead:
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    return target.with_name(f".{target.name}.{os.getpid()}-{machine()}.{kind}")


def alive(process: int) -> bool:
    """Whether a process with this number runs on this machine; zombies do not count as running."""
    import psutil

    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # the process lives and belongs to another user
        return True


@contextlib.contextmanager
def locked(path: Path, waits: str = "") -> Iterator[None]:
    """Hold the lock of a file; one that another process holds is waited for, with `waits` on stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waits:
                warn(waits)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            warn(f"{shorten(path)}: this file system has no locks: run one process at a time")
        yield


def leads_out(name: str) -> bool:
    """Whether a relative path that came from outside would lead out of the folder it is meant for."""
    path = PurePosixPath(name.replace("\\", "/"))
    return path.is_absolute() or ".." in path.parts or bool(PureWindowsPath(name).drive)


def sync(path: Path) -> None:
    """Wait until the file is on the disk: a power cut after a renaming could leave an empty one."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where its file system can do that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Wait until all that lies below a folder, and the names in it, are on the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if not path.is_symlink():
                sync(path)
        sync_folder(Path(place))


@contextlib.contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Turns an OSError inside into a FedReproError of one line that names `path`."""
    try:
        yield
    except OSError as error:
        name = str(error.filename or path.parent)
        other = "" if name.startswith(str(path.parent)) else f" ({name})"
        why = f"{error.strerror or error}{other}"
        raise FedReproError(f"{shorten(path)}: cannot be written: {why}") from error
