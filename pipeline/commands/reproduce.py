"""`fedrepro reproduce [PAPER ...]`: train the miniatures in a clone and compare them with the results in git.

The clone is `reproduction/`, at the current commit; git ignores it. All its stages run there, or those of the
miniatures of the named papers. A later call runs them again but uses seeds that have been trained already; at
another commit, or with `--force`, all seeds are trained again. If bits differ, it prints both means with
their spread.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import files
from pipeline.cells.results import Summary, read, summarise
from pipeline.errors import ParamError
from pipeline.git import committed, git
from pipeline.place import surroundings
from pipeline.schema import MINIATURE, ROOT, load_paper, papers

FOLDER = "reproduction"


@dataclass(frozen=True)
class Comparison:
    """A cell's accuracy over the seeds in git and on this machine, percent; what ran them."""

    cell: str
    committed: Summary
    here: Summary
    same_bits: bool
    then: dict[str, str]
    now: dict[str, str]

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
    command = [sys.executable, "-m", "pipeline", "run", *[f"{name}/{MINIATURE}" for name in names], "--force"]
    command += ["--jobs", str(jobs)] if jobs else []
    if code := subprocess.run(command, cwd=clone, env=_environment(ROOT, clone)).returncode:
        return code
    print("\n".join(["", *summary(compare(clone, names or papers()))]))
    print("Reports:       reports/index.html (the committed numbers; open it in a browser)")
    print("Runs:          make ui")
    return 0


def prepare(root: Path, again: bool = False) -> Path:
    """The clone at the commit of `root`; what was trained in it at this commit stays, unless `again`.

    Where `root` is a folder of a larger repository, that is cloned, and the same folder in it returned.
    """
    top, inner = git(root, "rev-parse", "--show-toplevel"), git(root, "rev-parse", "--show-prefix")
    clone = root / FOLDER
    here = clone / inner
    commit = git(root, "rev-parse", "HEAD")
    if changed := git(root, "status", "--porcelain", "--untracked-files=no").splitlines():
        print(f"{len(changed)} uncommitted changes take no part in {commit[:12]}", flush=True)
    if not (clone / ".git").is_dir():
        shutil.rmtree(clone, ignore_errors=True)
        with files.replace_folder(clone) as new:
            git(root, "clone", "--quiet", "--no-hardlinks", top, str(new))
    if moved := git(clone, "rev-parse", "HEAD") != commit:
        git(clone, "fetch", "--quiet", top, commit)
    if moved or again:  # first: a kill must not leave them to the new commit
        shutil.rmtree(here / ".cells", ignore_errors=True)
    if moved:
        git(clone, "checkout", "--quiet", "--force", "--detach", commit)
    return here


def _environment(root: Path, clone: Path) -> dict[str, str]:
    """The clone's code runs, whatever Python would take. Runs are imported into the repository's MLflow
    database, unless the user names another; trained seeds count although every stage runs."""
    inherited = {key: value for key, value in surroundings(clone).items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}", **inherited, "FEDREPRO_FORCE": ""}


def compare(clone: Path, names: Iterable[str]) -> list[Comparison]:
    """The cells of these papers' miniatures that both the clone's commit and its folders have."""
    comparisons = []
    patterns = [f"papers/{name}/runs/{MINIATURE}/*/result.json" for name in sorted(names)]
    for path in map(Path, git(clone, "ls-files", "--", *patterns).splitlines()):
        content, history = committed(clone, path), path.with_name("history.csv")
        if content is None or not (clone / path).exists():
            continue
        then, now = read(clone / path, content), read(clone / path)
        before, here = (summarise(result["measures"][result["headline"]]) for result in (then, now))
        same = committed(clone, history) == (clone / history).read_bytes()
        comparisons.append(Comparison(now["cell"], before, here, same, then["versions"], now["versions"]))
    return comparisons


def summary(comparisons: list[Comparison]) -> list[str]:
    """Same type of processor or not; how many cells have the same bits; both numbers of the others, the
    largest difference first."""
    if not comparisons:
        return ["Measured:      git has no number of these miniatures to compare with"]
    moved = [one for one in comparisons if not one.same_bits]
    now, same, total = comparisons[-1].now, len(comparisons) - len(moved), len(comparisons)
    then = dict.fromkeys(item for one in comparisons for item in one.then.items())
    others = [f"; {key} {now.get(key)} (committed: {old})" for key, old in then if old != now.get(key)]
    return [
        f"Processor:     {now.get('processor')}{''.join(others)}",
        f"Measured:      {same} of {total} cells of the miniatures have the same bits as in git",
        *(
            f"  {one.cell}: {one.committed} in git, {one.here} here"
            for one in sorted(moved, key=lambda one: -abs(one.difference))
        ),
    ]
