"""Plant faults in a module, one at a time, and see which of them its tests notice.

    export PYTHONPATH=.:tests
    python benchmarks/mutants.py pipeline.methods.moon=tests/methods/test_moon.py --count 20

A fault is one small change of the code as it runs; no file is touched. Each runs in a forked process that has
imported torch before, until the first test fails or its processor time is over. benchmarks/mutants.csv gets a
line for each; faults that stand there are not run again, so an interrupted run goes on where it was.
"""

import argparse
import ast
import contextlib
import copy
import csv
import importlib.abc
import importlib.util
import os
import random
import resource
import sys
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "benchmarks" / "mutants.csv"
# note: why a fault that nothing noticed changes nothing, written by hand.
COLUMNS = ["module", "line", "column", "before", "after", "outcome", "note"]
# The first failure is enough. Without conftest.py, whose imports take longer than the tests.
OPTIONS = ["-x", "-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "--durations=0"]
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
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr | ast.AugAssign | ast.Raise):
        yield ast.Pass()


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


def faults(tree: ast.Module) -> list[tuple[dict[str, object], int, ast.AST]]:
    """Every fault: what it is, the number of its place, and what stands there instead."""
    found = []
    for number, (parent, field, index) in enumerate(places(tree)):
        node = getattr(parent, field) if index is None else getattr(parent, field)[index]
        for changed in changes(node):
            texts = {"before": ast.unparse(node)[:90], "after": ast.unparse(changed)[:90]}
            found.append(({"line": node.lineno, "column": node.col_offset, **texts}, number, changed))
    return found


def planted(tree: ast.Module, number: int, changed: ast.AST) -> ast.Module:
    """A copy of a module with the fault in its place."""
    whole = copy.deepcopy(tree)
    parent, field, index = list(places(whole))[number]
    node = getattr(parent, field) if index is None else getattr(parent, field)[index]
    new = ast.copy_location(copy.deepcopy(changed), node)
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new
    return ast.fix_missing_locations(whole)


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, module: str, tree: ast.Module, path: Path):
        self.module, self.code = module, compile(tree, str(path), "exec")
        self.path = path

    def find_spec(self, name, path=None, target=None):
        here = name == self.module
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if here else None

    def exec_module(self, module):
        exec(self.code, module.__dict__)


def outcome(module: str, tree: ast.Module, path: Path, tests: list[str], limit: int) -> str:
    """killed, survived, or late (its processor time was over, which also shows)."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        sys.meta_path.insert(0, Mutated(module, tree, path))
        with contextlib.suppress(BaseException):
            failed = import_module("pytest").main([*OPTIONS, *tests])
            os._exit(int(failed))
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return "late"
    return "killed" if status else "survived"


def campaign(module: str, tests: list[str], count: int, seed: int, limit: int) -> None:
    """Run faults of one module that are not in the list yet, and add them to it. Raises SystemExit where the
    tests fail without a fault, as they do if they need a fixture of conftest.py."""
    path = ROOT / (module.replace(".", "/") + ".py")
    tree = ast.parse(path.read_text())
    if outcome(module, tree, path, tests, limit) != "survived":
        raise SystemExit(f"{module}: {', '.join(tests)} fail without a fault")
    found = faults(tree)
    known = {tuple(row[name] for name in COLUMNS[:-2]) for row in csv.DictReader(LIST.open())}
    for about, number, changed in random.Random(f"{module} {seed}").sample(found, min(count, len(found))):
        row = [module, *map(str, about.values())]
        if tuple(row) in known:
            continue
        row.append(outcome(module, planted(tree, number, changed), path, tests, limit))
        with LIST.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([*row, ""])
        if row[-1] == "survived":
            print(*row, sep="  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="+", metavar="MODULE=TESTS", help="files of tests between commas")
    parser.add_argument("--count", type=int, default=20, help="faults of each module, drawn by seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=60, help="processor seconds for one fault")
    given = parser.parse_args()
    for large in LARGE:
        import_module(large)
    if not LIST.exists():
        LIST.write_text(",".join(COLUMNS) + "\n")
    for pair in given.pairs:
        module, _, tests = pair.partition("=")
        campaign(module, tests.split(","), given.count, given.seed, given.limit)


if __name__ == "__main__":
    main()
