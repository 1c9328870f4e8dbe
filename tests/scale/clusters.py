"""Clusters on this machine: real daemons on loopback, ended by their process ids."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import psutil
from repository import PATIENCE, wait_for

CONFIGURATION = """\
ClusterName=mini
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={at}/munge/socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool-%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd-%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
SchedulerType=sched/backfill
SlurmdTimeout=10
KillWait=5
ReturnToService=2
JobRequeue=1
MpiDefault=none
MaxArraySize={largest}
AccountingStorageType=accounting_storage/none
"""
NODE = (
    "NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=1 ThreadsPerCore=1 RealMemory=4000\n"
)


class Slurm:
    """A SLURM cluster of one-core nodes. A requeued job is held for `cred_expire`, so that is short."""

    def __init__(self, at: Path, nodes: int = 2, largest: int = 1001):
        self.at, self.nodes = at, nodes
        self.variables = {"SLURM_CONF": str(at / "slurm.conf")}
        host, port = socket.gethostname().split(".")[0], 20000 + secrets.randbelow(9000)
        values = {"host": host, "user": psutil.Process().username(), "at": at, "largest": largest}
        text = CONFIGURATION.format(port=port, **values)
        text += "".join(NODE.format(n=n, host=host, port=port + n) for n in range(1, nodes + 1))
        text += "PartitionName=main Nodes=ALL Default=YES MaxTime=1-0 State=UP\n"
        (at / "slurm.conf").write_text(text)

    def start(self) -> None:
        for folder in ("munge", "state"):
            (self.at / folder).mkdir(mode=0o700)
        munge = self.at / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(1024))
        (munge / "key").chmod(0o600)
        files = {"key-file": munge / "key", "socket": munge / "socket", "log-file": munge / "log"}
        files |= {"pid-file": self.at / "munged.pid", "seed-file": munge / "seed"}
        self._run("munged", "--force", *(f"--{name}={path}" for name, path in files.items()))
        self._run("slurmctld")
        for n in range(1, self.nodes + 1):
            self.add(f"n{n}")
        wait_for(lambda: self._run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(self.nodes))

    def add(self, node: str) -> None:
        """Start a node, or one that was killed once more."""
        (self.at / f"spool-{node}").mkdir(exist_ok=True)
        self._run("slurmd", "-N", node)

    def kill(self, node: str) -> None:
        """As if its power went: its daemon, and the daemons of its jobs' steps with all that they started."""
        victims = [psutil.Process(int((self.at / f"slurmd-{node}.pid").read_text()))]
        jobs = self._run("squeue", "-h", "-w", node, "-t", "R", "-o", "%A").split()
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if any(line.startswith(f"slurmstepd: [{job}.") for job in jobs):
                victims += [process, *process.children(recursive=True)]
        for process in victims:
            process.kill()

    def running(self, project: Path) -> dict[str, str]:
        """Job -> node of what runs of a checkout. Jobs of an earlier test may still be ending."""
        submissions = {folder.name for folder in project.glob(".cells/slurm/*")}
        nodes = {}
        for line in self._run("squeue", "-h", "-r", "-t", "R", "-o", "%i|%j|%N").splitlines():
            job, name, node = line.split("|")
            if name in submissions and node:
                nodes[job] = node
        return nodes

    def stop(self) -> None:
        for file in (self.at / "slurmctld.pid", *self.at.glob("slurmd-*.pid"), self.at / "munged.pid"):
            if file.exists() and file.read_text().strip():
                end(int(file.read_text()))

    def _run(self, *command: str) -> str:
        program = shutil.which(command[0]) or f"/usr/sbin/{command[0]}"
        env = {**os.environ, **self.variables}
        return subprocess.check_output([program, *command[1:]], env=env, text=True, timeout=PATIENCE)


def end(pid: int) -> None:
    """Terminate a process and wait for it."""
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except psutil.TimeoutExpired:  # it finishes what it does first
            process.kill()
    except psutil.NoSuchProcess:
        pass


