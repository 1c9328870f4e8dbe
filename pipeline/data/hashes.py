"""Digests of big files, remembered for as long as the file's inode, size and times stay what they are."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from pipeline import files
from pipeline.errors import FedReproError
from pipeline.sealing import is_sealed, seal

SETTLED = 2.0  # seconds: a file that has just changed may change again without another time


class Hashes:
    """Computes a file's digest, or takes the one that is remembered in `path`. Without `path` nothing is
    remembered."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.known: dict[str, list] = _read(path) if path else {}

    def __call__(self, file: Path, compute: Callable[[Path], str] = files.sha256) -> str:
        """compute(file), hexadecimal. Raises OSError where the file cannot be read."""
        found, key = file.stat(), str(file.resolve())
        mark = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
        known = self.known.get(key)
        if known and known[0] == mark:
            return known[1]
        digest = compute(file)
        if self.path and time.time() - max(found.st_mtime, found.st_ctime) > SETTLED:
            self.known[key] = [mark, digest]
            with contextlib.suppress(FedReproError):  # then the next call computes it again
                files.write_json(self.path, seal({"files": {**_read(self.path), key: self.known[key]}}))
        return digest


def _read(path: Path) -> dict[str, list]:
    """What is remembered; nothing where the file is absent or not as it was written."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return document["files"] if is_sealed(document) else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
