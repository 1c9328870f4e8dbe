"""Store digests of code, so that the next process need not compute them again.

Following all names of a hundred cells takes seconds. The stored digests are used only if no Python file below
the root, and no file of the code that follows the names, has changed in any byte. `identity` makes all its
digests by `RememberedCode`.
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

# The stored digests, from the root.
FILE = ".cells/code-digests.json"
# Folders of the root that hold no code of this repository and may be large; hidden folders are left out too.
ELSEWHERE = {"data", "mlartifacts", "reproduction", "site"}
# The modules that follow names.
FOLLOWING = (definitions, normal_form, private_methods, syntax)


class RememberedCode(Code):
    """`Code` that looks into FILE first.

    When the process ends, FILE is written, if the folder .cells exists.
    """

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
        """The stored value; if there is none, what `compute` returns, which is then stored.

        what       name of the method
        arguments  of the method, by position
        compute    the method without FILE
        """
        settings = (self.neutral, self.counted, self.constants, self.registries, self.schema, self.dynamic)
        # Sets have no fixed order.
        ordered = [sorted(item, key=repr) if isinstance(item, frozenset) else item for item in arguments]
        question = repr([what, self.strict, [sorted(names) for names in settings], ordered])
        key = hashlib.sha256(question.encode()).hexdigest()
        if key not in self._values:
            self._values[key] = compute()
            self._new.append(key)
        return self._values[key]

    @cached_property
    def _new(self) -> list[str]:
        """Keys that FILE does not have yet; the first use makes the process write FILE at its end."""
        atexit.register(self._write)
        return []

    @cached_property
    def _values(self) -> dict[str, Any]:
        """The values in FILE; empty if it is damaged, or of other Python files than those of now."""
        sources = self._sources  # read before any definition is followed
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
        """Write FILE, unless Python files have changed since the digests were computed."""
        with contextlib.suppress(OSError, FedReproError, ValueError):
            if not (self.root / FILE).parent.is_dir():
                return
            sources_then = self._sources
            self.__dict__.pop("_sources")  # so that the files are read again
            if self._sources == sources_then:
                document = seal({"sources": sources_then, "values": self._values})
                files.write_text(self.root / FILE, json.dumps(document, sort_keys=True))


def _python_files(root: Path) -> Iterator[Path]:
    """The Python files below the root in a fixed order, also behind links; not those of virtual
    environments."""
    seen: set[str] = set()
    for folder, subfolders, file_names in os.walk(root, followlinks=True):
        place = os.path.realpath(folder)
        if place in seen or "pyvenv.cfg" in file_names:
            subfolders.clear()  # do not go further down
            continue
        seen.add(place)
        skipped = ELSEWHERE if Path(folder) == root else set()
        subfolders[:] = sorted(
            name for name in subfolders if not name.startswith(".") and name not in skipped
        )
        for name in sorted(file_names):
            if name.endswith(".py"):
                yield Path(folder, name)
