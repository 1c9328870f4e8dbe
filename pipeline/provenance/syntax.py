"""Parse a Python file for code digests: definitions, imports, names, and statements that run on import.

`definitions` asks `parsed` for the top level of each module, and `facts_of` for the names that a definition
uses. `changes` compares the `pieces` of a module today with those of an earlier commit.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

from pipeline.provenance.normal_form import read_errors
from pipeline.provenance.private_methods import Mentions, mentions_in

# Functions whose value a module may keep under a name without acting on anything else.
INERT = frozenset(
    "tuple frozenset set dict list sorted range fromkeys TypeVar NewType partial Path "
    "with_name compile sub split array".split()
)
# Statements that define a function or a class.
DOCUMENTED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Nodes of an expression that calls nothing.
CONSTANT = (
    *(ast.Constant, ast.Name, ast.expr_context, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
    *(ast.Tuple, ast.List, ast.Set, ast.Dict),
)
# Functions that import or run something that no digest can follow.
UNSEEN = frozenset(("import_module", "__import__", "eval", "exec"))
# Name of the piece of a module that runs when the module is imported.
ON_IMPORT = "on import"

# imported name -> (module, name in that module); the second is None for a module itself
Imports = dict[str, tuple[str, str | None]]


class Facts(NamedTuple):
    """What the trees of a definition use.

    attributes  names of all attributes
    loads       modules that they may import
    unseen      (function, line) of the calls in UNSEEN
    names       for each tree what it imports itself, and its names with the attributes that follow them:
                ("a", ("b", "c")) for `a.b.c`
    """

    attributes: frozenset[str]
    loads: list[str]
    unseen: list[tuple[str, int]]
    names: list[tuple[Imports, set[tuple[str, tuple[str, ...]]]]]


@dataclass
class Module:
    """The top level of a file.

    package    the package that relative imports start from
    nodes      name -> the statement that defines it
    imports    the names that it imports
    effects    statements that may act when the module is imported
    calls      assignments of what a function returns, which may act too
    methods    "Class.method" -> its statement
    loads      modules that it may import
    stars      whether it has a star import
    decorated  definitions with decorators, in their order
    read       names of errors of which the module reads what they say
    mentions   the private names that it mentions
    """

    package: str
    nodes: dict[str, ast.stmt] = field(default_factory=dict)
    imports: Imports = field(default_factory=dict)
    effects: list[ast.stmt] = field(default_factory=list)
    calls: list[ast.stmt] = field(default_factory=list)
    methods: dict[str, ast.stmt] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    stars: bool = False
    decorated: list[ast.stmt] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))

    @cached_property
    def mentions(self) -> Mentions:
        """The private names that the module mentions."""
        return mentions_in(self.tree)


@cache
def parsed(source: bytes, package: str, file: str) -> Module:
    """Parse a file.

    source   its bytes
    package  the package that its relative imports start from
    file     its name, for error messages

    Raises what `ast.parse` raises, such as SyntaxError.
    """
    tree = ast.parse(source, file)
    module = Module(package, read=read_errors(tree), tree=tree)
    for node in _single_assignments(tree.body):
        names = _targets(node) if isinstance(node, (ast.Assign, ast.AnnAssign)) else []
        if isinstance(node, DOCUMENTED):
            module.nodes[node.name] = node
            if node.decorator_list:
                module.decorated.append(node)
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef):
                        module.methods[f"{node.name}.{inner.name}"] = inner
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and names:
            module.nodes |= dict.fromkeys(names, node)
            if isinstance(node.value, ast.Call) and _called(node.value) not in INERT and not is_logger(node):
                module.calls.append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module.imports |= _bound(node, package)
            module.loads += _loads(node, package)
            module.stars |= any(alias.name == "*" for alias in node.names)
        elif not _is_inert(node, module.imports):
            module.effects.append(node)
    return module


def _single_assignments(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, with `A, B = 1, 2` as two of them: constants may be written either way."""
    for node in body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        value = getattr(node, "value", None)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and _is_divisible(target, value):
            for name, value_of_name in zip(target.elts, value.elts):
                yield ast.copy_location(ast.Assign(targets=[name], value=value_of_name), node)
        else:
            yield node


def _is_divisible(target: ast.Tuple, value: ast.Tuple) -> bool:
    """Whether `target = value` is the same as one assignment for each name: as many values as names, and no
    value that calls anything or uses one of these names."""
    if any(not isinstance(item, ast.Name) for item in target.elts):
        return False
    if len(target.elts) != len(value.elts) or any(isinstance(item, ast.Starred) for item in value.elts):
        return False
    if not all(isinstance(inner, CONSTANT) for inner in ast.walk(value)):
        return False
    names = {item.id for item in target.elts if isinstance(item, ast.Name)}
    return not any(isinstance(inner, ast.Name) and inner.id in names for inner in ast.walk(value))


