"""Import the checkout's modules from bytecode only if it was compiled from their current text.

Python uses a file's bytecode if the recorded size and time of the source file match. If a source file was
unpacked or copied with its old time, Python could therefore run former code under the digest of the current
text. Bytecode with a hash of its source (PEP 552) is never run, because Python can be told not to compare the
hash.
"""

import hashlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("pipeline", "stages", "papers")


# Module -> SHA-256 of the text that it was loaded from, of this process.
loaded: dict[str, str] = {}


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a file; in the place of its time, Python compares and stores 32 bits of its text's SHA-256."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The module's code; its text is noted in `loaded`."""
        path = self.get_filename(fullname)
        text = self.get_data(path)
        loaded[fullname] = hashlib.sha256(text).hexdigest()
        if self._compiled_with_hash(path):
            return self.source_to_code(text, path)
        try:
            return super().get_code(fullname)
        except (EOFError, ValueError, TypeError):  # of bytecode that a power cut has torn
            return self.source_to_code(text, path)

    def _compiled_with_hash(self, path: str) -> bool:
        try:
            head = self.get_data(importlib.util.cache_from_source(path))[:8]
        except (OSError, NotImplementedError):
            return False
        return any(head[4:])

    def path_stats(self, path: str) -> dict[str, int]:
        text = self.get_data(path)
        return {"mtime": int.from_bytes(hashlib.sha256(text).digest()[:4], "big"), "size": len(text)}


def _finder(folder: str) -> importlib.machinery.FileFinder:
    """ImportError for a folder that holds no code of the checkout."""
    path = Path(folder).resolve()
    if path != ROOT and not any(path.is_relative_to(ROOT / name) for name in FOLDERS):
        raise ImportError(folder)
    return importlib.machinery.FileFinder(folder, (Loader, importlib.machinery.SOURCE_SUFFIXES))


def install() -> None:
    """Import so from now on in this process."""
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()
