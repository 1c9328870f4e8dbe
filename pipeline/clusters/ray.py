"""The Ray executor: trains cells as tasks of a Ray cluster whose machines need no shared file system.

This process runs on a machine of the cluster, such as its head. Code and data are sent through Ray's object
store. Checkpoints and results are copied back to this machine's `.cells` as they are saved. If a node dies,
its cells continue elsewhere. The tasks end with this process.
"""

import hashlib
import io
import re
import socket
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.clusters import node
from pipeline.clusters.cluster import Cluster, Sent
from pipeline.clusters.job import StageTask
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import ROOT

CODE = ("pipeline", "stages", "*.yaml", "papers/*/*.yaml", "papers/*/methods", "papers/*/*.py")
RETRIES = 100  # of a task whose node dies


class Ray(Cluster):
    """A Ray cluster. `jobs`: cells at once, None for as many as it takes; `gpus`: share of a GPU for each."""

    outlives = False

    def __init__(self, cores: int, jobs: int | None, address: str, gpus: float, root: Path = ROOT):
        super().__init__(cores, root)
        self.title, self.jobs = f"ray cluster {address}", jobs
        _reach(address)
        try:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise FedReproError(f"--on ray: {address}: {' '.join(str(error).split())[:300]}") from None
        if not gpus <= ray.cluster_resources().get("GPU", 0):
            raise FedReproError(f"--gpus {gpus:g}: more than the cluster at {address} has")
        cloudpickle.register_pickle_by_value(node)
        # Pinned here: elsewhere it could be put on a node that dies.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self.keeper = ray.remote(node.Keeper).options(num_cpus=0, scheduling_strategy=here).remote(str(root))
        self.task = ray.remote(node.train).options(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)
        self.code = ray.put(_packed(root, [path for pattern in CODE for path in sorted(root.glob(pattern))]))
        self.archives: dict[Path, tuple[str, Any]] = {}
        self.waiting: list[Sent] = []
        self.running: dict[Any, Sent] = {}

    def send(self, jobs: list[Sent]) -> list[Sent]:
        """Ray takes them as room is; `jobs` at once."""
        for job in jobs:
            job.id = job.name = job.order.cell
        self.waiting += jobs
        self._start()
        return []

    def poll(self) -> None:
        if self.running:
            done, _ = ray.wait(list(self.running), num_returns=len(self.running), timeout=0)
            for reference in done:
                self._ended(self.running.pop(reference), reference)
        self._start()
        super().poll()

    def states(self) -> dict[tuple[str, str], str]:
        """Of this process's tasks: there are no others."""
        begun, places = ray.get(self.keeper.begun.remote()), {}
        for job in [*self.waiting, *self.running.values()]:
            nodes = begun.get(job.id, [])
            again = f", requeued {len(nodes) - 1}x" if len(nodes) > 1 else ""
            places[job.id, job.name] = f"on {nodes[-1]}{again}" if nodes else "queued"
        return places

    def close(self) -> str:
        """Tasks end with this process, so nothing is left to attach to."""
        left = super().close()
        ray.shutdown()
        return left

    def farewell(self, jobs: int) -> str:
        return f"{jobs} cells stop at {self.title}: the same command goes on from their checkpoints"

    def _start(self) -> None:
        while self.waiting and (self.jobs is None or len(self.running) < self.jobs):
            job = self.waiting.pop(0)
            logs = [str(job.task.log), str(job.task.events)]
            needed = {
                path.relative_to(self.root).as_posix(): self._archive(path) for path in _made_before(job.task)
            }
            environment = self.environment() | {"FEDREPRO_WORKERS": "1"}
            started = self.task.remote(asdict(job.order), logs, [self.code], needed, self.keeper, environment)
            self.running[started] = job

    def _ended(self, job: Sent, reference: Any) -> None:
        """A trained cell is seen by its seeds; all else has failed."""
        try:
            code, why = ray.get(reference)
        except ray.exceptions.RayError as error:
            code, why = 1, f"error: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if code and job.lives:
            job.lost(*[why] * bool(why), f"ERROR: failed to run: {self.title}: exit code {code}")

    def _archive(self, path: Path) -> tuple[str, Any]:
        if path not in self.archives:
            data = _packed(path.parent, [path])
            self.archives[path] = hashlib.sha256(data).hexdigest(), ray.put(data)
        return self.archives[path]


def _reach(address: str) -> None:
    """Ray itself would try for minutes."""
    match = re.fullmatch(r"([\w.-]+):(\d+)", address)
    if not match:
        raise ParamError(f"--address {address or 'is missing'}: expected HOST:PORT of Ray's head node")
    try:
        socket.create_connection((match[1], int(match[2])), timeout=10).close()
    except OSError as error:
        raise FedReproError(f"--on ray: no cluster at {address}: {error.strerror or error}") from None


def _made_before(task: StageTask) -> set[Path]:
    """Data and partitions, made by the stages that the cell needs."""
    outs = {Path(out.fs_path) for needed in task.upstream for out in needed.stage.outs}
    return {path for path in outs if path.is_dir()}.union(*map(_made_before, task.upstream))


def _packed(base: Path, paths: list[Path]) -> bytes:
    """A tar archive, the same for the same content."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return None if "__pycache__" in entry.name else entry

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in paths:
            archive.add(path, path.relative_to(base).as_posix(), filter=plain)
    return data.getvalue()
