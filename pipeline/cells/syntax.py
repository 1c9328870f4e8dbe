"""Parse a Python file for code digests: definitions, imports, names, and statements that run on import."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

# Calls whose value a module may keep under a name without acting on anything else.
INERT = frozenset(
    "tuple frozenset set dict list sorted range fromkeys TypeVar NewType partial Path "
    "with_name compile sub split array".split()
)
UNSEEN = frozenset(("import_module", "__import__", "eval", "exec"))  # calls that no digest can follow


class Facts(NamedTuple):
    """Of a definition's tree: names of attributes, modules that it may import, untraceable calls by line."""

    attributes: frozenset[str]
    loads: list[str]
    unseen: list[tuple[str, int]]


@dataclass
class Module:
    """The top level of a file: which statement defines a name, its imports, and what acts on import."""

    package: str
    nodes: dict[str, ast.stmt] = field(default_factory=dict)
    # bound name -> (module, attribute of it or None)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)
    # assignments of a call's value, which may act too
    calls: list[ast.stmt] = field(default_factory=list)
    # "Class.method" -> its statement
    methods: dict[str, ast.stmt] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)  # the modules that it may import
    stars: bool = False


@cache
def parsed(source: bytes, package: str, file: str) -> Module:
    module = Module(package)
    for node in ast.parse(source, file).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            module.nodes[node.name] = node
            if isinstance(node, ast.ClassDef):
                module.methods |= {
                    f"{node.name}.{inner.name}": inner
                    for inner in node.body
                    if isinstance(inner, ast.FunctionDef)
                }
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and (names := _targets(node)):
            module.nodes |= dict.fromkeys(names, node)
            if isinstance(node.value, ast.Call) and _called(node.value) not in INERT:
                module.calls.append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module.imports |= imports(node, package)
            module.loads += _loads(node, package)
            module.stars |= any(alias.name == "*" for alias in node.names)
        elif not _is_inert(node):
            module.effects.append(node)
    return module


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that an assignment gives; none where it changes something else, such as an attribute."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [
        item
        for target in targets
        for item in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])
    ]
    names = [item.id for item in flat if isinstance(item, ast.Name)]
    return names if len(names) == len(flat) else []


def _called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def facts_of(trees: list[ast.AST], package: str) -> Facts:
    attributes, unseen = set(), []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute):
            attributes.add(node.attr)
        elif isinstance(node, ast.Call) and (name := _called(node)) in UNSEEN:
            if isinstance(node.func, ast.Name) or name == "import_module":  # model.eval() is another eval
                unseen.append((name, node.lineno))
    return Facts(frozenset(attributes), [load for tree in trees for load in _loads(tree, package)], unseen)


def _loads(tree: ast.AST, package: str) -> Iterator[str]:
    """The modules that the imports in a tree may load: `from a import b` a, and b where it is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for module, name in imports(node, package).values():
                yield from (module, f"{module}.{name}")


def _is_inert(node: ast.stmt) -> bool:
    """A docstring or another constant, or what runs only when the file is called as a script."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
        return isinstance(node.test.left, ast.Name) and node.test.left.id == "__name__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def imports(tree: ast.AST, package: str) -> dict[str, tuple[str, str | None]]:
    """Bound name -> (module, attribute or None) of every import in a tree."""
    bound: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.split(".")[0]
                bound[alias.asname or name] = (name, None)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*around, *filter(None, [node.module])])
            bound |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return bound


def references(tree: ast.AST):
    """(name, attributes) of every name in a tree: `a.b.c` gives ("a", ("b", "c"))."""
    if isinstance(tree, ast.Attribute):
        chain, inner = [tree.attr], tree.value
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id, tuple(reversed(chain))
            return
    if isinstance(tree, ast.Name):
        yield tree.id, ()
    for child in ast.iter_child_nodes(tree):
        yield from references(child)


def meaning_of(node):
    """The tree as nested tuples without docstrings, positions and modules of imports, on any Python alike."""
    if isinstance(node, list):
        return tuple(meaning_of(item) for item in node)
    if not isinstance(node, ast.AST):
        return node
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return "import"
    fields = dict(ast.iter_fields(node))
    if (
        isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and ast.get_docstring(node, clean=False) is not None
    ):
        fields["body"] = fields["body"][1:]
    return (
        type(node).__name__,
        tuple((key, meaning_of(value)) for key, value in fields.items() if value not in (None, [])),
    )