def is_logger(node: ast.AST | None) -> bool:
    """Whether a statement makes a logger, as `LOG = logging.getLogger(__name__)`."""
    value = getattr(node, "value", None)
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(value, ast.Call):
        return False
    is_plain = all(isinstance(argument, (ast.Name, ast.Constant)) for argument in value.args)
    return is_plain and not value.keywords and ast.unparse(value.func) == "logging.getLogger"


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names that an assignment defines; none if it changes something else, such as an attribute."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    items: list[ast.expr] = []
    for target in targets:
        items += target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    names = [item.id for item in items if isinstance(item, ast.Name)]
    return names if len(names) == len(items) else []


def _called(call: ast.Call) -> str:
    """`c` of the calls `c()` and `a.b.c()`."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def pieces(name: str, nodes: list[ast.AST]) -> dict[str, list[ast.AST]]:
    """Divide a definition into the parts whose changes are reported one by one.

    name   of the definition
    nodes  its statements

    Returns name of a part -> its statements: of a class each method as "Class.method" and the rest of it
    under its name; anything else as a whole.
    """
    if len(nodes) != 1 or not isinstance(nodes[0], ast.ClassDef):
        return {name: nodes}
    whole = nodes[0]
    methods = {node.name: node for node in whole.body if isinstance(node, ast.FunctionDef)}
    rest = [node for node in whole.body if node not in methods.values()]
    head = ast.ClassDef(whole.name, whole.bases, whole.keywords, rest, whole.decorator_list)
    parts: dict[str, list[ast.AST]] = {name: [head]}
    return parts | {f"{name}.{method}": [node] for method, node in methods.items()}


def facts_of(trees: list[ast.AST], package: str) -> Facts:
    """What trees use, of a module in `package`."""
    attributes: set[str] = set()
    loads: list[str] = []
    unseen: list[tuple[str, int]] = []
    names_of_trees: list[tuple[Imports, set[tuple[str, tuple[str, ...]]]]] = []
    for tree in trees:
        local: Imports = {}
        names: set[tuple[str, tuple[str, ...]]] = set()
        inner: set[ast.AST] = set()  # `a` and `a.b` of `a.b.c`, which is one name
        for node in _nodes(tree):
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
            if isinstance(node, (ast.Attribute, ast.Name)) and node not in inner:
                base, following = _chain(node, inner)
                if isinstance(base, ast.Name):
                    names.add((base.id, following))
            elif isinstance(node, ast.Call) and _called(node) in UNSEEN:
                # `eval(text)`, but not `model.eval()`, which is another function
                if isinstance(node.func, ast.Name) or _called(node) == "import_module":
                    unseen.append((_called(node), node.lineno))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                local |= _bound(node, package)
                loads.extend(_loads(node, package))
        names_of_trees.append((local, names))
    return Facts(frozenset(attributes), loads, unseen, names_of_trees)


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a tree, in the order of `ast.walk`, which takes twice the time."""
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
    """What `base.attribute...` begins with, and the attributes.

    node   the whole
    inner  if the base is a name, all nodes of the chain are added to this set
    """
    base = node
    nodes = [node]
    following: list[str] = []
    while isinstance(base, ast.Attribute):
        following.append(base.attr)
        base = base.value
        nodes.append(base)
    if isinstance(base, ast.Name):
        inner.update(nodes)
    return base, tuple(reversed(following))


def _loads(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """The modules that an import may load: for `from a import b` these are `a` and `a.b`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name
    else:
        for module, name in _bound(node, package).values():
            yield module
            yield f"{module}.{name}"


def _bound(node: ast.Import | ast.ImportFrom, package: str) -> Imports:
    """The names that an import binds in a module of `package`: `import a.b` binds `a`."""
    if isinstance(node, ast.Import):
        bound: Imports = {}
        for alias in node.names:
            if alias.asname:
                bound[alias.asname] = (alias.name, None)
            else:
                first = alias.name.split(".")[0]
                bound[first] = (first, None)
        return bound

    parts: list[str] = []
    if node.level:  # `from . import a`: the package itself; each further dot is one package up
        packages = package.split(".")
        parts += packages[: len(packages) + 1 - node.level]
    if node.module:
        parts.append(node.module)
    source = ".".join(parts)
    return {alias.asname or alias.name: (source, alias.name) for alias in node.names}


def _is_inert(node: ast.stmt, imports: Imports) -> bool:
    """Whether a statement does nothing on import: a docstring, `if __name__ == "__main__"`, or the imports
    that `if TYPE_CHECKING` gives to a type checker alone.

    node     the statement
    imports  the names that the module has imported before
    """
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and not node.orelse:
        return imports.get(node.test.id) == ("typing", "TYPE_CHECKING")
    if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
        return isinstance(node.test.left, ast.Name) and node.test.left.id == "__name__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
