"""Hash the functions, classes and constants that a computation uses, to detect changes of its code.

A module is divided into its top-level functions, classes and constants. Starting from an entry point, the
digest follows every name that a definition uses, through imports, to the definitions in this repository. It
hashes the normal form of each definition (`normal_form`) and which definitions it uses, but not the names of
modules or the places in them. Therefore moving a function to another file, renaming a local variable, or
changing a network that a cell does not use leaves the cell's digest unchanged.

Cells have strict digests. These also cover what the modules do when they are imported, including the
`__init__.py` of every package, and which external function a name means. Code that cannot be followed is
refused: star imports, `eval`, and modules imported by a computed name.

`identity` says which entry points and settings a cell has; it calls this module through `code_digests`, which
stores the digests for the next process.
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

# Name of a Definition that stands for every definition of its module.
WHOLE = "*"
# Name of a Definition that stands for the statements of its module that act on import.
EFFECTS = ""
# A definition is told apart from others of the same form by what it uses, what that uses, and so on, up to
# this number of steps.
DEPTH = 8
# hex digits of the digest of a single definition
DIGITS = 10


class Definition(NamedTuple):
    """A top-level name of a module of this repository.

    module  of this repository, as "package.module"
    name    of the definition, "Class.method", WHOLE or EFFECTS
    keys    for a registry (see `Code`), those of its keys that count
    """

    module: str
    name: str
    keys: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(frozen=True, eq=False)
class Code:
    """The Python files below `root`, read when they are needed.

    root        folder of the repository
    neutral     modules that compute no result; their definitions are ignored
    counted     definitions of neutral modules that count nevertheless ("package.module:name")
    constants   names of constants that change no result
    registries  dictionaries ("package.module:NAME") of which only the entries count whose keys are asked for
    schema      modules whose classes hold parameters. The digest of the parameters covers their values; here
                only those of their methods count that reached code calls
    dynamic     functions ("package.module:name") that may import a module by a computed name, since the
                caller gives this module as an entry of its own
    strict      whether the digests are strict (see the module's text); False for stages that train nothing,
                where `schema` and `dynamic` are not used
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
        """SHA-256 over all definitions that the entries reach, in hex digits.

        entries  definitions to start from: "package.module:name", or "package.module" for all of its
                 definitions
        named    the keys that count in registries
        shallow  further entries of which only their own statements count, not what these call
        kinds    names of the schema's classes whose methods count

        Raises KeyError for an entry that does not exist, and FedReproError for code that a strict digest
        refuses.
        """
        reached, alone = self._all(entries, named, shallow, kinds)
        identities = {self._identity(definition, DEPTH) for definition in reached}
        statements = {self._statements(definition) for definition in alone}
        private = self._known_elsewhere({*reached, *alone})
        return _sha256(sorted(identities) + sorted(statements) + sorted(private))

    def parts(
        self,
        entries: tuple[str, ...],
        named: frozenset[str] = frozenset(),
        shallow: tuple[str, ...] = (),
        kinds: frozenset[str] = frozenset(),
    ) -> dict[str, str]:
        """The digest of every single definition that `digest` covers, without what it uses.

        Arguments and errors as of `digest`. Returns "package.module:name" -> the first hex digits;
        the methods of a class have digests of their own, "package.module:Class.method".
        """
        reached, alone = self._all(entries, named, shallow, kinds)
        digests: dict[str, str] = {}
        for definition in sorted({*reached, *alone}):
            is_ignored = self._is_neutral(definition) and definition not in alone
            if is_ignored or definition.name == WHOLE:
                continue
            for name, nodes in pieces(definition.name or ON_IMPORT, self._nodes(definition)).items():
                forms = [_named(*self._normal(definition.module, node)) for node in nodes]
                digests[f"{definition.module}:{name}"] = _sha256(forms)[:DIGITS]
        return digests

    def modules(self, *arguments: Any) -> set[str]:
        """The modules whose code `digest` covers; arguments and errors as there."""
        reached, alone = self._all(*arguments)
        return {definition.module for definition in (*reached, *alone)}

    def _all(
        self,
        entries: tuple[str, ...],
        named: frozenset[str] = frozenset(),
        shallow: tuple[str, ...] = (),
        kinds: frozenset[str] = frozenset(),
    ) -> tuple[set[Definition], list[Definition]]:
        """The definitions that the entries reach, and those of `shallow`; arguments and errors as of
        `digest`."""
        named &= self.keys
        alone = [self._entry(entry) for entry in shallow]
        reached = self._reached([self._entry(entry) for entry in entries], named)
        more = self._methods(reached, kinds)
        while more - reached:
            reached |= self._reached(more - reached, named)
            more = self._methods(reached, kinds)
        if self.strict:
            reached |= self._reached(self._effects({*reached, *alone}), named)
            self._refuse(reached)
        return reached, alone

    @cache  # noqa: B019
    def attributes(self, entry: str) -> frozenset[str]:
        """The names of all attributes in the code that an entry ("package.module:name") reaches.

        Raises KeyError for an entry that does not exist.
        """
        reached = self._reached([self._entry(entry)], frozenset())
        return frozenset().union(*(self._facts(definition).attributes for definition in reached))

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of all registries. Raises KeyError for a registry that is not a dictionary written out."""
        keys: set = set()
        for registry in self.registries:
            module, _, name = registry.partition(":")
            value = getattr(self._module(module).nodes.get(name), "value", None)
            if not isinstance(value, ast.Dict):
                raise KeyError(f"{module}:{name} is not a dictionary written out")
            keys |= {key.value for key in value.keys if isinstance(key, ast.Constant)}
        return frozenset(keys)

    # -- which definitions are reached -----------------------------------------------------------------------

    def _entry(self, text: str) -> Definition:
        """The definition of "package.module:name" or "package.module"; KeyError if it does not exist."""
        name_of_module, _, name = text.partition(":")
        if not self._has(name_of_module):
            raise KeyError(text)
        if name:
            module = self._module(name_of_module)
            if name not in module.nodes and name not in module.imports:
                raise KeyError(text)
        return Definition(name_of_module, name or WHOLE)

    def _reached(self, entries: Iterable[Definition], named: frozenset[str]) -> set[Definition]:
        """The entries and all that they use in turn; of registries the keys `named` count."""
        reached: set[Definition] = set()
        waiting = [*entries]
        while waiting:
            definition = waiting.pop()
            if str(definition) in self.registries:
                definition = definition._replace(keys=named)
            if definition not in reached:
                reached.add(definition)
                waiting += [use for use in self._uses(definition) if isinstance(use, Definition)]
        return reached

    def _methods(self, reached: set[Definition], kinds: frozenset[str]) -> set[Definition]:
        """The methods of the schema's classes `kinds` whose names are attributes in reached code."""
        if not kinds:
            return set()
        attributes: set[str] = set()
        for definition in reached:
            if not self._is_neutral(definition):
                attributes |= self._facts(definition).attributes
        found: set[Definition] = set()
        for module in filter(self._has, self.schema):
            for method in self._module(module).methods:
                kind, _, name = method.partition(".")
                if kind in kinds and name in attributes:
                    found.add(Definition(module, method))
        return found

    def _effects(self, reached: set[Definition]) -> set[Definition]:
        """What acts when the modules of reached code, and those that they import in turn, are imported."""
        waiting: set[str] = set()
        for definition in reached:
            for name in (definition.module, *self._facts(definition).loads):
                waiting.update(self._with_packages(name))
        loaded: set[str] = set()
        while waiting:
            loaded |= waiting
            waiting = set().union(*map(self._imported, waiting)) - loaded
        return {Definition(name, EFFECTS) for name in loaded if self._acting(name)}

    @cache  # noqa: B019
    def _imported(self, name: str) -> frozenset[str]:
        """The modules of this repository that a module imports itself, and the packages around them."""
        imported: set[str] = set()
        for load in self._module(name).loads:
            imported.update(self._with_packages(load))
        return frozenset(imported)

    def _with_packages(self, name: str) -> list[str]:
        """A module and the packages around it, without those that are not of this repository."""
        parts = name.split(".")
        names = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        return [*filter(self._has, names)]

    def _acting(self, name: str) -> list[ast.stmt]:
        """The statements of a module that may act when it is imported."""
        module = self._module(name)
        if not self.strict:
            return [*module.effects]
        registered = [node for node in module.decorated if self._may_register(name, node)]
        return [*module.effects, *module.calls, *registered]

    def _may_register(self, module: str, node: ast.stmt) -> bool:
        """Whether a definition has a decorator of this repository, which may register it somewhere."""
        for decorator in getattr(node, "decorator_list", ()):
            base = decorator.func if isinstance(decorator, ast.Call) else decorator
            following: list[str] = []
            while isinstance(base, ast.Attribute):
                following.insert(0, base.attr)
                base = base.value
            if not isinstance(base, ast.Name):
                continue
            definition = self._definition(module, base.id, tuple(following))
            if definition and not self._is_neutral(definition):
                return True
        return False

    def _refuse(self, reached: set[Definition]) -> None:
        """FedReproError if reached code imports in a way that cannot be followed."""
        for definition in sorted(reached):
            where = definition.module.replace(".", "/") + ".py"
            if self._is_neutral(definition):
                continue
            if self._module(definition.module).stars:
                raise FedReproError(f"{where}: `import *` in code that results depend on: import by name")
            if str(definition) in self.dynamic:
                continue
            for name, line in self._facts(definition).unseen:
                raise FedReproError(f"{where}:{line}: {name} in code that results depend on: import by name")

    # -- the files -------------------------------------------------------------------------------------------

    @cache  # noqa: B019
    def _facts(self, definition: Definition) -> Facts:
        """The names that a definition uses."""
        return facts_of(self._nodes(definition), self._module(definition.module).package)

    @cache  # noqa: B019
    def _path(self, name: str) -> Path | None:
        """The file of a module or package; None if it is not of this repository.

        Raises FedReproError if the name is both a module's and a package's.
        """
        base = self.root.joinpath(*name.split("."))
        module = base.with_suffix(".py")
        package = base / "__init__.py"
        if package.is_file() and module.is_file():
            both = f"Python would import the package {base.name}/ instead: remove one of them"
            raise FedReproError(f"{shorten(module)}: {both}")
        return next((path for path in (module, package) if path.is_file()), None)

    def _has(self, name: str) -> bool:
        """Whether a module is of this repository."""
        return self._path(name) is not None

    @cache  # noqa: B019
    def _module(self, name: str) -> Module:
        """A module of this repository; KeyError for another, FedReproError if it cannot be parsed."""
        path = self._path(name)
        if path is None:
            raise KeyError(name)
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        try:
            return parsed(path.read_bytes(), package, str(path))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise FedReproError(f"{shorten(path)}: {error}") from None

    # -- private methods -------------------------------------------------------------------------------------

    def _known_elsewhere(self, reached: set[Definition]) -> set[str]:
        """Digests of classes whose private methods another package asks for, or defines again.

        In the digest of a class itself these methods may have no name, since `private_methods` looks at one
        package alone. Here they have their names.
        """
        if not self.strict:
            return set()
        by_package: dict[str, Said] = {}
        for definition in reached:
            if not self._is_neutral(definition):
                said = by_package.setdefault(definition.module.partition(".")[0], Said())
                names, beginnings = self._said(definition)
                said.names |= names
                said.beginnings |= beginnings
        digests: set[str] = set()
        for definition in reached:
            package = definition.module.partition(".")[0]
            unseen = self.unseen(package).get(definition.name, frozenset())
            known: set[str] = set()
            for other, said in by_package.items():
                if other != package:
                    known |= said.of(unseen)
            if not known:
                continue
            for node in self._nodes(definition):
                if isinstance(node, ast.ClassDef):
                    form, seen = self._normal(definition.module, node, frozenset(known))
                    digests.add(_sha256(_named(form, seen)))
        return digests

    @cache  # noqa: B019
    def _said(self, definition: Definition) -> tuple[frozenset[str], frozenset[str]]:
        """The private names that a definition mentions, or that two of its bases have, and the beginnings of
        private names that it makes."""
        names: set[str] = set()
        beginnings: set[str] = set()
        for node in self._nodes(definition):
            said = said_in(node)
            names |= said.names
            beginnings |= said.beginnings
            if isinstance(node, ast.ClassDef) and len(node.bases) > 1:
                methods: list[str] = []
                for base in self._ancestors(definition.module, node):
                    methods += self._functions(base)
                names |= {name for name in methods if methods.count(name) > 1}
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

    def _functions(self, definition: Definition) -> list[str]:
        """The names of a class's methods."""
        names: list[str] = []
        for node in self._nodes(definition):
            names += [part.name for part in getattr(node, "body", ()) if isinstance(part, FUNCTIONS)]
        return names

    @cache  # noqa: B019
    def unseen(self, package: str) -> dict[str, frozenset[str]]:
        """The private methods whose names do not count, by class, of a top-level package or module."""
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
        """The private methods of bases of another package that a class defines again or calls.

        In the digests of these bases the names may not count.
        """
        own = {part.name for part in node.body if isinstance(part, FUNCTIONS)}
        own |= {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        private = set(filter(is_private, own))
        if not private:
            return set()
        package = module.partition(".")[0]
        of_bases: set[str] = set()
        for base in self._ancestors(module, node):
            if base.module.partition(".")[0] != package:
                of_bases.update(self._functions(base))
        return private & of_bases

    def _bases(self, module: str, node: ast.ClassDef) -> Iterator[Definition]:
        """The bases of a class that are of this repository."""
        for base in node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            name, _, attributes = ast.unparse(named).partition(".")
            definition = self._definition(module, name, tuple(filter(None, attributes.split("."))))
            if definition:
                yield definition

    # -- normal forms, and what their names mean -------------------------------------------------------------

    @cache  # noqa: B019
    def _forms(self, definition: Definition) -> list[tuple[object, list]]:
        """The normal forms of a definition's statements, each with what its numbers stand for."""
        return [self._normal(definition.module, node) for node in self._nodes(definition)]

    @cache  # noqa: B019
    def _normal(self, module: str, node: ast.AST, known: frozenset[str] = frozenset()) -> tuple[object, list]:
        """The normal form of a statement, and what its numbers stand for.

        module  where the statement is
        node    the statement
        known   private methods of a class that keep their names
        """
        local, _ = facts_of([node], self._module(module).package).names[0]

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

    def _role(self, meant: object) -> str:
        """LOGGER for a logger, ACTS for a definition that may do something when it is called, else ""."""
        if not isinstance(meant, Definition):
            return ""
        if is_logger(self._module(meant.module).nodes.get(meant.name)):
            return LOGGER
        return "" if self._is_neutral(meant) else ACTS

    @cache  # noqa: B019
    def _uses(self, definition: Definition) -> list[Definition | str]:
        """What a definition uses: definitions of this repository, and texts such as "torch.nn.Linear" for
        what is imported from outside."""
        if self._is_neutral(definition):
            return []
        module = self._module(definition.module)
        uses: list[Definition | str] = []
        if definition.name == WHOLE:
            for name in (*module.nodes, *module.imports):
                used = self._definition(definition.module, name, ())
                if used:
                    uses.append(used)
        for _, seen in self._forms(definition):
            uses += seen
        if definition.name != EFFECTS and self._acting(definition.module):
            uses.append(Definition(definition.module, EFFECTS))
        return uses

    def _definition(self, module: str, name: str, attributes: tuple[str, ...]) -> Definition | None:
        """The definition of this repository that `name.attribute...` means at the top level of a module."""
        found = self._meaning(module, name, attributes, {})
        if found and isinstance(found[0], Definition):
            return found[0]
        return None

    def _meaning(
        self, module: str, name: str, attributes: tuple[str, ...], local: Imports
    ) -> tuple[Definition | str, int] | None:
        """What `name.attribute...` means.

        module      where it stands
        name        its first part
        attributes  those that follow
        local       what the definition around it imports itself

        Returns a definition of this repository, or a text for what is imported from outside, and how many of
        the attributes belong to it. None for a name that is neither defined nor imported, and for one from
        outside if the digest is not strict.
        """
        here = self._module(module)
        if name in here.nodes and name not in local:
            return Definition(module, name), 0
        imported = local.get(name) or here.imports.get(name)
        if imported is None:
            return None
        target, attribute = imported
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

    # -- digests ---------------------------------------------------------------------------------------------

    @cache  # noqa: B019
    def _identity(self, definition: Definition, depth: int) -> str:
        """Digest of a definition's normal form, and of what it uses in up to `depth` further steps.

        Of a registry that another definition uses, only that it is one: with the keys that count it is among
        the reached definitions itself.
        """
        if self._is_neutral(definition):
            return "neutral"
        if str(definition) in self.registries and depth < DEPTH:
            return "registry"
        used: list[str] = []
        for use in self._uses(definition):
            if isinstance(use, str):
                used.append(use)
            elif depth:
                used.append(self._identity(use, depth - 1))
            else:
                used.append("a definition")
        if definition.name == WHOLE:
            return _sha256(sorted(used))
        return _sha256(([form for form, _ in self._forms(definition)], used))

    def _statements(self, definition: Definition) -> str:
        """Digest of a definition's statements, with the names of what they use."""
        return _sha256([_named(form, seen) for form, seen in self._forms(definition)])

    def _nodes(self, definition: Definition) -> list[ast.AST]:
        """The statements of a definition; of a registry the values of the keys that count."""
        if definition.name == EFFECTS:
            return [*self._acting(definition.module)]
        module = self._module(definition.module)
        node = module.nodes.get(definition.name) or module.methods.get(definition.name)
        if node is None:
            return []
        value = getattr(node, "value", None)
        if str(definition) not in self.registries or not isinstance(value, ast.Dict):
            return [node]
        items: list[ast.AST] = []
        for key, item in zip(value.keys, value.values):
            # A key that is computed, or `**others`, may be any.
            if not isinstance(key, ast.Constant) or key.value in definition.keys or key.value is None:
                items.append(item)
        return items

    def _is_neutral(self, definition: Definition) -> bool:
        """Whether a definition does not count."""
        if self.strict and (definition.name == EFFECTS or "." in definition.name):
            return False
        if self.strict and definition.module in self.schema:
            # Of a class of the schema only the methods that are called count.
            return isinstance(self._module(definition.module).nodes.get(definition.name), ast.ClassDef)
        if str(definition) in self.counted:
            return False
        return definition.module in self.neutral or definition.name in self.constants


def _named(form: object, seen: list) -> tuple[object, list[str]]:
    """A normal form with the names of what it uses; those of private definitions do not count."""
    names = [use if isinstance(use, str) else use.name for use in seen]
    return form, ["private" if name.startswith("_") else name for name in names]


def _sha256(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
