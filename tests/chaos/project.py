"""A small repository to destroy: one paper, FedAvg on the bundled digits, a few rounds."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
import warm  # noqa: E402  # of the tests: commands that need not import torch again

PATIENCE = 1800  # seconds after which a process counts as hanging, however busy the machine
CELL = "tiny/mini/fedavg"
STAGES = ("sources", "data", "track", "report")  # of the root; the rest serves other papers
# Keys of result.json, at whatever depth, that may differ: when and how fast it was trained, and which modules
# the process that trained it had loaded.
VOLATILE = ("started", "seconds", "memory", "git", "self", "modules")
ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith("FEDREPRO_")},
    "OMP_NUM_THREADS": "1",
    "DVC_NO_ANALYTICS": "1",
    "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
    "FEDREPRO_CHECKPOINT_SECONDS": "0",
    "FEDREPRO_MIRROR": "",
    "FEDREPRO_DEVICE": "cpu",
    "COLUMNS": "200",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
COMMANDS = {
    "run": ["pipeline", "run"],
    "force": ["pipeline", "run", "--force", CELL],
    "repro": ["dvc", "repro"],
    "train": ["stages.train", CELL],
    "partition": ["stages.partition", "tiny/mini"],
    "report": ["stages.report"],
    "import": ["pipeline", "import"],
}


def make(folder: Path) -> Path:
    """The last commit of this repository with one separate paper, with nothing run yet."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    shutil.rmtree(folder / ".git")
    for old in [*folder.glob("papers/*/"), folder / "reports/curves", folder / "reports/inputs"]:
        shutil.rmtree(old, ignore_errors=True)
    # The findings of the papers that are gone would be missed.
    for old in ("dvc.lock", "data/dvc.lock", "reports/findings.csv"):
        (folder / old).unlink(missing_ok=True)
    document = yaml.safe_load((folder / "dvc.yaml").read_text())
    document["stages"] = {name: document["stages"][name] for name in STAGES}
    document["stages"]["data"]["matrix"]["set"] = ["digits"]
    (folder / "dvc.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    done(folder, "pipeline", "new", "paper", "tiny")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "A small repository"]):
        _git(folder, "-c", "user.name=chaos", "-c", "user.email=chaos@localhost", *command)
    return folder


def start(folder: Path, module: str, *arguments: str, **environment: str) -> subprocess.Popen:
    """A command of the repository in a separate session, its output in a pipe; it begins with torch imported,
    as its stages do, but where a library is loaded before all others."""
    python = Path(sys.executable) if "LD_PRELOAD" in environment else warm.python()
    command, env = [str(python), "-m", module, *arguments], {**ENVIRONMENT, **environment}
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=env, start_new_session=True, **pipes)


def processes(folder: Path) -> list[psutil.Process]:
    """Those that work in the folder, the oldest first."""
    inside = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(folder):
                inside.append(process)
    return sorted(inside, key=lambda process: process.create_time())


