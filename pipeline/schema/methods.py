"""Where methods are defined: in a file of pipeline/methods, or of the folder methods/ of the one paper that
uses it."""

from pathlib import Path

from pipeline.schema.checker import Spelling
from pipeline.schema.loader import ROOT

CEILING = "centralised"  # no federated method: shown with the others, neither marked nor ranked with them
SPACES = "pipeline/methods/spaces.yaml"  # where tuning looks, of every method


def method_names(paper: str | None = None, root: Path = ROOT) -> list[str]:
    """Every method that has a file; with `paper`, also this paper's own. What an editor or a disk of another
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
    """The method's file, the paper's own before the common one; None where there is none."""
    module = method_module(name, paper, root)
    return _folders(paper, root)[module.rpartition(".")[0]] / f"{name}.py" if module else None


def method_module(name: str, paper: str | None = None, root: Path = ROOT) -> str | None:
    """The dotted name of the file's module: pipeline.methods.fedavg, papers.mine.methods.ours."""
    known = name in method_names(paper, root)
    return next(
        (
            f"{package}.{name}"
            for package, folder in _folders(paper, root).items()
            if known and (folder / f"{name}.py").is_file()
        ),
        None,
    )


def _folders(paper: str | None, root: Path) -> dict[str, Path]:
    """package -> its folder; a root without pipeline/methods, as in tests, uses this repository's."""
    own = {f"papers.{paper}.methods": root / "papers" / paper / "methods"} if paper else {}
    home = root if (root / "pipeline" / "methods").is_dir() else ROOT
    return own | {"pipeline.methods": home / "pipeline" / "methods"}
