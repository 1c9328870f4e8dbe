"""Find the private methods that can be renamed without any effect on a result.

`normal_form` leaves the names of these methods out of a class's normal form, so that renaming them does not
make results stale. `unseen_names` decides, from what `mentions_in` has found in each module of a package.

The name of a private method does not count if only one class defines it and only that class calls it, as
`self._name`. The name does count if
- a base or a subclass has it too, as a method or as another attribute;
- it stands in a text, or after another object than `self`;
- code may make it from a text that it begins with (`f"_{kind}"`);
- the method is given to a function or a decorator, which may ask for its name;
- a base of the class is of another package, which may call the method by its name.
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
# A private name at the beginning of a text.
BEGINNING = re.compile(r"_\w*")


@dataclass
class OneClass:
    """A class at the top level of a module, and its private methods.

    name       of the class
    bases      last parts of the names of its bases, without those in PLAIN_BASES
    methods    private methods that it defines
    mentioned  private names that follow `self` or `cls` in it
    plain      whether only code of its package can call its methods by name
    known      private methods whose names some code may ask for
    made       whether it has a base that is made when the module is imported, such as by a call
    sources    name -> the module that the class's module imports it from
    module     where the class is; filled in by `unseen_names`
    """

    name: str
    bases: set[str]
    methods: set[str]
    mentioned: set[str]
    plain: bool
    known: set[str]
    made: bool
    sources: dict[str, str]
    module: str = ""


@dataclass
class Said:
    """Private names that code may ask an object for, and texts that such names may begin with."""

    names: set[str] = field(default_factory=set)
    beginnings: set[str] = field(default_factory=set)

    def of(self, names: Iterable[str]) -> set[str]:
        """Those of the given names that code may ask for."""
        return {name for name in names if name in self.names or name.startswith(tuple(self.beginnings))}


@dataclass
class Mentions:
    """The private names that one module mentions.

    classes    its classes, with the names that they use themselves
    elsewhere  all other mentions: in texts, after other objects than `self`, in nested classes
    aliases    (another name of something, the last part of its own name), such as a class that is imported
               under another name
    """

    classes: list[OneClass] = field(default_factory=list)
    elsewhere: Said = field(default_factory=Said)
    aliases: list[tuple[str, str]] = field(default_factory=list)


def is_private(name: str) -> bool:
    """Whether a name begins with an underscore and is none of Python's own, such as `__init__`."""
    return name.startswith("_") and not name.endswith("__")


def mentions_in(tree: ast.Module) -> Mentions:
    """The private names that a parsed module mentions."""
    found = Mentions()
    nodes = [*ast.walk(tree)]
    asks_names = any(_asks_name(node) for node in nodes)
    imported = _imported(nodes)
    sources = {alias.asname or alias.name.partition(".")[0]: "" for alias in imported}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level:
            sources |= {alias.name: node.module or "" for alias in node.names if not alias.asname}

    of_classes: set[ast.AST] = set()
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef):
            found.classes.append(_one_class(statement, of_classes, sources, asks_names))
    found.elsewhere = _said_by(nodes, tree, of_classes)

    aliases = [(alias.asname, alias.name.rpartition(".")[2]) for alias in imported if alias.asname]
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            aliases += [(_last_name(target), _last_name(node.value)) for target in targets]
    found.aliases = [(name, other) for name, other in aliases if name and other and name != other]
    return found


def _imported(nodes: Iterable[ast.AST]) -> list[ast.alias]:
    """The names that nodes import."""
    aliases: list[ast.alias] = []
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            aliases += node.names
    return aliases


def said_in(tree: ast.AST) -> Said:
    """The private names that code mentions as attributes, in texts, as keywords, or by defining them."""
    return _said_by(ast.walk(tree), tree, set())


def _said_by(nodes: Iterable[ast.AST], tree: ast.AST, but: Collection[ast.AST]) -> Said:
    """The same of the nodes of a tree.

    nodes  in the order of `ast.walk`, so that a docstring comes after its owner
    but    nodes that are not looked at
    """
    said = Said()
    docstrings: set[ast.AST] = set()
    for inner in nodes:
        if inner in but or inner in docstrings:
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
            docstrings.add(inner.value)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            said.names |= {inner.value, *PRIVATE.findall(inner.value)}
        said.beginnings |= _beginnings(inner)
    said.names = {*filter(is_private, said.names)}
    return said


