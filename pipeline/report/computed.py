"""Every figure that is computed from representations or data, as a table or a picture that is kept in git."""
from pathlib import Path

from pipeline.errors import FedReproError
from pipeline.report import embedding, examples, geometry
from pipeline.report.pictures import examples_path
from pipeline.schema import COMPUTED, MINIATURE, PICTURE, ROOT, Cell, load_paper


def update(what: str, only: str | None = None, root: Path = ROOT) -> list[Path]:
    """Compute and keep what figures show of a cell (`fedcrl/mini/fedavg`), of a scenario's data
    (`fcclplus/mini`), or of every cell and data set of a paper that are there. `only`: of this figure alone.

    FedReproError for what no figure of the paper shows, or for a cell without representations.
    """
    name, _, at = what.partition("/")
    paper = load_paper(name, root)
    figures = {key: figure for key, figure in paper.figures.items() if only in (None, key)}
    cells = [(key, figure.kind, cell) for key, figure in figures.items() if figure.kind in COMPUTED
             for cell in embedding.cells(name, paper, figure)]
    pictures = [(key, scenario) for key, figure in figures.items() if figure.kind == PICTURE
                for scenario in [MINIATURE] * bool(paper.miniature) + figure.scenarios]
    if not at:
        cells = [one for one in cells if one[2].representations(root).exists()]
        pictures = [one for one in pictures if (root / "data" / paper.scenarios[one[1]].data.set).exists()]
    else:
        cells = [one for one in cells if str(one[2]) == what]
        pictures = [one for one in pictures if one[1] == at]
        if not cells and not pictures:
            raise FedReproError(
                f"papers/{name}/paper.yaml: no figure {only or 'that is computed'} shows {what}"
            )
    return [
        *(_computed(kind, key, cell, root) for key, kind, cell in cells),
        *(
            examples.write(examples_path(name, key, scenario, root), paper.scenarios[scenario], root)
            for key, scenario in pictures
        ),
    ]


def _computed(kind: str, key: str, cell: Cell, root: Path) -> Path:
    if kind == "embedding":
        return embedding.write(key, cell, embedding.compute(cell, root), root)
    return geometry.maker(kind)(key, cell, root)
