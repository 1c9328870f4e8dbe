"""Which private methods may have another name without any change of a result.

The name of a private method does not count where one class alone defines it and only that class's own
`self._name` mentions it, so that a renaming which compiles is complete. All other names count: those that a
base or a subclass also has, that stand in a text or after another object than `self`, and those of a class
whose base is not of the same package, which may call the method by its name.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Bases that call no private method of a class.
PLAIN_BASES = frozenset(("ABC", "Generic", "Protocol", "object"))
# Decorators that call no private method of a class.
PLAIN_DECORATORS = frozenset(("dataclass", "runtime_checkable"))
# What may ask for an attribute by a name that it makes.
BY_NAME = frozenset("getattr hasattr setattr delattr attrgetter methodcaller vars dir __dict__".split())
OWNERS = frozenset(("self", "cls"))


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


@dataclass
class Mentions:
    """What a module says of private names."""

    classes: list[OneClass] = field(default_factory=list)
    # private names in texts, after other objects, and of nested classes
    elsewhere: set[str] = field(default_factory=set)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def mentions_in(tree: ast.Module) -> Mentions:
    """The private names of a module."""
    found = Mentions()
    of_classes: set[ast.AST] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.classes.append(_one_class(node, of_classes))
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Attribute) and is_private(inner.attr) and inner not in of_classes:
            found.elsewhere.add(inner.attr)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            found.elsewhere |= {inner.value} if is_private(inner.value) else set()
        elif isinstance(inner, FUNCTIONS) and is_private(inner.name) and inner not in of_classes:
            found.elsewhere.add(inner.name)
    return found


def _one_class(node: ast.ClassDef, of_classes: set[ast.AST]) -> OneClass:
    """A class at the top of a module; its private methods, and what names them there, join `of_classes`."""
    methods = {one for one in node.body if isinstance(one, FUNCTIONS) and is_private(one.name)}
    own = {inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute) and _is_own(inner)}
    of_classes |= methods | own
    bases = {_last_name(base) for base in node.bases}
    decorators = {_last_name(_called(one)) for one in node.decorator_list}
    by_name = any(_last_name(inner) in BY_NAME for inner in ast.walk(node))
    return OneClass(
        name=node.name,
        bases=bases - PLAIN_BASES,
        methods={one.name for one in methods},
        mentioned={one.attr for one in own},
        plain=not by_name and not node.keywords and decorators <= PLAIN_DECORATORS,
    )


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


def unseen_names(modules: Iterable[Mentions]) -> dict[str, frozenset[str]]:
    """Of the modules of a package: class -> the private methods whose names do not count. Classes of one name
    have none."""
    modules = list(modules)
    elsewhere = set[str]().union(*(one.elsewhere for one in modules))
    classes = [one for module in modules for one in module.classes]
    names = [one.name for one in classes]
    of_name = {one.name: one for one in classes if names.count(one.name) == 1}
    found = {}
    for one in of_name.values():
        relatives = _relatives(one, of_name)
        if one.methods and relatives is not None:
            others = [other for other in classes if other is not one]
            said = set[str]().union(*(other.methods | other.mentioned for other in relatives))
            # What another class calls and does not define may be this one's, by a common subclass.
            asked = set[str]().union(*(other.mentioned - other.methods for other in others))
            found[one.name] = frozenset(one.methods & one.mentioned - said - asked - elsewhere)
    return {name: methods for name, methods in found.items() if methods}


def _relatives(one: OneClass, of_name: dict[str, OneClass]) -> list[OneClass] | None:
    """The bases and subclasses of a class and theirs in turn; None where one of them may be called by name
    from outside of the package."""
    family = {one.name}
    while more := set(_neighbours(family, of_name)) - family:
        family |= more
    if not all(name in of_name and of_name[name].plain for name in family):
        return None
    return [of_name[name] for name in family if name != one.name]


def _neighbours(family: set[str], of_name: dict[str, OneClass]) -> Iterator[str]:
    for other in of_name.values():
        if other.name in family:
            yield from other.bases
        elif other.bases & family:
            yield other.name
