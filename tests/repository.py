"""A copy of the repository, in which stages and commands run as a user runs them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import warm
import yaml

from pipeline.cells import stamps
from pipeline.provenance import identity
from pipeline.schema import Cell, load_paper, load_params

ROOT = Path(__file__).resolve().parent.parent
CELL = "fedcrl/mini/fedprox"
RESULTS = ("papers/*/runs/*", "papers/*/tuning/*/*", "papers/*/figures/*")
TRAINED = (".cells", "papers/fedcrl/runs/mini/fedprox")
PARAMETERS, PARTITION = "papers/fedcrl/paper.yaml", "papers/fedcrl/partitions/mini"
# Values that a key of a document may get and mostly may not have.
ODD = (None, 7, -1, 1.5, "x", [], {}, [[]], {"a": []}, True, 10**400)
PATIENCE = 900  # seconds after which a process counts as hanging, however busy the machine


def copy_of_the_repository(target: Path, *papers: str, without: Sequence[str] = ()) -> Path:
    """What git tracks or would track, without the tests.

    papers   leave out the others and their pages
    without  leave out files whose names match one of these patterns
    """
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, tracked):
        folder, _, inside = name.partition("/")
        other = papers and (
            folder == "papers"
            and inside.partition("/")[0] not in papers
            or folder == "reports"
            and not inside.startswith(("templates/", "withdrawn.csv"))
        )
        other = other or any(fnmatch(name, pattern) for pattern in without)
        if (ROOT / name).is_file() and folder != "tests" and not other:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for package in ("pipeline", "stages"):  # what is compiled stays valid
        for folder in (ROOT / package).rglob("__pycache__"):
            shutil.copytree(folder, target / folder.relative_to(ROOT), dirs_exist_ok=True)
    return target


def search_path() -> str:
    """A PATH on which `python` begins warm."""
    return os.pathsep.join(map(str, [warm.python().parent, Path(sys.executable).parent, os.environ["PATH"]]))


def run(project: Path, *command: str, expect: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """A command in a checkout; `python -m` begins warm."""
    command = (str(warm.python()), *command[1:]) if command[0] == sys.executable else command
    env = os.environ | {"OMP_NUM_THREADS": "1", "PATH": search_path()}
    env |= {"MLFLOW_TRACKING_URI": "", "FEDREPRO_MIRROR": "", "DVC_NO_ANALYTICS": "1"} | environment
    done = subprocess.run([*command], cwd=project, capture_output=True, text=True, env=env, timeout=PATIENCE)
    assert done.returncode == expect, (
        f"{command} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done


def python(project: Path, code: str, *arguments: str, **more) -> subprocess.CompletedProcess:
    """`python -c` in a checkout that begins warm: not for code that looks at what is imported."""
    kind = "-c" if warm.python() == Path(sys.executable) else "-warm"
    return run(project, str(warm.python()), kind, code, *arguments, **more)


def git(folder: Path, *words: str) -> str:
    return run(folder, "git", "-c", "user.name=x", "-c", "user.email=x@localhost", *words).stdout.strip()


def commit(folder: Path, *names: str) -> None:
    """What has changed, or these files, in a git repository that is made where there is none."""
    git(folder, "init", "-q")
    git(folder, "add", "-f" if names else "-A", *names)
    git(folder, "commit", "-qm", "as it is")


def checkout(folder: Path, patterns: list[str], *more: str) -> Path:
    """What git tracks under some names, and other files, committed."""
    tracked = run(ROOT, "git", "ls-files", *patterns).stdout.splitlines()
    for name in [*tracked, *more]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    commit(folder)
    return folder


def stage(
    project: Path, name: str, *arguments: str, expect: int = 0, **environment: str
) -> subprocess.CompletedProcess:
    return run(project, sys.executable, "-m", f"stages.{name}", *arguments, expect=expect, **environment)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


def edit(path: Path, change) -> None:
    """Change a parsed YAML file, which this process reads anew."""
    document = yaml.safe_load(path.read_text())
    change(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    reread()


@contextlib.contextmanager
def edited(path: Path, change) -> Iterator[None]:
    """A parsed YAML file with a change; afterwards as before."""
    original = path.read_text()
    edit(path, change)
    try:
        yield
    finally:
        path.write_text(original)
        reread()


def reread() -> None:
    """What a new process would not know."""
    for function in (load_paper, load_params, identity._code, identity.noted, stamps.read):
        function.cache_clear()


def outputs(project: Path, cell: str = CELL) -> tuple[str, str]:
    """The numbers of a trained cell's result, as JSON, and its history."""
    folder = Cell.parse(cell).folder(project)
    result = json.loads((folder / "result.json").read_text())
    return json.dumps(
        [result[name] for name in ("measures", "final", "last3", "last5", "clients", "traffic")]
    ), (folder / "history.csv").read_text()


def forget(project: Path) -> None:
    for name in TRAINED:
        shutil.rmtree(project / name, ignore_errors=True)


def restore(project: Path, finished: Path) -> None:
    """The trained cell with its parameters and partition, as another copy has them."""
    forget(project)
    shutil.rmtree(project / PARTITION)
    for name in (*TRAINED, PARTITION):
        shutil.copytree(finished / name, project / name)
    original = (finished / PARAMETERS).read_text()
    if (project / PARAMETERS).read_text() != original:
        (project / PARAMETERS).write_text(original)
        reread()