def _beginnings(node: ast.AST) -> set[str]:
    """The beginning of a private name that code makes: `f"_{kind}"`, `"_" + kind`, `"_%s" % kind`."""
    parts: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr):
        parts = node.values[:1]
    elif isinstance(node, ast.BinOp):
        parts = [node.left]
    elif isinstance(node, ast.Attribute) and node.attr == "format":
        parts = [node.value]
    beginnings: set[str] = set()
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            match = BEGINNING.match(part.value)
            if match:
                beginnings.add(match.group())
    return beginnings


def _assigned(node: ast.ClassDef) -> set[str]:
    """The names that the body of a class defines, other than those of its methods."""
    names: set[str] = set()
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, FUNCTIONS):
            continue
        if isinstance(inner, ast.ClassDef):
            names.add(inner.name)
            continue
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.add(inner.id)
        elif isinstance(inner, ast.alias):
            names.add(inner.asname or inner.name)
        waiting += ast.iter_child_nodes(inner)
    return names


def _one_class(
    node: ast.ClassDef, of_classes: set[ast.AST], sources: dict[str, str], asks_names: bool
) -> OneClass:
    """What matters of a class at the top level of a module.

    node        its statement
    of_classes  to this set are added the private methods, and the places that mention them by `self`
    sources     imported name -> the module that the class's module imports it from
    asks_names  whether the module asks functions for their names
    """
    methods = {part for part in node.body if isinstance(part, FUNCTIONS) and is_private(part.name)}
    nested: set[ast.AST] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.ClassDef) and inner is not node:
            nested |= {*ast.walk(inner)}
    own = {inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute) and _is_own(inner)} - nested
    of_classes |= methods | own

    bases = {_last_name(base) for base in node.bases}
    decorators = {_last_name(_called(decorator)) for decorator in node.decorator_list}
    by_name = any(_last_name(inner) in BY_NAME for inner in ast.walk(node))
    by_name |= any(isinstance(part, FUNCTIONS) and part.name == "__getattribute__" for part in node.body)
    return OneClass(
        name=node.name,
        bases=bases - PLAIN_BASES,
        methods={method.name for method in methods},
        mentioned={attribute.attr for attribute in own},
        plain=not by_name
        and not node.keywords
        and decorators <= PLAIN_DECORATORS
        and not _owns_others(node, nested),
        known=_known(node, methods, own if asks_names else ()),
        made=any(_is_made(base, sources) for base in node.bases),
        sources=sources,
    )


def _known(node: ast.ClassDef, methods: Iterable[ast.AST], own: Iterable[ast.Attribute]) -> set[str]:
    """The private methods of a class whose names some code may ask for.

    These are given to a function or to a decorator, or have a name that Python changes (`__name`).

    node     the class
    methods  the statements of its private methods
    own      where it mentions these by `self`, without being called; empty if no code asks for names
    """
    called = {call.func for call in ast.walk(node) if isinstance(call, ast.Call)}
    given = {attribute.attr for attribute in own if attribute not in called}
    known: set[str] = set()
    for method in methods:
        assert isinstance(method, FUNCTIONS)
        decorators = {_last_name(_called(decorator)) for decorator in method.decorator_list}
        is_given = method.name in given and not decorators & PROPERTIES
        if is_given or not decorators <= NAMELESS or "__" in method.name:
            known.add(method.name)
    return known


def _asks_name(node: ast.AST) -> bool:
    """Whether this is `function.__name__`; that of a class or a module does not matter."""
    if not isinstance(node, ast.Attribute) or node.attr not in ("__name__", "__qualname__"):
        return False
    return _last_name(_called(node.value)) not in ("type", "__class__", "cls")


def _owns_others(node: ast.ClassDef, nested: Iterable[ast.AST]) -> bool:
    """Whether `self` or `cls` may be another object in a class than the first parameter of a method."""
    owners: set[ast.arg] = set()
    for part in node.body:
        if isinstance(part, FUNCTIONS) and not _is_static(part):
            positional = part.args.posonlyargs + part.args.args
            owners.update(positional[:1])
    for inner in {*ast.walk(node)} - {*nested}:
        if isinstance(inner, ast.arg) and inner.arg in OWNERS and inner not in owners:
            return True
        if isinstance(inner, ast.Name) and inner.id in OWNERS and not isinstance(inner.ctx, ast.Load):
            return True
    return False


