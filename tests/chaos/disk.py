"""A disk that fails below Python, where native code writes, too: no space, an error while synchronising or
renaming, half of what was written; a clock that jumps by days; and a power cut. A small library does it,
which is loaded before all others.

After a power cut there is what had been synchronised: of a file that was not, the old content, nothing or a
half; of a new name whose folder was not, the new or the old. What a user does afterwards must give what an
undisturbed run gives.
"""

import errno
import filecmp
import os
import random
import re
import shutil
import signal
import subprocess
from functools import cache
from pathlib import Path

import project

CHAIN = 4  # failing commands before what is left is finished and compared
CUTS = 2  # power cuts likewise
SOURCE = Path(__file__).parent / "faulty" / "disk.c"
# operation -> the error numbers that it may end with
OPERATIONS = {
    "write": (errno.ENOSPC, errno.EIO, errno.EDQUOT),
    "short": (0,),
    "sync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC, errno.EROFS),
}
MOST = {"write": 120, "short": 60, "sync": 40, "rename": 40}  # calls of a process before the one that fails
DAYS = 86400
LONGEST = {"run": 40, "force": 20, "repro": 30, "train": 15, "partition": 6, "report": 12, "import": 12}
# what git keeps, and other programs' temporary files, are not ours to lose
KEPT = (".git", ".dvc/tmp", ".dvc/cache")
# bytecode that Python reads before the checkout's own loader, which mends what is torn
EARLY = re.compile(r"(pipeline|stages)/__pycache__/(__init__|source_code)\..*")


def compiler() -> str | None:
    """The C compiler, where there is one."""
    return shutil.which("cc") or shutil.which("gcc")


@cache
def library() -> Path:
    """The compiled library, beside the repositories that are destroyed."""
    import atexit
    import tempfile

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / "disk.so"
    command = [str(compiler()), "-shared", "-fPIC", "-O1", "-o", str(made), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return made


def chain(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(failures, what was wrong): a few, and then what is left is finished and compared."""
    return project.in_a_row(lambda: fault(folder, draw), CHAIN, folder, expected)


def fault(folder: Path, draw: random.Random) -> tuple[str, str]:
    """What failed, and what the command printed."""
    name, operation = draw.choice(list(project.COMMANDS)), draw.choice([*OPERATIONS, "clock"])
    surroundings = {"LD_PRELOAD": str(library()), "FAULT_ROOT": str(folder)}
    what = f"{name}, {operation}"
    if operation == "clock":
        days = draw.choice([-4000, -1, 1, 40])
        surroundings["FAULT_CLOCK"] = str(days * DAYS)
        what += f" {days} days"
    else:
        number, at = draw.choice(OPERATIONS[operation]), draw.randint(1, MOST[operation])
        stays = draw.random() < 0.5
        surroundings |= {"FAULT_OPERATION": operation, "FAULT_AT": str(at), "FAULT_ERRNO": str(number)}
        surroundings["FAULT_STAYS"] = "1" if stays else ""
        what += f" {errno.errorcode.get(number, '')} at {at}{' and after' if stays else ''}"
    process = project.start(folder, *project.COMMANDS[name], **surroundings)
    return what, project.heard_or_wrong(process)


# -- a power cut ---------------------------------------------------------------------------------------------


def power(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(power cuts, what was wrong afterwards)."""
    steps = []
    for _ in range(CUTS):
        name = draw.choice(list(project.COMMANDS))
        after = draw.uniform(1, LONGEST[name])
        before, diary = folder.with_name("before"), folder.with_name("diary")
        shutil.copytree(folder, before, symlinks=True)
        diary.mkdir()
        surroundings = {"LD_PRELOAD": str(library()), "FAULT_ROOT": str(folder), "FAULT_DIARY": str(diary)}
        process = project.start(folder, *project.COMMANDS[name], **surroundings)
        try:
            process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            project.kill_all(folder)
            process.communicate()
        lost = cut(folder, before, diary, draw)
        steps.append(f"{name} {after:.1f} ({', '.join(lost[:6])})")
        for place in (before, diary):
            shutil.rmtree(place)
    wrong = project.compare(folder, expected)
    return CUTS, f"after {'; '.join(steps)}: {wrong}" if wrong else ""


def cut(folder: Path, before: Path, diary: Path, draw: random.Random) -> list[str]:
    """Make of the folder what a power cut leaves; returns what was lost, "how name"."""
    synced, pending, folders = read(diary)
    lost, chosen = [], {name: draw.choice(["new", "old"]) for name in sorted(pending)}
    for path in sorted(_files(folder) | {folder / old.relative_to(before) for old in _files(before)}):
        inside = path.relative_to(folder)
        if inside.as_posix().startswith(KEPT) or EARLY.fullmatch(inside.as_posix()):
            continue
        old, name = before / inside, str(path)
        if path.exists() and old.exists() and filecmp.cmp(path, old, shallow=False):
            continue
        if not path.exists():
            how = draw.choice(["removed", "old"]) if str(path.parent) not in folders else "removed"
        elif name in synced and filecmp.cmp(path, diary / synced[name], shallow=False):
            # the name of the file, or that of a folder that it is in
            how = next((chosen[place] for place in (name, *map(str, path.parents)) if place in chosen), "new")
        else:
            how = draw.choice(["old", "empty", "half"])
        if how in ("new", "removed"):
            continue
        _make(path, old, how)
        lost.append(f"{how} {inside.as_posix()[-60:]}")
    return lost


def read(diary: Path) -> tuple[dict[str, str], set[str], set[str]]:
    """{path: its content when it was synchronised last}, the files and folders whose names came or changed
    after their folder was synchronised, and the folders that were synchronised."""
    synced: dict[str, str] = {}
    names: set[str] = set()
    folders: set[str] = set()
    lines = (diary / "diary").read_text().splitlines() if (diary / "diary").exists() else []
    for line in lines:
        kind, path, *other = line.split("\t")
        if kind == "sync":
            synced[path] = other[0]
            names.add(path)
        elif kind == "folder":
            folders.add(path)
            names = {name for name in names if os.path.dirname(name) != path}
        else:
            new = other[0]
            for name in [name for name in synced if name == path or name.startswith(f"{path}/")]:
                synced[new + name[len(path) :]] = synced.pop(name)
            moved = {name for name in names if name == path or name.startswith(f"{path}/")}
            names = names - moved | {new + name[len(path) :] for name in moved} | {new}
            folders.discard(os.path.dirname(new))
    return synced, names, folders


def _make(path: Path, old: Path, how: str) -> None:
    if how == "old" and not old.exists():
        path.unlink()
    elif how == "old":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        shutil.copy2(old, path)
    else:
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[: len(content) // 2] if how == "half" else b"")


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
