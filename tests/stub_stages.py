"""A small DVC repository of stub stages."""

import json
import os
import sys
from pathlib import Path

import repository as checkout
import yaml

MORE = {"DVC_NO_ANALYTICS": "1", "COLUMNS": "200", "FEDREPRO_WORKERS": ""}
MORE |= {"PYTHONPATH": str(checkout.ROOT)}
ENVIRONMENT = {**os.environ, **MORE}
RUN = [sys.executable, "-m", "pipeline", "run"]
TIMED = (
    "date +%s.%N > {0}.begun; echo {0} $FEDREPRO_WORKERS $OMP_NUM_THREADS >> ran; {1}; "
    "cat {2} > {0}.txt; date +%s.%N > {0}.ended"
)


def stub(name: str, *needs: str, does: str = "true") -> dict:
    """A stage that copies what it needs to <name>.txt; its times are in <name>.begun and <name>.ended."""
    files = [f"{need}.txt" for need in needs]
    return {
        "cmd": TIMED.format(name, does, " ".join(files)),
        "deps": files,
        "outs": [{f"{name}.txt": {"cache": False}}],
    }


def repository(folder: Path, **stages: dict) -> Path:
    """A DVC repository with these stages and their one source, in.txt."""
    (folder / ".dvc" / "tmp").mkdir(parents=True)  # what `dvc init --no-scm` makes, in no time
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = True\n")
    (folder / "in.txt").write_text("1\n")
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    return folder


def run(folder: Path, *arguments: str, expect: int = 0) -> str:
    done = checkout.run(folder, *RUN, *arguments, expect=expect, **MORE)
    return done.stdout + done.stderr


def ran(folder: Path) -> list[str]:
    """The stages that ran since the last call, as they began."""
    lines = (folder / "ran").read_text().splitlines() if (folder / "ran").exists() else []
    (folder / "ran").unlink(missing_ok=True)
    return [line.split()[0] for line in lines]


def clean(folder: Path) -> bool:
    status = checkout.run(folder, sys.executable, "-m", "dvc", "status", "--json", **MORE)
    return json.loads(status.stdout) == {}


def living(folder: Path) -> list[str]:
    """Command lines of the processes at work in the folder."""
    import psutil

    actual = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) == folder and process.status() != psutil.STATUS_ZOMBIE:
                actual.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return actual
