"""Helper process that ends a process group when its parent dies, so that no training is left running."""

import contextlib
import os
import signal
import sys
import time


def kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _main() -> None:
    """Then SIGINT, SIGTERM and SIGKILL for the other processes of our group."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for number, patience in ((signal.SIGINT, 2), (signal.SIGTERM, 3), (signal.SIGKILL, 0)):
        if not _others():
            return
        os.killpg(0, number)
        until = time.monotonic() + patience
        while _others() and time.monotonic() < until:
            time.sleep(0.05)


def _others() -> bool:
    import psutil

    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if pid != os.getpid() and os.getpgid(pid) == os.getpgid(0):
                if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    return True
    return False


if __name__ == "__main__":
    _main()
