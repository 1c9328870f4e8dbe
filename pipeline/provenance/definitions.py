"""Hash the functions, classes and constants that a computation uses, to detect changes of its code.

A module is divided into its top-level functions, classes and constants. Starting from an entry point, the
digest follows every name that a definition uses, through imports, to the definitions in this repository. It
hashes the normal form of each definition (`normal_form`) and which definitions it uses, but not the names of
modules or the places in them. Therefore moving a function to another file, renaming a local variable, or
changing a network that a cell does not use leaves the cell's digest unchanged.

Cells have strict digests. These also cover what the modules do when they are imported, including the
`__init__.py` of every package, and which external function a name means. Code that cannot be followed is
refused: star imports, `eval`, and modules imported by a computed name.
"""

import ast
import contextlib
import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import FedReproError
from pipeline.provenance.normal_form import ACTS, LOGGER, normal_form
from pipeline.provenance.private_methods import FUNCTIONS, Said, is_private, said_in, unseen_names
from pipeline.provenance.syntax import ON_IMPORT, Facts, Imports, Module, facts_of, is_logger, parsed, pieces
from pipeline.schema import shorten

# of a module: every definition
WHOLE = "*"
# of a module: statements that act on import
EFFECTS = ""
# How many definitions behind definitions tell two of the same form apart.
DEPTH = 8
# hex digits of the digest of one definition
DIGITS = 10


class Definition(NamedTuple):
    """A top-level name of a module of this repository; of a registry also which of its keys count."""

    module: str
    name: str
    keys: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, eq=False)
