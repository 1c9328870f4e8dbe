"""The SLURM executor: trains cells as array tasks through submitit, and requeues interrupted ones.

All nodes share the file system with the checkout, and this process runs where `sbatch` is available. A task
that loses its node, is preempted or approaches its time limit is requeued and continues from its checkpoints.
A cell has ended when its seeds are in `.cells`; the accounting of SLURM is not asked.
"""

import contextlib
import io
import itertools
import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from pipeline.clusters.cluster import Cluster, Sent
from pipeline.errors import FedReproError, ParamError, unknown
from pipeline.schema import ROOT

# What --slurm may name: options of sbatch, as its manual describes them.
OPTIONS = (
    "account constraint cpus-per-task exclude gpus-per-node gres licenses mem mem-per-cpu mem-per-gpu nice "
    "nodelist partition qos reservation time"
).split()
# minutes of a task, where --slurm names no time
DAY = 24 * 60
# tasks of a submission, where --jobs names no number
AT_ONCE = 256
# seconds before the time limit at which a task gets the signal to requeue
NOTICE = 90
# of sbatch's reasons: this user's jobs are as many as may be
FULL = "MaxSubmitJob"
# how often a task may be requeued for its time limit
TIME_OUTS = 10_000
FIELDS = "JobArrayID:|,Name:|,StateCompact:|,NodeList:|,RestartCnt:|,Reason:|"


class Train(submitit.helpers.Checkpointable):
    """A cell; requeued as it is, since its checkpoints are in `.cells`."""

    def __init__(self, root: Path, environment: dict[str, str]):
        self.root, self.environment = root, environment

    def __call__(self, order: dict, log: Path, events: Path) -> int:
        """Train the cell in a new process; its exit code. The signal that announces a time limit is for this
        one, which has the job requeued; the new one goes on to the end and is resumed from its checkpoint."""
        log.parent.mkdir(parents=True, exist_ok=True)
        values = {"FEDREPRO_EVENTS": str(events), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(self.root)}
        with open(log, "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "pipeline.clusters.worker", json.dumps(order)],
                cwd=self.root,
                env={**os.environ, **values, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
            ).wait()


class Slurm(Cluster):
    """A SLURM cluster.

    jobs: tasks of a submission that run at once; None: AT_ONCE
    slurm: options of sbatch, as --slurm takes them
    """

    def __init__(self, cores: int, jobs: int | None, slurm: str, root: Path = ROOT):
        super().__init__(cores, root)
        self.jobs = jobs or AT_ONCE
        self.options = parse(slurm)
        configuration = dict(re.findall(r"^(\w+)\s+= (.*?)\s*$", _ask("scontrol", "show", "config"), re.M))
        self.title = f"slurm cluster {configuration.get('ClusterName', '')!r}"
        self.largest = int(configuration.get("MaxArraySize", 1001))
        partition = self.options.get("partition")
        if partition and not _ask("sinfo", "-h", "-p", partition, "-o", "%P"):
            known = [name.strip("*") for name in _ask("sinfo", "-h", "-o", "%P").split()]
            raise ParamError(f"--slurm: {unknown('partition', partition, known)}")

    def send(self, jobs: list[Sent]) -> list[Sent]:
        """Arrays below MaxArraySize; a user's limit of jobs halves them, and what has no room waits."""
        chunks = [jobs[first : first + self.largest] for first in range(0, len(jobs), self.largest)]
        while chunks:
            chunk = chunks.pop(0)
            reason = self._submit(chunk, math.ceil(self.jobs * len(chunk) / len(jobs)))
            if FULL not in reason:
                for job in chunk if reason else ():
                    job.lost(f"error: {self.title} refuses the job: {_last(reason)}")
            elif len(chunk) > 1:
                chunks[:0] = [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
            else:
                return [*chunk, *itertools.chain(*chunks)]
        return []

    def _submit(self, jobs: list[Sent], at_once: int) -> str:
        """One array, in a new folder: a re-created cluster uses ids again, and submitit would find
        other cells' files under them. Why the cluster refuses, else ''."""
        name = f"fedrepro-{secrets.token_hex(4)}"
        folder = self.root / ".cells" / "slurm" / name
        executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=TIME_OUTS)
        executor.update_parameters(
            slurm_job_name=name,
            timeout_min=DAY,
            slurm_array_parallelism=at_once,
            slurm_signal_delay_s=NOTICE,
            slurm_additional_parameters={
                "requeue": True,
                "open-mode": "append",
                "chdir": str(self.root),
                **self.options,
            },
        )
        environment = self.environment() | {"FEDREPRO_WORKERS": self.options.get("cpus-per-task", "1")}
        self.announce(jobs, name)
        lists = [(asdict(job.order), job.task.log, job.task.events) for job in jobs]
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # sbatch's words, which the reason holds too
                sent = executor.map_array(Train(self.root, environment), *zip(*lists))
        except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError, OSError) as error:
            return str(getattr(error, "stderr", None) or error) or type(error).__name__
        for job, one in zip(jobs, sent):
            job.id, job.name = one.job_id, name
        return ""

    def states(self) -> dict[tuple[str, str], str]:
        """From squeue, which lists what has not ended."""
        places = {}
        for line in _ask("squeue", "--me", "-h", "-r", "-O", FIELDS).splitlines():
            number, name, state, nodes, restarts, reason = (part.strip() for part in line.split("|")[:6])
            again = f", requeued {restarts}x" if int(restarts or 0) else ""
            waits = f" ({reason})" if reason not in ("", "None", "Priority", "Resources") else ""
            places[number, name] = (f"on {nodes}" if state == "R" else f"queued{waits}") + again
        return places

    def end(self, jobs: list[tuple[str, str]]) -> None:
        _ask("scancel", *[number for number, _ in jobs])

    def last_words(self, job: Sent) -> list[str]:
        """The end of the task's output, as where the node has no Python."""
        lines = []
        for path in (self.root / ".cells" / "slurm" / job.name).glob(f"{job.id}_*_log.err"):
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return lines


def parse(text: str) -> dict[str, str]:
    """`partition=gpu,nodelist=n1,n2` -> options of sbatch; a comma before no option is part of a value."""
    parsed = {}
    for part in re.split(r",(?=[\w-]+=)", text) if text else []:
        name, equals, value = part.partition("=")
        name = name.strip().replace("_", "-")
        if not equals or not value:
            raise ParamError(f"--slurm: {part!r}: expected option=value, such as partition=gpu")
        if name not in OPTIONS:
            raise ParamError(f"--slurm: {unknown('option', name, OPTIONS)}")
        parsed[name] = value
    return parsed


def _ask(*command: str) -> str:
    """What a command of SLURM prints; FedReproError where it is missing or its cluster does not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except FileNotFoundError:
        raise FedReproError(f"--on slurm: no {command[0]} here; run this where jobs are submitted") from None
    except subprocess.TimeoutExpired:
        raise FedReproError(f"--on slurm: {command[0]} does not answer within a minute") from None
    except subprocess.CalledProcessError as error:
        raise FedReproError(f"--on slurm: {command[0]}: {_last(error.stderr)}") from None


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no answer"])[-1]
