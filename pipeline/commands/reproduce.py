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

# The clone, from the root.
FOLDER = "reproduction"


@dataclass(frozen=True)
class Comparison:
    """A cell as git has it and as it was trained on this machine.

    cell       paper/scenario/method
    committed  accuracy over its seeds in git, in percent
    here       the same on this machine
    same_bits  whether both histories are the same, byte for byte
    then       versions and processor that the result in git was trained with
    now        the same of this machine
    """

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
    """Clone, run, compare; returns the exit code of the run.

    names  papers; empty: all stages of the clone
    jobs   how many stages run at once; None: the default of `fedrepro run`
    force  train every cell again

    Raises ParamError for a paper without a miniature.
    """
    for name in names:
        if not load_paper(name).miniature:
            raise ParamError(f"papers/{name}/paper.yaml: miniature: missing; nothing small to reproduce")
    clone = prepare(ROOT, force)
    command = [sys.executable, "-m", "pipeline", "run", *[f"{name}/{MINIATURE}" for name in names], "--force"]
    if jobs:
        command += ["--jobs", str(jobs)]
    code = subprocess.run(command, cwd=clone, env=_environment(ROOT, clone)).returncode
    if code:
        return code
    print("\n".join(["", *summary(compare(clone, names or papers()))]))
    print("Reports:       reports/index.html (the committed numbers; open it in a browser)")
    print("Runs:          make ui")
    return 0


def prepare(root: Path, again: bool = False) -> Path:
    """Make the clone, or bring it to the commit of `root`; returns its folder.

    root   of the repository. If it is a folder of a larger one, that is cloned, and the same folder in the
           clone is returned
    again  forget what was trained in the clone at this commit
    """
    top = git(root, "rev-parse", "--show-toplevel")
    inner = git(root, "rev-parse", "--show-prefix")
    clone = root / FOLDER
    here = clone / inner
    commit = git(root, "rev-parse", "HEAD")
    changed = git(root, "status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        print(f"{len(changed)} uncommitted changes take no part in {commit[:12]}", flush=True)
    if not (clone / ".git").is_dir():
        shutil.rmtree(clone, ignore_errors=True)
        with files.replace_folder(clone) as new:
            git(root, "clone", "--quiet", "--no-hardlinks", top, str(new))
    moved = git(clone, "rev-parse", "HEAD") != commit
    if moved:
        git(clone, "fetch", "--quiet", top, commit)
    if moved or again:
        # Before the checkout: if this process is killed, the new commit must not find these seeds.
        shutil.rmtree(here / ".cells", ignore_errors=True)
    if moved:
        git(clone, "checkout", "--quiet", "--force", "--detach", commit)
    return here


def _environment(root: Path, clone: Path) -> dict[str, str]:
    """The variables of the run's environment.

    Python imports the clone's code. Runs are imported into the repository's MLflow database, unless the user
    names another. Trained seeds count although every stage runs (FEDREPRO_FORCE).
    """
    inherited = {key: value for key, value in surroundings(clone).items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {"MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}", **inherited, "FEDREPRO_FORCE": ""}


def compare(clone: Path, names: Iterable[str]) -> list[Comparison]:
    """Compare the cells of miniatures that both the clone's commit and its folders have.

    clone  of `prepare`, after its run
    names  papers
    """
    comparisons = []
    patterns = [f"papers/{name}/runs/{MINIATURE}/*/result.json" for name in sorted(names)]
    for path in map(Path, git(clone, "ls-files", "--", *patterns).splitlines()):
        content = committed(clone, path)
        if content is None or not (clone / path).exists():
            continue
        then = read(clone / path, content)
        now = read(clone / path)
        history = path.with_name("history.csv")
        comparisons.append(
            Comparison(
                cell=now["cell"],
                committed=summarise(then["measures"][then["headline"]]),
                here=summarise(now["measures"][now["headline"]]),
                same_bits=committed(clone, history) == (clone / history).read_bytes(),
                then=then["versions"],
                now=now["versions"],
            )
        )
    return comparisons


def summary(comparisons: list[Comparison]) -> list[str]:
    """What the comparison says, in lines.

    These are the processor and what differs from the versions in git, how many cells have the same bits, and
    for the other cells both numbers, the largest difference first.
    """
    if not comparisons:
        return ["Measured:      git has no number of these miniatures to compare with"]
    moved = [comparison for comparison in comparisons if not comparison.same_bits]
    total = len(comparisons)
    same = total - len(moved)
    now = comparisons[-1].now
    then: dict[tuple[str, str], None] = {}
    for comparison in comparisons:
        then |= dict.fromkeys(comparison.then.items())
    others = [f"; {key} {now.get(key)} (committed: {old})" for key, old in then if old != now.get(key)]
    lines = [
        f"Processor:     {now.get('processor')}{''.join(others)}",
        f"Measured:      {same} of {total} cells of the miniatures have the same bits as in git",
    ]
    for comparison in sorted(moved, key=lambda comparison: -abs(comparison.difference)):
        lines.append(f"  {comparison.cell}: {comparison.committed} in git, {comparison.here} here")
    return lines
