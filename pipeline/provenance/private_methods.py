"""Which private methods may have another name without any change of a result.

The name of a private method does not count where one class alone defines it and only that class's own
`self._name` calls it, so that a renaming which compiles is complete. All other names count: those that a
base or a subclass also has, as a method or as another attribute, that stand in a text or after another object
than `self`, that a text may begin (`f"_{kind}"`), of methods that are given to a function or a decorator,
which may ask for their names, and those of a class whose base is not of the same package, which may call the
method by its name.
"""

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Bases that call no private method of a class.
PLAIN_BASES = frozenset(("ABC", "Generic", "Protocol", "object"))
# Decorators that call no private method of a class.
PLAIN_DECORATORS = frozenset(("dataclass", "runtime_checkable"))
# Decorators whose value is an attribute that is not called.
PROPERTIES = frozenset(("property", "cached_property"))
# Decorators that ask for no method's name.
NAMELESS = PROPERTIES | {"staticmethod", "classmethod", "abstractmethod", "no_grad", "inference_mode"}
# What may ask for an attribute by a name that it makes.
BY_NAME = frozenset("getattr hasattr setattr delattr attrgetter methodcaller vars dir __dict__".split())
OWNERS = frozenset(("self", "cls"))
# A private name in a longer text.
PRIVATE = re.compile(r"(?<!\w)_\w+")
BEGINNING = re.compile(r"_\w*")


@dataclass
class OneClass:
    """A class of a package."""

    name: str
    # last parts of the names of its bases
    bases: set[str]
    # private methods that it defines
    methods: set[str]
    # private names that follow `self` or `cls` in it
    mentioned: set[str]
    # whether nothing but its package calls its methods by name
    plain: bool
    # of its private methods, those whose names the code may ask for
    known: set[str]
    # whether it has a base that is made when the module is imported
    made: bool
    # name -> the module that its module imports it from
    sources: dict[str, str]
    # its module
    module: str = ""


