"""Import the checkout's modules from their source text, ignoring bytecode that was not compiled from it.

Python takes a file's bytecode for current where size and time of the file are the same. A file that was
unpacked or copied with its time would then run as it was before, under the digest of what it now says.
"""

import hashlib
import importlib.machinery
import importlib.util
import marshal
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("pipeline", "stages", "papers")


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a file from its text, or from bytecode that begins with the text's SHA-256."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path)
        stored = Path(importlib.util.cache_from_source(path, optimization="sha256"))
        head = importlib.util.MAGIC_NUMBER + hashlib.sha256(text).digest()
        with suppress(OSError, EOFError, ValueError, TypeError):
            content = stored.read_bytes()
            if content.startswith(head):
                return marshal.loads(content[len(head) :])
        code = self.source_to_code(text, path)
        if not sys.dont_write_bytecode:
            _write(stored, head + marshal.dumps(code))
        return code


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):  # a folder that may not be written
        path.parent.mkdir(exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)


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
