"""The n-th file operation of a command fails (no space left, input/output error, read-only file system), once
or from there on. Wrong is a traceback, a command that never ends, and what is not as expected after the same
command was run again."""

import errno
import random
from pathlib import Path

import project

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
MOST = {"run": 60, "force": 60, "repro": 60, "train": 40, "partition": 12, "report": 60, "import": 40}


def fault(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(1, what was wrong)."""
    name, number = draw.choice(list(project.COMMANDS)), draw.choice(ERRORS)
    at, stays = draw.randint(1, MOST[name]), draw.random() < 0.5
    what = f"{name}, {errno.errorcode[number]} at operation {at}{' and after' if stays else ''}"
    process = project.start(
        folder,
        *project.COMMANDS[name],
        PYTHONPATH=str(Path(__file__).parent / "faulty"),
        FAULT_AT=str(at),
        FAULT_ERRNO=str(number),
        FAULT_ROOT=str(folder),
        FAULT_STAYS="1" if stays else "",
    )
    try:
        reply = project.heard(process)
        wrong = f"a traceback: {reply[-1500:]}" if "Traceback" in reply else project.compare(folder, expected)
    except RuntimeError as error:
        wrong = str(error)
    return 1, f"{what}: {wrong}" if wrong else ""
