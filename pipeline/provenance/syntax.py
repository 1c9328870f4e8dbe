"""Parse a Python file for code digests: definitions, imports, names, and statements that run on import."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from pipeline.provenance.normal_form import read_errors
from pipeline.provenance.private_methods import Mentions, mentions_in

# Calls whose value a module may keep under a name without acting on anything else.
INERT = frozenset(
    "tuple frozenset set dict list sorted range fromkeys TypeVar NewType partial Path "
    "with_name compile sub split array".split()
)
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# What a value consists of that calls nothing.
CONSTANT = (
    *(ast.Constant, ast.Name, ast.expr_context, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
    *(ast.Tuple, ast.List, ast.Set, ast.Dict),
)
UNSEEN = frozenset(("import_module", "__import__", "eval", "exec"))  # calls that no digest can follow
# The piece of a module that acts when it is imported.
ON_IMPORT = "on import"


# name -> (module, attribute of it or None)
Imports = dict[str, tuple[str, str | None]]


class Facts(NamedTuple):
    """Of a definition's trees: names of attributes, modules that they may import, untraceable calls by line;
    of each tree what it imports, and its names with the attributes that follow (`a.b.c`: "a", ("b", "c"))."""

    attributes: frozenset[str]
    loads: list[str]
    unseen: list[tuple[str, int]]
    names: list[tuple[Imports, set[tuple[str, tuple[str, ...]]]]]


@dataclass
class Module:
    """The top level of a file: which statement defines a name, its imports, and what acts on import."""

    package: str
    nodes: dict[str, ast.stmt] = field(default_factory=dict)
    imports: Imports = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)
    # assignments of a call's value, which may act too
    calls: list[ast.stmt] = field(default_factory=list)
    # "Class.method" -> its statement
    methods: dict[str, ast.stmt] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)  # the modules that it may import
    stars: bool = False
    # definitions with decorators, in their order
    decorated: list[ast.stmt] = field(default_factory=list)
    # names of errors of which the module reads what they say
    read: set[str] = field(default_factory=set)
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))

    @cached_property
    def mentions(self) -> Mentions:
        """What it says of private names."""
        return mentions_in(self.tree)


@cache
def parsed(source: bytes, package: str, file: str) -> Module:
    tree = ast.parse(source, file)
    module = Module(package, read=read_errors(tree), tree=tree)
    for node in _one_by_one(tree.body):
        if isinstance(node, DOCUMENTED):
            module.nodes[node.name] = node
            module.decorated += [node] if node.decorator_list else []
            if isinstance(node, ast.ClassDef):
                module.methods |= {
                    f"{node.name}.{inner.name}": inner
                    for inner in node.body
                    if isinstance(inner, ast.FunctionDef)
                }
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and (names := _targets(node)):
            module.nodes |= dict.fromkeys(names, node)
            if isinstance(node.value, ast.Call) and _called(node.value) not in INERT and not is_logger(node):
                module.calls.append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module.imports |= _bound(node, package)
            module.loads += _loads(node, package)
            module.stars |= any(alias.name == "*" for alias in node.names)
        elif not _is_inert(node):
            module.effects.append(node)
    return module


def _one_by_one(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, of which `A, B = 1, 2` is two: the constants may be written in either way."""
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        value = getattr(node, "value", None)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and _is_apart(target, value):
            for name, of_name in zip(target.elts, value.elts):
                yield ast.copy_location(ast.Assign(targets=[name], value=of_name), node)
        else:
            yield node


def _is_apart(target: ast.Tuple, value: ast.Tuple) -> bool:
    """Whether each name of a tuple has a value of its own that uses none of the others, and calls nothing
    that may."""
    if any(not isinstance(one, ast.Name) for one in target.elts):
        return False
    if len(target.elts) != len(value.elts) or any(isinstance(one, ast.Starred) for one in value.elts):
        return False
    if not all(isinstance(inner, CONSTANT) for inner in ast.walk(value)):
        return False
    names = {one.id for one in target.elts if isinstance(one, ast.Name)}
    return not any(isinstance(inner, ast.Name) and inner.id in names for inner in ast.walk(value))


def is_logger(node: ast.AST | None) -> bool:
    """`LOG = logging.getLogger(__name__)`: a logger under a name."""
    value = getattr(node, "value", None)
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(value, ast.Call):
        return False
    plain = all(isinstance(one, (ast.Name, ast.Constant)) for one in value.args) and not value.keywords
    return plain and ast.unparse(value.func) == "logging.getLogger"


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


def pieces(name: str, nodes: list[ast.AST]) -> dict[str, list[ast.AST]]:
    """The statements of the definition `name`; of a class by method, "Class.method", and the rest of it."""
    if len(nodes) != 1 or not isinstance(nodes[0], ast.ClassDef):
        return {name: nodes}
    whole = nodes[0]
    methods = {node.name: node for node in whole.body if isinstance(node, ast.FunctionDef)}
    rest = [node for node in whole.body if node not in methods.values()]
    head = ast.ClassDef(whole.name, whole.bases, whole.keywords, rest, whole.decorator_list)
    parts: dict[str, list[ast.AST]] = {name: [head]}
    return parts | {f"{name}.{method}": [node] for method, node in methods.items()}


def facts_of(trees: list[ast.AST], package: str) -> Facts:
    facts = Facts(frozenset(), [], [], [])
    attributes: set[str] = set()
    for tree in trees:
        local: Imports = {}
        names: set[tuple[str, tuple[str, ...]]] = set()
        inner: set[ast.AST] = set()  # of `a.b.c`, which is one name
        for node in _nodes(tree):
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
            if isinstance(node, (ast.Attribute, ast.Name)) and node not in inner:
                base, following = _chain(node, inner)
                names |= {(base.id, following)} if isinstance(base, ast.Name) else set()
            elif isinstance(node, ast.Call) and (name := _called(node)) in UNSEEN:
                if isinstance(node.func, ast.Name) or name == "import_module":  # model.eval() is another eval
                    facts.unseen.append((name, node.lineno))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                local |= _bound(node, package)
                facts.loads.extend(_loads(node, package))
        facts.names.append((local, names))
    return facts._replace(attributes=frozenset(attributes))


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a tree as `ast.walk` has them, in half the time."""
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                nodes.append(value)
    return nodes


def _chain(node: ast.AST, inner: set[ast.AST]) -> tuple[ast.AST, tuple[str, ...]]:
    """What `base.attribute...` begins with, and the attributes; if that is a name, all joins `inner`."""
    nodes, following = [node], []
    while isinstance(node, ast.Attribute):
        following.append(node.attr)
        nodes.append(node := node.value)
    if isinstance(node, ast.Name):
        inner.update(nodes)
    return node, tuple(reversed(following))


def _loads(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The modules that an import may load: `from a import b` a, and b where it is one."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    else:
        for module, name in _bound(node, package).values():
            yield from (module, f"{module}.{name}")


def _bound(node: ast.Import | ast.ImportFrom, package: str) -> Imports:
    if isinstance(node, ast.Import):
        bound = ((alias.asname, alias.name, alias.name.split(".")[0]) for alias in node.names)
        return {name or first: (module if name else first, None) for name, module, first in bound}
    around = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
    source = ".".join([*around, *filter(None, [node.module])])
    return {alias.asname or alias.name: (source, alias.name) for alias in node.names}


def _is_inert(node: ast.stmt) -> bool:
    """A docstring or another constant, or what runs only when the file is called as a script."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
        return isinstance(node.test.left, ast.Name) and node.test.left.id == "__name__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
