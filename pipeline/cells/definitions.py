"""Hash the functions, classes and constants that a computation uses, to detect changes of its code.

A module is cut into its top-level functions, classes and constants. From an entry point the digest follows
every name that a definition uses, through imports, to the definitions of this repository behind it. What is
hashed is a definition's syntax tree without comments, docstrings and positions, and which definitions it
uses; the names and places of modules are left out. So a function may move to another file, and a network that
a cell does not use may change, without touching that cell's digest.

A strict digest, which cells have, also covers what acts when the modules behind it are imported, every
package's `__init__.py` included, and which external function a name means. It refuses code that cannot
be followed: star imports, `eval`, and modules that are imported by a computed name.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from pipeline.cells.syntax import Facts, Module, facts_of, imports, meaning_of, parsed, references
from pipeline.errors import FedReproError
from pipeline.schema import shorten

# of a module: every definition
WHOLE = "*"
# of a module: statements that act on import
EFFECTS = ""


class Definition(NamedTuple):
    """A top-level name of a module of this repository."""

    module: str
    name: str


class Code:
    """The Python files below `root`, read when they are needed.

    neutral: modules that compute no result; their definitions are ignored. constants: names of constants that
    change no result. registries: dictionaries ("package.module:NAME") of which a user takes single entries;
    only those whose key is named count. schema: modules whose classes hold values that a digest of parameters
    covers; of those only the methods count that reached code calls. dynamic: functions
    ("package.module:name") that import by name what is another entry. strict: see above; without it,
    as the stages that train nothing have it, `schema` and `dynamic` mean nothing."""

    def __init__(
        self,
        root: Path,
        neutral: Iterable[str] = (),
        constants: Iterable[str] = (),
        registries: Iterable[str] = (),
        schema: Iterable[str] = (),
        dynamic: Iterable[str] = (),
        strict: bool = False,
    ):
        self.schema, self.strict = frozenset(schema), strict
        self.dynamic = frozenset(Definition(*name.split(":")) for name in dynamic)
        self.root, self.neutral, self.constants = root, frozenset(neutral), frozenset(constants)
        self.registries = frozenset(Definition(*name.split(":")) for name in registries)
        self._modules: dict[str, Module | None] = {}
        self._uses: dict[tuple, dict[str, Definition]] = {}
        self._digests: dict[tuple, str] = {}
        self._imported: dict[str, frozenset[str]] = {}
        self._facts_of: dict[tuple, Facts] = {}

    @cache  # noqa: B019  # of a few roots
    def digest(
        self,
        entries: tuple[str, ...],
        named: frozenset[str] = frozenset(),
        shallow: tuple[str, ...] = (),
        kinds: frozenset[str] = frozenset(),
    ) -> str:
        """sha256 over all that the entries ("package.module:name", or "package.module" for all of it) reach.

        named: the keys that count in registries. shallow: entries of which only their statements count,
        not what they call. kinds: the schema's classes whose methods count. Raises KeyError for an entry that
        is not there, FedReproError for code that a strict digest refuses.
        """
        named &= self.keys
        deep, flat = ([self._entry(entry) for entry in given] for given in (entries, shallow))
        reached = self._reached(deep, named)
        while more := self._methods(reached, named, kinds) - reached:
            reached |= self._reached(more, named)
        if self.strict:
            reached |= self._reached(self._effects({*reached, *flat}, named), named)
            self._refuse(reached, named)
        return _sha256(
            sorted({self._identity(one, named, deep=True) for one in reached})
            + sorted(self._identity(one, named, deep=False) for one in flat)
        )

    def attributes(self, entries: Iterable[str]) -> frozenset[str]:
        """Names of the attributes in all that the entries reach."""
        reached = self._reached([self._entry(entry) for entry in entries], frozenset())
        return frozenset().union(*(self._facts(one, frozenset()).attributes for one in reached))

    def _entry(self, text: str) -> Definition:
        one = Definition(*text.split(":")) if ":" in text else Definition(text, WHOLE)
        module = self.module(one.module)
        if module is None or one.name not in (*module.nodes, *module.imports, WHOLE):
            raise KeyError(text)
        return one

    def _reached(self, entries: Iterable[Definition], named: frozenset[str]) -> set[Definition]:
        reached: set[Definition] = set()
        waiting = [*entries]
        while waiting:
            one = waiting.pop()
            if one not in reached:
                reached.add(one)
                waiting += self.uses(one, named).values()
        return reached

    def _methods(
        self, reached: set[Definition], named: frozenset[str], kinds: frozenset[str]
    ) -> set[Definition]:
        """The methods of the schema's classes `kinds` whose names stand as attributes in reached code."""
        called: set[str] = set().union(
            *(self._facts(one, named).attributes for one in reached if kinds and not self._is_neutral(one))
        )
        modules = {name: self.module(name) for name in self.schema}
        return {
            Definition(name, method)
            for name, module in modules.items()
            if module is not None
            for method in module.methods
            if method.partition(".")[0] in kinds and method.partition(".")[2] in called
        }

    def _effects(self, reached: set[Definition], named: frozenset[str]) -> set[Definition]:
        """What acts when the modules of reached code are imported: of these, of the packages around them and
        of what they import in turn."""
        names = {one.module for one in reached}.union(*(self._facts(one, named).loads for one in reached))
        places: set[str] = set().union(*map(self._loaded, names))
        return {Definition(name, EFFECTS) for name in places if self._acting(name)}

    def _loaded(self, name: str) -> frozenset[str]:
        """The modules that importing a module imports, itself and the packages around it too."""
        if name not in self._imported:
            waiting = [name]
            seen: set[str] = set()
            while waiting:
                parts = waiting.pop().split(".")
                for place in {".".join(parts[:n]) for n in range(1, len(parts) + 1)} - seen:
                    if (module := self.module(place)) is not None:
                        seen.add(place)
                        waiting += module.loads
            self._imported[name] = frozenset(seen)
        return self._imported[name]

    def _acting(self, name: str) -> list[ast.stmt]:
        module = self.module(name)
        return [] if module is None else [*module.effects, *(module.calls if self.strict else ())]

    def _refuse(self, reached: set[Definition], named: frozenset[str]) -> None:
        """FedReproError for reached code whose meaning depends on what is not read."""
        for one in sorted(reached):
            module, where = self.module(one.module), one.module.replace(".", "/") + ".py"
            if module is None or self._is_neutral(one):
                continue
            if module.stars:
                raise FedReproError(f"{where}: `import *` in code that results depend on: import by name")
            for name, line in self._facts(one, named).unseen if one not in self.dynamic else ():
                raise FedReproError(f"{where}:{line}: {name} in code that results depend on: import by name")

    def _facts(self, one: Definition, named: frozenset[str]) -> Facts:
        at = (one, named if one in self.registries else None)
        if at not in self._facts_of:
            module = self.module(one.module)
            self._facts_of[at] = facts_of(self._nodes(one, named), module.package if module else "")
        return self._facts_of[at]

    @cached_property
    def keys(self) -> frozenset[str]:
        """Every key of every registry."""
        keys: set = set()
        for registry in self.registries:
            module = self.module(registry.module)
            value = getattr(module and module.nodes.get(registry.name), "value", None)
            if not isinstance(value, ast.Dict):
                raise KeyError(f"{registry.module}:{registry.name} is not a dictionary written out")
            keys |= {key.value for key in value.keys if isinstance(key, ast.Constant)}
        return frozenset(keys)

    def module(self, name: str) -> Module | None:
        """The module, or None where it is not one of this repository."""
        if name not in self._modules:
            base = self.root.joinpath(*name.split("."))
            path = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)
            package = name if path is not None and path.stem == "__init__" else name.rpartition(".")[0]
            try:
                self._modules[name] = None if path is None else parsed(path.read_bytes(), package, str(path))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise FedReproError(f"{shorten(path or base)}: {error}") from None
        return self._modules[name]

    def uses(self, one: Definition, named: frozenset[str] = frozenset()) -> dict[str, Definition]:
        """The names of this repository that a definition uses, as it writes them, each with the definition
        behind it."""
        pruned = named if one in self.registries else None
        if (one, pruned) not in self._uses:
            self._uses[one, pruned] = dict(self._followed(one, named))
        return self._uses[one, pruned]

    def _followed(self, one: Definition, named: frozenset[str]):
        module = self.module(one.module)
        if self._is_neutral(one) or module is None:
            return
        if one.name == WHOLE:
            yield from (
                (name, meant)
                for name in (*module.nodes, *module.imports)
                if isinstance(meant := self._resolved(one.module, name, ()), Definition)
            )
        if one.name != EFFECTS and self._acting(one.module):
            yield EFFECTS, Definition(one.module, EFFECTS)
        for written, meant in self._written(one, named):
            if isinstance(meant, Definition):
                yield written, meant

    def _written(
        self, one: Definition, named: frozenset[str]
    ) -> Iterator[tuple[str, Definition | str | None]]:
        """(as written, what it means) of every name in a definition."""
        module = self.module(one.module)
        if module is None:
            return
        for node in self._nodes(one, named):
            local = imports(node, module.package)  # of functions that import when they are called
            for name, attributes in references(node):
                yield ".".join((name, *attributes)), self._resolved(one.module, name, attributes, local)

    def _resolved(
        self, module: str, name: str, attributes: tuple[str, ...], local: dict | None = None
    ) -> Definition | str | None:
        """What `name.attribute...` in a module means: a text for what is imported from outside this
        repository, None for a name that is neither."""
        here, local = self.module(module), local or {}
        if here is None:
            return None
        if name in here.nodes and name not in local:
            return Definition(module, name)
        target, attribute = local.get(name) or here.imports.get(name) or (None, None)
        if target is None:
            return None
        submodule = target if attribute is None else f"{target}.{attribute}"
        if self.module(submodule) is None:  # a name of a module, perhaps imported there in turn
            if self.module(target) is None:
                return submodule
            return self._resolved(target, attribute, ()) if attribute else None
        if attributes:
            return self._resolved(submodule, attributes[0], attributes[1:])
        return Definition(submodule, WHOLE)  # a module as a value: anything of it may be used

    def _identity(self, one: Definition, named: frozenset[str], deep: bool) -> str:
        """Digest of a definition's tree; `deep` also of the trees that its names stand for (of a registry,
        that it is one)."""
        if one in self.registries and not deep:
            return "registry"
        at = (one, named if one in self.registries else None, deep)
        if at not in self._digests:
            neutral = self._is_neutral(one)
            meaning = "neutral" if neutral else tuple(map(meaning_of, self._nodes(one, named)))
            uses = self.uses(one, named).items() if deep else ()
            used = [(written, self._identity(use, named, deep=False)) for written, use in uses]
            if deep and self.strict and not neutral:
                used += {(name, meant) for name, meant in self._written(one, named) if isinstance(meant, str)}
            self._digests[at] = _sha256((meaning, sorted(used)))
        return self._digests[at]

    def _nodes(self, one: Definition, named: frozenset[str]) -> list[ast.AST]:
        module = self.module(one.module)
        if module is None:
            return []
        if one.name == EFFECTS:
            return list(self._acting(one.module))
        node = module.nodes.get(one.name) or module.methods.get(one.name)
        if one in self.registries and isinstance(value := getattr(node, "value", None), ast.Dict):
            return [
                item
                for key, item in zip(value.keys, value.values)
                if not isinstance(key, ast.Constant) or key.value in named or key.value is None
            ]
        return [] if node is None else [node]

    def _is_neutral(self, one: Definition) -> bool:
        if self.strict and (one.name == EFFECTS or "." in one.name):
            return False
        if self.strict and one.module in self.schema:
            module = self.module(one.module)
            return module is not None and isinstance(module.nodes.get(one.name), ast.ClassDef)
        return one.module in self.neutral or one.name in self.constants


def _sha256(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
