"""Turn a definition into its normal form: nested tuples that stay the same when a change affects no result.

`definitions` hashes these tuples to find out whether the code of a cell has changed.

The normal form ignores
- comments, positions, docstrings and imports;
- annotations of parameters, of returned values and of local variables;
- asserts and log lines whose arguments only look at values;
- the text of an error;
- the names of local variables and of some private methods (`private_methods`), and the order of methods.

Exceptions, which do count: an assert whose failure is caught, the text of an error that the module reads, and
arguments that may consume an iterator.

Names that are defined in this repository or imported from another package are numbered in the order in which
they appear; `definitions` adds what the numbers stand for. All else stays as written: names of parameters,
attributes and fields, defaults, decorators, numbers, texts, and the order of statements.
"""

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from pipeline.provenance.private_methods import FUNCTIONS, OWNERS

# Functions and methods that only look at their arguments. An assert or a log line that calls any other may
# act on something, and is kept.
LOOKS = frozenset(
    "len isinstance issubclass all any sum min max set sorted abs type hasattr callable str repr round list "
    "tuple int float join format shape size dim numel isfinite isnan item keys values ndim "
    "unknown shorten cause".split()
)
# Those of LOOKS that consume an iterator: afterwards it has no items left.
TAKES = frozenset("all any sum min max set sorted list tuple join".split())
# Functions and methods that return a container, whose items can be read again and again.
HOLDS = frozenset("keys values items list tuple set sorted dict range split".split())
# Functions that write a log line.
LOGS = frozenset(("print", "warn"))
# Names that usually hold a logger, and the methods of a logger that write a line.
LOGGERS = frozenset(("logging", "logger", "log", "warnings"))
LEVELS = frozenset("debug info warning warn error critical exception log".split())
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Functions that can read the names of local variables, which are therefore kept where one is called.
DYNAMIC = frozenset(("locals", "vars", "eval", "exec", "globals"))
# Errors that an `except` names to catch every error, also that of an assert.
CATCH_ALL = frozenset(("Exception", "BaseException"))
# name of a local variable -> what stands for it, for each function around a place, the outermost first
Scopes = list[dict[str, str]]
# Roles of a name: a logger of the logging module, or something of this repository that may act when called.
LOGGER = "logger"
ACTS = "acts"
# (name, the attributes that follow it) -> what they mean, and how many of the attributes belong to that
Meaning = Callable[[str, tuple[str, ...]], tuple[object, int] | None]
# what a name means -> LOGGER, ACTS or ""
Role = Callable[[object], str]


def normal_form(
    node: ast.AST,
    meaning: Meaning = lambda name, attributes: None,
    role: Role = lambda what: "",
    read: Collection[str] = (),
    strict: bool = True,
    unseen: Collection[str] = (),
) -> tuple[object, list]:
    """The normal form of a top-level statement, the same on every version of Python.

    node     the statement; its own name does not count if it begins with an underscore
    meaning  what a name means together with the attributes that follow it; None: no definition
    role     whether what a name means is a logger, or may act when it is called
    read     names of errors of which the module reads what they say (`read_errors`)
    strict   whether these count: asserts whose failure is caught, texts of errors in `read`, and arguments
             that may consume an iterator
    unseen   for a class, its private methods whose names do not count (`private_methods`)

    Returns the nested tuples, and the meanings of the names that are numbered in them: number 0 stands for
    the first meaning, and so on.
    """
    normal = _Normal(meaning, role, read, strict, unseen)
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name.startswith("_"):
        normal.private = node
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        node = ast.Assign(targets=[node.target], value=node.value)
    if isinstance(node, ast.Assign) and all(_is_private_name(target) for target in node.targets):
        return ("private", normal.form_of(node.value)), [*normal.seen]
    return normal.form_of(node), [*normal.seen]


def _is_private_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id.startswith("_")


