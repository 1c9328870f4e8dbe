"""One file per method. A method's name is its file's name."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from pipeline.errors import ParamError, unknown
from pipeline.methods.base import Method
from pipeline.schema import ROOT, check, method_file, method_module, method_names, shorten


def names() -> list[str]:
    """Every method that has a file here."""
    return method_names()


def load(algorithm: str, hyper: dict, where: str, paper: str | None = None, root: Path = ROOT) -> Method:
    """The method, common to all papers or this paper's own, with its hyper-parameters checked; `where` (file
    and key) begins every error."""
    file, name = method_file(algorithm, paper, root), method_module(algorithm, paper, root)
    if file is None or name is None:
        raise ParamError(f"{where}: {unknown('method', algorithm, method_names(paper, root))}")
    module = importlib.import_module(name) if name.startswith("pipeline.") else _imported(name, file)
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
    return check(kind, hyper, where)


def _imported(name: str, file: Path) -> ModuleType:
    """A module of a paper's folder, which is no package: its name may hold what an import statement
    cannot."""
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
