"""`fedrepro import SOURCE`: add the folder of a paper, with results, from disk, an archive or a git
repository."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipeline import files
from pipeline.cells.results import check_plausible, collect, history, survey
from pipeline.commands import archive
from pipeline.commands.sync import sync
from pipeline.commands.ui import printed
from pipeline.errors import DAMAGED, FedReproError
from pipeline.git import git
from pipeline.schema import ROOT, load_paper, shorten
from pipeline.schema.documents import UNTRUSTED
from pipeline.schema.loader import check_name
from pipeline.tracking.mlflow_runs import say_import

# At most so many files are named in a line.
NAMED = 5
# Options of git: give up a server that sends less than a byte a second for a minute.
SLOW = ("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60")
# Files and folders that are not copied from a folder: they are not in git.
LEFT_OUT = ("partitions", "representations", "final-models", "extra-seeds", "__pycache__", ".*")


def main(source: str | None, name: str | None) -> int:
    """Add the folder of a paper, or all results to MLflow; returns the exit code.

    source  folder, archive or address of a git repository; None: all results to MLflow
    name    of the paper here; None: the name of the source
    """
    if source:
        return bring(source, name)
    return say_import(printed(collect()), show=True)


def bring(source: str, name: str | None, root: Path = ROOT) -> int:
    """Copy a folder, unpack an archive or clone a git repository as papers/<name>, without running its code;
    returns the exit code.

    source  folder, file of `fedrepro archive`, or address of a git repository
    name    of the new folder; None: the name of the source
    root    folder of the repository

    Nothing is written outside papers/. If the paper or one of its results cannot be used, nothing is left
    behind, and FedReproError is raised.
    """
    if is_archive(source):
        name = name or archive.paper_of(Path(source).expanduser())
    name = name or Path(source.rstrip("/")).name.removesuffix(".git")
    check_name(name)
    target = root / "papers" / name
    if target.exists() or target.is_symlink():
        raise FedReproError(
            f"{shorten(target)}: exists; give a paper without results another name by --name; "
            "`fedrepro compare` reads an archive as it is"
        )
    with other_checkout(root) as checkout:
        new = checkout / "papers" / name
        _fetch(source, new, root)
        load_paper(name, checkout)
        _check_name(source, name, new)
        results, problems = survey(checkout)
        if problems:
            raise FedReproError(next(iter(problems.values())))
        for cell, result in results.items():
            file = cell.folder(checkout) / "history.csv"
            check_plausible(result, history(cell, checkout), file)
        code = _code(new)
        if code:
            _mark(new)
        os.rename(new, target)
    try:
        if not code:
            sync(root)
    except FedReproError:
        shutil.rmtree(target)
        raise
    seeds = sum(len(result["seeds"]) for result in results.values())
    print(f"papers/{name}: {len(results)} results of {seeds} seeds, every seal whole")
    if code:
        more = " ..." if len(code) > NAMED else ""
        print(f"Its files would run with your rights: {', '.join(code[:NAMED])}{more}")
        print(f"Nothing of it runs, and no command sees it, until you have read them:  fedrepro trust {name}")
    print(f"To train some rounds again and compare:  fedrepro verify {name}")
    return 0


@contextlib.contextmanager
def other_checkout(root: Path = ROOT) -> Iterator[Path]:
    """A temporary checkout without papers, in which a paper is read before it is added to the others.

    The checkout is marked as only read, so that no Python file in it runs. A FedReproError names files as if
    they were in this repository.

    root  folder of the repository
    """
    papers = root / "papers"
    papers.mkdir(exist_ok=True)  # git keeps no empty folder
    with files.temporary_folder(papers / "import") as checkout:
        (checkout / UNTRUSTED).touch()
        shutil.copy(root / "params.yaml", checkout)
        (checkout / "papers").mkdir()
        try:
            yield checkout
        except FedReproError as error:
            raise FedReproError(str(error).replace(f"{shorten(checkout)}/", "")) from None


def _check_name(source: str, name: str, folder: Path) -> None:
    """FedReproError if the results are of a paper of another name, which their seals do not let change.

    source  for the message
    name    that the paper will have
    folder  of the paper
    """
    for path in sorted(folder.glob("runs/*/*/result.json")):
        try:
            key = str(json.loads(path.read_bytes())["cell"]).partition("/")[0]
        except DAMAGED:  # the survey of all results will say so
            continue
        check_name(key)
        if key != name:
            raise FedReproError(
                f"{source}: its results are of the paper {key!r} and stay so: --name {key}. Where that name "
                "is taken, `fedrepro compare` reads an archive as it is"
            )


def _code(folder: Path) -> list[str]:
    """The files of a paper whose code could run, as paths from its folder."""
    found = [*folder.rglob("*.py"), *folder.rglob("templates/*")]
    return sorted(path.relative_to(folder).as_posix() for path in found if ".git" not in path.parts)


def _mark(folder: Path) -> None:
    """Mark a paper so that none of its code runs until it is trusted, and delete its stages of DVC."""
    (folder / UNTRUSTED).write_text(
        "Imported. Read its files, then call `fedrepro trust`.\n", encoding="utf-8"
    )
    for path in [path for path in folder.rglob("dvc.yaml") if ".git" not in path.parts]:
        path.unlink()


def trust(name: str, root: Path = ROOT) -> int:
    """Allow the code of an imported paper to run; returns the exit code.

    Raises FedReproError if the paper is not waiting to be trusted.
    """
    check_name(name)
    mark = root / "papers" / name / UNTRUSTED
    if not mark.is_file():
        raise FedReproError(f"papers/{name}: no imported paper that waits to be trusted")
    text = mark.read_bytes()
    mark.unlink()
    try:
        sync(root)
    except BaseException:
        mark.write_bytes(text)
        raise
    print(f"papers/{name}: its files run from now on")
    return 0


def is_archive(source: str) -> bool:
    """Whether a source is a file of `fedrepro archive`."""
    return source.endswith(".zip") and Path(source).expanduser().is_file()


def _fetch(source: str, target: Path, root: Path) -> None:
    """Clone a repository, unpack an archive, or copy a folder without LEFT_OUT, to `target`.

    Raises FedReproError if it holds anything but plain files and folders.
    """
    local = Path(source).expanduser().resolve()
    if is_archive(source):
        archive.unpack(local, target)
    elif local.exists() and not local.is_dir():
        raise FedReproError(f"{source}: is no folder, no archive and no address of a git repository")
    elif local.is_dir() and not (local / ".git").exists():
        _check_plain(local)
        shutil.copytree(local, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
    else:
        address = str(local) if local.is_dir() else source
        # The same bytes whatever git's settings are, since seals and DVC hash them.
        same_bytes = ("-c", "core.autocrlf=false", "-c", "core.eol=lf")
        options = ("--quiet", "--no-recurse-submodules", *same_bytes)
        git(root, *SLOW, "clone", *options, "--", address, str(target))
        _check_plain(target)


def _check_plain(folder: Path) -> None:
    """FedReproError if a folder holds anything but plain files and folders, or settings of DVC."""
    for inner, subfolders, file_names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if name != ".git"]
        for name in sorted([*subfolders, *file_names]):
            path = Path(inner, name)
            if name == ".git":  # a file, of a submodule
                continue
            if path.is_symlink() or not (path.is_file() or path.is_dir()) or path.name == ".dvc":
                raise FedReproError(f"{path}: a link, a device or DVC's settings, which no paper needs")
