"""Record which modules of the repository a process has loaded, with the hash of their text.

`pipeline.training` records them with every seed: they say what ran, independently of the digests of code.
"""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from pipeline import source_code
from pipeline.errors import FedReproError
from pipeline.schema import shorten
from pipeline.source_code import FOLDERS

# hex digits of a module's hash in a result
DIGITS = 16


def loaded() -> dict[str, str]:
    """The modules of the repository that this process has loaded.

    Returns module -> the first hex digits of the SHA-256 of the text that it was loaded from.
    """
    hashes = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        spec = getattr(module, "__spec__", None)
        if name == "__main__" and spec is not None:
            name = spec.name  # of `python -m stages.train`
        if name.partition(".")[0] not in FOLDERS or not file or not Path(file).is_file():
            continue
        # The first two modules are loaded before the loader is there.
        text = source_code.loaded.get(name) or hashlib.sha256(Path(file).read_bytes()).hexdigest()
        hashes[name] = text[:DIGITS]
    return hashes


def check_unchanged() -> None:
    """Check that the files of the repository are still those that this process has loaded.

    Raises FedReproError if a file has changed since: its digest would stand for code that did not run.
    """
    for name, text in source_code.loaded.items():
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).is_file() and hashlib.sha256(Path(file).read_bytes()).hexdigest() != text:
            how = "changed since this process loaded it: call the command again"
            raise FedReproError(f"{shorten(Path(file))}: {how}")


def joined(runs: Iterable[dict[str, str]]) -> dict[str, str]:
    """The modules of several seeds; a module that changed between seeds has all its hashes, "a, b"."""
    together: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, text in run.items():
            together.setdefault(name, {})[text] = None
    return {name: ", ".join(texts) for name, texts in sorted(together.items())}