class Ray:
    """A Ray cluster with a token: a head without cores and two nodes of one. Only in a separate network
    namespace, since Ray turns 127.0.0.1 into the address of the first network card."""

    def __init__(self, at: Path, program: str, port: int = 26379):
        self.at, self.program, self.address = at, program, f"127.0.0.1:{port}"
        health = {"period_ms": 1000, "failure_threshold": 3, "initial_delay_ms": 1000}
        self.variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_METRICS_COLLECTION": "1",
            "RAY_worker_niceness": "0",  # 15 by default: beside anything else they would hardly move
            **{f"RAY_health_check_{name}": str(value) for name, value in health.items()},
        }

    def start(self) -> None:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        head = "--head --num-cpus=0 --include-dashboard=false --object-store-memory=200000000".split()
        self._start(*head, f"--port={self.address.split(':')[1]}", f"--temp-dir={self.at}")
        for n in (1, 2):
            self._start(
                f"--address={self.address}",
                "--num-cpus=1",
                f'--resources={{"n{n}": 1}}',
                "--object-store-memory=100000000",
                f"--min-worker-port={11000 + n * 1000}",
                f"--max-worker-port={11900 + n * 1000}",
            )

    def kill(self, node: str) -> None:
        """As if its power went: its raylet and all that it started."""
        for process in self._processes():
            if any(part.startswith(f"--static_resource_list={node},") for part in process.info["cmdline"]):
                for victim in [process, *process.children(recursive=True)]:
                    victim.kill()
                return
        raise AssertionError(f"no raylet of {node}")

    def stop(self) -> None:
        for process in self._processes():
            process.kill()

    def _start(self, *options: str) -> None:
        command = [self.program, "start", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *options]
        env, quiet = {**os.environ, **self.variables}, subprocess.DEVNULL
        subprocess.run(command, cwd="/", env=env, check=True, timeout=PATIENCE, stdout=quiet)

    def _processes(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if str(self.at) in " ".join(process.info["cmdline"] or [])
        ]


class S3:
    """SeaweedFS as an S3 server on loopback, with a bucket `fedrepro`."""

    access = {
        "AWS_ACCESS_KEY_ID": "fedrepro",
        "AWS_SECRET_ACCESS_KEY": "fedrepro-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }

    def __init__(self, at: Path, weed: str):
        port = 20000 + secrets.randbelow(5000)
        self.url = f"http://127.0.0.1:{port}"
        ports = {"s3": port, "master": port + 5001, "volume": port + 5002, "filer": port + 5003}
        command = [weed, "mini", f"-dir={at}", *"-ip=127.0.0.1 -ip.bind=127.0.0.1".split()]
        command += ["-admin.ui=false", "-webdav=false", *(f"-{name}.port={n}" for name, n in ports.items())]
        env = {**os.environ, **self.access, "S3_BUCKET": "fedrepro"}
        with open(at / "log", "wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        wait_for(lambda: answers(self.url + "/healthz"))

    def stop(self) -> None:
        end(self.process.pid)


class Ssh:
    """OpenSSH on loopback, which lets in who holds the private key `key`."""

    def __init__(self, at: Path, program: str):
        self.port, self.key = 20000 + secrets.randbelow(9000), at / "key"
        for name in ("host", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(at / name)], check=True)
        (at / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/key.pub\n"
            "PasswordAuthentication no\nStrictModes no\nPidFile none\nSubsystem sftp internal-sftp\n"
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # which Debian's service makes
        with open(at / "log", "wb") as log:
            self.process = subprocess.Popen([program, "-D", "-e", "-f", str(at / "config")], stderr=log)
        wait_for(self._listens)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        end(self.process.pid)


class Postgres:
    """A PostgreSQL server on loopback with a database `mlflow`, as the user postgres: root may not."""

    def __init__(self, at: Path, binaries: Path):
        self.at, self.binaries, self.port = at, binaries, 20000 + secrets.randbelow(9000)
        at.chmod(0o777)
        self._run("initdb", "-D", f"{at}/db", "-A", "trust")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={at}"
        self._run("pg_ctl", "-D", f"{at}/db", "-w", "-l", f"{at}/log", "-o", options, "start")
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "mlflow")
        self.url = f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/mlflow"

    def stop(self) -> None:
        self._run("pg_ctl", "-D", f"{self.at}/db", "-m", "fast", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = ["runuser", "-u", "postgres", "--", str(self.binaries / program), *arguments]
        subprocess.run(command, cwd="/", check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)


def answers(url: str) -> bool:
    """Does a server answer there?"""
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(url, timeout=5).status == 200
    return False
