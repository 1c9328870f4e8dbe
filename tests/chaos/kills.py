"""Kills at random moments. A chain is a few kills, each of another command (SIGKILL to the whole group, or to
the first process alone, so that its children live on), and then what a user does: `fedrepro run`.
Every file that a run leaves must have the bits of an undisturbed run, MLflow every run once, and nothing may
lie about that git does not ignore."""

import random
import subprocess
from pathlib import Path

import project
import psutil

CHAIN = 20  # kills before what is left is finished and compared
LONGEST = {"run": 24, "force": 9, "repro": 18, "train": 8, "partition": 2, "report": 5, "import": 6}


def chain(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(kills, what was wrong afterwards)."""
    steps, started = [], []
    for _ in range(CHAIN):
        name = draw.choice(list(project.COMMANDS))
        after = draw.uniform(0.2, LONGEST[name])
        whole_group = draw.random() < 0.7
        steps.append(f"{name} {after:.1f}{'' if whole_group else ' alone'}")
        started.append(project.start(folder, *project.COMMANDS[name]))
        kill(started[-1], folder, after, whole_group)
    wrong = project.compare(folder, expected)
    project.kill_all(folder)  # children of a process that was killed alone
    return CHAIN, f"after {', '.join(steps)}: {wrong}" if wrong else ""


def kill(process: subprocess.Popen, folder: Path, after: float, whole_group: bool) -> None:
    """SIGKILL after so many seconds, if the process still lives."""
    try:
        process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        if whole_group:
            project.kill_all(folder)
        else:  # the command, and the process that does its work
            begun = psutil.Process(process.pid).create_time()
            for one in [one for one in project.processes(folder) if one.create_time() >= begun][:2]:
                one.kill()
        process.wait()
