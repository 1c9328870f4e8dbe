"""What an interrupted run of DVC could lose: its lock files, and the former outputs of stages.

DVC empties dvc.lock before it writes it anew, and deletes a stage's outputs before it runs the stage. A kill
in between leaves an empty or a cut file, or none (docs/decisions/lock-files.md). `fedrepro run` calls DVC
through this module, where a lock file is written whole, and keeps the outputs until the stage has ended; for
what a plain `dvc repro` left cut, a copy of every whole lock file lies in .cells/locks.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from pipeline import files
from pipeline.errors import FedReproError, conflict, guarded
from pipeline.place import begin
from pipeline.schema import ROOT
from pipeline.sealing import is_sealed, seal

# When to put kept outputs back.
NEVER, MISSING, ALWAYS = "never", "where one is missing", "always"
LOCKS = "dvc.lock", "data/dvc.lock", "papers/*/dvc.lock", "papers/*/*/dvc.lock", "reports/*/dvc.lock"


# -- lock files ----------------------------------------------------------------------------------------------


def mend_locks(root: Path = ROOT) -> list[str]:
    """Copy every lock file that is whole; replace one that is not by its copy, else by git's, else remove it,
    so that its stages run again. What was damaged stays beside the copy. Returns a line for each.

    Nothing happens while a DVC has its lock: it may be writing.
    """
    with _dvcs_lock(root) as held:
        return mend_held_locks(root) if held else []


def mend_held_locks(root: Path = ROOT) -> list[str]:
    """As `mend_locks`, for a caller that holds DVC's lock."""
    return [line for name in LOCKS for path in sorted(root.glob(name)) if (line := _mend(path, root))]


def _mend(path: Path, root: Path) -> str:
    name = path.relative_to(root)
    kept = _copy(name, root)
    content, copy = path.read_bytes(), _read(kept)
    if content == copy or conflict(content.decode(errors="replace")):
        return ""
    committed = _git(root, name)
    wrong = content != committed and damage(content, copy or committed)
    if not wrong:
        files.write_bytes(kept, content)
        return ""
    files.write_bytes(kept.with_name("dvc.lock.damaged"), content)
    if not (better := copy or committed):
        path.unlink()
        return f"{name} {wrong}, as a killed DVC leaves it: removed; its stages run again"
    files.write_bytes(path, better)
    return f"{name} {wrong}, as a killed DVC leaves it: replaced by {'its copy' if copy else 'that of git'}"


def _copy(name: Path, root: Path) -> Path:
    return root / ".cells" / "locks" / name


def damage(content: bytes, copy: bytes | None = None) -> str:
    """What is wrong with a lock file: empty, or no YAML of DVC's, or cut; "" where it is whole. A cut that is
    good YAML shows by what an earlier `copy` has behind its end."""
    import yaml

    if not content.strip(b"\0 \n"):
        return "is empty"
    try:
        stages = list(_entries(content))
        before = list(_entries(copy)) if copy else []
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):
        return "is cut"
    last = re.split(rb"\n(?=  \S)", content)[-1]  # the entry of one stage
    lost = [name for name in before if name not in stages]
    if not content.endswith(b"\n") or copy and last + b"    " in copy:
        return "is cut"
    return f"lacks {len(lost)} of {len(before)} stages" if lost and lost == before[-len(lost) :] else ""


def _entries(content: bytes) -> dict:
    import yaml

    stages = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["stages"]
    for entry in stages.values():
        entry["cmd"]
    return stages


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _git(root: Path, name: Path) -> bytes | None:
    """The file as committed; None where it is not, or where there is no git."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "-C", root, "show", f"HEAD:./{name}"], capture_output=True)
        return done.stdout if done.returncode == 0 else None
    return None


@contextlib.contextmanager
def _dvcs_lock(root: Path) -> Iterator[bool]:
    """Whether we have DVC's lock, which is an flock."""
    with contextlib.ExitStack() as stack:
        try:
            handle = stack.enter_context(open(root / ".dvc" / "tmp" / "lock", "a"))
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


# -- outputs of stages ---------------------------------------------------------------------------------------


