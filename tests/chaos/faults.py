"""The n-th file operation of a command fails (no space left, input/output error, read-only file system), once
or from there on. Wrong is a traceback, a command that never ends, and what is not as expected after a few
of them, once what is left was finished."""

import errno
import random
from pathlib import Path

import project

CHAIN = 8  # faults before what is left is finished and compared
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
MOST = {"run": 60, "force": 60, "repro": 60, "train": 40, "partition": 12, "report": 60, "import": 40}


def chain(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(faults, what was wrong): a few, and then what is left is finished and compared."""
    return project.in_a_row(lambda: fault(folder, draw), CHAIN, folder, expected)


def fault(folder: Path, draw: random.Random) -> tuple[str, str]:
    """What failed, and what the command printed."""
    name, number = draw.choice(list(project.COMMANDS)), draw.choice(ERRORS)
    at, stays = draw.randint(1, MOST[name]), draw.random() < 0.5
    process = project.start(
        folder,
        *project.COMMANDS[name],
        PYTHONPATH=str(Path(__file__).parent / "faulty"),
        FAULT_AT=str(at),
        FAULT_ERRNO=str(number),
        FAULT_ROOT=str(folder),
        FAULT_STAYS="1" if stays else "",
    )
    what = f"{name}, {errno.errorcode[number]} at operation {at}{' and after' if stays else ''}"
    return what, project.heard_or_wrong(process)
