"""Code that runs on Ray's machines: trains a cell there and sends checkpoints and results back.

It is sent there by value, so it must not import modules of this repository. These machines share no file
system with the user's. `Keeper` is the only access to the user's `.cells`. `train` unpacks code and data,
runs the worker of pipeline/clusters/worker.py as a process, and sends on what it saves.
"""

import contextlib
import ctypes
import io
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 0.5  # between two looks at what the worker has saved
# What a worker may bring: a cell's folder, named by its digest, and files that `_stamps` sends.
FOLDER, FILE = r"\w{1,64}", r"(seed-\d{1,10}\.(json|npz|pt)|error\.json)"


class Keeper:
    """On the user's machine: holds what cells have saved where no dying node takes it along."""

    def __init__(self, root: str):
        self.cells = Path(root) / ".cells"
        self.nodes: dict[str, list[str]] = {}

    def begin(self, key: str, node: str, folders: list[str]) -> dict[str, bytes]:
        """A cell begins, or begins again, on a node; what is there of it."""
        for name in folders:
            _check(FOLDER, name)
        self.nodes.setdefault(key, []).append(node)
        saved = [path for name in folders for path in (self.cells / name).glob("seed-*")]
        return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in saved}

    def save(self, name: str, data: bytes) -> None:
        """A file of `.cells`, whole or absent. A finished seed that comes twice stays as it came first; its
        checkpoint goes. ValueError for any other name: what another machine sends is not trusted."""
        _check(f"{FOLDER}/{FILE}", name)
        path = self.cells / name
        seed, finished = path.name.startswith("seed-"), path.with_suffix(".json")
        if seed and finished.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{platform.node()}.new")
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        handle = os.open(path.parent, os.O_RDONLY)
        with contextlib.suppress(OSError):  # of file systems that synchronise no folder
            os.fsync(handle)
        os.close(handle)
        if seed and path == finished:
            path.with_suffix(".pt").unlink(missing_ok=True)

    def tell(self, path: str, data: bytes) -> None:
        """More of a cell's log or events, which lie in .cells/logs; ValueError for another place."""
        logs, name = os.path.split(path)
        if Path(logs) != self.cells / "logs" or name in ("", ".", ".."):
            raise ValueError(f"{path!r:.80} is no log of .cells")
        with open(path, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            file.write(data)

    def begun(self) -> dict[str, list[str]]:
        """Cell -> the nodes on which it began, one after another."""
        return self.nodes


def _check(pattern: str, name: str) -> None:
    if not re.fullmatch(pattern, name):
        raise ValueError(f"{name!r:.80} is no file that a worker saves")


def train(
    order: dict, logs: list[str], code: list, inputs: dict, keeper: Any, environment: dict[str, str]
) -> tuple[int, str]:
    """Train a cell; returns the exit code and what went wrong here, as text: an exception may not be readable
    elsewhere. `code` holds a reference to an archive, `inputs` path in the repository -> (hash, reference):
    Ray fetches what it is given bare, wanted or not."""
    import ray

    folders = sorted({digest for by_seed in order["digests"].values() for digest in by_seed.values()})
    try:
        with tempfile.TemporaryDirectory(prefix="fedrepro-") as folder:
            root = Path(folder)
            _unpack(ray.get(code[0]), root)
            for path, (digest, archive) in inputs.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(_stored(digest, archive))
            _share_beginnings(root)
            node = ray.util.get_node_ip_address()
            for name, data in ray.get(keeper.begin.remote(order["cell"], node, folders)).items():
                (root / ".cells" / name).parent.mkdir(parents=True, exist_ok=True)
                (root / ".cells" / name).write_bytes(data)
            return _worked(order, root, logs, keeper, environment), ""
    except Exception as error:
        return 1, f"error: {type(error).__name__}: {' '.join(str(error).split())[:500]}"


def _worked(order: dict, root: Path, logs: list[str], keeper: Any, environment: dict[str, str]) -> int:
    import ray

    ours = [root / "log", root / "events"]
    values = {"FEDREPRO_EVENTS": str(ours[1]), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(root)}
    offsets, sent = [0, 0], _stamps(root)
    with open(ours[0], "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.clusters.worker", json.dumps(order)],
            cwd=root,
            env={**os.environ, **values, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_the_parent,
        )
    try:
        while True:
            ended = process.poll() is not None
            for path, stamp in _stamps(root).items():
                if sent.get(path) == stamp:
                    continue
                with contextlib.suppress(FileNotFoundError):  # a checkpoint goes when its seed is finished
                    data = path.read_bytes()
                    ray.get(keeper.save.remote(path.relative_to(root / ".cells").as_posix(), data))
                    sent[path] = stamp
            for at, (path, theirs) in enumerate(zip(ours, logs)):
                data = path.read_bytes()[offsets[at] :] if path.exists() else b""
                if data:
                    ray.get(keeper.tell.remote(theirs, data))
                    offsets[at] += len(data)
            if ended:
                return process.returncode
            time.sleep(SECONDS)
    finally:
        process.kill()


def _stamps(root: Path) -> dict[Path, tuple[int, int]]:
    """The files of `.cells` that matter elsewhere, and when they were written. A finished seed names another
    file, which must be there when it arrives: it is looked for first and sent last."""
    stamps = {}
    kinds = ("error.json", "seed-*.json", "seed-*.npz", "seed-*.pt")
    listed = [list(root.glob(f".cells/*/{kind}")) for kind in kinds]
    for path in itertools.chain(*reversed(listed)):
        with contextlib.suppress(FileNotFoundError):  # a checkpoint goes when its seed is finished
            stamps[path] = (path.stat().st_mtime_ns, path.stat().st_size)
    return stamps


def _stored(digest: str, archive: Any) -> Path:
    """An input on this machine's disk, unpacked once for all cells that need it."""
    import ray

    place = _place()
    if not (place / digest).exists():
        with tempfile.TemporaryDirectory(dir=place) as folder:
            _unpack(ray.get(archive), Path(folder))
            (unpacked,) = Path(folder).iterdir()
            try:
                unpacked.rename(place / digest)
            except OSError:  # another cell was faster
                if not (place / digest).exists():
                    raise
    return place / digest


def _share_beginnings(root: Path) -> None:
    """What one cell computes for others to begin with, these find where they run on the same machine."""
    shared = _place() / "beginnings"
    shared.mkdir(exist_ok=True)
    (root / ".cells").mkdir()
    (root / ".cells" / "beginnings").symlink_to(shared)


def _place() -> Path:
    """What cells share on this machine; PermissionError where the folder is another user's."""
    place = Path(tempfile.gettempdir(), f"fedrepro-{os.getuid()}")
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise PermissionError(f"{place}: not this user's folder")
    return place


def _unpack(data: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def _end_with_the_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