@dataclass
class Said:
    """Private names that code may ask an object for, and what such names begin with."""

    names: set[str] = field(default_factory=set)
    beginnings: set[str] = field(default_factory=set)

    def of(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are said."""
        return {one for one in names if one in self.names or one.startswith(tuple(self.beginnings))}


@dataclass
class Mentions:
    """What a module says of private names."""

    classes: list[OneClass] = field(default_factory=list)
    # in texts, after other objects, and of nested classes
    elsewhere: Said = field(default_factory=Said)
    # another name of a class -> the last part of its name
    aliases: list[tuple[str, str]] = field(default_factory=list)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def mentions_in(tree: ast.Module) -> Mentions:
    """The private names of a module."""
    found = Mentions()
    of_classes: set[ast.AST] = set()
    every = [*ast.walk(tree)]
    asked = any(_asks_name(inner) for inner in every)
    aliases = _imported(every)
    imported = {alias.asname or alias.name.partition(".")[0]: "" for alias in aliases}
    for one in every:
        if isinstance(one, ast.ImportFrom) and not one.level:
            imported |= {alias.name: one.module or "" for alias in one.names if not alias.asname}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.classes.append(_one_class(node, of_classes, imported, asked))
    found.elsewhere = _said_by(every, tree, of_classes)
    found.aliases = [(one.asname, one.name.rpartition(".")[2]) for one in aliases if one.asname]
    for inner in every:
        if isinstance(inner, (ast.Assign, ast.AnnAssign)) and inner.value is not None:
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            found.aliases += [(_last_name(one), _last_name(inner.value)) for one in targets]
    found.aliases = [(name, other) for name, other in found.aliases if name and other and name != other]
    return found


def _imported(nodes: Iterable[ast.AST]) -> list[ast.alias]:
    imports = [one for one in nodes if isinstance(one, (ast.Import, ast.ImportFrom))]
    return [alias for one in imports for alias in one.names]


def said_in(tree: ast.AST) -> Said:
    """What code says of private names: attributes, names in texts, keywords, and what classes define."""
    return _said_by(ast.walk(tree), tree, set())


def _said_by(nodes: Iterable[ast.AST], tree: ast.AST, but: Collection[ast.AST]) -> Said:
    """The same of the nodes of a tree, in the order of `ast.walk`, without the nodes `but`."""
    said = Said()
    documents: set[ast.AST] = set()
    for inner in nodes:
        if inner in but or inner in documents:
            continue
        if isinstance(inner, ast.Attribute):
            said.names.add(inner.attr)
        elif isinstance(inner, ast.keyword) and inner.arg:
            said.names.add(inner.arg)
        elif isinstance(inner, ast.MatchClass):
            said.names |= {*inner.kwd_attrs}
        elif isinstance(inner, FUNCTIONS) and inner is not tree:
            said.names.add(inner.name)
        elif isinstance(inner, ast.ClassDef):
            said.names |= _assigned(inner)
        elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant):
            documents.add(inner.value)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            said.names |= {inner.value, *PRIVATE.findall(inner.value)}
        said.beginnings |= _beginnings(inner)
    said.names = {*filter(is_private, said.names)}
    return said


def _beginnings(node: ast.AST) -> set[str]:
    """What a private name begins with that code makes: `f"_{kind}"`, `"_" + kind`, `"_%s" % kind`."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr):
        parts = node.values[:1]
    elif isinstance(node, ast.BinOp):
        parts = [node.left]
    elif isinstance(node, ast.Attribute) and node.attr == "format":
        parts = [node.value]
    texts = [one.value for one in parts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return {one.group() for one in map(BEGINNING.match, texts) if one}


def _assigned(node: ast.ClassDef) -> set[str]:
    """The names that a class's own statements give, other than those of its methods."""
    names: set[str] = set()
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (ast.ClassDef, *FUNCTIONS)):
            names |= {one.name} if isinstance(one, ast.ClassDef) else set()
            continue
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            names.add(one.id)
        elif isinstance(one, ast.alias):
            names.add(one.asname or one.name)
        waiting += ast.iter_child_nodes(one)
    return names


def _one_class(
    node: ast.ClassDef, of_classes: set[ast.AST], imported: dict[str, str], asked: bool
) -> OneClass:
    """A class at the top of a module; its private methods, and what names them there, join `of_classes`.

    imported: names of the module's imports and the modules of these. asked: whether the module
    asks functions for their names
    """
    methods = {one for one in node.body if isinstance(one, FUNCTIONS) and is_private(one.name)}
    nested = {
        inner
        for one in ast.walk(node)
        if isinstance(one, ast.ClassDef) and one is not node
        for inner in ast.walk(one)
    }
    own = {inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute) and _is_own(inner)} - nested
    of_classes |= methods | own
    bases = {_last_name(base) for base in node.bases}
    decorators = {_last_name(_called(one)) for one in node.decorator_list}
    by_name = any(_last_name(inner) in BY_NAME for inner in ast.walk(node))
    by_name |= any(isinstance(one, FUNCTIONS) and one.name == "__getattribute__" for one in node.body)
    return OneClass(
        name=node.name,
        bases=bases - PLAIN_BASES,
        methods={one.name for one in methods},
        mentioned={one.attr for one in own},
        plain=not by_name
        and not node.keywords
        and decorators <= PLAIN_DECORATORS
        and not _owns_others(node, nested),
        known=_known(node, methods, own if asked else ()),
        made=any(_is_made(base, imported) for base in node.bases),
        sources=imported,
    )


def _known(node: ast.ClassDef, methods: Iterable[ast.AST], own: Iterable[ast.Attribute]) -> set[str]:
    """Private methods that are given to a function or to a decorator, and those of which Python makes another
    name."""
    called = {one.func for one in ast.walk(node) if isinstance(one, ast.Call)}
    given = {one.attr for one in own if one not in called}
    known: set[str] = set()
    for one in methods:
        assert isinstance(one, FUNCTIONS)
        decorators = {_last_name(_called(decorator)) for decorator in one.decorator_list}
        value = one.name in given and not decorators & PROPERTIES
        if value or not decorators <= NAMELESS or "__" in one.name:
            known.add(one.name)
    return known


def _asks_name(node: ast.AST) -> bool:
    """`function.__name__`, and not that of a class or a module"""
    if not isinstance(node, ast.Attribute) or node.attr not in ("__name__", "__qualname__"):
        return False
    return _last_name(_called(node.value)) not in ("type", "__class__", "cls")


