"""Compute and store data behind figures: t-SNE, class margins, logit correlations, corruption accuracy.

The tables are small and lie in papers/<paper>/figures, from where any clone draws them.

embedding    t-SNE of representations (FedCRL Fig. 4); their silhouette by label
sphere       their directions and lengths (FedLSA Fig. 2); their uniformity
margins      between the clients' class means, and what the server sends (FedLSA Fig. 1)
matrix       cross-correlations of logits (FCCL+ Fig. 8)
transfer     t-SNE of one client's features of its domain and of another (FCCL+ Fig. 9)
corruptions  accuracy by corruption and severity (not in a paper)
"""

import json
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import DAMAGED, FedReproError
from pipeline.files import write_json, write_text
from pipeline.schema import COMPUTED, MINIATURE, ROOT, Cell, load_paper, shorten
from pipeline.schema.paper import PICTURE

# Of t-SNE: about how many neighbours a point has. Fewer points have a third of their number.
PERPLEXITY = 30
# Of t-SNE: the same points give the same picture.
SEED = 0
# Kind -> columns of its table.
COLUMNS = {
    "embedding": ["x", "y", "label", "client"],
    "margins": ["label", "clients", "mean", "vectors"],
    "matrix": ["images", "client", "row", "column", "value"],
    "sphere": ["x", "y", "z", "label", "client"],
    "transfer": ["client", "domain", "x", "y", "label", "right"],
    "corruptions": ["corruption", "severity", "images", "accuracy"],
}
# Columns that need not be numbers.
WORDS = ("label", "client", "images", "domain", "corruption")
# A length below it counts as 0: a column of logits that varies less counts as constant.
SMALLEST = 1e-12
# What a training stage stores of a cell: name -> array.
Arrays = Mapping[str, np.ndarray]


def table_path(figure: str, cell: Cell, root: Path = ROOT) -> Path:
    """papers/<paper>/figures/<figure>-<scenario>-<method>.csv; a JSON of that name says what it is."""
    return root / "papers" / cell.paper / "figures" / f"{figure}-{cell.scenario}-{cell.method}.csv"


def write(kind: str, figure: str, cell: Cell, table: pd.DataFrame, root: Path = ROOT) -> Path:
    """Store a table as CSV, and what it is with the numbers in `table.attrs` as JSON; returns the CSV's path.

    kind    a key of COLUMNS
    figure  a figure's key in paper.yaml
    """
    path = table_path(figure, cell, root)
    if kind == "embedding":
        decimals = 3
        facts: dict[str, Any] = {"cell": str(cell), "points": len(table)}
    else:
        decimals = 4
        facts = {"cell": str(cell), "kind": kind, "rows": len(table)}
    write_text(path, table.to_csv(index=False, float_format=f"%.{decimals}f", lineterminator="\n"))
    numbers = {str(name): round(value, 4) for name, value in table.attrs.items()}
    write_json(path.with_suffix(".json"), facts | numbers)
    return path


def read(kind: str, figure: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame | None:
    """The stored table of a cell, with an embedding's `silhouette` and a sphere's `uniformity` in its attrs;
    None where there is none. FedReproError for a file that is not such a table."""
    path = table_path(figure, cell, root)
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path)
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        stored = (facts["cell"], facts.get("kind", "embedding"), facts.get("rows", facts.get("points")))
        if list(table.columns) != COLUMNS[kind] or stored != (str(cell), kind, len(table)):
            raise ValueError("columns or number of rows")
        for name in COLUMNS[kind]:
            if name not in WORDS:
                table[name] = pd.to_numeric(table[name])
        if "x" in table and not np.isfinite(table[["x", "y"]].to_numpy(float)).all():
            raise ValueError("points that are no numbers")
        known = ["silhouette"] if kind == "embedding" else facts.keys() & {"uniformity"}
        table.attrs = {name: float(facts[name]) for name in known}
        return table
    except DAMAGED as error:
        raise FedReproError(f"{shorten(path)}: not the {kind} of a cell with its JSON: {error}") from None


