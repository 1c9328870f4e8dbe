"""`fedrepro reproduce [PAPER ...]`: retrain the small scenarios in a clone and compare with git's results.

It works in `reproduction/`, a clone of this repository at its current commit that git ignores, so that no
committed file changes: there every stage runs, or those of the named papers' miniatures. A call that was
interrupted goes on: its stages run again, but seeds that it has trained count; at another commit, or with
`--force`, all are trained. To train in place and replace the committed numbers, use `dvc repro` or `fedrepro
run`.

Another type of processor may round differently: then both means are printed with the spread over the seeds.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline import files
from pipeline.cells.results import Summary, collect, summarise
from pipeline.errors import ParamError
from pipeline.git import git
from pipeline.place import surroundings
from pipeline.schema import MINIATURE, ROOT, Cell, load_paper, papers

FOLDER = "reproduction"
DONE = ".cells/reproduced"  # of the clone: the papers whose stages have all run once


@dataclass(frozen=True)
class Comparison:
    """A cell's accuracy over the seeds in git and on this machine, percent."""

    cell: Cell
    committed: Summary
    here: Summary
    same_bits: bool

    @property
    def difference(self) -> float:
        """Of the means, in points."""
        return self.here.mean - self.committed.mean


def reproduce(names: Sequence[str] = (), jobs: int | None = None, force: bool = False) -> int:
    """Clone, run, compare; returns the exit code of the run. `names`: papers, or all of them; `jobs`: stages
    at once; `force`: train every cell again."""
    for name in names:
        if not load_paper(name).miniature:
            raise ParamError(f"papers/{name}/paper.yaml: miniature: missing; nothing small to reproduce")
    clone = prepare(ROOT, force)
    done, wanted = reproduced(clone), {*(names or papers())}
    code = subprocess.run(
        [
            sys.executable,
            "-m",
            "pipeline",
            "run",
            *[f"{name}/{MINIATURE}" for name in names],
            *(["--jobs", str(jobs)] if jobs else []),
            *["--force"] * (not wanted <= done),
        ],
        cwd=clone,
        env=_environment(ROOT, clone),
    ).returncode
    if code:
        return code
    done |= wanted
    files.write_text(clone / DONE, "\n".join(sorted(done)))
    with committed(clone, done) as before:
        comparisons = compare(before, clone)
        summed = summary(comparisons, before, clone)
    print(
        "\n".join(
            [
                "",
                *summed,
                "Reports:       reports/index.html (the committed numbers; open it in a browser)",
                "Runs:          make ui",
            ]
        )
    )
    return 0


def reproduced(clone: Path) -> set[str]:
    """The papers whose miniatures were trained in the clone at its commit."""
    return {*(clone / DONE).read_text(encoding="utf-8").split()} if (clone / DONE).exists() else set()


def prepare(root: Path, again: bool = False) -> Path:
    """The clone at the commit of `root`; what was trained in it at this commit stays, unless `again`."""
    clone = root / FOLDER
    commit = git(root, "rev-parse", "HEAD")
    if changed := git(root, "status", "--porcelain", "--untracked-files=no").splitlines():
        print(
            f"{len(changed)} uncommitted changes take no part: the commit {commit[:12]} is reproduced",
            flush=True,
        )
    if not (clone / ".git").is_dir():
        shutil.rmtree(clone, ignore_errors=True)
        with files.replace_folder(clone) as new:
            git(root, "clone", "--quiet", "--no-hardlinks", str(root), str(new))
    if moved := git(clone, "rev-parse", "HEAD") != commit:
        git(clone, "fetch", "--quiet", str(root), commit)
    if moved or again:  # first: a kill must not leave them to the new commit
        (clone / DONE).unlink(missing_ok=True)
        shutil.rmtree(clone / ".cells", ignore_errors=True)
    if moved:
        git(clone, "checkout", "--quiet", "--force", "--detach", commit)
    return clone


@contextmanager
def committed(clone: Path, names: Iterable[str]) -> Iterator[Path]:
    """A folder with the results of these papers' miniatures at the clone's commit."""
    with tempfile.TemporaryDirectory(prefix="fedrepro-committed-") as folder:
        runs = git(clone, "ls-files", *[f"papers/{name}/runs/{MINIATURE}/*" for name in names]).splitlines()
        if runs:  # without a name it would be the whole commit
            git(clone, "archive", "--output", f"{folder}/results.tar", "HEAD", "--", *runs)
            with tarfile.open(f"{folder}/results.tar") as archive:
                archive.extractall(folder, filter="data")
        yield Path(folder)


def _environment(root: Path, clone: Path) -> dict[str, str]:
    """The clone's code runs, whatever Python would take. Runs are imported into the repository's MLflow
    database, unless the user names another; trained seeds count although every stage runs."""
    inherited = {key: value for key, value in surroundings(clone).items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}", **inherited, "FEDREPRO_FORCE": ""}


# -- comparing -----------------------------------------------------------------------------------------------


def compare(committed: Path, here: Path) -> list[Comparison]:
    """The cells of the miniatures that both folders have."""
    old, new = (_miniatures(root) for root in (committed, here))
    comparisons = []
    for cell in sorted(old.keys() & new.keys(), key=str):
        before, now = (side[cell]["measures"][side[cell]["headline"]] for side in (old, new))
        texts = [(cell.folder(root) / "history.csv").read_bytes() for root in (committed, here)]
        comparisons.append(Comparison(cell, summarise(before), summarise(now), texts[0] == texts[1]))
    return comparisons


def _miniatures(root: Path) -> dict[Cell, dict]:
    return {cell: result for cell, result in collect(root).items() if cell.scenario == MINIATURE}


# -- saying it -----------------------------------------------------------------------------------------------


def summary(comparisons: list[Comparison], committed: Path, here: Path) -> list[str]:
    """Same type of processor or not; how many cells have the same bits; both numbers of the others, the
    largest difference first."""
    if not comparisons:
        return ["Measured:      git has no number of these miniatures to compare with"]
    moved = [one for one in comparisons if not one.same_bits]
    count = f"{len(comparisons) - len(moved)} of {len(comparisons)} cells of the miniatures"
    return [
        machine_words(committed, here),
        f"Measured:      {count} have the same bits as in git",
        *(
            f"  {one.cell}: {_words(one.committed)} in git, {_words(one.here)} here"
            for one in sorted(moved, key=lambda one: -abs(one.difference))
        ),
    ]


def _words(number: Summary) -> str:
    return f"{number.mean:.2f} %" + (f" ± {number.std:.2f}" if number.std is not None else "")


def machine_words(committed: Path, here: Path) -> str:
    """Whether the committed numbers come from this type of machine."""
    theirs, ours = (
        {key: value for result in _miniatures(root).values() for key, value in result["versions"].items()}
        for root in (committed, here)
    )
    others = [
        f"; {key} {ours.get(key)} (committed: {value})"
        for key, value in theirs.items()
        if value != ours.get(key)
    ]
    return f"Processor:     {ours.get('processor')}{''.join(others)}"
