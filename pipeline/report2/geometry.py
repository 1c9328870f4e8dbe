"""What figures show of representations, logits, answers and images: computed once, stored small under
papers/<paper>/figures, drawn from there by any clone.

t-SNE of representations (embedding), places on the unit sphere (FedLSA Fig. 2), margins between class means
(FedLSA Fig. 1), cross-correlations of logits (FCCL+ Fig. 8), one client's t-SNE of its own and of another
domain (FCCL+ Fig. 9), accuracy by corruption (of RAHFL's cells; not in the paper), example images (FCCL+ Fig. 5).
"""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from pipeline.data import store
from pipeline.errors import FedReproError
from pipeline.files import write_bytes, write_json, write_text
from pipeline.schema import COMPUTED, MINIATURE, PICTURE, ROOT, Cell, Scenario, load_paper, shorten

PERPLEXITY = 30
SEED = 0
COLUMNS = {
    "embedding": ["x", "y", "label", "client"],
    "margins": ["label", "clients", "mean", "vectors"],
    "matrix": ["images", "client", "row", "column", "value"],
    "sphere": ["x", "y", "z", "label", "client"],
    "transfer": ["client", "domain", "x", "y", "label", "right"],
    "corruptions": ["corruption", "severity", "images", "accuracy"],
}
WORDS = ("label", "client", "images", "domain", "corruption")  # columns that need not be numbers
SMALLEST = 1e-12  # a column of logits that varies less counts as constant
Arrays = Mapping[str, np.ndarray]

# -- stored tables -------------------------------------------------------------------------------------------


def table_path(figure: str, cell: Cell, root: Path = ROOT) -> Path:
    """papers/<paper>/figures/<figure>-<scenario>-<method>.csv; a JSON of that name says what it is."""
    return root / "papers" / cell.paper / "figures" / f"{figure}-{cell.scenario}-{cell.method}.csv"


def write(kind: str, figure: str, cell: Cell, table: pd.DataFrame, root: Path = ROOT) -> Path:
    """Store a table as CSV (four decimals, an embedding's three) and JSON; returns the CSV's path.

    An embedding's silhouette is `table.attrs["silhouette"]`.
    """
    path, decimals = table_path(figure, cell, root), 3 if kind == "embedding" else 4
    write_text(path, table.to_csv(index=False, float_format=f"%.{decimals}f", lineterminator="\n"))
    facts: dict[str, Any] = {"cell": str(cell), "kind": kind, "rows": len(table)}
    if kind == "embedding":
        facts = {"cell": str(cell), "points": len(table), "silhouette": round(table.attrs["silhouette"], 4)}
    write_json(path.with_suffix(".json"), facts)
    return path


def read(kind: str, figure: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame | None:
    """The stored table of a cell, an embedding's with `attrs["silhouette"]`; None where there is none.

    FedReproError for a file that is not such a table.
    """
    path = table_path(figure, cell, root)
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path)
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        rows = facts["points" if kind == "embedding" else "rows"]
        if list(table.columns) != COLUMNS[kind] or facts["cell"] != str(cell) or rows != len(table):
            raise ValueError("columns or number of rows")
        if facts.get("kind", "embedding") != kind:
            raise ValueError(f"kind {facts['kind']}")
        for name in [name for name in COLUMNS[kind] if name not in WORDS]:
            table[name] = pd.to_numeric(table[name])
        if kind == "embedding":
            if not np.isfinite(table[["x", "y"]].to_numpy(float)).all():
                raise ValueError("points that are no numbers")
            table.attrs["silhouette"] = float(facts["silhouette"])
        return table
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedReproError(f"{shorten(path)}: not the {kind} of a cell with its JSON: {error}") from None


# -- computing -----------------------------------------------------------------------------------------------


