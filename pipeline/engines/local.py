"""Stages as processes of this machine: `dvc repro --single-item` for each."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.engines import Task
from pipeline.place import HOME, surroundings


class Process:
    """A stage that runs here."""

    where = ""

    def __init__(self, process: subprocess.Popen):
        self.poll, self.wait = process.poll, process.wait


class Local:
    """This machine. `group` makes what starts processes that do not outlive it, a `Group` of
    pipeline/commands/group.py."""

    def __init__(self, group: Callable, cores: int):
        self.make, self.cores = group, cores

    @cached_property
    def group(self) -> Any:
        """Made with the first stage."""
        return self.make()

    def far(self, task: Task) -> bool:
        return False

    def submit(self, task: Task, force: bool) -> Process:
        """Start the stage; what it prints goes to its log."""
        task.log.parent.mkdir(parents=True, exist_ok=True)
        task.events.unlink(missing_ok=True)
        workers = min(task.workers, int(os.environ.get("FEDREPRO_WORKERS") or task.workers))
        environment = {
            **surroundings(HOME),
            "OMP_NUM_THREADS": "1",
            "FEDREPRO_WORKERS": str(workers),
            "FEDREPRO_EVENTS": str(task.events),
            **({"FEDREPRO_FORCE": os.environ.get("FEDREPRO_FORCE", "1")} if force else {}),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "DVC_NO_ANALYTICS": "1",
        }
        command = [
            sys.executable,
            "-m",
            "pipeline.commands.keeping",
            "--wait-for-lock",
            "repro",
            "--single-item",
            *["--force"] * force,
            task.name,
        ]
        with open(task.log, "wb") as log:
            return Process(self.group.start(command, log, environment))

    def poll(self) -> None:
        pass  # a process is asked itself

    def cancel(self, tasks: Sequence[Task]) -> int:
        return 0  # nothing outlives a call

    def close(self) -> str:
        if "group" in self.__dict__:
            self.group.close()
        return ""

    def kill(self) -> None:
        if "group" in self.__dict__:
            self.group.kill()
