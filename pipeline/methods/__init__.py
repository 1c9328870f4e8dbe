"""One file per method. A method's name is its file's name."""
import dataclasses
import importlib
from pathlib import Path

from pipeline.errors import ParamError, unknown
from pipeline.methods.base import Method
from pipeline.schema import check


def names() -> list[str]:
    """Every method that has a file here."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "base" and path.stem[0] != "_")


def load(algorithm: str, hyper: dict, where: str) -> Method:
    """The method with its hyper-parameters checked; `where` (file and key) begins every error."""
    if algorithm not in names():
        raise ParamError(f"{where}: {unknown('method', algorithm, names())}")
    module = importlib.import_module(f"pipeline.methods.{algorithm}")
    kind = next(value for value in vars(module).values()
                if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__)
    return check(kind, hyper, where)
