"""t-SNE of representations: computed once from a cell's representations, kept as a small CSV that any clone
can draw."""
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import FedReproError
from pipeline.files import write_json, write_text
from pipeline.schema import MINIATURE, ROOT, Cell, Figure, Paper, shorten

PERPLEXITY = 30
SEED = 0
COLUMNS = ["x", "y", "label", "client"]


@dataclass(frozen=True)
class Embedding:
    """Points in the plane (columns x, y, label, client) and the silhouette by label of the representations
    themselves."""
    points: pd.DataFrame
    silhouette: float


def cells(name: str, paper: Paper, figure: Figure) -> Iterator[Cell]:
    """The cells that a figure shows: the miniature's, then those of its scenarios."""
    for scenario in dict.fromkeys([MINIATURE, *figure.scenarios]):
        for method in figure.methods or paper.methods:
            yield Cell(name, scenario, method)


def compute(cell: Cell, root: Path = ROOT) -> Embedding:
    """t-SNE of a cell's representations and their cosine silhouette by label (FedCRL Fig. 4).

    One thread, so that the number of cores does not change the picture. FedReproError for a missing or broken
    file.
    """
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    values, labels, clients = representations(cell.representations(root))
    places = plane(values)
    with threadpool_limits(1):
        silhouette = float(silhouette_score(values, labels, metric="cosine"))
    return Embedding(
        pd.DataFrame({"x": places[:, 0], "y": places[:, 1], "label": labels, "client": clients}), silhouette
    )


def plane(values: np.ndarray) -> np.ndarray:
    """(n, 2): t-SNE of values (n, d), one thread."""
    from sklearn.manifold import TSNE  # here, because a report draws what is kept without computing it
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return TSNE(2, perplexity=min(PERPLEXITY, (len(values) - 1) / 3), init="pca", learning_rate="auto",
                    random_state=SEED).fit_transform(values)


def representations(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values (n, d) float32, labels (n,), clients (n,)) of a cell."""
    try:
        with np.load(path) as file:
            values, labels, clients = file["values"].astype(np.float32), file["labels"], file["clients"]
    except FileNotFoundError:
        raise FedReproError(
            f"{shorten(path)}: no such file; the training stage of the cell writes it"
        ) from None
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedReproError(f"{shorten(path)}: not representations: {error}") from None
    if values.ndim != 2 or not len(values) == len(labels) == len(clients) or not np.isfinite(values).all():
        raise FedReproError(
            f"{shorten(path)}: not representations: values {values.shape}, labels {labels.shape}, clients "
            f"{clients.shape}, or a value that is not finite"
        )
    if not 2 <= len(np.unique(labels)) < len(labels):
        raise FedReproError(
            f"{shorten(path)}: {len(labels)} points of {len(np.unique(labels))} labels cannot be told apart "
            "by label"
        )
    return values, labels, clients


# -- what is kept --------------------------------------------------------------------------------------------

def kept(figure: str, cell: Cell, root: Path = ROOT) -> Path:
    """papers/<paper>/figures/<figure>-<scenario>-<method>.csv; the JSON beside it holds the silhouette."""
    return root / "papers" / cell.paper / "figures" / f"{figure}-{cell.scenario}-{cell.method}.csv"


def write(figure: str, cell: Cell, found: Embedding, root: Path = ROOT) -> Path:
    """Keep an embedding as CSV (three decimals) and JSON; returns the CSV's path."""
    path = kept(figure, cell, root)
    write_text(path, found.points.to_csv(index=False, float_format="%.3f", lineterminator="\n"))
    write_json(
        path.with_suffix(".json"),
        {"cell": str(cell), "points": len(found.points), "silhouette": round(found.silhouette, 4)},
    )
    return path


def read(figure: str, cell: Cell, root: Path = ROOT) -> Embedding | None:
    """What is kept for a cell of a figure, None where nothing is; FedReproError for a file that is not such a
    table."""
    path = kept(figure, cell, root)
    if not path.exists():
        return None
    try:
        points = pd.read_csv(path).astype({"x": float, "y": float})
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if list(points.columns) != COLUMNS or facts["cell"] != str(cell) or facts["points"] != len(points):
            raise ValueError("columns or number of points")
        if not np.isfinite(points[["x", "y"]].to_numpy()).all():
            raise ValueError("points that are no numbers")
        return Embedding(points, float(facts["silhouette"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedReproError(f"{shorten(path)}: not an embedding with its JSON beside it: {error}") from None
