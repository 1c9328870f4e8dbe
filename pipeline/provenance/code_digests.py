"""Digests of code that one process stores for the next one, for as long as no Python file changes.

Following all names of a hundred cells takes seconds. The stored digests are used if neither a Python file
below the root nor the code that follows the names differs in any byte.
"""

import atexit
import contextlib
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.errors import DAMAGED, FedReproError
from pipeline.provenance import definitions, normal_form, private_methods, syntax
from pipeline.provenance.definitions import Code
from pipeline.sealing import is_sealed, seal

FILE = ".cells/code-digests.json"
# Folders of the root that hold no code of this repository, besides hidden ones; they may be large.
ELSEWHERE = {"data", "mlartifacts", "reproduction", "site"}
# The modules that follow names.
FOLLOWING = (definitions, normal_form, private_methods, syntax)


class RememberedCode(Code):
    """`Code` that asks FILE first. It is written where .cells exists when the process ends."""

    @cache  # noqa: B019  # of a few roots
    def digest(self, entries: tuple[str, ...], *more: Any) -> str:
        """As `Code.digest`, whose arguments it takes by position."""
        return self._remembered("digest", (entries, *more), lambda: Code.digest(self, entries, *more))

    @cache  # noqa: B019
    def attributes(self, entry: str) -> frozenset[str]:
        """As `Code.attributes`."""
        compute = lambda: sorted(Code.attributes(self, entry))  # noqa: E731
        return frozenset(self._remembered("attributes", (entry,), compute))

    @cache  # noqa: B019
    def unseen(self, package: str) -> dict[str, frozenset[str]]:
        """As `Code.unseen`, for which every module of the package is parsed."""
        compute = lambda: {name: sorted(some) for name, some in Code.unseen(self, package).items()}  # noqa: E731
        return {
            name: frozenset(some) for name, some in self._remembered("unseen", (package,), compute).items()
        }

    @cached_property
    def keys(self) -> frozenset[str]:
        """As `Code.keys`."""
        compute = lambda: sorted(super(RememberedCode, self).keys, key=repr)  # noqa: E731
        return frozenset(self._remembered("keys", (), compute))

    def _remembered(self, what: str, arguments: tuple, compute: Callable[[], Any]) -> Any:
        """The value of FILE for these arguments, else what `compute` gives, which FILE then has."""
        settings = (self.neutral, self.counted, self.constants, self.registries, self.schema, self.dynamic)
        given = [sorted(one, key=repr) if isinstance(one, frozenset) else one for one in arguments]
        words = repr([what, self.strict, [sorted(some) for some in settings], given])
        key = hashlib.sha256(words.encode()).hexdigest()
        if key not in self._values:
            self._values[key] = compute()
            self._new.append(key)
        return self._values[key]

    @cached_property
    def _new(self) -> list[str]:
        """Keys that FILE does not have yet."""
        atexit.register(self._write)
        return []

    @cached_property
    def _values(self) -> dict[str, Any]:
        """What FILE has of the Python files as they are now; empty where it is of others, or damaged."""
        sources = self._sources  # before any of them is followed
        with contextlib.suppress(*DAMAGED, FedReproError):
            document = json.loads((self.root / FILE).read_text(encoding="utf-8"))
            if is_sealed(document) and document["sources"] == sources:
                return document["values"]
        return {}

    @cached_property
    def _sources(self) -> str:
        """sha256 over the paths and bytes of all Python files that a digest may depend on."""
        whole = hashlib.sha256(sys.version.encode())
        follow = [Path(inspect.getfile(module)) for module in FOLLOWING]
        for path in (*follow, *_python_files(self.root)):
            content = path.read_bytes()
            whole.update(f"{path}\0{len(content)}\0".encode())
            whole.update(content)
        return whole.hexdigest()

    def _write(self) -> None:
        """Leave what was computed, unless Python files have changed since."""
        with contextlib.suppress(OSError, FedReproError, ValueError):
            if not (self.root / FILE).parent.is_dir():
                return
            read = self._sources
            self.__dict__.pop("_sources")  # read them again
            if self._sources == read:
                document = seal({"sources": read, "values": self._values})
                files.write_text(self.root / FILE, json.dumps(document, sort_keys=True))


def _python_files(root: Path) -> Iterator[Path]:
    """Those below the root in a fixed order, also behind links; not those of virtual environments."""
    seen = set[str]()
    for folder, names, here in os.walk(root, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen or "pyvenv.cfg" in here:
            names.clear()
            continue
        seen.add(place)
        skipped = ELSEWHERE if Path(folder) == root else set()
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in skipped)
        yield from (Path(folder, name) for name in sorted(here) if name.endswith(".py"))
