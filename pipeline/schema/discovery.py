"""Finds the methods, networks, metrics and partitions that a paper.yaml names, in pipeline/ and in papers'
folders.

A method is a file in pipeline/methods or in papers/<paper>/methods. In papers/<paper>/, the functions of
models.py are networks, those of metrics.py metrics, and those of figures.py figures. The classes of
partitions.py are kinds of partition, and the variables of data.py data sets.
"""

import ast
import dataclasses
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.errors import ParamError, cause
from pipeline.schema.checker import Spelling
from pipeline.schema.documents import ROOT, check_may_run, is_only_read, read_yaml, shorten
from pipeline.schema.partitions import KINDS, Partition, Pooled
from pipeline.source_code import Loader

# no federated method: listed with the others, neither marked nor ranked with them
CEILING = "centralised"
# where tuning looks, of every method
SPACES = "pipeline/methods/spaces.yaml"
# the same of a paper's own methods, in its folder, or of others otherwise than there
SPACES_OF_PAPER = "spaces.yaml"


def method_names(paper: str | None = None, root: Path = ROOT) -> list[str]:
    """Every method that has a file; with `paper`, also this paper's. What an editor or a disk of another
    system leaves there (`.#fedavg.py`, `._fedavg.py`) has no name that a method can have."""
    return sorted(
        {
            path.stem
            for folder in _folders(paper, root).values()
            for path in folder.glob("*.py")
            if path.stem != "base" and not Spelling().problem(path.stem) and path.is_file()
        }
    )


def method_file(name: str, paper: str | None = None, root: Path = ROOT) -> Path | None:
    """The method's file, the paper's before the common one; None where there is none."""
    module = method_module(name, paper, root)
    return _folders(paper, root)[module.rpartition(".")[0]] / f"{name}.py" if module else None


def method_module(name: str, paper: str | None = None, root: Path = ROOT) -> str | None:
    """The dotted name of the file's module: pipeline.methods.fedavg, papers.mine.methods.ours."""
    if name == "base" or Spelling().problem(name):
        return None
    # Asked some times of every cell: a path as text costs a tenth of a Path.
    if paper and os.path.isfile(f"{root}/papers/{paper}/methods/{name}.py"):
        return f"papers.{paper}.methods.{name}"
    return f"pipeline.methods.{name}" if os.path.isfile(f"{_home(root)}/{name}.py") else None


def _folders(paper: str | None, root: Path) -> dict[str, Path]:
    """package -> its folder."""
    of_paper = {f"papers.{paper}.methods": root / "papers" / paper / "methods"} if paper else {}
    return of_paper | {"pipeline.methods": Path(_home(root))}


def _home(root: Path) -> str:
    """The folder pipeline/methods; a root that has none, as in tests, uses this repository's."""
    folder = f"{root}/pipeline/methods"
    return folder if os.path.isdir(folder) else f"{ROOT}/pipeline/methods"


def spaces_file(algorithm: str, paper: str, root: Path = ROOT) -> str:
    """Where tuning looks for a method, a path from the root: the paper's file where that has a section
    for it, else the common one."""
    own = root / "papers" / paper / SPACES_OF_PAPER
    if own.is_file() and algorithm in read_yaml(own):
        return f"papers/{paper}/{SPACES_OF_PAPER}"
    return SPACES


def partition_kinds(paper: str, root: Path = ROOT) -> dict[str, type[Partition]]:
    """The kinds of partition that a paper can name: common ones, and its subclasses of Pooled."""
    file = root / "papers" / paper / "partitions.py"
    if not file.is_file():
        return KINDS
    if is_only_read(root):
        return KINDS | _outlines(file)
    module = load_module(f"papers.{paper}.partitions", file)
    of_paper = {
        value.kind: value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Pooled) and value.__module__ == module.__name__
        if isinstance(getattr(value, "kind", None), str)
    }
    if twice := sorted(of_paper.keys() & KINDS.keys()):
        raise ParamError(f"{shorten(file)}: {twice[0]!r} is a kind of all papers: give it another name")
    return KINDS | of_paper


def _outlines(file: Path) -> dict[str, type[Partition]]:
    """Stand-ins for the kinds of a file that is not run: with all keys of its classes, of any value."""
    lines = [
        ast.unparse(line)
        for node in _parsed(file).body
        if isinstance(node, ast.ClassDef)
        for line in node.body
        if isinstance(line, (ast.Assign, ast.AnnAssign))
    ]
    text = "\n".join(lines)
    keys = dict.fromkeys(re.findall(r"^(\w+):", text, re.M))
    fields = [(key, Any, dataclasses.field(default=None)) for key in keys]
    return {
        kind: dataclasses.make_dataclass(
            "Outline", fields, bases=(Pooled,), namespace={"kind": kind}, frozen=True
        )
        for kind in re.findall(r"^kind = '(\w+)'$", text, re.M)
    }


def functions(paper: str, module: str, root: Path = ROOT) -> frozenset[str]:
    """Public functions of papers/<paper>/<module>.py, listed without importing it or torch: of models.py the
    paper's networks, of metrics.py its metrics."""
    file = root / "papers" / paper / f"{module}.py"
    if not file.is_file():
        return frozenset()
    names = (node.name for node in _parsed(file).body if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if not name.startswith("_"))


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParamError(f"{shorten(file)}: {error}") from None


def load_module(name: str, file: Path) -> ModuleType:
    """A module of a paper's folder, which is no package: its name may hold what an import statement cannot.

    Raises ParamError naming file and line where it cannot be imported, and for a paper that nobody trusts
    yet."""
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    check_may_run(file)
    loader = Loader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ParamError(f"{shorten(file)}: cannot be imported: {cause(error)}") from error
    return module
