"""What is computed of a cell's representations, logits and answers: margins between class means (FedLSA
Fig. 1), cross-correlations (FCCL+ Fig. 8), places on the unit sphere (FedLSA Fig. 2), one client's t-SNE of
its own and of another domain (FCCL+ Fig. 9), accuracy by corruption (of RAHFL's cells; not in the paper).

Computed once from what the training stage leaves in representations/, kept as a small CSV that any clone can
draw.
"""
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist

from pipeline.errors import FedReproError
from pipeline.files import write_json, write_text
from pipeline.report.embedding import kept, plane, representations
from pipeline.schema import ROOT, Cell, shorten

COLUMNS = {
    "margins": ["label", "clients", "mean", "vectors"],
    "matrix": ["images", "client", "row", "column", "value"],
    "sphere": ["x", "y", "z", "label", "client"],
    "transfer": ["client", "domain", "x", "y", "label", "right"],
    "corruptions": ["corruption", "severity", "images", "accuracy"],
}
WORDS = ("label", "client", "images", "domain", "corruption")        # columns that need not be numbers
SMALLEST = 1e-12                                      # a column of logits that varies less counts as constant


def margins(prototypes: np.ndarray) -> np.ndarray:
    """(C,) margin of each of (C, d) prototypes: its smallest L2 distance to another one. NaN rows are not
    there."""
    apart = np.linalg.norm(prototypes[:, None] - prototypes[None], axis=2)
    apart[np.eye(len(prototypes), dtype=bool)] = np.inf
    least = np.where(np.isnan(apart), np.inf, apart).min(1)
    return np.where(np.isfinite(least) & ~np.isnan(prototypes).any(1), least, np.nan)


def margin_table(
    prototypes: np.ndarray, labels: np.ndarray, clients: np.ndarray, vectors: np.ndarray | None = None
) -> pd.DataFrame:
    """Per label the largest margin that a client's own prototypes have (`clients`), that of the means over
    clients (`mean`), and that of what the server sends (`vectors`; NaN where it sends nothing for the class).

    prototypes (m, d), labels (m,), clients (m,): a row per client and class that it holds, the mean of its
    training images by its trained model (FedLSA Eq. 1 and Fig. 1). The mean over clients counts every client
    that has the class once, as FedProto's global prototypes do. vectors (C, d): row c is class c's, NaN where
    unknown.
    """
    names = np.unique(labels)
    places, owners = np.searchsorted(names, labels), np.unique(clients, return_inverse=True)[1]
    own = np.full((owners.max() + 1, len(names), prototypes.shape[1]), np.nan)
    own[owners, places] = prototypes
    per_client = np.stack([margins(one) for one in own])
    best = np.where(np.isnan(per_client), -np.inf, per_client).max(0)
    sent = np.full(len(names), np.nan) if vectors is None else margins(vectors)[names]
    return pd.DataFrame(
        {
            "label": names,
            "clients": np.where(np.isfinite(best), best, np.nan),
            "mean": margins(np.nanmean(own, 0)),
            "vectors": sent,
        }
    )


def cross_correlation(logits: np.ndarray, consensus: np.ndarray) -> np.ndarray:
    """M (C, C) of FCCL+ Eq. 1: Pearson's correlation of column u of the logits (n, C) with column v of the
    consensus."""
    return _standard(logits).T @ _standard(consensus)


def _standard(columns: np.ndarray) -> np.ndarray:
    centred = columns - columns.mean(0)
    return centred / np.maximum(np.linalg.norm(centred, axis=0), SMALLEST)


def matrix_table(logits: np.ndarray, names: list[str], private: dict[str, np.ndarray]) -> pd.DataFrame:
    """Columns images, client, row, column, value of every client's M with the mean logits of all: `public` on
    images common to all, `private` on the private images of the client's domain.

    logits (clients, n, C) on the public images; private: client's name -> (clients, m, C) on the images of
    its domain.
    """
    shown = [("public", k, logits) for k in range(len(names))]
    shown += [("private", names.index(name), found) for name, found in private.items()]
    return pd.concat(
        [_long(cross_correlation(every[k], every.mean(0)), images, names[k]) for images, k, every in shown],
        ignore_index=True,
    )


def _long(matrix: np.ndarray, images: str, client: str) -> pd.DataFrame:
    row, column = np.indices(matrix.shape).reshape(2, -1)
    return pd.DataFrame(
        {"images": images, "client": client, "row": row, "column": column, "value": matrix.ravel()}
    )


