"""Compute and store the data behind figures: t-SNE, class margins, logit correlations, corruption accuracy.

Training stores the representations of a cell, which are large and not in git. From them a table is computed
for each figure. The tables are small and lie in papers/<paper>/figures, so that every clone can draw them.

kind         what its table has
embedding    t-SNE of representations (FedCRL Fig. 4); their silhouette by label
sphere       directions and lengths of representations (FedLSA Fig. 2); their uniformity
margins      distances between the clients' class means, and between the vectors that the server sends (FedLSA
             Fig. 1)
matrix       cross-correlations of logits (FCCL+ Fig. 8)
transfer     t-SNE of one client's features on its domain and on another (FCCL+ Fig. 9)
corruptions  accuracy by corruption and severity (in no paper)
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

# Perplexity of t-SNE: about how many neighbours a point has. If there are few points, it is a third of their
# number.
PERPLEXITY = 30
# Seed of t-SNE, so that the same points give the same picture.
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
# Columns that may be text.
WORDS = ("label", "client", "images", "domain", "corruption")
# Lengths below this count as 0, and a column of logits that varies less as constant: they are divided by.
SMALLEST = 1e-12
# Name -> array, of what a training stage stores of a cell.
Arrays = Mapping[str, np.ndarray]


def table_path(figure: str, cell: Cell, root: Path = ROOT) -> Path:
    """The file of a cell's table: papers/<paper>/figures/<figure>-<scenario>-<method>.csv.

    A JSON file of the same name says what it is.

    figure  key of the figure in paper.yaml
    cell    that the table is of
    root    folder of the repository
    """
    return root / "papers" / cell.paper / "figures" / f"{figure}-{cell.scenario}-{cell.method}.csv"


def write(kind: str, figure: str, cell: Cell, table: pd.DataFrame, root: Path = ROOT) -> Path:
    """Store a table as CSV, and what it is as JSON, with the numbers in `table.attrs`.

    kind    a key of COLUMNS
    figure  key of the figure in paper.yaml
    cell    that the table is of
    table   with these columns
    root    folder of the repository

    Returns the path of the CSV.
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
    """The stored table of a cell, with an embedding's `silhouette` or a sphere's `uniformity` in its attrs.

    kind    a key of COLUMNS
    figure  key of the figure in paper.yaml
    cell    that the table is of
    root    folder of the repository

    Returns None if there is no table. Raises FedReproError for a file that is no such table.
    """
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
    """Compute and store what figures show.

    what  a cell (`fedcrl/mini/fedavg`); a scenario, whose data are shown (`fcclplus/mini`); or a paper
          (`fcclplus`), for all its cells and data sets that are on this machine
    only  key of the figure that is computed; None: all
    root  folder of the repository

    Returns the paths of the files. Raises FedReproError for what no figure of the paper shows, or for a cell
    without representations.
    """
    from pipeline.data import pictures  # with matplotlib, which reading a table does without

    name, _, asked = what.partition("/")
    paper = load_paper(name, root)
    written: list[Path] = []
    for key, figure in paper.figures.items():
        if only not in (None, key):
            continue
        named = dict.fromkeys([MINIATURE, *figure.scenarios])
        scenarios = [scenario for scenario in named if scenario in paper.scenarios]
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
    """Compute the table of a cell from its representations.

    kind  a key of KINDS
    cell  that was trained
    root  folder of the repository

    Raises FedReproError if the file of representations is missing, damaged or lacks what the kind needs.
    """
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
    """t-SNE of points in one thread, so that the number of cores does not change it.

    values  (n, d)

    Returns (n, 2).
    """
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
    """The margin of each class's prototype: its smallest L2 distance to another one.

    prototypes  (C, d), NaN rows for classes without a prototype

    Returns (C,), NaN for classes without a prototype or without another one.
    """
    distances = np.linalg.norm(prototypes[:, None] - prototypes[None], axis=2)
    distances[np.eye(len(prototypes), dtype=bool)] = np.inf
    least = np.where(np.isnan(distances), np.inf, distances).min(1)
    return np.where(np.isfinite(least) & ~np.isnan(prototypes).any(1), least, np.nan)


