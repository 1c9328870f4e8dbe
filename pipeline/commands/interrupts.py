"""Ctrl-C at any time of a command: exit code 130, no traceback, and no work begins after it.

A KeyboardInterrupt in the middle of an import can be lost, since packages are free to catch what an import of
theirs raises. So it is never raised there.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

# Exit code after Ctrl-C, as of a shell.
INTERRUPTED = 130
# Between two looks whether an import has ended.
SECONDS_BETWEEN_LOOKS = 0.01

# The signals that wait for the end of an import, of this process.
_waiting: list[int] = []


def at_once() -> None:
    """From now on Ctrl-C ends the process at once: before the command's work, and after it.

    A process whose parent has it ignore the signal goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Meanwhile Ctrl-C raises KeyboardInterrupt, so that work can be left in order. In an import it does so
    once that has ended; a second Ctrl-C does not wait.

    Nothing changes where `at_once` has not been called, as in a test.
    """
    if signal.getsignal(signal.SIGINT) is not _end:
        yield
        return
    signal.signal(signal.SIGALRM, _again)
    signal.signal(signal.SIGINT, _raise)
    try:
        yield
    finally:
        at_once()


def _end(number: int, frame: FrameType | None) -> None:
    """Nothing is cleaned up: files are written so that a process may end at any time."""
    os.write(2, b"stopped\n")
    os._exit(INTERRUPTED)


def _raise(number: int, frame: FrameType | None) -> None:
    if _in_import(frame) and not _waiting:
        _waiting.append(number)
        signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN_LOOKS)
        return
    _waiting.clear()
    signal.default_int_handler(number, frame)


def _again(number: int, frame: FrameType | None) -> None:
    """Send the signal again, to whatever handles it then; or look again later."""
    if not _waiting:
        return
    if _in_import(frame):
        signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN_LOOKS)
        return
    _waiting.clear()
    signal.raise_signal(signal.SIGINT)


def _in_import(frame: FrameType | None) -> bool:
    """Whether one of the calls that are under way imports a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