def kill_all(folder: Path) -> None:
    """SIGKILL to whatever works in the folder."""
    for process in processes(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()


def done(folder: Path, module: str, *arguments: str, **environment: str) -> str:
    """Run a command to its end; RuntimeError with what it reply where it fails."""
    process = start(folder, module, *arguments, **environment)
    reply = heard(process)
    if process.returncode:
        raise RuntimeError(
            f"{module} {' '.join(arguments)} ended with {process.returncode}:\n{reply[-2000:]}"
        )
    return reply


def heard(process: subprocess.Popen) -> str:
    """What a command replies, once it has ended; RuntimeError where it does not, after it was killed."""
    try:
        return process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise RuntimeError(f"it never ends:\n{process.communicate()[0][-2000:]}") from None


def heard_or_wrong(process: subprocess.Popen) -> str:
    """As `heard`; of a process that hangs, what `in_a_row` takes for wrong."""
    try:
        return heard(process)
    except RuntimeError as error:
        return f"Traceback: {error}"


def in_a_row(
    fault: Callable[[], tuple[str, str]], count: int, folder: Path, expected: dict[str, str]
) -> tuple[int, str]:
    """(faults, what was wrong): so many, and then what is left is finished and compared. fault: makes one,
    and says what it was and what the command printed."""
    steps = []
    for _ in range(count):
        what, reply = fault()
        steps.append(what)
        if "Traceback" in reply:
            return len(steps), f"after {'; '.join(steps)}: a traceback: {reply[-1500:]}"
    wrong = compare(folder, expected)
    return count, f"after {'; '.join(steps)}: {wrong}" if wrong else ""


def finish(folder: Path) -> None:
    """What a user does after a crash: `fedrepro run`."""
    done(folder, "pipeline", "run")
    done(folder, "pipeline", "import")


def outcome(folder: Path) -> dict[str, str]:
    """name -> digest of everything that a run leaves and that may not depend on what happened on the way."""
    actual, left = {}, replaced(folder)
    for path in sorted(
        path for part in ("papers/tiny", "reports", "data") for path in folder.glob(f"{part}/**/*")
    ):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(("reports/templates", "reports/runs", *left)):
            actual[name] = _digest(path)
    actual["runs"] = json.dumps(tracked(folder))
    lines = _git(folder, "status", "--porcelain", "--untracked-files=all").splitlines()
    actual["untracked"] = "\n".join(line for line in lines if not line[3:].startswith(left))
    return actual


def replaced(folder: Path) -> tuple[str, ...]:
    """Former folders whose removal failed: the next that is written at their place clears them."""
    return tuple(path.relative_to(folder).as_posix() + "/" for path in folder.glob("**/.*.*-*.old"))


def compare(folder: Path, expected: dict[str, str]) -> str:
    """Finish what was begun; what then is not as expected, or ""."""
    try:
        finish(folder)
        actual = outcome(folder)
    except (RuntimeError, subprocess.TimeoutExpired, OSError, ValueError) as error:
        return f"afterwards: {error}"
    names = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
    return f"different: {', '.join(names)}" if names else ""


def tracked(folder: Path) -> list:
    """What MLflow knows of every cell and seed: status, name and of a seed the number of metrics; and how
    many runs it has of a result or its seed beyond one. (A cell trained twice to its end is two results.)"""
    code = """
import collections, json, mlflow
client = mlflow.MlflowClient()
runs = client.search_runs([found.experiment_id for found in client.search_experiments()])
seeds = [run.data.tags.get("seed", "") for run in runs]
names = sorted({(run.info.status, run.info.run_name, bool(seed) and len(run.data.metrics))
                for run, seed in zip(runs, seeds)})
of = collections.Counter((run.data.tags.get("fedrepro.result"), seed) for run, seed in zip(runs, seeds))
print(json.dumps([names, sum(of.values()) - len(of)]))
"""
    command = [sys.executable, "-c", code]
    reply = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    if reply.returncode:
        raise RuntimeError(f"MLflow's database cannot be read: {reply.stderr[-500:]}")
    return json.loads(reply.stdout.splitlines()[-1])


def _digest(path: Path) -> str:
    content = path.read_bytes()
    if path.name == "result.json":
        content = json.dumps(lasting(json.loads(content)), sort_keys=True).encode()
    elif path.name == "dvc.lock":
        content = repr(sorted(yaml.safe_load(content)["stages"])).encode()
    elif path.suffix in (".html", ".md", ".tex", ".npz") or path.parent.name == "inputs":
        content = b""  # they tell when and how long, or are archives with times
    return hashlib.sha256(content).hexdigest()


def lasting(value: object) -> object:
    """What of a result's values may not depend on what happened on the way."""
    if isinstance(value, dict):
        return {key: lasting(below) for key, below in value.items() if key not in VOLATILE}
    return [lasting(below) for below in value] if isinstance(value, list) else value


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout
