"""Runs stages that need only a second as forks of a process that has already imported what they need.

As processes of `dvc repro` each would import for five seconds, and the miniatures have thirty such stages.
"""

import os
import shlex
import sys

from pipeline.clusters.job import StageTask
from pipeline.errors import guarded

# What the server of the forks imports for them.
IMPORTS = ["pipeline.training.trainer", "pipeline.report.geometry", "pipeline.clusters.warm"]
FIGURES, RESULTS = ("python", "-m", "stages.figures"), ("python", "-m", "stages.results")


def arguments_of(task: StageTask) -> list[str] | None:
    """The words of its command after `python -m`, where the stage is one that can be such a fork: the
    figure of a cell or the table of a paper's results. None elsewhere: examples of images are drawn by torch,
    which rounds otherwise in a process that trains miniatures."""
    words = shlex.split(task.stage.cmd) if isinstance(task.stage.cmd, str) else []
    module, rest = tuple(words[:3]), words[3:]
    of_cell = module == FIGURES and len(rest) == 2 and rest[0].count("/") == 2
    return words[2:] if of_cell or module == RESULTS and len(rest) == 1 else None


def run_here(words: list[str], root: str, log: str, group: int, environment: dict[str, str]) -> None:
    """Do what `python -m WORDS` does, but for the checks of files that the caller has made; what is printed
    goes to `log`.

    group: the process group to join.
    """
    os.setpgid(0, group)
    os.chdir(root)
    sys.path.insert(0, root)
    os.environ.update(environment)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    module, *arguments = words

    def compute() -> None:
        if module == RESULTS[-1]:
            from stages import results

            results.main(*arguments)
        else:
            from stages import figures

            figures.figures(*arguments)

    guarded(compute)
