"""Kills at random moments. A chain is a few kills, each of another command, and then what a user does:
`fedrepro run`. The command gets SIGKILL, with its whole group or alone, so that its children live on; or
SIGTERM or SIGHUP, as of a batch system or a terminal that is closed; in a quarter of the cases a second
command begins meanwhile.
Every file that a run leaves must have the bits of an undisturbed run, MLflow every run once, and nothing may
lie about that git does not ignore."""

import random
import signal
import subprocess
from pathlib import Path

import project
import psutil

HOW = ("whole", "alone", "SIGTERM", "SIGHUP")
# part of the kills during which another command runs
AT_ONCE = 0.25
CHAIN = 20  # kills before what is left is finished and compared
LONGEST = {"run": 24, "force": 9, "repro": 18, "train": 8, "partition": 2, "report": 5, "import": 6}


def chain(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(kills, what was wrong afterwards)."""
    steps, started, others = [], [], []
    for _ in range(CHAIN):
        name = draw.choice(list(project.COMMANDS))
        after = draw.uniform(0.2, LONGEST[name])
        how = draw.choices(HOW, (7, 3, 2, 2))[0]
        steps.append(f"{name} {after:.1f} {how}")
        if draw.random() < AT_ONCE:
            other = draw.choice(list(project.COMMANDS))
            steps.append(f"during {other}")
            others.append(project.start(folder, *project.COMMANDS[other]))
        started.append(project.start(folder, *project.COMMANDS[name]))
        if reply := kill(started[-1], folder, after, how):
            return len(steps), f"after {', '.join(steps)}: {reply}"
    for reply in map(project.heard, others):  # some were killed with the group
        if "Traceback" in reply:
            return CHAIN, f"after {', '.join(steps)}: a traceback: {reply[-1500:]}"
    wrong = project.compare(folder, expected)
    project.kill_all(folder)  # children of a process that was killed alone
    return CHAIN, f"after {', '.join(steps)}: {wrong}" if wrong else ""


def kill(process: subprocess.Popen, folder: Path, after: float, how: str) -> str:
    """Let it go after so many seconds, if the process still lives; what is wrong with how it ends, or ""."""
    try:
        process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        if how == "whole":
            project.kill_all(folder)
        elif how == "alone":  # the command, and the process that does its work
            begun = psutil.Process(process.pid).create_time()
            for one in [one for one in project.processes(folder) if one.create_time() >= begun][:2]:
                one.kill()
        else:
            process.send_signal(signal.Signals[how])
            reply = project.heard(process)
            return f"a traceback: {reply[-1500:]}" if "Traceback" in reply else ""
        process.wait()
    return ""
