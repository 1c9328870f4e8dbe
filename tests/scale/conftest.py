"""Real servers on this machine, as root from Debian's and Python's packages; a test whose packages are
missing is skipped with the reason. `make test-scale` installs what they need."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import Slurm
from repository import copy_of_the_repository, edit

CELLS = ["fedcrl/mini/local", "fedcrl/mini/fedavg", "fedcrl/mini/fedprox"]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("project") / "checkout")


@pytest.fixture(scope="session")
def undisturbed(prepared, tmp_path_factory) -> Path:
    """The same with the cells trained here in one go."""
    copy = copied(prepared, tmp_path_factory)
    fedrepro(copy, "run", *CELLS)
    return copy


@pytest.fixture
def project(prepared, tmp_path_factory) -> Path:
    return copied(prepared, tmp_path_factory)


def prepare(target: Path) -> Path:
    """A DVC repository with a short miniature of FedCRL, partitioned; nothing of it is trained."""
    copy = copy_of_the_repository(target)
    (copy / ".dvc" / "config").write_text("[core]\n    no_scm = True\n")
    (copy / "equivalents.yaml").write_text("entries: []\n")            # of another history
    for folder in ("runs", "metrics", "representations"):
        shutil.rmtree(copy / "papers/fedcrl" / folder, ignore_errors=True)

    def shorten(document):
        document["miniature"]["scenario"]["training"]["rounds"] = 10
        document["miniature"]["scenario"]["evaluation"]["last"] = 2
    edit(copy / "papers/fedcrl/paper.yaml", shorten)
    paper = "papers/fedcrl/dvc.yaml"
    fedrepro(copy, "run", f"{paper}:partition-mini", f"{paper}:sources", "sources")
    return copy


def copied(project: Path, factory) -> Path:
    """A copy; DVC's folders of absolute paths are left behind."""
    return shutil.copytree(project, factory.mktemp("project") / "checkout",
                           ignore=shutil.ignore_patterns("__pycache__", "logs"))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Two nodes of one core."""
    pytest.importorskip("submitit", reason="submitit is not installed: make test-scale")
    for program in ("slurmctld", "slurmd", "sbatch", "munged"):
        if not shutil.which(program) and not Path("/usr/sbin", program).exists():
            pytest.skip(f"no {program} here: apt-get install slurmctld slurmd slurm-client munge")
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def fedrepro(project: Path, *arguments: str, expect: int = 0, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pipeline", *arguments], cwd=project, capture_output=True,
                          text=True, env=surroundings(**environment), timeout=600)
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def surroundings(**environment: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "DVC_NO_ANALYTICS": "1", "FEDREPRO_MIRROR": "",
            "MLFLOW_TRACKING_URI": "", "FEDREPRO_TRACKING": "off", "FEDREPRO_CHECKPOINT_SECONDS": "1",
            "PYTHONPATH": "", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **environment}
