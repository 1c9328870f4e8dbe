"""Processes that never outlive the one that started them."""

import contextlib
import os
import signal
import subprocess
import sys
import time


class Group:
    """Processes that never outlive us: one process group, with a guard in it that ends it once our pipe to it
    closes."""

    def __init__(self, lock: str):
        self.guard = subprocess.Popen(
            [sys.executable, "-I", __file__, lock], stdin=subprocess.PIPE, process_group=0
        )

    def start(self, command: list[str], log, environment: dict[str, str]) -> subprocess.Popen:
        """A process of the group; what it prints goes to the open file `log`."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            process_group=self.guard.pid,
        )

    def close(self) -> None:
        """End whatever still runs; returns when it has ended."""
        self.guard.communicate()  # closes the pipe and waits

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.guard.pid, signal.SIGKILL)


def _guard(lock: str) -> None:
    """Wait for the end of the pipe, then end the other processes of our group: SIGINT, then SIGTERM, then
    SIGKILL.

    It first takes DVC's lock, so that no DVC is writing dvc.lock when the signal comes."""
    import zc.lockfile

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    held, until = None, time.monotonic() + 10
    while _others() and held is None and time.monotonic() < until:
        try:
            held = zc.lockfile.LockFile(lock)
        except zc.lockfile.LockError:
            time.sleep(0.05)
        except OSError:  # where nobody may write, no DVC writes
            break
    for number, patience in ((signal.SIGINT, 2), (signal.SIGTERM, 3), (signal.SIGKILL, 0)):
        if not _others():
            return
        os.killpg(0, number)
        until = time.monotonic() + patience
        while _others() and time.monotonic() < until:
            time.sleep(0.05)


def _others() -> bool:
    """Does any other process of our group live?"""
    import psutil

    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if pid != os.getpid() and os.getpgid(pid) == os.getpgid(0):
                if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    return True
    return False


if __name__ == "__main__":
    _guard(sys.argv[1])