def update(what: str, only: str | None = None, root: Path = ROOT) -> list[Path]:
    """Compute and store what figures show of a cell (`fedcrl/mini/fedavg`), of a scenario's data
    (`fcclplus/mini`), or of every cell and data set of a paper that is there; returns the paths.

    only: a figure's key, of which alone. FedReproError for what no figure of the paper shows, or for a cell
    without representations.
    """
    name, _, at = what.partition("/")
    paper = load_paper(name, root)
    figures = {key: figure for key, figure in paper.figures.items() if only in (None, key)}
    cells = [
        (key, figure.kind, Cell(name, scenario, method))
        for key, figure in figures.items()
        if figure.kind in COMPUTED
        for scenario in dict.fromkeys([MINIATURE, *figure.scenarios])
        for method in figure.methods or paper.methods
    ]
    pictures = [
        (key, scenario)
        for key, figure in figures.items()
        if figure.kind == PICTURE
        for scenario in [MINIATURE] * bool(paper.miniature) + figure.scenarios
    ]
    if at:
        cells = [one for one in cells if str(one[2]) == what]
        pictures = [one for one in pictures if one[1] == at]
        if not cells and not pictures:
            shows = only or "that is computed"
            raise FedReproError(f"papers/{name}/paper.yaml: no figure {shows} shows {what}")
    else:
        cells = [one for one in cells if one[2].representations(root).exists()]
        pictures = [one for one in pictures if (root / "data" / paper.scenarios[one[1]].data.set).exists()]
    written = [write(kind, key, cell, compute(kind, cell, root), root) for key, kind, cell in cells]
    return written + [
        write_examples(picture_path(name, key, scenario, root), paper.scenarios[scenario], root)
        for key, scenario in pictures
    ]


