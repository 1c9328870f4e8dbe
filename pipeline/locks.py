"""Back up DVC's lock files, hold its lock, and repair what a killed process has left damaged.

DVC empties dvc.lock before it writes it again. A kill in between leaves an empty or truncated file
(docs/decisions/lock-files.md). Therefore .cells/locks has a copy of every intact lock file.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import files, git
from pipeline.errors import DAMAGED, FedReproError, conflict
from pipeline.schema import ROOT
from pipeline.schema.documents import read_plain

LOCKS = "dvc.lock", "data/dvc.lock", "papers/*/dvc.lock", "papers/*/*/dvc.lock", "reports/*/dvc.lock"


# -- dvc.lock ------------------------------------------------------------------------------------------------


def mend_locks(root: Path = ROOT) -> list[str]:
    """Copy every lock file that is whole; replace one that is not by its copy, else by git's, else remove it,
    so that its stages run again. What was damaged stays next to the copy. Returns a line for each.

    Nothing happens while a DVC has its lock: it may be writing.
    """
    with _free(root / ".dvc" / "tmp" / "lock") as free:
        return mend_held_locks(root) if free else []


def mend_held_locks(root: Path = ROOT) -> list[str]:
    """As `mend_locks`, for a caller that holds DVC's lock."""
    return [line for name in LOCKS for path in sorted(root.glob(name)) if (line := _mend(path, root))]


def _mend(path: Path, root: Path) -> str:
    name = path.relative_to(root)
    copy_path = root / ".cells" / "locks" / name
    content = path.read_bytes()
    copy = copy_path.read_bytes() if copy_path.exists() else None
    if content == copy or conflict(content.decode(errors="replace")):
        return ""
    committed = git.committed(root, name)
    wrong = content != committed and damage(content, copy or committed)
    if not wrong:
        files.write_bytes(copy_path, content)
        return ""
    files.write_bytes(copy_path.with_name("dvc.lock.damaged"), content)
    if not (better := copy or committed):
        path.unlink()
        return f"{name} {wrong}, as a killed DVC leaves it: removed; its stages run again"
    files.write_bytes(path, better)
    return f"{name} {wrong}, as a killed DVC leaves it: replaced by {'its copy' if copy else 'that of git'}"


def damage(content: bytes, copy: bytes | None = None) -> str:
    """What is wrong with a lock file: empty, or no YAML of DVC's, or cut; "" where it is whole. A cut that is
    good YAML shows by what an earlier `copy` has behind its end."""
    import yaml

    if not content.strip(b"\0 \n"):
        return "is empty"
    try:
        stages = list(_entries(content))
        before = list(_entries(copy)) if copy else []
    except (yaml.YAMLError, *DAMAGED):
        return "is cut"
    last = re.split(rb"\n(?=  \S)", content)[-1]  # the entry of one stage
    lost = [name for name in before if name not in stages]
    if not content.endswith(b"\n") or copy and last + b"    " in copy:
        return "is cut"
    return f"lacks {len(lost)} of {len(before)} stages" if lost and lost == before[-len(lost) :] else ""


def _entries(content: bytes) -> dict:
    stages = read_plain(content.decode("utf-8"))["stages"]
    for entry in stages.values():
        entry["cmd"]
    return stages


# -- the lock of a repository, .dvc/tmp/lock -----------------------------------------------------------------
# An flock on the file; or, with core.hardlink_lock, the existence of the file, which then has two links.


@contextlib.contextmanager
def _free(path: Path) -> Iterator[bool]:
    """Whether no DVC has the lock; while it is an flock, none gets it meanwhile. Never makes the file."""
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(open(path, "rb"))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            yield True
        except OSError:
            yield False
        else:
            yield os.fstat(handle.fileno()).st_nlink == 1


@contextlib.contextmanager
def held(repo: Any, say: Any) -> Iterator[None]:
    """With DVC's lock; where another process has it, says so and waits. FedReproError where the file system
    has no flock."""
    from dvc.lock import LockError

    lock = Path(repo.lock.lockfile)
    if hard := repo.config["core"].get("hardlink_lock"):
        for path in (lock, Path(repo.tmp_dir, "rwlock.lock")):
            with _free(path) as free:  # its existence is the lock: an flock's file would be one
                if free:
                    path.unlink(missing_ok=True)
    waiting = False
    while True:
        try:
            repo.lock.lock()  # tries for three seconds
            break
        except LockError:
            if not hard:
                _check_flock(lock)
            if not waiting:
                say(f"waiting for {_holder(lock)}, which has DVC's lock")
            waiting = True
    try:
        yield
    finally:
        repo.lock.unlock()


def _check_flock(path: Path) -> None:
    try:
        with open(path) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in files.NO_LOCKS:
            remedy = "set `dvc config --local core.hardlink_lock true`"
            raise FedReproError(f"{path}: this file system has no locks; {remedy}") from None


def _holder(lock: Path) -> str:
    """`process 123`, from the number that DVC leaves in its lock file."""
    with contextlib.suppress(OSError, ValueError):
        return f"process {int(lock.read_text(encoding='utf-8'))}"
    return f"another process (where none runs, delete {os.path.relpath(lock)})"


# -- who reads and writes what, .dvc/tmp/rwlock --------------------------------------------------------------


def mend_rwlock(path: Path) -> None:
    """Remove what a killed DVC leaves; the caller holds DVC's lock.

    A truncated list stops every command; an entry of a zombie process, as kill -9 leaves one in a container,
    blocks its stage; so does one of this process, which DVC could not take out again where the list could
    not be written.
    """

    def holds(user: dict) -> bool:
        return user["pid"] != os.getpid() and files.alive(user["pid"])

    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
        read = {
            name: [user for user in users if holds(user)] for name, users in lists.get("read", {}).items()
        }
        write = {name: user for name, user in lists.get("write", {}).items() if holds(user)}
        left = {"write": write, "read": {name: users for name, users in read.items() if users}}
        path.write_text(json.dumps(left), encoding="utf-8")
    except FileNotFoundError:
        pass
    except DAMAGED:
        path.unlink()
