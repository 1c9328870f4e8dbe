"""Runs of `python -m ...` without the seconds that importing torch, DVC and pandas takes: they are forked
from a server that has imported them, one for all processes of the tests. The pipeline is imported by each."""

import atexit
import contextlib
import gc
import io
import json
import os
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path

LARGE = ["torch", "torchvision", "pandas", "scipy.stats", "sklearn", "PIL.Image", "yaml", "jinja2", "psutil"]
LARGE += (
    "dvc.repo dvc.repo.index dvc.cli.parser dvc.rwlock dvc.scm dvc.repo.plots ruamel.yaml networkx".split()
)
LARGE += "mlflow.store.tracking.sqlalchemy_store matplotlib.pyplot statsmodels.api rich markdown_it".split()

# What takes the place of `python`: it hands its arguments, environment and files to the server, and ends as
# the forked process does. All but `python -m`, and `-c` by the name `-warm`, goes to the interpreter.
CLIENT = """#!{python} -SE
import json, os, signal, socket, sys
if sys.argv[1:2] not in (["-m"], ["-warm"]):
    os.execv("{python}", ["{python}", *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect("{address}")
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
server.sendall(request)
answers = server.makefile()
child = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(child, number))
code = int(answers.readline() or 1)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


SHARED = "WARM_PYTHON"  # environment variable: the `python` that another process of the tests has made
PATIENCE = 300  # seconds that the imports of the server may take


@cache
def python() -> Path:
    """A `python` whose modules run in forked processes; where that is not safe, this interpreter."""
    if sys.platform != "linux":
        return Path(sys.executable)
    client, deadline = Path(os.environ.get(SHARED) or begin()), time.monotonic() + PATIENCE
    while not client.with_name("server").exists():
        assert time.monotonic() < deadline, "the server of warm interpreters does not begin"
        time.sleep(0.05)
    return client


def begin() -> Path:
    """Start the server, which ends with this process; the `python` that asks it once it has imported."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    client, address = folder / "python", folder / "server"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(address)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)

    def stop():
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder)

    atexit.register(stop)
    return client


def serve(address: str) -> None:
    """Until standard input ends."""
    for name in LARGE:
        import_module(name)
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{address}-unready")
    listening.listen(64)
    os.rename(f"{address}-unready", address)
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer(connection)
        connection.close()
        while _ended():
            pass
    os._exit(0)  # without a word of what the libraries leave


def _ended() -> bool:
    """Has one of the forked processes ended, and not been asked for before?"""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _answer(connection: socket.socket) -> None:
    """One request, in a separate process that waits for the one that does it."""
    length, files, *_ = socket.recv_fds(connection, 4, 3)
    arguments, environment, folder = json.loads(connection.makefile("rb").read(int.from_bytes(length, "big")))
    child = os.fork()
    if child == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.closerange(3, max(files) + 1)
        os._exit(_module(arguments, environment, folder))
    for file in files:
        os.close(file)
    with contextlib.suppress(OSError):  # whoever asked was killed
        connection.sendall(f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


def _module(arguments: list[str], environment: dict[str, str], folder: str) -> int:
    """`python -m`, or `python -c`, with these arguments; its exit code."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    first = [] if environment.get("PYTHONSAFEPATH") else [folder]
    sys.path[:] = [*first, *filter(None, named), *(path for path in sys.path[1:] if path not in named)]
    kind, what, *_ = arguments
    sys.argv = arguments[1:] if kind == "-m" else ["-c", *arguments[2:]]
    sys.executable = shutil.which("python") or sys.executable
    encoding = environment.get("PYTHONIOENCODING") or "utf-8"
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding=encoding)
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding=encoding)
    sys.stderr = io.TextIOWrapper(
        open(2, "wb", closefd=False), encoding=encoding, errors="backslashreplace", line_buffering=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        import_module("sitecustomize")  # as a new interpreter does
    code: object = 0
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    return int(code or 0) & 255


if __name__ == "__main__":
    serve(sys.argv[1])