def compute(kind: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame:
    """The table of a cell; FedReproError for a missing or broken file."""
    path, (needs, table) = cell.representations(root), KINDS[kind]
    try:
        with np.load(path) as file:
            arrays = dict(file)
        return table(path, arrays)
    except FileNotFoundError:
        text = f"{shorten(path)}: no such file; the training stage of the cell writes it"
        raise FedReproError(text) from None
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedReproError(f"{shorten(path)}: {needs}: {error}") from None


def _representations(path: Path, arrays: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(values (n, d) float32, labels (n,), clients (n,)) of a cell."""
    values, labels, clients = arrays["values"].astype(np.float32), arrays["labels"], arrays["clients"]
    if values.ndim != 2 or not len(values) == len(labels) == len(clients) or not np.isfinite(values).all():
        raise ValueError(
            f"values {values.shape}, labels {labels.shape}, clients {clients.shape}, or a value that is not finite"
        )
    if not 2 <= len(np.unique(labels)) < len(labels):
        raise ValueError(f"{len(labels)} points of {len(np.unique(labels))} labels give no silhouette")
    return values, labels, clients


def plane(values: np.ndarray) -> np.ndarray:
    """(n, 2): t-SNE of values (n, d); one thread, so that the number of cores does not change it."""
    from sklearn.manifold import TSNE  # here, because a report draws what is stored without computing it
    from threadpoolctl import threadpool_limits

    perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
    with threadpool_limits(1):
        tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=SEED)
        return tsne.fit_transform(values)


def _embedding(path: Path, arrays: Arrays) -> pd.DataFrame:
    """t-SNE of a cell's representations and their cosine silhouette by label (FedCRL Fig. 4)."""
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    values, labels, clients = _representations(path, arrays)
    x, y = plane(values).T
    table = pd.DataFrame({"x": x, "y": y, "label": labels, "client": clients})
    with threadpool_limits(1):
        table.attrs["silhouette"] = float(silhouette_score(values, labels, metric="cosine"))
    return table


def margins(prototypes: np.ndarray) -> np.ndarray:
    """(C,) margin of each of (C, d) prototypes: its smallest L2 distance to another one; NaN rows are absent."""
    distances = np.linalg.norm(prototypes[:, None] - prototypes[None], axis=2)
    distances[np.eye(len(prototypes), dtype=bool)] = np.inf
    least = np.where(np.isnan(distances), np.inf, distances).min(1)
    return np.where(np.isfinite(least) & ~np.isnan(prototypes).any(1), least, np.nan)


def margin_table(
    values: np.ndarray, labels: np.ndarray, clients: np.ndarray, vectors: np.ndarray | None = None
) -> pd.DataFrame:
    """Per label the largest margin that a client's own class means have (`clients`), that of the means over
    clients (`mean`), and that of what the server sends (`vectors`; NaN where it sends nothing for the class).

    values (n, d), labels (n,), clients (n,): what each client's model makes of its test images. The mean over
    clients counts every client that has the class once, as FedProto's global prototypes do. vectors (C, d):
    row c is class c's, NaN where unknown.
    """
    names, who = np.unique(labels), np.unique(clients)
    own = np.full((len(who), len(names), values.shape[1]), np.nan)
    for k, c in np.ndindex(own.shape[:2]):
        here = (clients == who[k]) & (labels == names[c])
        if here.any():
            own[k, c] = values[here].mean(0)
    per_client = np.stack([margins(prototypes) for prototypes in own])
    best = np.where(np.isnan(per_client), -np.inf, per_client).max(0)
    return pd.DataFrame(
        {
            "label": names,
            "clients": np.where(np.isfinite(best), best, np.nan),
            "mean": margins(np.nanmean(own, 0)),
            "vectors": np.full(len(names), np.nan) if vectors is None else margins(vectors)[names],
        }
    )


def _margins(path: Path, arrays: Arrays) -> pd.DataFrame:
    values, labels, clients = _representations(path, arrays)
    vectors = arrays["vectors"].astype(np.float64) if "vectors" in arrays else None
    if vectors is not None and (vectors.ndim != 2 or len(vectors) <= labels.max() or np.isinf(vectors).any()):
        needs = f"(classes, d) with a row for each of the labels to {labels.max()}, finite or NaN"
        raise ValueError(f"vectors {vectors.shape}, expected {needs}")
    return margin_table(values.astype(np.float64), labels, clients, vectors)


def sphere_table(values: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> pd.DataFrame:
    """Representations (n, d) in three dimensions: the direction is that of the projection on the three right
    singular vectors that reach farthest, the distance from the origin is the representation's length over the
    mean length, so that representations of one length lie on the unit sphere."""
    lengths = np.linalg.norm(values, axis=1)
    axes = np.linalg.svd(values, full_matrices=False)[2][:3]
    projected = values @ np.pad(axes, ((0, 3 - len(axes)), (0, 0))).T
    directions = projected / np.maximum(np.linalg.norm(projected, axis=1, keepdims=True), SMALLEST)
    x, y, z = (directions * (lengths / max(lengths.mean(), SMALLEST))[:, None]).T
    return pd.DataFrame({"x": x, "y": y, "z": z, "label": labels, "client": clients})


def _sphere(path: Path, arrays: Arrays) -> pd.DataFrame:
    values, labels, clients = _representations(path, arrays)
    return sphere_table(values.astype(np.float64), labels, clients)


def cross_correlation(logits: np.ndarray, consensus: np.ndarray) -> np.ndarray:
    """M (C, C) of FCCL+ Eq. 1: Pearson's correlation of column u of the logits (n, C) with column v of the
    consensus."""
    return _standard(logits).T @ _standard(consensus)


def _standard(columns: np.ndarray) -> np.ndarray:
    centred = columns - columns.mean(0)
    return centred / np.maximum(np.linalg.norm(centred, axis=0), SMALLEST)


def _matrices(path: Path, arrays: Arrays) -> pd.DataFrame:
    """Every client's M with the mean logits of all clients: on the public images, and on the test images of the
    client's own domain (`private`) where the scenario has such."""
    logits = _logits(arrays, "logits")
    names = arrays["names"].tolist() if "names" in arrays else [f"client {k}" for k in range(len(logits))]
    shown = [("public", k, logits) for k in range(len(names))]
    if "names" in arrays:
        owners = zip(names, arrays["domains"].tolist(), strict=True)
        private = {name: _logits(arrays, f"private.{domain}") for name, domain in owners}
        shown += [("private", names.index(name), part) for name, part in private.items()]
    parts = []
    for images, k, every in shown:
        matrix = cross_correlation(every[k], every.mean(0))
        row, column = np.indices(matrix.shape).reshape(2, -1)
        parts.append(
            pd.DataFrame(
                {"images": images, "client": names[k], "row": row, "column": column, "value": matrix.ravel()}
            )
        )
    return pd.concat(parts, ignore_index=True)


def _logits(arrays: Arrays, name: str) -> np.ndarray:
    """(clients, images, classes), float64."""
    logits = arrays[name].astype(np.float64)
    if logits.ndim != 3 or not np.isfinite(logits).all() or logits.shape[1] < 2:
        raise ValueError(f"{name} {logits.shape}, expected (clients, images, classes), all of them finite")
    return logits


def _transfer(path: Path, arrays: Arrays) -> pd.DataFrame:
    """t-SNE of the first client's features of its own domain's images, and another one of the next domain's
    (the paper's M and U); `right` is 1 where the model's answer is the label."""
    client, own = str(arrays["names"][0]), str(arrays["domains"][0])
    features, answers = arrays[f"features.{client}"].astype(np.float32), arrays[f"answers.{client}"]
    labels, domains = arrays["cross_labels"], arrays["cross_domains"]
    fits = features.ndim == 2 and len(features) == len(answers) == len(labels) == len(domains)
    if not fits or not np.isfinite(features).all():
        raise ValueError(
            f"features.{client} {features.shape}, expected ({len(labels)}, d), all of them finite"
        )
    if len(set(domains)) < 2 or own not in domains:
        names = ", ".join(sorted(set(domains)))
        raise ValueError(f"cross_domains holds {names}, expected {own} and another domain")
    parts = []
    for domain in (own, next(name for name in domains if name != own)):
        here = domains == domain
        x, y = plane(features[here]).T
        part = {"client": client, "domain": domain, "x": x, "y": y, "label": labels[here]}
        parts.append(pd.DataFrame(part | {"right": (answers == labels)[here].astype(int)}))
    return pd.concat(parts, ignore_index=True)


def _corruptions(path: Path, arrays: Arrays) -> pd.DataFrame:
    """Accuracy in percent, mean over clients, and the number of images of every corruption and severity."""
    kinds, severities, right = (arrays[name] for name in ("corruptions", "severities", "right"))
    if right.ndim != 2 or not len(kinds) == len(severities) == right.shape[1] > 0:
        raise ValueError(
            f"right {right.shape}, expected (clients, {len(kinds)}), with {len(severities)} severities"
        )
    share = pd.DataFrame({"corruption": kinds, "severity": severities, "accuracy": 100 * right.mean(0)})
    grouped = share.groupby(["corruption", "severity"])["accuracy"]
    return grouped.agg(images="size", accuracy="mean").reset_index()[COLUMNS["corruptions"]]


KINDS: dict[str, tuple[str, Callable[[Path, Arrays], pd.DataFrame]]] = {
    "embedding": ("not representations", _embedding),
    "sphere": ("not representations", _sphere),
    "margins": ("not representations", _margins),
    "matrix": ("no logits of all clients on common images", _matrices),
    "transfer": ("no features of every client on every domain's images", _transfer),
    "corruptions": ("no answers of every client on corrupted images", _corruptions),
}

# -- example images ------------------------------------------------------------------------------------------

SIDE, GAP, LEFT, DPI = 64, 6, 120, 100  # pixels
MOST_CLASSES = 10


def picture_path(key: str, figure: str, scenario: str, root: Path = ROOT) -> Path:
    """papers/<paper>/figures/<figure>-<scenario>.png."""
    return root / "papers" / key / "figures" / f"{figure}-{scenario}.png"


def picture_size(path: Path, command: str) -> tuple[int, int]:
    """(width, height) in pixels of an image file; FedReproError, with the command that makes it, for a broken one."""
    try:
        with Image.open(path) as image:
            image.load()
            return image.size
    except (OSError, SyntaxError) as error:  # Pillow calls a broken PNG a SyntaxError
        raise FedReproError(f"{shorten(path)}: not a picture: {error}; run `{command}` again") from None


def write_examples(path: Path, scenario: Scenario, root: Path = ROOT) -> Path:
    """Draw and store the first training image of every class of every domain, a row per domain. DataError where
    the data are not there."""
    stored = store.read(root / "data" / scenario.data.set)
    domains, classes = stored.meta["domains"], range(len(stored.meta["classes"]))
    named = scenario.data.domains or dict(zip(domains, domains))
    width, height = LEFT + MOST_CLASSES * (SIDE + GAP), len(named) * (SIDE + GAP)
    with rc_context({"font.family": "DejaVu Sans", "font.size": 10.5, "text.color": "#24303c"}):
        figure, drawn = Figure((width / DPI, height / DPI), dpi=DPI), io.BytesIO()
        for i, (name, domain) in enumerate(named.items()):
            bottom = height - (i + 1) * (SIDE + GAP)
            figure.text(
                (LEFT - 12) / width, (bottom + (SIDE + GAP) / 2) / height, name, ha="right", va="center"
            )
            here = (stored.domains == domains.index(domain)) & (stored.split == store.TRAIN)
            of_class = [np.flatnonzero(here & (stored.labels == label)) for label in classes]
            for j, at in enumerate([rows[0] for rows in of_class if len(rows)][:MOST_CLASSES]):
                box = (LEFT + j * (SIDE + GAP)) / width, bottom / height, SIDE / width, SIDE / height
                axes = figure.add_axes(box)
                axes.imshow(
                    stored.images[at].squeeze(), interpolation="nearest", cmap="gray", vmin=0, vmax=255
                )
                axes.set_axis_off()
        figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, drawn.getvalue())
    return path
