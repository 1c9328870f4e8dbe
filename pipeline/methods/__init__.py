"""One file for each method. The method is named like its file."""

import importlib
from pathlib import Path

from pipeline.errors import ParamError, unknown
from pipeline.methods.base import Method
from pipeline.schema import ROOT, check, load_module, method_names, shorten
from pipeline.schema.discovery import method_file, method_module


def load(algorithm: str, hyper: dict, where: str, paper: str | None = None, root: Path = ROOT) -> Method:
    """The method of this name, common to all papers or of this one, with its hyper-parameters checked.

    where: file and key with which errors begin
    """
    return check(find(algorithm, where, paper, root), hyper, where)


def find(algorithm: str, where: str, paper: str | None = None, root: Path = ROOT) -> type[Method]:
    """The class of a method; ParamError if there is none."""
    file, name = method_file(algorithm, paper, root), method_module(algorithm, paper, root)
    if file is None or name is None:
        raise ParamError(f"{where}: {unknown('method', algorithm, method_names(paper, root))}")
    module = importlib.import_module(name) if name.startswith("pipeline.") else load_module(name, file)
    kind = next(
        (
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Method) and value.__module__ == name
        ),
        None,
    )
    if kind is None:
        raise ParamError(f"{shorten(file)}: no class of pipeline.methods.base.Method in it")
    return kind
