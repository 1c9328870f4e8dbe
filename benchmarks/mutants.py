"""Plant faults in modules, one at a time, and see which of them the tests notice.

    export PYTHONPATH=.:tests
    python benchmarks/mutants.py pipeline.methods.moon pipeline.cells.results --count 4
    python benchmarks/mutants.py pipeline.methods.moon:63

A fault is one small change of the code as it runs; no file is touched. Tests are collected once;
for each fault a process is forked from there, gets the changed functions, and runs the tests that concern the
module until the first one fails or the time is over. These are the tests of the module's own file and then of
the files that import it, the quickest first. Tests that take long, and those that run commands as processes
of their own, are left out. With --tests, those that are named run instead, whatever they take:

    python benchmarks/mutants.py pipeline.clusters.order --tests tests/clusters/test_clusters.py

benchmarks/mutants.csv gets a line for each fault. A line holds as long as the definition with the fault
stays as it was; faults with such a line are not run again, so an interrupted run goes on where it was.
"""

import argparse
import ast
import contextlib
import copy
import csv
import fcntl
import gc
import hashlib
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

import kinds
import warm

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "benchmarks" / "mutants.csv"
# What each test takes, measured once: a file that may be deleted.
SECONDS = ROOT / ".pytest_cache" / "mutants.json"
# What a fault is. `place` is its number within the definition, `digest` that of the definition's text.
IDENTITY = ["module", "definition", "digest", "place", "after"]
# noticed_by: the test that failed first. note: by hand, why a fault that nothing noticed changes nothing or,
# after `OPEN`, why no test notices it yet.
OPEN = "open: "
COLUMNS = [
    "module",
    "line",
    "column",
    "definition",
    "digest",
    "place",
    "before",
    "after",
    "outcome",
    "noticed_by",
    "note",
]
# The characters of a statement that are listed.
LISTED = 90
# pytest's arguments beside the files.
OPTIONS = [
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
]
# ... and where the tests are not named.
QUICK = ["-m", "not rest"]
# Imported once, before processes fork: what takes seconds and is not the project's.
LARGE = [
    "pytest",
    "torch",
    "torchvision",
    "pandas",
    "scipy.stats",
    "scipy.optimize",
    "sklearn",
    "yaml",
    "jinja2",
]
# Processor seconds: of one test, of all tests that are run for a fault, and beyond these until it is late.
LONGEST_TEST = 6.0
LONGEST_SELECTION = 20.0
GRACE = 20
# Seconds without a sign of life after which a fault is late.
PATIENCE = 60
# The same while tests are measured.
LONGEST_WAIT = 0
# Files of tests that import a module and are run beside its own, and processor seconds to measure the tests of  # noqa: E501
# a file.
IMPORTERS = 3
LONGEST_FILE = 30
# Such tests run commands in processes, which do not have the fault.
OUTSIDE = {"made_once", "browser"}
# Bytes that a process may write before they are read.
PIPE = 2**20
# Exit code of a process whose fault is none of a function: the module has to be imported anew.
ANEW = 77
# What stands in an operator's place.
PAIRS = [
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.And, ast.Or),
]
OTHER = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])} | {ast.Pow: ast.Mult}
Row = dict[str, str]


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        yield ast.Compare(node.left, [OTHER[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER:
        yield ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(OTHER[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.If) and isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
        yield ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr | ast.AugAssign | ast.Raise):
        yield ast.Pass()
    elif isinstance(node, ast.Call):
        yield from changed_arguments(node)


def changed_arguments(call: ast.Call) -> Iterator[ast.Call]:
    """A call with its first two arguments exchanged, and with each named argument left out."""
    starred = any(isinstance(argument, ast.Starred) for argument in call.args[:2])
    if len(call.args) > 1 and not starred:
        yield ast.Call(call.func, [call.args[1], call.args[0], *call.args[2:]], call.keywords)
    for number, keyword in enumerate(call.keywords):
        if keyword.arg is not None:
            others = call.keywords[:number] + call.keywords[number + 1 :]
            yield ast.Call(call.func, call.args, others)


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """(parent, field, index) of every node that may be changed: not of annotations and documentation."""
    parents = deque([tree])
    while parents:
        parent = parents.popleft()
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns"):
                continue
            for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                if isinstance(node, ast.AST) and not text:
                    parents.append(node)
                    yield parent, field, index


def node_at(parent: ast.AST, field: str, index: int | None) -> ast.AST:
    return getattr(parent, field) if index is None else getattr(parent, field)[index]


def written(node: ast.AST) -> str:
    """The beginning of a node as source; of a condition its head."""
    return ast.unparse(node).splitlines()[0][:LISTED]


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Name and node of what a module defines: functions and methods, and each other statement of the module
    or of a class by what it begins with."""
    for statement in getattr(tree, "body", []):
        if isinstance(statement, ast.ClassDef):
            yield from definitions(statement, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + statement.name, statement
        else:
            yield f"{prefix}<{ast.unparse(statement).split()[0]}>", statement


def faults(tree: ast.Module) -> list[tuple[Row, int, ast.AST]]:
    """Every fault: what it is, the number of its place in the module, and what stands there instead."""
    numbers = {id(node_at(*place)): number for number, place in enumerate(places(tree))}
    found = []
    for name, definition in definitions(tree):
        digest = hashlib.sha256(ast.unparse(definition).encode()).hexdigest()[:12]
        inner = [definition, *(node_at(*place) for place in places(definition))]
        for place, node in enumerate(inner):
            if id(node) not in numbers:  # a text
                continue
            for changed in changes(node):
                about = {
                    "line": str(node.lineno),
                    "column": str(node.col_offset),
                    "definition": name,
                    "digest": digest,
                    "place": str(place),
                    "before": written(node),
                    "after": written(changed),
                }
                found.append((about, numbers[id(node)], changed))
    return found


def planted(tree: ast.Module, number: int, changed: ast.AST) -> ast.Module:
    """A copy of a module with the fault in its place."""
    whole = copy.deepcopy(tree)
    parent, field, index = list(places(whole))[number]
    new = ast.copy_location(copy.deepcopy(changed), node_at(parent, field, index))
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new
    return ast.fix_missing_locations(whole)


def module_path(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# Which tests concern a module


def imported(path: Path) -> set[str]:
    """The modules that a file imports, and the names that it imports from them as if they were modules."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@cache
def imports_of(pattern: str) -> dict[Path, set[str]]:
    """What each file that matches imports."""
    return {path: imported(path) for path in sorted(ROOT.glob(pattern))}


def named(path: Path) -> str:
    """The module that a file is."""
    return str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")


@cache
def files_of(module: str) -> list[str]:
    """The files of tests that concern a module: its own before those that import it or, where there are none,
    that import a module which does."""
    *packages, name = module.split(".")[1:]
    own = Path("tests", *packages[:1], f"test_{name.lstrip('_')}.py")
    tests = {
        path: names for path, names in imports_of("tests/*/test_*.py").items() if path.stem not in kinds.REST
    }
    tests.pop(ROOT / own, None)
    others = [path for path, names in tests.items() if module in names]
    if not others:
        users = {named(path) for path, names in imports_of("pipeline/**/*.py").items() if module in names}
        others = [path for path, names in tests.items() if users & names]
    near = sorted(others, key=lambda path: (path.parent != ROOT / own.parent, path.stat().st_size))
    files = [str(path.relative_to(ROOT)) for path in near[:IMPORTERS]]
    return [str(own)] * (ROOT / own).exists() + files


# One process for one fault


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def name_of(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def alone(code: CodeType) -> CodeType:
    """A code without those of the functions in it."""
    return code.replace(co_consts=tuple(None if isinstance(c, CodeType) else c for c in code.co_consts))


def change_functions(
    functions: list[FunctionType], path: Path, before: ast.Module, after: ast.Module
) -> bool:
    """Give the functions of an imported module their changed code; False where that is not enough."""
    old = {name_of(code): code for code in codes(compile(before, str(path), "exec"))}
    new = {name_of(code): code for code in codes(compile(after, str(path), "exec"))}
    for name, code in old.items():
        function = code.co_flags & 1  # CO_OPTIMIZED: neither a module nor a class
        if not function and (name not in new or alone(code) != alone(new[name])):
            return False
    done = 0
    for function in functions:
        name = name_of(function.__code__)
        if name in new and new[name] != old[name]:
            if len(function.__code__.co_freevars) != len(new[name].co_freevars):
                return False
            function.__code__ = new[name]
            done += 1
    return done > 0


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, module: str, tree: ast.Module, path: Path):
        self.module = module
        self.code = compile(tree, str(path), "exec")
        self.path = path

    def find_spec(self, name, path=None, target=None):
        here = name == self.module
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if here else None

    def exec_module(self, module):
        exec(self.code, module.__dict__)


def in_a_process(work: Callable[[int], None], limit: int, patience: int = PATIENCE) -> tuple[str, str]:
    """Run `work` with a pipe to write to. Returns (killed, survived, late or anew, what was written): killed
    where it ended with an error, late where its time was over.

    limit     processor seconds
    patience  seconds that may pass beyond three times the limit
    """
    temporary = tempfile.mkdtemp(prefix="mutant-")
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(quiet, number)
        os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = temporary
        tempfile.tempdir = None
        with contextlib.suppress(BaseException):
            work(writing)
            os._exit(0)
        os._exit(1)
    os.close(writing)
    status = waited(child, patience + 3 * limit)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as pipe:
        said = (pipe.read() or b"").decode()
    shutil.rmtree(temporary, ignore_errors=True)
    if status is None or os.WIFSIGNALED(status):
        return "late", said
    code = os.waitstatus_to_exitcode(status)
    return {0: "survived", ANEW: "anew"}.get(code, "killed"), said


def waited(child: int, seconds: float) -> int | None:
    """The status of a process when it has ended; None if it had to be ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def processor_seconds() -> float:
    """Of this process and those that it began."""
    return sum(os.times()[:4])


class Tests:
    """A plugin of pytest: runs chosen tests in an order, and says which one failed first."""

    def __init__(self, chosen: list[str], pipe: int):
        self.rank = {name: number for number, name in enumerate(chosen)}
        self.pipe = pipe
        self.passed = 0

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid]
        )

    def pytest_runtest_logreport(self, report):
        if report.failed:
            os.write(self.pipe, report.nodeid.encode())
            os._exit(1)
        self.passed += report.when == "call" and report.passed


class Times:
    """A plugin of pytest: writes when a test begins and what it took."""

    def __init__(self, pipe: int):
        self.pipe = pipe
        self.failed = False

    def pytest_runtest_logstart(self, nodeid, location):
        self.began = processor_seconds()
        self.failed = False
        os.write(self.pipe, json.dumps([nodeid, None]).encode() + b"\n")

    def pytest_runtest_logreport(self, report):
        self.failed = self.failed or report.failed

    def pytest_runtest_logfinish(self, nodeid, location):
        took = None if self.failed else round(processor_seconds() - self.began, 3)
        os.write(self.pipe, json.dumps([nodeid, took]).encode() + b"\n")


def no_process():
    raise RuntimeError("a process of its own would not have the fault")


class Known:
    """What tests take: {file: {test: processor seconds, or None where it is too long or fails}}."""

    def __init__(self):
        self.files = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}

    def measure(self, session, file: str) -> None:
        """Run the tests of a file that were not run yet, without a fault."""
        items = [item for item in session.items if item.nodeid.split("::")[0] == file]
        items = [item for item in items if not OUTSIDE & set(item.fixturenames)]
        known = self.files.setdefault(file, {})
        left = LONGEST_FILE
        everything = session.items
        while remaining := [item for item in items if item.nodeid not in known]:

            def work(pipe: int, remaining=remaining):
                session.items = remaining
                warm.python = no_process
                session.config.pluginmanager.register(Times(pipe))
                run_loop(session)

            began = processor_seconds()
            said = in_a_process(work, int(left), LONGEST_WAIT)[1]
            known |= dict(json.loads(line) for line in said.splitlines())
            left -= processor_seconds() - began
            if not said or left < LONGEST_TEST:
                break
        session.items = everything
        SECONDS.parent.mkdir(exist_ok=True)
        SECONDS.write_text(json.dumps(self.files))

    def choice(self, module: str) -> list[str]:
        """The tests for a module, in the order in which they run."""
        chosen = []
        left = LONGEST_SELECTION
        files = files_of(module)
        *packages, name = module.split(".")[1:]
        whole = {file: sum(filter(None, self.files.get(file, {}).values())) for file in files}
        own = [file for file in files if Path(file).stem == f"test_{name.lstrip('_')}"]
        others = sorted((file for file in files if file not in own), key=whole.__getitem__)
        for file in own + others:
            for test, seconds in sorted(self.files.get(file, {}).items(), key=lambda one: one[1] or 0):
                if seconds is not None and seconds < LONGEST_TEST and seconds <= left:
                    chosen.append(test)
                    left -= seconds
        return chosen


def run_loop(session) -> None:
    """What pytest does with the collected tests."""
    from _pytest.main import pytest_runtestloop

    session.config.pluginmanager.unregister(name="terminalreporter")
    pytest_runtestloop(session)


class Campaign:
    """A plugin of pytest: forks a process for each fault where pytest would run the tests it collected."""

    def __init__(self, drawn: list[tuple[str, int | None]], given: argparse.Namespace, say: Callable):
        self.drawn = drawn
        self.given = given
        self.say = say
        self.functions: defaultdict[str, list[FunctionType]] = defaultdict(list)

    def pytest_runtestloop(self, session):
        known = Known()
        for thing in gc.get_objects():
            if type(thing) is FunctionType:
                self.functions[thing.__code__.co_filename].append(thing)
        gc.freeze()
        for module, line in self.drawn:
            self.faults_of(session, module, line, self.chosen(session, known, module))
        return True

    def chosen(self, session, known: Known, module: str) -> list[str]:
        """The tests for a module: those that are named, or those that concern it."""
        if self.given.tests:
            return [item.nodeid for item in session.items]
        for file in files_of(module):
            known.measure(session, file)
        return known.choice(module)

    def faults_of(self, session, module: str, line: int | None, chosen: list[str]) -> None:
        path = module_path(module)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        items = {item.nodeid: item for item in session.items}
        selected = [items[name] for name in chosen if name in items]
        limit = int(2 * LONGEST_SELECTION + GRACE)

        def work(pipe: int, changed: ast.Module | None):
            if changed is not None and not change_functions(self.functions[str(path)], path, tree, changed):
                os._exit(ANEW)
            session.items = selected
            tests = Tests(chosen, pipe)
            session.config.pluginmanager.register(tests)
            run_loop(session)
            if not tests.passed:  # all are skipped
                os._exit(1)

        result, by = in_a_process(lambda pipe: work(pipe, None), limit)
        self.say(f"{module}: {len(selected)} tests, without a fault {result} {by}")
        if not selected or result != "survived":
            return
        for about, number, new in drawn_faults(module, tree, line, self.given):
            changed = planted(tree, number, new)
            began = time.monotonic()
            result, by = in_a_process(lambda pipe, changed=changed: work(pipe, changed), limit)
            if result == "anew":
                self.say("  (imports the module anew)")
                result, by = imported_anew(module, path, changed, chosen, limit)
            write({"module": module, **about, "outcome": result, "noticed_by": by, "note": ""})
            where = f"{module}:{about['line']}"
            self.say(
                f"  {result:9}{time.monotonic() - began:5.1f} s  {where}  {about['before']}  ->  {about['after']}"  # noqa: E501
                f"  {by}"
            )


def imported_anew(module: str, path: Path, changed: ast.Module, chosen: list[str], limit: int):
    """The same in a process that forgets all of the project that was imported."""

    def work(pipe: int):
        for name in list(sys.modules):
            file = getattr(sys.modules[name], "__file__", None)
            if name != "__main__" and file and Path(file).is_relative_to(ROOT) and ".venv" not in file:
                del sys.modules[name]
        sys.meta_path.insert(0, Mutated(module, changed, path))
        files = list(dict.fromkeys(name.split("::")[0] for name in chosen))
        if import_module("pytest").main([*files, *OPTIONS, "-x"], plugins=[Tests(chosen, pipe)]):
            os._exit(1)

    return in_a_process(work, limit + GRACE)


# The list


def rows() -> list[Row]:
    if not LIST.exists():
        return []
    with LIST.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def identity(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in IDENTITY)


def save(listed: list[Row]) -> None:
    unfinished = LIST.with_suffix(".new")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(listed)
    unfinished.replace(LIST)


def write(row: Row) -> None:
    """Put a row into the list, in the place of the row of the same fault."""
    listed = rows()
    place = next((n for n, other in enumerate(listed) if identity(other) == identity(row)), len(listed))
    listed[place : place + 1] = [row]
    save(listed)


def counts(listed: list[Row]) -> dict[str, list[int]]:
    """Of each package: its faults, those that were noticed, those that change nothing, and the others that
    nothing noticed. Modules outside of a package are counted as `pipeline`."""
    numbers: dict[str, list[int]] = {}
    for row in sorted(listed, key=lambda row: package(row["module"])):
        count = numbers.setdefault(package(row["module"]), [0, 0, 0, 0])
        noticed = row["outcome"] != "survived"
        count[0] += 1
        count[1 if noticed else 2 if changes_nothing(row) else 3] += 1
    return numbers


def changes_nothing(row: Row) -> bool:
    """Whether nothing noticed a fault because there is nothing to notice."""
    return row["outcome"] == "survived" and bool(row["note"]) and not row["note"].startswith(OPEN)


def package(module: str) -> str:
    return ".".join(module.split(".")[:-1][:2])


def drop_changed(modules: list[str]) -> None:
    """Take the rows out whose definition is another by now."""
    kept = []
    for row in rows():
        if row["module"] in modules and identity(row) not in standing(row["module"]):
            continue
        kept.append(row)
    save(kept)


def standing(module: str) -> set[tuple[str, ...]]:
    """The faults that a module may have today."""
    path = module_path(module)
    if not path.exists():
        return set()
    found = faults(ast.parse(path.read_text(encoding="utf-8")))
    return {identity({"module": module, **about}) for about, _, _ in found}


def drawn_faults(module: str, tree: ast.Module, line: int | None, given: argparse.Namespace):
    """The faults to plant: those of a line, or as many as the list lacks, drawn by the seed."""
    found = faults(tree)
    listed = {identity(row): row for row in rows() if row["module"] == module}
    if line is not None:
        return [fault for fault in found if fault[0]["line"] == str(line)]
    random.Random(f"{module} {given.seed}").shuffle(found)
    open_rows = {key for key, row in listed.items() if row["outcome"] == "survived" and not row["note"]}
    if given.survivors:
        return [fault for fault in found if identity({"module": module, **fault[0]}) in open_rows]
    new = [fault for fault in found if identity({"module": module, **fault[0]}) not in listed]
    return new[: max(given.count - len(listed), 0)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="+", metavar="MODULE[:LINE]", help="with a line, each fault in it")
    parser.add_argument("--count", type=int, default=4, help="faults that each module has in the list")
    parser.add_argument("--seed", type=int, default=0, help="draws the faults")
    parser.add_argument("--survivors", action="store_true", help="plant those again that nothing noticed")
    parser.add_argument(
        "--tests", nargs="+", default=[], metavar="TEST", help="run these for every module, and no others"
    )
    given = parser.parse_args()
    drawn = []
    for name in given.modules:
        module, _, line = name.partition(":")
        drawn.append((module, int(line) if line else None))
    drop_changed([module for module, _ in drawn])
    for large in LARGE:
        import_module(large)
    screen = os.fdopen(os.dup(2), "w", buffering=1)
    campaign = Campaign(drawn, given, lambda text: print(text, file=screen))
    concerned = dict.fromkeys(file for module, _ in drawn for file in files_of(module))
    asked = [*given.tests, *OPTIONS] if given.tests else [*concerned, *OPTIONS, *QUICK]
    raise SystemExit(import_module("pytest").main(asked, plugins=[campaign]))


if __name__ == "__main__":
    main()
