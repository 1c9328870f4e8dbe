"""Checkouts with a short miniature, in which `fedrepro` runs as a user runs it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import warm
from repository import PATIENCE, copy_of_the_repository, edit, search_path

CELLS = ["fedcrl/mini/local", "fedcrl/mini/fedavg", "fedcrl/mini/fedprox"]


def prepare(target: Path) -> Path:
    """A DVC repository with a short miniature of FedCRL, partitioned; nothing of it is trained."""
    copy = copy_of_the_repository(target)
    (copy / ".dvc" / "config").write_text("[core]\n    no_scm = True\n")
    for folder in ("runs", "representations"):
        shutil.rmtree(copy / "papers/fedcrl" / folder, ignore_errors=True)

    def shorten(document):
        document["miniature"]["scenario"]["training"]["rounds"] = 30  # seconds, for a node to die in
        document["miniature"]["scenario"]["evaluation"]["last"] = 2

    edit(copy / "papers/fedcrl/paper.yaml", shorten)
    paper = "papers/fedcrl/dvc.yaml"
    fedrepro(copy, "run", f"{paper}:partition-mini", f"{paper}:sources", "sources")
    return copy


def copied(project: Path, factory) -> Path:
    """A copy; DVC's folders of absolute paths are left behind."""
    return shutil.copytree(
        project, factory.mktemp("project") / "checkout", ignore=shutil.ignore_patterns("__pycache__", "logs")
    )


def fedrepro(project: Path, *arguments: str, expect: int = 0, **environment: str) -> str:
    """It and its stages begin warm; what a cluster starts does not."""
    done = subprocess.run(
        [str(warm.python()), "-m", "pipeline", *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        env=surroundings(**environment),
        timeout=PATIENCE,
    )
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def surroundings(**environment: str) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
        "FEDREPRO_MIRROR": "",
        "MLFLOW_TRACKING_URI": "",
        "FEDREPRO_TRACKING": "off",
        "FEDREPRO_CHECKPOINT_SECONDS": "1",
        "PYTHONPATH": "",
        "PATH": search_path(),
        warm.SHARED: str(warm.python()),
        **environment,
    }


def clean(project: Path) -> bool:
    stages = [f"papers/fedcrl/dvc.yaml:mini@{cell.rpartition('/')[2]}" for cell in CELLS]
    done = subprocess.run(
        [str(warm.python()), "-m", "dvc", "status", "--json", *stages],
        cwd=project,
        env=surroundings(),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout) == {}
