"""Where methods lie: a file of pipeline/methods, or of the methods/ of the one paper that has it for itself."""
from pathlib import Path

from pipeline.schema.loader import ROOT


def method_names(paper: str | None = None, root: Path = ROOT) -> list[str]:
    """Every method that there is a file of; with `paper` also those of this paper alone."""
    return sorted({path.stem for folder in _folders(paper, root) for path in folder.glob("*.py")
                   if path.stem != "base" and not path.stem.startswith("_")})


def method_file(name: str, paper: str | None = None, root: Path = ROOT) -> Path | None:
    """The method's file, the paper's own before the common one; None where there is none."""
    if name not in method_names(paper, root):
        return None
    return next(path for folder in _folders(paper, root) if (path := folder / f"{name}.py").is_file())


def method_module(name: str, paper: str | None = None, root: Path = ROOT) -> str | None:
    """The dotted name of the file's module: pipeline.methods.fedavg, papers.mine.methods.ours."""
    path = method_file(name, paper, root)
    return None if path is None else ".".join(path.relative_to(root).with_suffix("").parts)


def _folders(paper: str | None, root: Path) -> list[Path]:
    own = [root / "papers" / paper / "methods"] if paper else []
    return [*own, (root if (root / "pipeline").is_dir() else ROOT) / "pipeline" / "methods"]