class _Normal:
    """Makes the normal form of one statement; arguments as of `normal_form`."""

    def __init__(
        self, meaning: Meaning, role: Role, read: Collection[str], strict: bool, unseen: Collection[str]
    ):
        self.meaning = meaning
        self.role = role
        self.read = read if strict else ()
        self.strict = strict
        self.unseen = unseen
        # private method whose name does not count -> its number, in the order of their first mention
        self.methods: dict[str, int] = {}
        # how many of the blocks around the current place catch a failed assert
        self.caught = 0
        # local variables of the functions around the current place
        self.scopes: Scopes = []
        # whether the current place is in the body of a class
        self.in_class = False
        # meaning of a name -> its number
        self.seen: dict[object, int] = {}
        # the statement itself, if its name does not count
        self.private: ast.AST | None = None

    def form_of(self, node: object) -> object:
        """The normal form of a node, of each node of a list, or of a value, which is its own."""
        if isinstance(node, list):
            return tuple([self.form_of(item) for item in node])
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
            return self.form_of(ast.Assign(targets=[node.target], value=node.value))
        return self._plain(node)

    def _plain(self, node: ast.AST, left_out: Iterable[str] = ()) -> tuple:
        """The type of a node and the normal forms of its fields, without those that are `left_out`."""
        fields = []
        for name in node._fields:
            value = getattr(node, name, None)
            if name in left_out or value is None or value == []:
                continue
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                form: object = self._statements(value)
                if form == () and name != "body":
                    continue
            elif name == "names" and isinstance(node, ast.Nonlocal):
                form = tuple([self._local(variable) or variable for variable in value])
            elif name in ("name", "rest") and isinstance(value, str):
                form = self._local(value) or value
            elif name == "ctx":
                form = type(value).__name__
            else:
                form = self.form_of(value)
            fields.append((name, form))
        return type(node).__name__, tuple(fields)

    def _catching(self, node: ast.Try | ast.TryStar | ast.With) -> tuple:
        """A block that catches a failed assert: the asserts in its body count.

        The fields have the order of `_plain`, since names are numbered as they appear: those of a `with`
        come before its body, those of a `try` after it.
        """
        before: tuple = ()
        after: tuple = ()
        if isinstance(node, ast.With):
            _, before = self._plain(node, ("body",))
        self.caught += 1
        body = self._statements(node.body)
        self.caught -= 1
        if not isinstance(node, ast.With):
            _, after = self._plain(node, ("body",))
        return type(node).__name__, (*before, ("body", body), *after)

    def _statements(self, body: list[ast.stmt]) -> tuple:
        """The normal forms of the statements that may have an effect."""
        kept = [statement for statement in body if not self._only_looks(statement)]
        forms = [self.form_of(statement) for statement in kept]
        return tuple([form for form in forms if form not in ("pass", ("Pass", ()))])

    # -- names -----------------------------------------------------------------------------------------------

    def _local(self, name: str) -> str | None:
        """What stands for a local variable; None for another name."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def _reference(self, node: ast.Name | ast.Attribute) -> object:
        """`name.attribute...`: a local variable, a numbered definition, or another name."""
        chain: list[str] = []
        base: ast.AST = node
        while isinstance(base, ast.Attribute):
            chain.append(base.attr)
            base = base.value
        if not isinstance(base, ast.Name):
            assert isinstance(node, ast.Attribute)
            return "Attribute", self.form_of(node.value), node.attr, type(node.ctx).__name__
        attributes = tuple(reversed(chain))
        local = self._local(base.id)
        if local is not None:
            is_own = base.id in OWNERS and bool(attributes)
            if is_own and attributes[0] in self.unseen:
                attributes = (self._method(attributes[0]), *attributes[1:])
            return "local", local, attributes, type(node.ctx).__name__
        found = self.meaning(base.id, attributes)
        if found is None:
            return "name", base.id, attributes, type(node.ctx).__name__
        meant, used_attributes = found
        number = self.seen.setdefault(meant, len(self.seen))
        return "means", number, attributes[used_attributes:], type(node.ctx).__name__

    # -- nodes that have a scope of their own ----------------------------------------------------------------

    def _class(self, node: ast.ClassDef) -> tuple:
        body = [part for part in node.body if not _is_text(part) and not isinstance(part, ast.Pass)]
        functions = {part.name: part for part in body if isinstance(part, FUNCTIONS)}
        others = [part for part in body if not isinstance(part, FUNCTIONS)]

        # The order of methods does not count, unless the class's own statements use a method, or two methods
        # have the same name.
        run_by_class: list[ast.AST | None] = [*others]
        for function in functions.values():
            arguments = function.args
            run_by_class += [*function.decorator_list, *arguments.defaults, *arguments.kw_defaults]
        any_order = len(functions) + len(others) == len(body)
        any_order = any_order and not _names_used(run_by_class) & functions.keys()

        is_inner = bool(self.scopes) or self.in_class
        if not (any_order or is_inner):
            self.unseen = ()
        if any_order:
            unseen = () if is_inner else self.unseen
            body = [*others, *(functions[name] for name in sorted(functions) if name not in unseen)]

        scopes_around = self.scopes
        in_class_around = self.in_class
        self.in_class = True
        self.scopes = []  # without scopes, fields keep their annotations and names
        forms = []
        for part in body if is_inner else self._with_methods(body, functions):
            self.scopes = [*scopes_around] if isinstance(part, FUNCTIONS) else []
            if not self._only_looks(part):
                forms.append(self.form_of(part))
        self.scopes = scopes_around
        self.in_class = in_class_around

        left_out = ["body", "type_params"]
        if node is self.private:
            left_out.append("name")
        return "class", self._plain(node, left_out), tuple(forms)

    def _with_methods(self, body: list[ast.stmt], functions: Mapping[str, ast.stmt]) -> Iterator[ast.stmt]:
        """A class's statements, then the private methods whose names do not count, in the order in which the
        normal forms made so far mention them.

        The caller makes the normal form of each statement before it asks for the next one. That may add
        names to `methods` while this goes on.
        """
        yield from body
        done = 0
        while done < len(self.methods):
            name = [*self.methods][done]
            if name in functions:  # `syntax.pieces` gives classes without their methods
                yield functions[name]
            done += 1
        # Methods that are mentioned only by statements that are left out, such as an assert.
        for name in sorted(functions):
            if name in self.unseen and name not in self.methods:
                yield functions[name]

    def _method(self, name: str) -> str:
        """What stands for a private method whose name does not count."""
        return f"private {self.methods.setdefault(name, len(self.methods))}"

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple:
        around = self._plain(node, ("body", "args", "name", "returns", "type_comment", "type_params"))
        name = ""
        if node is not self.private:
            name = self._local(node.name) or node.name
        if not self.scopes and node.name in self.methods:
            name = self._method(node.name)
        has_docstring = bool(node.body) and _is_text(node.body[0])
        body = node.body[1:] if has_docstring else node.body
        return "function", name, around, self._scoped(node, body)

    def _scoped(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, body: list) -> tuple:
        """The parameters and the body of a function, whose local variables are numbered.

        body  the statements of a function, without its docstring; of a lambda ignored
        """
        arguments = self._arguments(node.args)
        parameters = _parameters(node.args)
        inside = [node.body] if isinstance(node, ast.Lambda) else node.body
        scope = {name: f"={name}" for name in parameters}
        if not _sees_names(inside):
            depth = len(self.scopes)
            for name in _bound(inside):
                if name not in parameters:
                    scope[name] = f"{depth}.{len(scope) - len(parameters)}"
        self.scopes.append(scope)
        form = self.form_of(node.body) if isinstance(node, ast.Lambda) else self._statements(body)
        self.scopes.pop()
        return arguments, form

    def _arguments(self, arguments: ast.arguments) -> tuple:
        """Names and defaults of parameters."""
        names = []
        for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
            names.append(tuple([argument.arg for argument in group]))
        rest = tuple([argument and argument.arg for argument in (arguments.vararg, arguments.kwarg)])
        return tuple(names), rest, self.form_of(arguments.defaults), self.form_of(arguments.kw_defaults)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> tuple:
        """A comprehension, whose variables are numbered. Its first iterable is outside of their scope."""
        generators = node.generators
        first_source = self.form_of(generators[0].iter)
        depth = len(self.scopes)
        scope: dict[str, str] = {}
        for generator in generators:
            for name in _bound([generator.target]):
                scope.setdefault(name, f"{depth}.{len(scope)}")
        self.scopes.append(scope)
        parts = []
        for generator in generators:
            source = first_source if generator is generators[0] else self.form_of(generator.iter)
            target = self.form_of(generator.target)
            parts.append((target, source, self.form_of(generator.ifs), generator.is_async))
        values = [self.form_of(getattr(node, name)) for name in node._fields if name != "generators"]
        self.scopes.pop()
        return type(node).__name__, tuple(values), tuple(parts)

    def _raise(self, node: ast.Raise) -> tuple:
        """A raised error, without its text if making the text only looks at values and nothing reads it."""
        error = node.exc
        if isinstance(error, ast.Call) and _last_name(error.func).endswith("Error") and _looks(error):
            if _last_name(error.func) not in self.read:
                return "raise", self.form_of(error.func)
        return self._plain(node)

    # -- statements that only look ---------------------------------------------------------------------------

    def _only_looks(self, node: ast.stmt) -> bool:
        """Whether a statement cannot affect a result: a text, an import, an assert, a log line."""
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
        """Whether the arguments of a call change nothing; if strict, not even an iterator."""
        return _looks(call) and not (self.strict and _takes(call))

    def _is_log(self, called: ast.expr) -> bool:
        """Whether a call of this function only writes a log line."""
        if isinstance(called, ast.Name):
            return called.id in LOGS and self._local(called.id) is None and self._role(called) != ACTS
        if not isinstance(called, ast.Attribute) or called.attr not in LEVELS:
            return False
        logger = called.value
        if isinstance(logger, ast.Call):
            is_get_logger = _last_name(logger.func) == "getLogger" and _looks(logger)
            return is_get_logger and self._role(logger.func) != ACTS
        role = self._role(logger)
        return role == LOGGER or role != ACTS and _last_name(logger) in LOGGERS

    def _role(self, node: ast.expr) -> str:
        """The role of `name.attribute...`; empty for a local variable and for any other expression."""
        chain: list[str] = []
        base = node
        while isinstance(base, ast.Attribute):
            chain.insert(0, base.attr)
            base = base.value
        if not isinstance(base, ast.Name) or self._local(base.id) is not None:
            return ""
        found = self.meaning(base.id, tuple(chain))
        if found is None:
            return ""
        meant, _ = found
        return self.role(meant)


def _parameters(arguments: ast.arguments) -> set[str]:
    """The names of a function's parameters."""
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += [rest for rest in (arguments.vararg, arguments.kwarg) if rest]
    return {parameter.arg for parameter in parameters}