class Code:
    """The Python files below `root`, read when they are needed.

    neutral: modules that compute no result; their definitions are ignored
    counted: definitions of neutral modules that count ("package.module:name")
    constants: names of constants that change no result
    registries: dictionaries ("package.module:NAME") of which only the entries count whose key is named
    schema: modules whose classes hold values that a digest of parameters covers; of those only the methods
        count that reached code calls
    dynamic: functions ("package.module:name") that import by name what is another entry
    strict: see above; without it, as for the stages that train nothing, `schema` and `dynamic` mean nothing
    """

    root: Path
    neutral: Collection[str] = ()
    counted: Collection[str] = ()
    constants: Collection[str] = ()
    registries: Collection[str] = ()
    schema: Collection[str] = ()
    dynamic: Collection[str] = ()
    strict: bool = False

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
        reached, flat = self._all(entries, named, shallow, kinds)
        return _sha256(
            sorted({self._identity(one, DEPTH) for one in reached})
            + sorted({*map(self._statements, flat)})
            + sorted(self._known_elsewhere({*reached, *flat}))
        )

    def parts(
        self,
        entries: tuple[str, ...],
        named: frozenset[str] = frozenset(),
        shallow: tuple[str, ...] = (),
        kinds: frozenset[str] = frozenset(),
    ) -> dict[str, str]:
        """The first hex digits of the digest of every definition that `digest` covers, without what it uses;
        of a class the methods apart: "package.module:Class.method"."""
        reached, flat = self._all(entries, named, shallow, kinds)
        digests: dict[str, str] = {}
        for one in sorted({*reached, *flat}):
            if self._is_neutral(one) and one not in flat or one.name == WHOLE:
                continue
            for name, nodes in pieces(one.name or ON_IMPORT, self._nodes(one)).items():
                forms = [self._normal(one.module, node) for node in nodes]
                digests[f"{one.module}:{name}"] = _sha256([_named(*form) for form in forms])[:DIGITS]
        return digests

    def modules(self, *given: Any) -> set[str]:
        """The modules whose code `digest` covers; arguments as there."""
        reached, flat = self._all(*given)
        return {one.module for one in (*reached, *flat)}

    def _all(
        self,
        entries: tuple[str, ...],
        named: frozenset[str] = frozenset(),
        shallow: tuple[str, ...] = (),
        kinds: frozenset[str] = frozenset(),
    ) -> tuple[set[Definition], list[Definition]]:
        """What the entries reach, and the shallow ones; arguments as of `digest`."""
        named &= self.keys
        deep, flat = ([self._entry(entry) for entry in given] for given in (entries, shallow))
        reached = self._reached(deep, named)
        while more := self._methods(reached, kinds) - reached:
            reached |= self._reached(more, named)
        if self.strict:
            reached |= self._reached(self._effects({*reached, *flat}), named)
            self._refuse(reached)
        return reached, flat

    @cache  # noqa: B019
    def attributes(self, entry: str) -> frozenset[str]:
        """Names of the attributes in all that the entry reaches."""
        reached = self._reached([self._entry(entry)], frozenset())
        return frozenset().union(*(self._facts(one).attributes for one in reached))

    @cached_property
    def keys(self) -> frozenset[str]:
        keys: set = set()
        for module, _, name in (registry.partition(":") for registry in self.registries):
            value = getattr(self._module(module).nodes.get(name), "value", None)
            if not isinstance(value, ast.Dict):
                raise KeyError(f"{module}:{name} is not a dictionary written out")
            keys |= {key.value for key in value.keys if isinstance(key, ast.Constant)}
        return frozenset(keys)

    def _entry(self, text: str) -> Definition:
        module, _, name = text.partition(":")
        if not self._has(module):
            raise KeyError(text)
        if name and name not in (*(here := self._module(module)).nodes, *here.imports):
            raise KeyError(text)
        return Definition(module, name or WHOLE)

    def _reached(self, entries: Iterable[Definition], named: frozenset[str]) -> set[Definition]:
        reached: set[Definition] = set()
        waiting: list = [*entries]
        while waiting:
            one = waiting.pop()
            if str(one) in self.registries:
                one = one._replace(keys=named)
            if one not in reached:
                reached.add(one)
                waiting += (use for use in self._uses(one) if isinstance(use, Definition))
        return reached

    def _methods(self, reached: set[Definition], kinds: frozenset[str]) -> set[Definition]:
        """The methods of the schema's classes `kinds` whose names stand as attributes in reached code."""
        called: set[str] = set().union(
            *(self._facts(one).attributes for one in reached if kinds and not self._is_neutral(one))
        )
        return {
            Definition(name, method)
            for name in filter(self._has, self.schema)
            for method in self._module(name).methods
            if method.partition(".")[0] in kinds and method.partition(".")[2] in called
        }

    def _effects(self, reached: set[Definition]) -> set[Definition]:
        """What acts when the modules of reached code, and those that they import in turn, are imported."""
        names = {one.module for one in reached}.union(*(self._facts(one).loads for one in reached))
        loaded: set[str] = set()
        more = {place for name in names for place in self._around(name)}
        while more := more - loaded:
            loaded |= more
            more = set().union(*map(self._imported, more))
        return {Definition(name, EFFECTS) for name in loaded if self._acting(name)}

    @cache  # noqa: B019
    def _imported(self, name: str) -> frozenset[str]:
        """The modules that a module imports itself, and the packages around them."""
        return frozenset(place for load in self._module(name).loads for place in self._around(load))

    def _around(self, name: str) -> list[str]:
        """A module and the packages around it, of this repository."""
        parts = name.split(".")
        return [*filter(self._has, (".".join(parts[:n]) for n in range(1, len(parts) + 1)))]

    def _acting(self, name: str) -> list[ast.stmt]:
        module = self._module(name)
        if not self.strict:
            return [*module.effects]
        noted = [one for one in module.decorated if self._is_noted(name, one)]
        return [*module.effects, *module.calls, *noted]

    def _is_noted(self, name: str, node: ast.stmt) -> bool:
        """Whether a decorator of this repository may note a definition somewhere."""
        for decorator in getattr(node, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            base = called
            following: list[str] = []
            while isinstance(base, ast.Attribute):
                following.insert(0, base.attr)
                base = base.value
            found = self._meaning(name, base.id, tuple(following), {}) if isinstance(base, ast.Name) else None
            if found and isinstance(found[0], Definition) and not self._is_neutral(found[0]):
                return True
        return False

    def _refuse(self, reached: set[Definition]) -> None:
        for one in sorted(reached):
            where = one.module.replace(".", "/") + ".py"
            if self._is_neutral(one):
                continue
            if self._module(one.module).stars:
                raise FedReproError(f"{where}: `import *` in code that results depend on: import by name")
            for name, line in self._facts(one).unseen if str(one) not in self.dynamic else ():
                raise FedReproError(f"{where}:{line}: {name} in code that results depend on: import by name")

    @cache  # noqa: B019
    def _facts(self, one: Definition) -> Facts:
        return facts_of(self._nodes(one), self._module(one.module).package)

    @cache  # noqa: B019
    def _path(self, name: str) -> Path | None:
        base = self.root.joinpath(*name.split("."))
        module, package = base.with_suffix(".py"), base / "__init__.py"
        if package.is_file() and module.is_file():
            both = f"Python would import the package {base.name}/ instead: remove one of them"
            raise FedReproError(f"{shorten(module)}: {both}")
        return next((path for path in (module, package) if path.is_file()), None)

    def _has(self, name: str) -> bool:
        return self._path(name) is not None

    @cache  # noqa: B019
    def _module(self, name: str) -> Module:
        """A module of this repository; KeyError for another."""
        if (path := self._path(name)) is None:
            raise KeyError(name)
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        try:
            return parsed(path.read_bytes(), package, str(path))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise FedReproError(f"{shorten(path)}: {error}") from None

    @cache  # noqa: B019
    def _forms(self, one: Definition) -> list[tuple[object, list]]:
        """The normal forms of a definition's statements, each with what its numbers stand for."""
        return [self._normal(one.module, node) for node in self._nodes(one)]

    def _known_elsewhere(self, reached: set[Definition]) -> set[str]:
        """The digests of classes with private methods that another package asks for or defines again, with
        the names of these."""
        if not self.strict:
            return set()
        by_package: dict[str, Said] = {}
        for one in reached:
            if not self._is_neutral(one):
                said = by_package.setdefault(one.module.partition(".")[0], Said())
                names, beginnings = self._said(one)
                said.names |= names
                said.beginnings |= beginnings
        found: set[str] = set()
        for one in reached:
            package = one.module.partition(".")[0]
            unseen = self.unseen(package).get(one.name, frozenset())
            others = [said for other, said in by_package.items() if other != package]
            for node in self._nodes(one) if unseen and others else ():
                if isinstance(node, ast.ClassDef) and (
                    known := set[str]().union(*(s.of(unseen) for s in others))
                ):
                    form, seen = self._normal(one.module, node, frozenset(known))
                    found.add(_sha256(_named(form, seen)))
        return found

    @cache  # noqa: B019
    def _said(self, one: Definition) -> tuple[frozenset[str], frozenset[str]]:
        """The private names that a definition says, or that two of its bases have, and beginnings of such."""
        names: set[str] = set()
        beginnings: set[str] = set()
        for node in self._nodes(one):
            said = said_in(node)
            names |= said.names
            beginnings |= said.beginnings
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1:
                every = [name for base in self._ancestors(one.module, node) for name in self._functions(base)]
                names |= {name for name in every if every.count(name) > 1}
        return frozenset(filter(is_private, names)), frozenset(beginnings)

    def _ancestors(self, module: str, node: ast.ClassDef) -> set[Definition]:
        """The bases of a class that are of this repository, and theirs in turn."""
        found: set[Definition] = set()
        waiting = [*self._bases(module, node)]
        while waiting:
            base = waiting.pop()
            statement = self._module(base.module).nodes.get(base.name)
            if base not in found and isinstance(statement, ast.ClassDef):
                found.add(base)
                waiting += self._bases(base.module, statement)
        return found

    def _functions(self, one: Definition) -> list[str]:
        """The names of a class's methods."""
        return [
            each.name
            for node in self._nodes(one)
            for each in getattr(node, "body", ())
            if isinstance(each, FUNCTIONS)
        ]

    @cache  # noqa: B019
    def _normal(self, module: str, node: ast.AST, known: frozenset[str] = frozenset()) -> tuple[object, list]:
        """The normal form of a statement, in which the private methods `known` have their names."""
        (local, _), *_ = facts_of([node], self._module(module).package).names

        def meaning(name: str, attributes: tuple[str, ...]) -> tuple[object, int] | None:
            return self._meaning(module, name, attributes, local)

        unseen: frozenset[str] = frozenset()
        inherited: set[str] = set()
        if self.strict and isinstance(node, ast.ClassDef):
            unseen = self.unseen(module.partition(".")[0]).get(node.name, unseen) - known
            inherited = self._inherited(module, node)
        form, seen = normal_form(node, meaning, self._role, self._module(module).read, self.strict, unseen)
        if inherited:
            form = (form, "inherits", tuple(sorted(inherited)))
        return form, seen

    @cache  # noqa: B019
    def unseen(self, package: str) -> dict[str, frozenset[str]]:
        """Class -> its private methods whose names do not count, of a top-level package or module."""
        folder = self.root / package
        paths = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
        found = {}
        for path in paths:
            name = ".".join(path.relative_to(self.root).with_suffix("").parts).removesuffix(".__init__")
            # A file that cannot be parsed cannot be loaded either, and so calls nothing.
            with contextlib.suppress(FedReproError, KeyError):
                found[name] = self._module(name).mentions
        return unseen_names(found)

    def _inherited(self, module: str, node: ast.ClassDef) -> set[str]:
        """The private methods of bases of another package that a class defines again or calls: there their
        names do not count."""
        own = {one.name for one in node.body if isinstance(one, FUNCTIONS)}
        own |= {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        private = set(filter(is_private, own))
        if not private:
            return set()
        package = module.partition(".")[0]
        elsewhere = (one for one in self._ancestors(module, node) if one.module.partition(".")[0] != package)
        return private & {name for base in elsewhere for name in self._functions(base)}

    def _bases(self, module: str, node: ast.ClassDef) -> Iterator[Definition]:
        """The bases of a class that are of this repository."""
        for base in node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            name, _, attributes = ast.unparse(named).partition(".")
            found = self._meaning(module, name, tuple(filter(None, attributes.split("."))), {})
            if found and isinstance(found[0], Definition):
                yield found[0]

    def _role(self, what: object) -> str:
        """Whether a name that stands for this is a logger, or may do something when it is called."""
        if not isinstance(what, Definition):
            return ""
        if is_logger(self._module(what.module).nodes.get(what.name)):
            return LOGGER
        return "" if self._is_neutral(what) else ACTS

    @cache  # noqa: B019
    def _uses(self, one: Definition) -> list[Definition | str]:
        """What a definition uses: definitions of this repository, and in words what is imported from
        outside."""
        if self._is_neutral(one):
            return []
        module = self._module(one.module)
        uses: list[Definition | str] = []
        if one.name == WHOLE:
            every = (self._meaning(one.module, name, (), {}) for name in (*module.nodes, *module.imports))
            uses += [found[0] for found in every if found and isinstance(found[0], Definition)]
        for _, seen in self._forms(one):
            uses += seen
        if one.name != EFFECTS and self._acting(one.module):
            uses.append(Definition(one.module, EFFECTS))
        return uses

    def _meaning(
        self, module: str, name: str, attributes: tuple[str, ...], local: Imports
    ) -> tuple[Definition | str, int] | None:
        """What `name.attribute...` in a module means, and how many of the attributes belong to it: a text for
        what is imported from outside this repository, None for a name that is neither."""
        here = self._module(module)
        if name in here.nodes and name not in local:
            return Definition(module, name), 0
        target, attribute = local.get(name) or here.imports.get(name) or (None, None)
        if target is None:
            return None
        submodule = target if attribute is None else f"{target}.{attribute}"
        if self._has(submodule):
            if not attributes:  # a module as a value: anything of it may be used
                return Definition(submodule, WHOLE), 0
            found = self._meaning(submodule, attributes[0], attributes[1:], {})
            return found and (found[0], found[1] + 1)
        if not self._has(target):
            outside = ".".join((submodule, *attributes))
            return (outside, len(attributes)) if self.strict else None
        # a name of a module, perhaps imported there in turn
        return self._meaning(target, attribute, attributes, {}) if attribute else None

    @cache  # noqa: B019
    def _identity(self, one: Definition, depth: int) -> str:
        """Digest of a definition's form, and to a depth of the forms behind its names; of a registry that is
        used, that it is one."""
        if self._is_neutral(one):
            return "neutral"
        if str(one) in self.registries and depth < DEPTH:
            return "registry"
        used = [
            use if isinstance(use, str) else self._identity(use, depth - 1) if depth else "a definition"
            for use in self._uses(one)
        ]
        if one.name == WHOLE:
            return _sha256(sorted(used))
        return _sha256(([form for form, _ in self._forms(one)], used))

    def _statements(self, one: Definition) -> str:
        """Digest of a definition's statements, with the names of what they use."""
        return _sha256([_named(form, seen) for form, seen in self._forms(one)])

    def _nodes(self, one: Definition) -> list[ast.AST]:
        if one.name == EFFECTS:
            return [*self._acting(one.module)]
        module = self._module(one.module)
        node = module.nodes.get(one.name) or module.methods.get(one.name)
        if str(one) in self.registries and isinstance(value := getattr(node, "value", None), ast.Dict):
            return [
                item
                for key, item in zip(value.keys, value.values)
                if not isinstance(key, ast.Constant) or key.value in one.keys or key.value is None
            ]
        return [] if node is None else [node]

    def _is_neutral(self, one: Definition) -> bool:
        if self.strict and (one.name == EFFECTS or "." in one.name):
            return False
        if self.strict and one.module in self.schema:
            return isinstance(self._module(one.module).nodes.get(one.name), ast.ClassDef)
        if str(one) in self.counted:
            return False
        return one.module in self.neutral or one.name in self.constants


def _named(form: object, seen: list) -> tuple[object, list[str]]:
    """A normal form with the names of what it uses; those of private definitions do not count."""
    names = [use if isinstance(use, str) else use.name for use in seen]
    return form, ["private" if name.startswith("_") else name for name in names]


def _sha256(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
