"""Kills at random moments. A chain is a few kills, each of another command (SIGKILL to the whole group, or to
the first process alone, so that its children live on), and then what a user does: `fedrepro run`.
Every file that a run leaves must have the bits of an undisturbed run, MLflow every run once, and nothing may
lie about that git does not ignore."""

import contextlib
import os
import random
import signal
import subprocess
from pathlib import Path

import project

CHAIN = 5  # kills before what is left is finished and compared
LONGEST = {"run": 40, "force": 15, "repro": 30, "train": 12, "partition": 2.5, "report": 6, "import": 8}


def chain(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(kills, what was wrong afterwards)."""
    steps, started = [], []
    for _ in range(CHAIN):
        name = draw.choice(list(project.COMMANDS))
        after = draw.uniform(0.2, LONGEST[name])
        whole_group = draw.random() < 0.7
        steps.append(f"{name} {after:.1f}{'' if whole_group else ' alone'}")
        started.append(project.start(folder, *project.COMMANDS[name]))
        kill(started[-1], after, whole_group)
    wrong = project.compare(folder, expected)
    for process in started:  # children of a process that was killed alone
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return CHAIN, f"after {', '.join(steps)}: {wrong}" if wrong else ""


def kill(process: subprocess.Popen, after: float, whole_group: bool) -> None:
    """SIGKILL after so many seconds, if the process still lives."""
    try:
        process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        if whole_group:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