def _names_used(parts: Iterable[ast.AST | None]) -> set[str]:
    """All names in these parts of a tree; None (a keyword-only parameter without default) is skipped."""
    names: set[str] = set()
    for part in parts:
        if part is not None:
            names |= {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
    return names


def _last_name(node: ast.AST) -> str:
    """`c` of `c` and of `a.b.c`; empty for another expression."""
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring or another constant alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _looks(call: ast.Call) -> bool:
    """Whether the arguments of a call change nothing; that they may consume an iterator is not looked at."""
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    for part in parts:
        for inner in ast.walk(part):
            if isinstance(inner, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
                return False
            if isinstance(inner, ast.Call) and not _is_look(inner):
                return False
    return True


def _is_look(call: ast.Call) -> bool:
    """Whether a call only looks: its name is in LOOKS, and it does not write into an argument `out`."""
    writes = any(keyword.arg == "out" for keyword in call.keywords)
    return _last_name(call.func) in LOOKS and not writes


def _takes(call: ast.Call) -> bool:
    """Whether the arguments of a call may consume an iterator.

    They may if they go through the items of a variable, or of what a function returns that is not in HOLDS.
    """
    taken: list[ast.expr] = []
    for part in (*call.args, *(keyword.value for keyword in call.keywords)):
        for inner in ast.walk(part):
            if isinstance(inner, ast.Call) and _takes_items(inner):
                taken += inner.args
            elif isinstance(inner, ast.Starred):
                taken.append(inner.value)
            elif isinstance(inner, COMPREHENSIONS):
                taken += [generator.iter for generator in inner.generators]
    return any(_may_be_iterator(source) for source in taken)


def _takes_items(call: ast.Call) -> bool:
    """Whether a call goes through the items of its argument.

    `list(a)` and `", ".join(a)` do; `max(a, b)` and a method such as `a.sum(dim)` do not.
    """
    name = _last_name(call.func)
    if isinstance(call.func, ast.Attribute):
        return name == "join"
    return name in TAKES and len(call.args) == 1


def _may_be_iterator(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _last_name(node.func) not in HOLDS
    return isinstance(node, ast.Name)


def _catches_asserts(node: ast.Try | ast.TryStar | ast.With) -> bool:
    """Whether a block catches the failure of an assert in it: `except AssertionError` or `suppress`."""
    caught: list[ast.expr] = []
    if isinstance(node, ast.With):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and _last_name(call.func) == "suppress":
                caught += call.args
    else:
        if any(handler.type is None for handler in node.handlers):
            return True
        caught += [handler.type for handler in node.handlers if handler.type is not None]
    return any(_last_name(error) in {"AssertionError", *CATCH_ALL} for error in _errors_in(caught))


def _errors_in(types: Iterable[ast.expr]) -> list[ast.expr]:
    """The errors of `except KeyError` and of `except (KeyError, ValueError)`."""
    errors: list[ast.expr] = []
    for caught in types:
        errors += caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return errors


def read_errors(tree: ast.AST) -> set[str]:
    """Names of the errors of which a module reads what they say.

    `except KeyError as error: return error.args` reads a KeyError. A handler that only raises, logs or
    asserts with the error does not read it, nor does a handler that ends by raising another error.

    tree  the parsed module
    """
    read: set[str] = set()
    for handler in ast.walk(tree):
        if not isinstance(handler, ast.ExceptHandler) or not handler.name or handler.type is None:
            continue
        goes_on = not isinstance(handler.body[-1], ast.Raise)
        if goes_on and any(_reads(statement, handler.name) for statement in handler.body):
            read |= {_last_name(error) for error in _errors_in([handler.type])}
    return read


def _reads(node: ast.AST, name: str) -> bool:
    """Whether a statement uses the error `name` other than to raise, assert or log it."""
    if isinstance(node, (ast.Raise, ast.Assert)):
        return False
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        if _last_name(node.value.func) in LOGS | LEVELS:
            return False
    if isinstance(node, ast.Name):
        return node.id == name
    return any(_reads(inner, name) for inner in ast.iter_child_nodes(node))


def _sees_names(body: Iterable[ast.AST]) -> bool:
    """Whether code may read the names of its local variables, such as by `locals()`."""
    return not _names_used(body).isdisjoint(DYNAMIC)


def _bound(body: Iterable[ast.AST]) -> list[str]:
    """The local variables that these statements bind, in the order of appearance.

    Variables of inner functions, lambdas and comprehensions are left out, and so are imported names.
    """
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

    imported: set[str] = set()
    for statement in body:
        look(statement)
        for node in ast.walk(statement):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imported |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return [name for name in bound if name not in outside and name not in imported]