def keep(outputs: Iterable[Path], folder: Path) -> None:
    """Link the files of those outputs that are there into the folder, which is new: .cells/kept/RUN/STAGE."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root = folder.parents[3]
    places = [path for path in outputs if path.exists()]
    for number, place in enumerate(places):
        if place.is_dir():
            shutil.copytree(place, folder / str(number), copy_function=_link)
        else:
            _link(str(place), folder / str(number))
    listed = [path.relative_to(root).as_posix() for path in places]
    files.write_json(folder / "places.json", seal({"places": listed}))  # last: else nothing is put back


def _places(folder: Path) -> list[str]:
    """Where the kept outputs belong, relative to the checkout; none where no whole list was written.
    FedReproError names the first place of a list, copied from elsewhere perhaps, that lies outside."""
    try:
        listed = json.loads((folder / "places.json").read_text(encoding="utf-8"))
        places = listed["places"] if is_sealed(listed) else []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    for place in places:
        if not isinstance(place, str) or not Path(place).parts or files.leads_out(place):
            raise FedReproError(f"{place!r:.80}")
    return places


def put_back(folder: Path, when: str, allowed: Container[Path] | None = None) -> bool:
    """Put the kept outputs back, all or none, and remove the folder; returns whether they were. A call that
    was killed is taken up where it was. `allowed`: the outputs that stages have; FedReproError names a place
    that is none of them, and nothing is put back."""
    root = folder.parents[3]
    try:
        places = [root / place for place in _places(folder)]
        if other := [place for place in places if allowed is not None and place not in allowed]:
            raise FedReproError(repr(str(other[0].relative_to(root))))
    except FedReproError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    left = {number for number in range(len(places)) if os.path.lexists(folder / str(number))}
    wanted = (
        when == ALWAYS
        or when == MISSING
        and (len(left) < len(places) or not all(map(os.path.exists, places)))
    )
    for number, place in enumerate(places if wanted else []):
        if number not in left:
            continue
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / str(number), place)
    (folder / "places.json").unlink(missing_ok=True)  # first: a kill must not leave the rest to be put back
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # others run still
        folder.parent.rmdir()
    return wanted and bool(places)


def put_back_of_the_dead(root: Path, outputs: Container[Path]) -> list[str]:
    """Put back what runs that were killed had kept, of the stages' `outputs`; returns a line for each stage.
    To be called before this process keeps any: its number may have been a dead one's."""
    lines = []
    for folder in sorted(root.glob(f".cells/kept/*-{files.MACHINE}/*")):
        number = folder.parent.name.partition("-")[0]
        whole = number.isdecimal() and folder.is_dir() and not folder.is_symlink()
        if not whole or int(number) != os.getpid() and files.alive(int(number)):
            continue
        try:
            if put_back(folder, MISSING, outputs):
                lines.append(f"{folder.name}: its former outputs are back, since its run was killed")
        except FedReproError as error:
            lines.append(f"{folder.name}: what its run kept is not put back: {error} is no stage's output")
    return lines


def _link(source: str, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


# -- DVC -----------------------------------------------------------------------------------------------------


def write_whole(root: Path) -> None:
    """From now on DVC's YAML files are whole or absent in this process: they get their name once they are
    written. A lock file is copied at once."""
    import io

    from dvc.utils.serialize import _common, _yaml

    def write(path, data, dumper, fs=None, **options) -> None:
        text = io.StringIO()
        dumper(data, text, **options)
        files.write_text(Path(path), text.getvalue())
        if os.path.basename(path) == "dvc.lock":
            files.write_text(_copy(Path(os.path.relpath(path, root)), root), text.getvalue())

    _common._dump_data = _yaml._dump_data = write


def dvc() -> None:
    """The command `dvc`, as `write_whole` changes it."""
    from dvc.cli import main
    from dvc.repo import Repo

    begin()
    write_whole(Path(Repo.find_root()))
    sys.argv[0] = "dvc"  # for its list of who reads and writes what
    sys.exit(main())


if __name__ == "__main__":
    guarded(dvc)
