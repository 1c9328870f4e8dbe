"""Every figure that is computed from representations or data, as a table or a picture that is kept in git."""
from pathlib import Path

from pipeline.errors import FedReproError
from pipeline.report import embedding, examples, geometry
from pipeline.report.pictures import examples_path
from pipeline.schema import MINIATURE, ROOT, Cell, Paper, load_paper


def update(what: str, root: Path = ROOT) -> list[Path]:
    """Compute and keep what figures show of a cell (`fedcrl/mini/fedavg`), or of every cell of a paper that has representations.

    FedReproError for a cell that no figure of its paper shows, or one without representations.
    """
    makers = {"embedding": lambda figure, cell, root: embedding.write(figure, cell, embedding.compute(cell, root), root),
              **{kind: geometry.maker(kind) for kind in geometry.COLUMNS}}
    name = what.partition("/")[0]
    paper = load_paper(name, root)
    wanted = [(key, figure.kind, cell) for key, figure in paper.figures.items() if figure.kind in makers for cell in embedding.cells(name, paper, figure)]
    if what == name:
        wanted = [(key, kind, cell) for key, kind, cell in wanted if (cell.representations(root)).exists()]
    elif not (wanted := [(key, kind, cell) for key, kind, cell in wanted if cell == Cell.parse(what)]):
        raise FedReproError(f"papers/{name}/paper.yaml: no figure of kind {' or '.join(map(repr, makers))} shows the cell {what}")
    written = [makers[kind](key, cell, root) for key, kind, cell in wanted]
    return written + (_examples(name, paper, root) if what == name else [])


def _examples(name: str, paper: Paper, root: Path) -> list[Path]:
    """Example images of the scenarios whose data are there."""
    wanted = [(key, scenario) for key, figure in paper.figures.items() if figure.kind == "images"
              for scenario in (MINIATURE, *figure.scenarios)]
    return [examples.write(examples_path(name, key, scenario, root), paper.scenarios[scenario], root)
            for key, scenario in wanted if (root / "data" / paper.scenarios[scenario].data.set).exists()]