def update(what: str, only: str | None = None, root: Path = ROOT) -> list[Path]:
    """Compute and store what figures show of a cell (`fedcrl/mini/fedavg`), of a scenario's data
    (`fcclplus/mini`), or of every cell and data set of a paper that is there (`fcclplus`); returns the paths.

    only: key of the figure that is computed; None: all

    Raises FedReproError for what no figure of the paper shows, or for a cell without representations.
    """
    from pipeline.data import pictures  # with matplotlib, which reading a table does without

    name, _, asked = what.partition("/")
    paper = load_paper(name, root)
    written: list[Path] = []
    for key, figure in paper.figures.items():
        if only not in (None, key):
            continue
        scenarios = [
            scenario
            for scenario in dict.fromkeys([MINIATURE, *figure.scenarios])
            if scenario in paper.scenarios
        ]
        if figure.kind in COMPUTED:
            kind = str(figure.kind)
            for scenario, method in product(scenarios, figure.methods or paper.methods):
                cell = Cell(name, scenario, method)
                exists = cell.representations(root).exists()
                if asked == f"{scenario}/{method}" or (not asked and exists):
                    written.append(write(kind, key, cell, compute(kind, cell, root), root))
        elif figure.kind == PICTURE:
            for scenario in scenarios:
                settings = paper.scenarios[scenario]
                exists = (root / "data" / settings.data.set).exists()
                if asked == scenario or (not asked and exists):
                    path = pictures.examples_path(name, key, scenario, root)
                    written.append(pictures.write_examples(path, settings, root))
    if asked and not written:
        shows = only or "that is computed"
        raise FedReproError(f"papers/{name}/paper.yaml: no figure {shows} shows {what}")
    return written


def compute(kind: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame:
    """The table of a cell; FedReproError for a missing or broken file."""
    path = cell.representations(root)
    missing, table_of = KINDS[kind]
    try:
        with np.load(path) as file:
            arrays = dict(file)
        return table_of(arrays)
    except FileNotFoundError:
        text = f"{shorten(path)}: no such file; the training stage of the cell writes it"
        raise FedReproError(text) from None
    except (*DAMAGED, StopIteration) as error:
        raise FedReproError(f"{shorten(path)}: {missing}: {error}") from None


def plane(values: np.ndarray) -> np.ndarray:
    """(n, 2): t-SNE of values (n, d); one thread, so that the number of cores does not change it."""
    from sklearn.manifold import TSNE  # here, because a report draws what is stored without computing it
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
    with threadpool_limits(1):
        tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=SEED)
        return tsne.fit_transform(values)


def _embedding(arrays: Arrays) -> pd.DataFrame:
    """t-SNE of a cell's representations and their cosine silhouette by label (FedCRL Fig. 4)."""
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    values = arrays["values"].astype(np.float32)
    labels = arrays["labels"]
    x, y = plane(values).T
    table = pd.DataFrame({"x": x, "y": y, "label": labels, "client": arrays["clients"]})
    with threadpool_limits(1):
        table.attrs["silhouette"] = float(silhouette_score(values, labels, metric="cosine"))
    return table


def margins(prototypes: np.ndarray) -> np.ndarray:
    """(C,) margin of each of (C, d) prototypes: smallest L2 distance to another one; NaN rows are absent."""
    distances = np.linalg.norm(prototypes[:, None] - prototypes[None], axis=2)
    distances[np.eye(len(prototypes), dtype=bool)] = np.inf
    least = np.where(np.isnan(distances), np.inf, distances).min(1)
    return np.where(np.isfinite(least) & ~np.isnan(prototypes).any(1), least, np.nan)


def margin_table(
    prototypes: np.ndarray, labels: np.ndarray, clients: np.ndarray, vectors: np.ndarray | None = None
) -> pd.DataFrame:
    """Per label the largest margin that a client's prototypes have (`clients`), that of the means over
    clients (`mean`), and that of what the server sends (`vectors`; NaN where it sends nothing for the class).

    prototypes  (m, d), a row per client and class that it holds: the mean of its training images by its
                trained model (FedLSA Eq. 1 and Fig. 1)
    labels      (m,), the class of each row
    clients     (m,), the client of each row
    vectors     (C, d), row c is what the server sends for class c, NaN where unknown; None: nothing

    The mean over clients counts every client that has the class once, as FedProto's global prototypes do.
    """
    classes, places = np.unique(labels, return_inverse=True)
    owners, rows = np.unique(clients, return_inverse=True)
    # (clients, classes, d), NaN where a client has no image of a class
    by_client = np.full((len(owners), len(classes), prototypes.shape[1]), np.nan)
    by_client[rows, places] = prototypes

    margins_by_client = np.stack([margins(own) for own in by_client])
    largest = np.where(np.isnan(margins_by_client), -np.inf, margins_by_client).max(0)
    largest = np.where(np.isfinite(largest), largest, np.nan)
    of_means = margins(np.nanmean(by_client, 0))
    sent = np.full(len(classes), np.nan) if vectors is None else margins(vectors)[classes]
    return pd.DataFrame({"label": classes, "clients": largest, "mean": of_means, "vectors": sent})


def _margins(arrays: Arrays) -> pd.DataFrame:
    prototypes = arrays["prototypes"].astype(np.float64)
    vectors = arrays["vectors"].astype(np.float64) if "vectors" in arrays else None
    return margin_table(prototypes, arrays["prototype_labels"], arrays["prototype_clients"], vectors)