def transfer_table(
    features: np.ndarray, labels: np.ndarray, answers: np.ndarray, domains: np.ndarray, client: str, own: str
) -> pd.DataFrame:
    """t-SNE of a client's features (m, d) of its own domain's images, and another one of the next domain's:
    columns client, domain, x, y, label, right (1 where the model's answer is the label). labels, answers,
    domains (m,)."""
    other = next(name for name in domains if name != own)
    parts = []
    for domain in (own, other):
        here = domains == domain
        x, y = plane(features[here]).T
        parts.append(pd.DataFrame({"client": client, "domain": domain, "x": x, "y": y, "label": labels[here],
                                   "right": (answers == labels)[here].astype(int)}))
    return pd.concat(parts, ignore_index=True)


def sphere_table(values: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> pd.DataFrame:
    """Representations (n, d) in three dimensions: the direction is that of the projection on the three right
    singular vectors that reach farthest, the distance from the origin is the representation's length over the
    mean length, so that representations of one length lie on the unit sphere."""
    lengths = np.linalg.norm(values, axis=1)
    axes = np.linalg.svd(values, full_matrices=False)[2][:3]
    projected = values @ np.pad(axes, ((0, 3 - len(axes)), (0, 0))).T
    directions = projected / np.maximum(np.linalg.norm(projected, axis=1, keepdims=True), SMALLEST)
    places = directions * (lengths / max(lengths.mean(), SMALLEST))[:, None]
    return pd.DataFrame(
        {"x": places[:, 0], "y": places[:, 1], "z": places[:, 2], "label": labels, "client": clients}
    )


def uniformity(values: np.ndarray) -> float:
    """ln of the mean of exp(-2 |u - v|^2) over all pairs of directions u, v of representations (n, d); Wang
    and Isola (2020). Lower: more uniform."""
    u = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), SMALLEST)
    return float(np.log(np.exp(-2 * pdist(u, "sqeuclidean")).mean()))


def corruption_table(kinds: np.ndarray, severities: np.ndarray, right: np.ndarray) -> pd.DataFrame:
    """Accuracy in percent, mean over clients, and the number of images of every corruption at every severity.
    kinds, severities (n,); right (clients, n): whether a client's model is right about an image."""
    share = pd.DataFrame({"corruption": kinds, "severity": severities, "accuracy": 100 * right.mean(0)})
    grouped = share.groupby(["corruption", "severity"])["accuracy"]
    table = grouped.agg(images="size", accuracy="mean").reset_index()
    return table[COLUMNS["corruptions"]]


