"""Real servers on this machine, as root from Debian's and Python's packages; a test whose packages are
missing is skipped with the reason. `make test-scale` installs what they need."""

import shutil
from pathlib import Path

import pytest
from checkouts import CELLS, copied, fedrepro, prepare
from clusters import Slurm


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