def margin_table(
    prototypes: np.ndarray, labels: np.ndarray, clients: np.ndarray, vectors: np.ndarray | None = None
) -> pd.DataFrame:
    """The margins of each class, a row for each label: the largest of a client's prototypes (`clients`), that
    of the mean prototypes over clients (`mean`), and that of the vectors that the server sends (`vectors`).

    The mean counts every client that has the class once, as FedProto's global prototypes do.

    prototypes  (m, d), a row for each client and class that it holds: the mean of the representations of its
                training images by its trained model (FedLSA Eq. 1 and Fig. 1)
    labels      (m,), the class of each row
    clients     (m,), the client of each row
    vectors     (C, d), row c is what the server sends for class c, NaN if that is nothing; None: it sends
                none
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
    """Margins of the prototypes of a cell's clients and server (FedLSA Fig. 1)."""
    prototypes = arrays["prototypes"].astype(np.float64)
    vectors = arrays["vectors"].astype(np.float64) if "vectors" in arrays else None
    return margin_table(prototypes, arrays["prototype_labels"], arrays["prototype_clients"], vectors)


def sphere_table(values: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> pd.DataFrame:
    """Representations as points in three dimensions, with their uniformity in the table's attrs.

    The direction of a point is that of the projection on the three right singular vectors with the largest
    singular values. Its distance from the origin is the representation's length divided by the mean length,
    so that representations of one length lie on the unit sphere.

    values   (n, d) representations
    labels   (n,) their classes
    clients  (n,) their clients
    """
    lengths = np.linalg.norm(values, axis=1)
    axes = np.linalg.svd(values, full_matrices=False)[2][:3]
    projected = values @ np.pad(axes, ((0, 3 - len(axes)), (0, 0))).T
    directions = projected / np.maximum(np.linalg.norm(projected, axis=1, keepdims=True), SMALLEST)
    distances = lengths / max(lengths.mean(), SMALLEST)
    x, y, z = (directions * distances[:, None]).T
    table = pd.DataFrame({"x": x, "y": y, "z": z, "label": labels, "client": clients})
    table.attrs["uniformity"] = uniformity(values)
    return table


def uniformity(values: np.ndarray) -> float:
    """How uniformly directions cover the sphere (Wang and Isola 2020); the lower, the more uniform.

    It is the logarithm of the mean of exp(-2 |u - v|^2) over all pairs of directions u, v.

    values  (n, d) representations, whose directions are meant
    """
    u = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), SMALLEST)
    from scipy.spatial.distance import pdist

    return float(np.log(np.exp(-2 * pdist(u, "sqeuclidean")).mean()))


def cross_correlation(logits: np.ndarray, consensus: np.ndarray) -> np.ndarray:
    """The matrix M of FCCL+ Eq. 1: Pearson's correlation of the columns of two arrays of logits.

    logits     (n images, C classes), of a client
    consensus  (n, C), the mean over clients

    Returns (C, C).
    """
    return _standardised(logits).T @ _standardised(consensus)


def _standardised(values: np.ndarray) -> np.ndarray:
    """The columns shifted to mean 0 and scaled to length 1; a constant column becomes 0."""
    centred = values - values.mean(0)
    return centred / np.maximum(np.linalg.norm(centred, axis=0), SMALLEST)


def _matrices(arrays: Arrays) -> pd.DataFrame:
    """Each client's cross-correlation with the mean logits of all clients (FCCL+ Fig. 8): on the public
    images (`public`) and, if they were stored, on the test images of the client's domain (`private`)."""
    public = arrays["logits"].astype(np.float64)
    if "names" in arrays:
        names = arrays["names"].tolist()
    else:
        names = [f"client {k}" for k in range(len(public))]
    # (which images, index of the client, logits of all clients on them)
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
    """t-SNE of the first client's features on images of its own domain, and another t-SNE on images of
    another domain (FCCL+ Fig. 9, M and U); `right` is 1 where the model's answer is the label."""
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
    """Accuracy by corruption and severity, mean over clients in percent, and the number of images."""
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
    """A cell's representations as points around the unit sphere (FedLSA Fig. 2)."""
    return sphere_table(arrays["values"].astype(np.float64), arrays["labels"], arrays["clients"])


# Kind -> (what is said of a file that lacks what it needs, the function that computes its table).
KINDS: dict[str, tuple[str, Callable[[Arrays], pd.DataFrame]]] = {
    "embedding": ("not representations", _embedding),
    "sphere": ("not representations", _sphere),
    "margins": ("no class means of the clients", _margins),
    "matrix": ("no logits of all clients on common images", _matrices),
    "transfer": ("no features of every client on every domain's images", _transfer),
    "corruptions": ("no answers of every client on corrupted images", _corruptions),
}
