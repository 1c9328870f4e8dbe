"""Normal form of a definition: its syntax tree as nested tuples, blind to what changes no result.

Left out or made alike: comments, positions, docstrings, annotations of parameters, of returned values and of
local variables, imports, asserts and log lines that only look, what an error says, names of local variables
and of private methods (`private_methods`), and the order of methods. These do count: an assert whose failure
is caught, an error's text that the module reads, and what may consume an iterator. Names of this repository
or of another package are numbered here, in the order of appearance; `definitions` adds what they stand for.
All else stays: names of parameters, attributes and fields, defaults, decorators, numbers, texts, the order
of statements.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from pipeline.provenance.private_methods import FUNCTIONS, OWNERS

# What only looks at its arguments: an assert or a log line with other calls may act, and is kept.
LOOKS = frozenset(
    "len isinstance issubclass all any sum min max set sorted abs type hasattr callable str repr round list "
    "tuple int float join format shape size dim numel isfinite isnan item keys values ndim "
    "unknown shorten cause".split()
)
# Of those, what takes all items of an iterator, which then has none left.
TAKES = frozenset("all any sum min max set sorted list tuple join".split())
# Gives a container, of which taking the items takes none away.
HOLDS = frozenset("keys values items list tuple set sorted dict range split".split())
LOGS = frozenset(("print", "warn"))
LOGGERS = frozenset(("logging", "logger", "log", "warnings"))
LEVELS = frozenset("debug info warning warn error critical exception log".split())
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DYNAMIC = frozenset(("locals", "vars", "eval", "exec", "globals"))  # calls that see names of variables
# name of a variable -> its number, of each function around a place; None: leave the names
Scopes = list[dict[str, str]]
# What a name stands for, in `normal_form`'s second view: a logger of the logging module, or a function or
# value of this repository that may do something.
LOGGER = "logger"
ACTS = "acts"
# An assert fails with this error, which these catch.
CATCH_ALL = frozenset(("Exception", "BaseException"))
# (name, attributes that follow) -> what stands for as many of them as have a meaning, and how many these are
Meaning = Callable[[str, tuple[str, ...]], tuple[object, int] | None]
# meaning of a name -> LOGGER, ACTS or nothing
Role = Callable[[object], str]


def normal_form(
    node: ast.AST,
    meaning: Meaning = lambda name, attributes: None,
    role: Role = lambda what: "",
    read: Collection[str] = (),
    strict: bool = True,
    unseen: Collection[str] = (),
) -> tuple[object, list]:
    """The tree of a top-level statement as nested tuples, on any Python alike, and what its numbers stand
    for. The names of private definitions, annotations and texts of modules are left out.

    role: of what a name stands for. read: names of errors whose values the module reads where it catches
    them. strict: whether caught asserts count, what such errors say, and what may take an iterator's items.
    unseen: of a class, the private methods whose names do not count (`private_methods`)
    """
    normal = _Normal(meaning, role, read, strict, unseen)
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name.startswith("_"):
        normal.private = node
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        node = ast.Assign(targets=[node.target], value=node.value)
    if isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id.startswith("_") for target in node.targets
    ):
        return ("private", normal.of(node.value)), [*normal.seen]
    return normal.of(node), [*normal.seen]


class _Normal:
    def __init__(
        self, meaning: Meaning, role: Role, read: Collection[str], strict: bool, unseen: Collection[str]
    ):
        self.meaning = meaning
        self.role = role
        self.read = read if strict else ()
        self.strict = strict
        self.unseen = unseen
        # private method whose name does not count -> its number, by where the class mentions it first
        self.methods: dict[str, int] = {}
        # how many blocks around a place catch a failed assert
        self.caught = 0
        self.scopes: Scopes = []
        # whether a place is in the body of a class
        self.in_class = False
        self.seen: dict[object, int] = {}
        # the definition itself, where its name does not count
        self.private: ast.AST | None = None

    def of(self, node: object) -> object:
        if isinstance(node, list):
            return tuple([self.of(item) for item in node])
        if not isinstance(node, ast.AST):
            return node
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._reference(node)
        if isinstance(node, ast.ClassDef):
            return self._class(node)
        if isinstance(node, FUNCTIONS):
            return self._function(node)
        if isinstance(node, ast.Lambda):
            return self._scoped(node, [])
        if isinstance(node, COMPREHENSIONS):
            return self._comprehension(node)
        if isinstance(node, ast.Raise):
            return self._raise(node)
        if self.strict and isinstance(node, (ast.Try, ast.TryStar, ast.With)) and _catches_asserts(node):
            return self._catching(node)
        if isinstance(node, ast.AnnAssign) and self.scopes:
            if node.value is None:
                return "pass"
            return self.of(ast.Assign(targets=[node.target], value=node.value))
        return self._plain(node)

    def _plain(self, node: ast.AST, leave: Iterable[str] = ()) -> tuple:
        """A node whose fields have their normal forms."""
        fields = []
        for name in node._fields:
            value = getattr(node, name, None)
            if name in leave or value is None or value == []:
                continue
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                form: object = self._statements(value)
                if form == () and name != "body":
                    continue
            elif name == "names" and isinstance(node, ast.Nonlocal):
                form = tuple([self._local(one) or one for one in value])
            elif name in ("name", "rest") and isinstance(value, str):
                form = self._local(value) or value
            elif name == "ctx":
                form = type(value).__name__
            else:
                form = self.of(value)
            fields.append((name, form))
        return type(node).__name__, tuple(fields)

    def _catching(self, node: ast.Try | ast.TryStar | ast.With) -> tuple:
        """A block in which a failed assert is no end: asserts count there. Its parts are in the order of
        `_plain`."""
        before = self._plain(node, ("body",))[1] if isinstance(node, ast.With) else ()
        self.caught += 1
        body = self._statements(node.body)
        self.caught -= 1
        after = () if isinstance(node, ast.With) else self._plain(node, ("body",))[1]
        return type(node).__name__, (*before, ("body", body), *after)

    def _statements(self, body: list[ast.stmt]) -> tuple:
        kept = [one for one in body if not self._only_looks(one)]
        forms = [self.of(one) for one in kept]
        return tuple([form for form in forms if form not in ("pass", ("Pass", ()))])

    # -- names -----------------------------------------------------------------------------------------------

    def _local(self, name: str) -> str | None:
        """What stands for a local variable; None for another name."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def _reference(self, node: ast.Name | ast.Attribute) -> object:
        chain: list[str] = []
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            chain.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            assert isinstance(node, ast.Attribute)
            return "Attribute", self.of(node.value), node.attr, type(node.ctx).__name__
        attributes = tuple(reversed(chain))
        local = self._local(base.id)
        if local is not None:
            if base.id in OWNERS and attributes[:1] and attributes[0] in self.unseen:
                attributes = (self._method(attributes[0]), *attributes[1:])
            return "local", local, attributes, type(node.ctx).__name__
        found = self.meaning(base.id, attributes)
        if found is None:
            return "name", base.id, attributes, type(node.ctx).__name__
        what, used = found
        number = self.seen.setdefault(what, len(self.seen))
        return "means", number, attributes[used:], type(node.ctx).__name__

    # -- what has names of its own ---------------------------------------------------------------------------

    def _class(self, node: ast.ClassDef) -> tuple:
        body = [one for one in node.body if not _is_text(one) and not isinstance(one, ast.Pass)]
        functions = {one.name: one for one in body if isinstance(one, FUNCTIONS)}
        others = [one for one in body if not isinstance(one, FUNCTIONS)]
        named = {name.id for one in others for name in ast.walk(one) if isinstance(name, ast.Name)}
        decorated = {
            name.id
            for one in functions.values()
            for part in (*one.decorator_list, *one.args.defaults, *one.args.kw_defaults)
            if part is not None
            for name in ast.walk(part)
            if isinstance(name, ast.Name)
        }
        apart = len(functions) + len(others) == len(body) and not (named | decorated) & functions.keys()
        within = bool(self.scopes) or self.in_class  # another definition
        if not (apart or within):
            self.unseen = ()
        if apart:
            unseen = () if within else self.unseen
            body = [*others, *(functions[name] for name in sorted(functions) if name not in unseen)]
        in_class, self.in_class = self.in_class, True
        scopes, self.scopes = self.scopes, []  # fields keep annotations and names
        form = []
        for one in body if within else self._with_methods(body, functions):
            self.scopes = [*scopes] if isinstance(one, FUNCTIONS) else []
            if not self._only_looks(one):
                form.append(self.of(one))
        self.scopes, self.in_class = scopes, in_class
        leave = ("body", "name", "type_params") if node is self.private else ("body", "type_params")
        return "class", self._plain(node, leave), tuple(form)

    def _with_methods(self, body: list[ast.stmt], functions: Mapping[str, ast.stmt]) -> Iterator[ast.stmt]:
        """A class's statements, then the private methods whose names do not count, in the order in which the
        forms of those before mention them."""
        yield from body
        done = 0
        while done < len(self.methods):
            name = [*self.methods][done]
            if name in functions:  # the head of a class has none
                yield functions[name]
            done += 1
        # those that only what is left out mentions
        yield from (
            functions[name] for name in sorted(functions) if name in self.unseen and name not in self.methods
        )

    def _method(self, name: str) -> str:
        """What stands for a private method whose name does not count."""
        return f"private {self.methods.setdefault(name, len(self.methods))}"

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple:
        around = self._plain(node, ("body", "args", "name", "returns", "type_comment", "type_params"))
        name = (self._local(node.name) or node.name) if node is not self.private else ""
        if not self.scopes and node.name in self.methods:
            name = self._method(node.name)
        body = node.body[1:] if node.body and _is_text(node.body[0]) else node.body
        return "function", name, around, self._scoped(node, body)

    def _scoped(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, body: list) -> tuple:
        arguments = self._arguments(node.args)
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        every += [one for one in (node.args.vararg, node.args.kwarg) if one]
        parameters = {one.arg for one in every}
        inside = [node.body] if isinstance(node, ast.Lambda) else node.body
        scope = {name: f"={name}" for name in parameters}
        if not _sees_names(inside):
            for name in _bound(inside):
                if name not in parameters:
                    depth = len(self.scopes)
                    scope[name] = f"{depth}.{len(scope) - len(parameters)}"
        self.scopes.append(scope)
        form = self.of(node.body) if isinstance(node, ast.Lambda) else self._statements(body)
        self.scopes.pop()
        return arguments, form

    def _arguments(self, arguments: ast.arguments) -> tuple:
        """Names and defaults of parameters."""
        groups = (arguments.posonlyargs, arguments.args, arguments.kwonlyargs)
        names = tuple([tuple([one.arg for one in group]) for group in groups])
        rest = tuple([one and one.arg for one in (arguments.vararg, arguments.kwarg)])
        return names, rest, self.of(arguments.defaults), self.of(arguments.kw_defaults)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> tuple:
        generators = node.generators
        first = self.of(generators[0].iter)
        depth, scope = len(self.scopes), dict[str, str]()
        for one in generators:
            for name in _bound([one.target]):
                scope.setdefault(name, f"{depth}.{len(scope)}")
        self.scopes.append(scope)
        parts = []
        for one in generators:
            source = first if one is generators[0] else self.of(one.iter)
            parts.append((self.of(one.target), source, self.of(one.ifs), one.is_async))
        values = [self.of(getattr(node, name)) for name in node._fields if name != "generators"]
        self.scopes.pop()
        return type(node).__name__, tuple(values), tuple(parts)

    def _raise(self, node: ast.Raise) -> tuple:
        """What an error says is left out, where saying it only looks."""
        error = node.exc
        if isinstance(error, ast.Call) and _last_name(error.func).endswith("Error") and _looks(error):
            if _last_name(error.func) not in self.read:
                return "raise", self.of(error.func)
        return self._plain(node)

    # -- what only looks -------------------------------------------------------------------------------------

    def _only_looks(self, node: ast.stmt) -> bool:
        """A statement without effect on a result: a text, an import, an assert, a log line."""
        if _is_text(node) or isinstance(node, (ast.Import, ast.ImportFrom)):
            return True
        if isinstance(node, ast.Assert):
            parts = [node.test] if node.msg is None else [node.test, node.msg]
            call = ast.Call(func=ast.Name("assert"), args=parts, keywords=[])
            return not self.caught and self._looks(call)
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            return False
        return self._is_log(node.value.func) and self._looks(node.value)

    def _looks(self, call: ast.Call) -> bool:
        """Do the arguments of a call act on nothing, not even on an iterator?"""
        return _looks(call) and not (self.strict and _takes(call))

    def _is_log(self, called: ast.expr) -> bool:
        """Whether a call of this writes a log line and does no more."""
        if isinstance(called, ast.Name):
            return called.id in LOGS and self._local(called.id) is None and self._role(called) != ACTS
        if not isinstance(called, ast.Attribute) or called.attr not in LEVELS:
            return False
        logger = called.value
        if isinstance(logger, ast.Call):
            of_module = _last_name(logger.func) == "getLogger" and _looks(logger)
            return of_module and self._role(logger.func) != ACTS
        role = self._role(logger)
        return role == LOGGER or role != ACTS and _last_name(logger) in LOGGERS

    def _role(self, node: ast.expr) -> str:
        """Of the name that an expression begins with; nothing for a local variable."""
        chain: list[str] = []
        base = node
        while isinstance(base, ast.Attribute):
            chain.insert(0, base.attr)
            base = base.value
        if not isinstance(base, ast.Name) or self._local(base.id) is not None:
            return ""
        found = self.meaning(base.id, tuple(chain))
        return "" if found is None else self.role(found[0])


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _is_text(node: ast.AST) -> bool:
    """A docstring or another text that stands for itself."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _looks(call: ast.Call) -> bool:
    """Do the arguments of a call act on nothing?"""
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    for part in parts:
        for inner in ast.walk(part):
            if isinstance(inner, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
                return False
            if isinstance(inner, ast.Call) and not _is_look(inner):
                return False
    return True


def _is_look(call: ast.Call) -> bool:
    """A call that only looks: of a name for that, and not one that writes into `out`."""
    writes = any(keyword.arg == "out" for keyword in call.keywords)
    return _last_name(call.func) in LOOKS and not writes


def _takes(call: ast.Call) -> bool:
    """May the arguments of a call take the items of an iterator? Where they are of a name or of a call that
    does not say that it is a container, they may."""
    taken: list[ast.expr] = []
    for part in (*call.args, *(keyword.value for keyword in call.keywords)):
        for inner in ast.walk(part):
            if isinstance(inner, ast.Call) and _takes_items(inner):
                taken += inner.args
            elif isinstance(inner, ast.Starred):
                taken.append(inner.value)
            elif isinstance(inner, COMPREHENSIONS):
                taken += [one.iter for one in inner.generators]
    return any(_may_be_iterator(one) for one in taken)


def _takes_items(call: ast.Call) -> bool:
    """`list(a)` and `", ".join(a)`, and neither `max(a, b)` nor a method such as `a.sum(dim)`."""
    name = _last_name(call.func)
    if isinstance(call.func, ast.Attribute):
        return name == "join"
    return name in TAKES and len(call.args) == 1


def _may_be_iterator(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _last_name(node.func) not in HOLDS
    return isinstance(node, ast.Name)


def _catches_asserts(node: ast.Try | ast.TryStar | ast.With) -> bool:
    """Whether a failed assert in the block is caught by it."""
    if isinstance(node, ast.With):
        calls = [one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call)]
        caught = [part for call in calls if _last_name(call.func) == "suppress" for part in call.args]
    else:
        if any(one.type is None for one in node.handlers):
            return True
        caught = [one.type for one in node.handlers if one.type is not None]
    return any(_last_name(name) in {"AssertionError", *CATCH_ALL} for name in _names_in(caught))


def _names_in(types: Iterable[ast.expr]) -> list[ast.AST]:
    return [part for one in types for part in (one.elts if isinstance(one, ast.Tuple) else [one])]


def read_errors(tree: ast.AST) -> set[str]:
    """Names of errors of which a module reads what they say: `except KeyError as error: return error.args`.
    What is only raised, logged or asserted again is not read, nor is what a handler makes of it that ends
    with another error."""
    read: set[str] = set()
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or not handler.name or handler.type is None:
            continue
        goes_on = not isinstance(handler.body[-1], ast.Raise)
        if goes_on and any(_reads(one, handler.name) for one in handler.body):
            read |= {_last_name(one) for one in _names_in([handler.type])}
    return read


def _reads(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.Raise, ast.Assert)):
        return False
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if _last_name(node.value.func) in LOGS | LEVELS:
            return False
    if isinstance(node, ast.Name):
        return node.id == name
    return any(_reads(inner, name) for inner in ast.iter_child_nodes(node))


def _sees_names(body: Iterable[ast.AST]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in DYNAMIC for part in body for one in ast.walk(part))


def _bound(body: Iterable[ast.AST]) -> list[str]:
    """The names that statements bind in their own scope, in the order of appearance; not those of imports."""
    bound: dict[str, None] = {}
    outside: set[str] = set()

    def look(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            bound[node.id] = None
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            outside.update(node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound[node.name] = None
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            bound[node.name] = None
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound[node.rest] = None
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            bound[node.name] = None
            for part in node.decorator_list:
                look(part)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, COMPREHENSIONS):
            for inner in ast.walk(node):
                if isinstance(inner, ast.NamedExpr):
                    look(inner.target)
            return
        for inner in ast.iter_child_nodes(node):
            look(inner)

    for one in body:
        look(one)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for part in body
        for one in ast.walk(part)
        if isinstance(one, (ast.Import, ast.ImportFrom))
        for alias in one.names
    }
    return [name for name in bound if name not in outside and name not in imported]