def sphere_table(values: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> pd.DataFrame:
    """Representations (n, d) in three dimensions: the direction is that of the projection on the three right
    singular vectors that reach farthest, the distance from the origin is the representation's length over the
    mean length, so that representations of one length lie on the unit sphere."""
    lengths = np.linalg.norm(values, axis=1)
    axes = np.linalg.svd(values, full_matrices=False)[2][:3]
    projected = values @ np.pad(axes, ((0, 3 - len(axes)), (0, 0))).T
    directions = projected / np.maximum(np.linalg.norm(projected, axis=1, keepdims=True), SMALLEST)
    x, y, z = (directions * (lengths / max(lengths.mean(), SMALLEST))[:, None]).T
    table = pd.DataFrame({"x": x, "y": y, "z": z, "label": labels, "client": clients})
    table.attrs["uniformity"] = uniformity(values)
    return table


def uniformity(values: np.ndarray) -> float:
    """ln of the mean of exp(-2 |u - v|^2) over all pairs of directions u, v of representations (n, d); Wang
    and Isola (2020). Lower: more uniform."""
    u = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), SMALLEST)
    from scipy.spatial.distance import pdist

    return float(np.log(np.exp(-2 * pdist(u, "sqeuclidean")).mean()))


def cross_correlation(logits: np.ndarray, consensus: np.ndarray) -> np.ndarray:
    """M (C, C) of FCCL+ Eq. 1: Pearson's correlation of the columns of logits and consensus, (n, C) both."""
    return _standardised(logits).T @ _standardised(consensus)


def _standardised(values: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and length 1; a constant one is 0."""
    centred = values - values.mean(0)
    return centred / np.maximum(np.linalg.norm(centred, axis=0), SMALLEST)


def _matrices(arrays: Arrays) -> pd.DataFrame:
    """Every client's M with the mean logits of all clients on the public images and, where the scenario has
    such, on the test images of the client's domain (`private`)."""
    public = arrays["logits"].astype(np.float64)
    names = arrays["names"].tolist() if "names" in arrays else [f"client {k}" for k in range(len(public))]
    # (which images, client, logits of all clients on them)
    parts = [("public", k, public) for k in range(len(names))]
    if "names" in arrays:
        domains = zip(range(len(names)), arrays["domains"].tolist(), strict=True)
        for k, domain in domains:
            parts.append(("private", k, arrays[f"private.{domain}"].astype(np.float64)))

    rows = []
    for images, k, logits in parts:
        matrix = cross_correlation(logits[k], logits.mean(0))
        for (row, column), value in np.ndenumerate(matrix):
            rows.append((images, names[k], row, column, value))
    return pd.DataFrame(rows, columns=COLUMNS["matrix"])


def _transfer(arrays: Arrays) -> pd.DataFrame:
    """t-SNE of the first client's features of its domain's images, and another one of the next domain's
    (the paper's M and U); `right` is 1 where the model's answer is the label."""
    client = str(arrays["names"][0])
    home = str(arrays["domains"][0])
    features = arrays[f"features.{client}"].astype(np.float32)
    answers = arrays[f"answers.{client}"]
    labels = arrays["cross_labels"]
    domains = arrays["cross_domains"]
    another = next(name for name in domains if name != home)
    parts = []
    for domain in (home, another):
        chosen = domains == domain
        x, y = plane(features[chosen]).T
        part = {
            "client": client,
            "domain": domain,
            "x": x,
            "y": y,
            "label": labels[chosen],
            "right": (answers == labels)[chosen].astype(int),
        }
        parts.append(pd.DataFrame(part))
    return pd.concat(parts, ignore_index=True)


def _corruptions(arrays: Arrays) -> pd.DataFrame:
    """Mean over clients, in percent, and the number of images."""
    images = pd.DataFrame(
        {
            "corruption": arrays["corruptions"],
            "severity": arrays["severities"],
            "accuracy": 100 * arrays["right"].mean(0),
        }
    )
    grouped = images.groupby(["corruption", "severity"])["accuracy"]
    return grouped.agg(images="size", accuracy="mean").reset_index()[COLUMNS["corruptions"]]


def _sphere(arrays: Arrays) -> pd.DataFrame:
    return sphere_table(arrays["values"].astype(np.float64), arrays["labels"], arrays["clients"])


# Kind -> (what is wrong with a file that lacks what it needs, how its table is computed).
KINDS: dict[str, tuple[str, Callable[[Arrays], pd.DataFrame]]] = {
    "embedding": ("not representations", _embedding),
    "sphere": ("not representations", _sphere),
    "margins": ("no class means of the clients", _margins),
    "matrix": ("no logits of all clients on common images", _matrices),
    "transfer": ("no features of every client on every domain's images", _transfer),
    "corruptions": ("no answers of every client on corrupted images", _corruptions),
}