def _is_static(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(_last_name(decorator) == "staticmethod" for decorator in node.decorator_list)


def _is_made(base: ast.expr, imported: Collection[str]) -> bool:
    """Whether a base is neither imported nor built in, but made by the module: by a call, from a table."""
    if isinstance(base, ast.Subscript):
        base = base.value
    while isinstance(base, ast.Attribute):
        base = base.value
    if not isinstance(base, ast.Name):
        return True
    return base.id not in imported and not hasattr(builtins, base.id)


def _is_own(node: ast.Attribute) -> bool:
    """Whether this is `self._name` or `cls._name`."""
    return isinstance(node.value, ast.Name) and node.value.id in OWNERS and is_private(node.attr)


def _called(node: ast.expr) -> ast.expr:
    """`name` of the decorators `@name` and `@name(...)`."""
    return node.func if isinstance(node, ast.Call) else node


def _last_name(node: ast.AST) -> str:
    """`c` of `c`, of `a.b.c` and of `a.b.c[d]`; empty for another expression."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def unseen_names(modules: Mapping[str, Mentions]) -> dict[str, frozenset[str]]:
    """The private methods of a package whose names do not count.

    modules  the package's modules by name

    Returns class -> these methods; without classes that have none. If two classes of the package have the
    same name, all names of their methods count.
    """
    elsewhere = Said()
    aliases: dict[str, set[str]] = {}
    classes: list[OneClass] = []
    for module, mentions in modules.items():
        elsewhere.names |= mentions.elsewhere.names
        elsewhere.beginnings |= mentions.elsewhere.beginnings
        for alias, meant in mentions.aliases:
            aliases.setdefault(alias, set()).add(meant)
        classes += [replace(member, module=module) for member in mentions.classes]
    names = [member.name for member in classes]
    classes = [replace(member, bases=_meant(member.bases, aliases, names)) for member in classes]
    for member in classes:
        if member.made and not member.bases <= {*names}:
            # Its base may be any class, which may ask for any of its methods.
            elsewhere.names |= member.methods | member.mentioned

    by_name = {member.name: member for member in classes if names.count(member.name) == 1}
    found = {}
    for member in by_name.values():
        relatives = _relatives(member, classes, by_name)
        if not member.methods or relatives is None:
            continue
        unseen = (member.methods & member.mentioned) - member.known
        for relative in relatives:
            unseen -= relative.methods | relative.mentioned
        for other in classes:
            if other is not member:
                # What a class calls and does not define may be this one's method, by a common subclass.
                unseen -= other.mentioned - other.methods
        unseen -= elsewhere.of(unseen)
        if unseen:
            found[member.name] = frozenset(unseen)
    return found


def _meant(bases: set[str], aliases: Mapping[str, set[str]], names: Collection[str]) -> set[str]:
    """The classes that the bases of a class may be: aliases are replaced by what they stand for.

    bases    names of the bases
    aliases  another name -> all that it may stand for
    names    of all classes of the package

    A base that stands for no class of the package stays.
    """
    found = set(bases)
    waiting = [*bases]
    while waiting:
        more = aliases.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    meant = found & {*names}
    unknown = {base for base in bases if base not in names and not aliases.get(base, set()) & meant}
    return meant | unknown


def _relatives(
    member: OneClass, classes: list[OneClass], by_name: dict[str, OneClass]
) -> list[OneClass] | None:
    """The bases and subclasses of a class, and theirs in turn.

    None if code outside of the package may call a method of one of them by its name, or if two classes of the
    package have the name of a base.

    member   the class
    classes  all classes of the package
    by_name  those of them whose names are unique
    """
    family = [member]
    for relative in family:  # grows as long as new relatives are found
        if not relative.plain or not relative.bases <= by_name.keys():
            return None
        near = [by_name[name] for name in relative.bases]
        near += [other for other in classes if _may_extend(other, relative, classes)]
        family += [other for other in near if not any(other is known for known in family)]
    return family[1:]


def _may_extend(member: OneClass, base: OneClass, classes: list[OneClass]) -> bool:
    """Whether `member` may be a subclass of `base`: it has a base of this name, and does not import that from
    a module where another class has the name."""
    if base.name not in member.bases:
        return False
    others = {other.module for other in classes if other.name == base.name and other is not base}
    return member.sources.get(base.name) not in others - {base.module}