def _owns_others(node: ast.ClassDef, nested: Iterable[ast.AST]) -> bool:
    """Whether `self` or `cls` is anything but the first parameter of a method."""
    functions = [one for one in node.body if isinstance(one, FUNCTIONS)]
    first = [(one.args.posonlyargs + one.args.args)[:1] for one in functions if not _is_static(one)]
    owners = {argument for arguments in first for argument in arguments}
    for inner in {*ast.walk(node)} - {*nested}:
        if isinstance(inner, ast.arg) and inner.arg in OWNERS and inner not in owners:
            return True
        if isinstance(inner, ast.Name) and inner.id in OWNERS and not isinstance(inner.ctx, ast.Load):
            return True
    return False


def _is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(_last_name(one) == "staticmethod" for one in node.decorator_list)


def _is_made(base: ast.expr, imported: Collection[str]) -> bool:
    """Whether a base is neither imported nor known by its name: that of a call, of a table."""
    if isinstance(base, ast.Subscript):
        base = base.value
    while isinstance(base, ast.Attribute):
        base = base.value
    return not isinstance(base, ast.Name) or base.id not in imported and not hasattr(builtins, base.id)


def _is_own(node: ast.Attribute) -> bool:
    """`self._name`"""
    return isinstance(node.value, ast.Name) and node.value.id in OWNERS and is_private(node.attr)


def _called(node: ast.expr) -> ast.expr:
    """What a decorator calls, or the decorator."""
    return node.func if isinstance(node, ast.Call) else node


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def unseen_names(modules: Mapping[str, Mentions]) -> dict[str, frozenset[str]]:
    """Of the modules of a package by their names: class -> the private methods whose names do not
    count. Classes of one name have none."""
    elsewhere = Said()
    for module in modules.values():
        elsewhere.names |= module.elsewhere.names
        elsewhere.beginnings |= module.elsewhere.beginnings
    classes = [replace(one, module=name) for name, module in modules.items() for one in module.classes]
    names = [one.name for one in classes]
    aliases: dict[str, set[str]] = {}
    for name, other in [alias for module in modules.values() for alias in module.aliases]:
        aliases.setdefault(name, set()).add(other)
    classes = [replace(one, bases=_meant(one.bases, aliases, names)) for one in classes]
    for one in classes:
        # Its base may be any class.
        elsewhere.names |= one.methods | one.mentioned if one.made and not one.bases <= {*names} else set()
    of_name = {one.name: one for one in classes if names.count(one.name) == 1}
    found = {}
    for one in of_name.values():
        relatives = _relatives(one, classes, of_name)
        if one.methods and relatives is not None:
            others = [other for other in classes if other is not one]
            said = set[str]().union(*(other.methods | other.mentioned for other in relatives))
            # What another class calls and does not define may be this one's, by a common subclass.
            asked = set[str]().union(*(other.mentioned - other.methods for other in others))
            unseen = (one.methods & one.mentioned) - one.known - said - asked
            found[one.name] = frozenset(unseen - elsewhere.of(unseen))
    return {name: methods for name, methods in found.items() if methods}


def _meant(bases: set[str], aliases: Mapping[str, set[str]], names: Collection[str]) -> set[str]:
    """The names of classes that a class's bases may be, and of the bases those that are of no class."""
    found = set(bases)
    waiting = [*bases]
    while waiting:
        more = aliases.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    of_classes = found & {*names}
    return of_classes | {
        one for one in bases if one not in names and not aliases.get(one, set()) & found & of_classes
    }


def _relatives(one: OneClass, classes: list[OneClass], of_name: dict[str, OneClass]) -> list[OneClass] | None:
    """The bases and subclasses of a class and theirs in turn; None where one of them may be called by name
    from outside of the package, or where two classes have a base's name."""
    family = [one]
    for member in family:
        if not member.plain or not member.bases <= of_name.keys():
            return None
        near = [of_name[name] for name in member.bases]
        near += [other for other in classes if _may_extend(other, member, classes)]
        family += [other for other in near if not any(other is known for known in family)]
    return family[1:]


def _may_extend(one: OneClass, base: OneClass, classes: list[OneClass]) -> bool:
    """Whether a class has a base of this name, other than one that it imports from another class's module."""
    if base.name not in one.bases:
        return False
    others = {other.module for other in classes if other.name == base.name and other is not base}
    return one.sources.get(base.name) not in others - {base.module}