def compute(kind: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame:
    """The table of a cell; FedReproError for a missing or broken file."""
    path = cell.representations(root)
    if kind == "margins":
        prototypes, labels, clients = _prototypes(path)
        return margin_table(prototypes, labels, clients, _vectors(path, labels))
    if kind == "sphere":
        values, labels, clients = representations(path)
        return sphere_table(values.astype(np.float64), labels, clients)
    try:
        with np.load(path) as file:
            return {"matrix": _matrices, "transfer": _transfer, "corruptions": _corruptions}[kind](path, file)
    except FileNotFoundError:
        raise FedReproError(
            f"{shorten(path)}: no such file; the training stage of the cell writes it"
        ) from None
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedReproError(f"{shorten(path)}: no {_NEEDS[kind]}: {error}") from None


_NEEDS = {
    "matrix": "logits of all clients on common images",
    "transfer": "features of every client on every domain's images",
    "corruptions": "answers of every client on corrupted images",
}


def _matrices(path: Path, file: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """`matrix_table` of a cell; without private images where the scenario has no test set of every client's
    domain."""
    logits = _logits(path, file, "logits")
    if "names" not in file:
        return matrix_table(logits, [f"client {k}" for k in range(len(logits))], {})
    names, domains = file["names"].tolist(), file["domains"].tolist()
    private = {
        name: _logits(path, file, f"private.{domain}") for name, domain in zip(names, domains, strict=True)
    }
    return matrix_table(logits, names, private)


def _logits(path: Path, file: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    logits = file[name].astype(np.float64)
    if logits.ndim != 3 or not np.isfinite(logits).all() or logits.shape[1] < 2:
        raise FedReproError(
            f"{shorten(path)}: {name} {logits.shape}, expected (clients, images, classes), all of them finite"
        )
    return logits


def _transfer(path: Path, file: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """`transfer_table` of the first client; the paper's M, whose next domain is U."""
    client, own = str(file["names"][0]), str(file["domains"][0])
    features, answers = file[f"features.{client}"].astype(np.float32), file[f"answers.{client}"]
    labels, domains = file["cross_labels"], file["cross_domains"]
    if (
        features.ndim != 2
        or not len(features) == len(answers) == len(labels) == len(domains)
        or not np.isfinite(features).all()
    ):
        raise FedReproError(
            f"{shorten(path)}: features.{client} {features.shape}, expected ({len(labels)}, d), all of them "
            "finite"
        )
    if len(set(domains)) < 2 or own not in domains:
        raise FedReproError(
            f"{shorten(path)}: cross_domains holds {', '.join(sorted(set(domains)))}, expected {own} and "
            "another domain"
        )
    return transfer_table(features, labels, answers, domains, client, own)


def _corruptions(path: Path, file: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """`corruption_table` of a cell."""
    kinds, severities, right = (file[name] for name in ("corruptions", "severities", "right"))
    if right.ndim != 2 or not len(kinds) == len(severities) == right.shape[1] > 0:
        raise FedReproError(
            f"{shorten(path)}: right {right.shape}, expected (clients, {len(kinds)}), with {len(severities)} "
            "severities"
        )
    return corruption_table(kinds, severities, right)


def _prototypes(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(prototypes (m, d), labels (m,), clients (m,)) of a cell."""
    try:
        with np.load(path) as file:
            prototypes, labels, clients = (
                file[name] for name in ("prototypes", "prototype_labels", "prototype_clients")
            )
    except FileNotFoundError:
        raise FedReproError(
            f"{shorten(path)}: no such file; the training stage of the cell writes it"
        ) from None
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedReproError(f"{shorten(path)}: no class means of the clients: {error}") from None
    if (prototypes.ndim != 2 or not len(prototypes) == len(labels) == len(clients) > 0
            or not np.isfinite(prototypes).all()):
        raise FedReproError(
            f"{shorten(path)}: prototypes {prototypes.shape}, expected ({len(labels)}, d), all of them finite"
        )
    return prototypes.astype(np.float64), labels, clients


def _vectors(path: Path, labels: np.ndarray) -> np.ndarray | None:
    """(C, d) what the server sends per class, None where the method has no such vectors; FedReproError for
    anything else."""
    try:
        with np.load(path) as file:
            vectors = file["vectors"].astype(np.float64) if "vectors" in file else None
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedReproError(f"{shorten(path)}: no vectors per class: {error}") from None
    if vectors is not None and (vectors.ndim != 2 or len(vectors) <= labels.max() or np.isinf(vectors).any()):
        raise FedReproError(
            f"{shorten(path)}: vectors {vectors.shape}, expected (classes, d) with a row for each of the "
            f"labels to {labels.max()}, "
            "finite or NaN"
        )
    return vectors


def write(kind: str, figure: str, cell: Cell, table: pd.DataFrame, root: Path = ROOT, **facts: float) -> Path:
    """Keep a table as CSV (four decimals) and JSON, which holds further `facts` too; returns the CSV's
    path."""
    path = kept(figure, cell, root)
    write_text(path, table.to_csv(index=False, float_format="%.4f", lineterminator="\n"))
    write_json(path.with_suffix(".json"), {"cell": str(cell), "kind": kind, "rows": len(table), **facts})
    return path


def read(kind: str, figure: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame | None:
    """What is kept for a cell of a figure, None where nothing is; FedReproError for a file that is not such a
    table."""
    path = kept(figure, cell, root)
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path)
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        known = facts["cell"], facts["kind"], facts["rows"]
        if list(table.columns) != COLUMNS[kind] or known != (str(cell), kind, len(table)):
            raise ValueError("columns or number of rows")
        for name in [name for name in COLUMNS[kind] if name not in WORDS]:
            table[name] = pd.to_numeric(table[name])
        return table
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedReproError(
            f"{shorten(path)}: not the {kind} of a cell with its JSON beside it: {error}"
        ) from None


def maker(kind: str) -> Callable[[str, Cell, Path], Path]:
    """(figure, cell, root) -> the path of what was computed and kept."""
    def make(figure: str, cell: Cell, root: Path) -> Path:
        facts = {}
        if kind == "sphere":
            values = representations(cell.representations(root))[0]
            facts["uniformity"] = round(uniformity(values.astype(np.float64)), 4)
        return write(kind, figure, cell, compute(kind, cell, root), root, **facts)
    return make


def kept_uniformity(figure: str, cell: Cell, root: Path = ROOT) -> float | None:
    """`uniformity` of the representations whose sphere is kept, in all their dimensions; None where none is,
    or one that was kept without it."""
    if read("sphere", figure, cell, root) is None:
        return None
    facts = json.loads(kept(figure, cell, root).with_suffix(".json").read_text(encoding="utf-8"))
    return float(facts["uniformity"]) if "uniformity" in facts else None
