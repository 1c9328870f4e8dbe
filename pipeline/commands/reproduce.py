"""`fedrepro reproduce [PAPER ...]`: retrain the small scenarios in a clone and compare with git's results.

It works in `reproduction/`, a clone of this repository at its current commit that git ignores, so that no
committed file changes: there every stage runs, or those of the named papers' miniatures. A call that was
interrupted goes on: its stages run again, but seeds that it has trained count; at another commit, or with
`--force`, all are trained. To train in place and replace the committed numbers, use `dvc repro` or `fedrepro
run`.

Another type of processor rounds differently, and training amplifies that. A cell whose bits differ is judged
by the spread over the seeds of its scenario: s is the residual standard deviation over methods and seeds
(block design), of a cell that spreads more than the others that cell's, and means of n seeds agree within
t s sqrt(2 / n).
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

import numpy as np
from scipy import stats

from pipeline import files
from pipeline.cells import results
from pipeline.errors import ParamError
from pipeline.git import git
from pipeline.place import surroundings
from pipeline.report.statistics import Design
from pipeline.schema import MINIATURE, ROOT, Cell, load_paper, papers

FOLDER = "reproduction"
DONE = ".cells/reproduced"  # of the clone: the papers whose stages have all run once
LEVEL = 0.05
SAME, WITHIN, BEYOND = "same bits", "within the seeds' spread", "beyond the seeds' spread"


@dataclass(frozen=True)
class Comparison:
    """A cell's accuracy in git and on this machine, percent; `tolerance` is None where no spread is known."""

    cell: Cell
    committed: float
    here: float
    tolerance: float | None
    same_bits: bool

    @property
    def difference(self) -> float:
        return self.here - self.committed

    @property
    def agreement(self) -> str:
        """SAME, WITHIN or BEYOND."""
        if self.same_bits:
            return SAME
        return WITHIN if self.tolerance is not None and abs(self.difference) <= self.tolerance else BEYOND


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
    spread: dict[Cell, tuple[float, int]] = {}
    for paper in {cell.paper for cell in old}:
        spread |= spreads({cell: result for cell, result in old.items() if cell.paper == paper})
    comparisons = []
    for cell in sorted(old.keys() & new.keys(), key=str):
        before, now = (float(np.mean(_accuracies(side[cell]))) for side in (old, new))
        texts = [(cell.folder(root) / "history.csv").read_bytes() for root in (committed, here)]
        comparisons.append(
            Comparison(
                cell,
                before,
                now,
                tolerance(spread[cell], len(old[cell]["seeds"])),
                texts[0] == texts[1],
            )
        )
    return comparisons


def spreads(cells: dict[Cell, dict]) -> dict[Cell, tuple[float, int]]:
    """(s, df) of every cell of a scenario: the residual standard deviation of accuracy over methods and
    seeds, method and seed taken out; of a cell that spreads more than the others, that cell's. (0, 0) where
    there are too few."""
    rows = {
        str(cell): dict(zip(result["seeds"], _accuracies(result), strict=True))
        for cell, result in cells.items()
    }
    design = Design(rows, rows)
    by_cell = dict.fromkeys(cells, (design.s, design.df))
    for cell in cells:
        values = [*rows[str(cell)].values()]
        if str(cell) in design.outliers and (s := float(np.std(values, ddof=1))) > design.s:
            by_cell[cell] = s, len(values) - 1
    return by_cell


def tolerance(spread: tuple[float, int], seeds: int, level: float = LEVEL) -> float | None:
    """How far means over the same number of seeds may differ, in points, two-sided; None where no spread
    is known."""
    s, df = spread
    return float(stats.t.ppf(1 - level / 2, df)) * s * (2 / seeds) ** 0.5 if df else None


def _miniatures(root: Path) -> dict[Cell, dict]:
    return {cell: result for cell, result in results.collect(root).items() if cell.scenario == MINIATURE}


def _accuracies(result: dict) -> list[float]:
    """The headline number of every seed, percent."""
    return result["measures"][result["headline"]]


# -- saying it -----------------------------------------------------------------------------------------------


def summary(comparisons: list[Comparison], committed: Path, here: Path) -> list[str]:
    """Same type of processor or not; how many cells have the same bits; both numbers of the others, the
    largest difference first."""
    if not comparisons:
        return ["Measured:      git has no number of these miniatures to compare with"]
    moved = [one for one in comparisons if one.agreement != SAME]
    count = f"{len(comparisons) - len(moved)} of {len(comparisons)} cells of the miniatures"
    return [
        machine_words(committed, here),
        f"Measured:      {count} have the same bits as in git",
        *(
            f"  {one.cell}: {one.committed:.2f} % in git, {one.here:.2f} % here, {one.agreement}"
            for one in sorted(moved, key=lambda one: -abs(one.difference))
        ),
    ]


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
