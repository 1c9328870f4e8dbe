"""How representations and logits of a cell lie: margins between class means (FedLSA Fig. 1), cross-correlations (FCCL+ Fig. 8),
places on the unit sphere (FedLSA Fig. 2).

Computed once from what the training stage leaves in representations/, kept as a small CSV that any clone can draw.
"""
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import FedReproError
from pipeline.files import write_json, write_text
from pipeline.params import ROOT, Cell, shorten
from pipeline.report.embedding import kept, representations

COLUMNS = {"margins": ["label", "clients", "mean", "vectors"], "matrix": ["client", "row", "column", "value"],
           "sphere": ["x", "y", "z", "label", "client"]}
SMALLEST = 1e-12                                      # a column of logits that varies less is constant


def margins(prototypes: np.ndarray) -> np.ndarray:
    """(C,) margin of each of (C, d) prototypes: its smallest L2 distance to another one. NaN rows are not there."""
    apart = np.linalg.norm(prototypes[:, None] - prototypes[None], axis=2)
    apart[np.eye(len(prototypes), dtype=bool)] = np.inf
    least = np.where(np.isnan(apart), np.inf, apart).min(1)
    return np.where(np.isfinite(least) & ~np.isnan(prototypes).any(1), least, np.nan)


def margin_table(values: np.ndarray, labels: np.ndarray, clients: np.ndarray, vectors: np.ndarray | None = None) -> pd.DataFrame:
    """Per label the largest margin that a client's own class means have (`clients`), that of the means over clients (`mean`), and that of
    what the server sends (`vectors`; NaN where it sends nothing for the class).

    values (n, d), labels (n,), clients (n,): what each client's model makes of its test images. The mean over clients counts
    every client that has the class once, as FedProto's global prototypes do. vectors (C, d): row c is class c's, NaN where unknown.
    """
    names = np.unique(labels)
    own = np.full((len(np.unique(clients)), len(names), values.shape[1]), np.nan)
    for k, client in enumerate(np.unique(clients)):
        for c, label in enumerate(names):
            here = (clients == client) & (labels == label)
            if here.any():
                own[k, c] = values[here].mean(0)
    per_client = np.stack([margins(prototypes) for prototypes in own])
    best = np.where(np.isnan(per_client), -np.inf, per_client).max(0)
    sent = np.full(len(names), np.nan) if vectors is None else margins(vectors)[names]
    return pd.DataFrame({"label": names, "clients": np.where(np.isfinite(best), best, np.nan), "mean": margins(np.nanmean(own, 0)), "vectors": sent})


def cross_correlation(logits: np.ndarray, consensus: np.ndarray) -> np.ndarray:
    """M (C, C) of FCCL+ Eq. 1: Pearson's correlation of column u of the logits (n, C) with column v of the consensus."""
    return _standard(logits).T @ _standard(consensus)


def _standard(columns: np.ndarray) -> np.ndarray:
    centred = columns - columns.mean(0)
    return centred / np.maximum(np.linalg.norm(centred, axis=0), SMALLEST)


def matrix_table(logits: np.ndarray) -> pd.DataFrame:
    """Columns client, row, column, value of every client's M with the mean logits of all; logits (clients, n, C) on the same images."""
    consensus = logits.mean(0)
    found = [cross_correlation(one, consensus) for one in logits]
    classes = logits.shape[2]
    return pd.DataFrame([(k, u, v, m[u, v]) for k, m in enumerate(found) for u in range(classes) for v in range(classes)], columns=COLUMNS["matrix"])


def sphere_table(values: np.ndarray, labels: np.ndarray, clients: np.ndarray) -> pd.DataFrame:
    """Representations (n, d) in three dimensions: the direction is that of the projection on the three right singular vectors that
    reach farthest, the distance from the origin is the representation's length over the mean length, so that representations
    of one length lie on the unit sphere."""
    lengths = np.linalg.norm(values, axis=1)
    axes = np.linalg.svd(values, full_matrices=False)[2][:3]
    projected = values @ np.pad(axes, ((0, 3 - len(axes)), (0, 0))).T
    directions = projected / np.maximum(np.linalg.norm(projected, axis=1, keepdims=True), SMALLEST)
    places = directions * (lengths / max(lengths.mean(), SMALLEST))[:, None]
    return pd.DataFrame({"x": places[:, 0], "y": places[:, 1], "z": places[:, 2], "label": labels, "client": clients})


def compute(kind: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame:
    """The table of a cell; FedReproError for a missing or broken file."""
    path = cell.representations(root)
    if kind == "margins":
        values, labels, clients = representations(path)
        return margin_table(values.astype(np.float64), labels, clients, _vectors(path, labels))
    if kind == "sphere":
        values, labels, clients = representations(path)
        return sphere_table(values.astype(np.float64), labels, clients)
    try:
        with np.load(path) as file:
            logits = file["logits"].astype(np.float64)
    except FileNotFoundError:
        raise FedReproError(f"{shorten(path)}: no such file; the training stage of the cell writes it") from None
    except (KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedReproError(f"{shorten(path)}: no logits of all clients on common images: {error}") from None
    if logits.ndim != 3 or not np.isfinite(logits).all() or logits.shape[1] < 2:
        raise FedReproError(f"{shorten(path)}: logits {logits.shape}, expected (clients, images, classes), all of them finite")
    return matrix_table(logits)


def _vectors(path: Path, labels: np.ndarray) -> np.ndarray | None:
    """(C, d) what the server sends per class, None where the method has no such vectors; FedReproError for anything else."""
    try:
        with np.load(path) as file:
            vectors = file["vectors"].astype(np.float64) if "vectors" in file else None
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise FedReproError(f"{shorten(path)}: no vectors per class: {error}") from None
    if vectors is not None and (vectors.ndim != 2 or len(vectors) <= labels.max() or np.isinf(vectors).any()):
        raise FedReproError(f"{shorten(path)}: vectors {vectors.shape}, expected (classes, d) with a row for each of the labels to {labels.max()}, "
                            "finite or NaN")
    return vectors


def write(kind: str, figure: str, cell: Cell, table: pd.DataFrame, root: Path = ROOT) -> Path:
    """Keep a table as CSV (four decimals) and JSON; returns the CSV's path."""
    path = kept(figure, cell, root)
    write_text(path, table.to_csv(index=False, float_format="%.4f", lineterminator="\n"))
    write_json(path.with_suffix(".json"), {"cell": str(cell), "kind": kind, "rows": len(table)})
    return path


def read(kind: str, figure: str, cell: Cell, root: Path = ROOT) -> pd.DataFrame | None:
    """What is kept for a cell of a figure, None where nothing is; FedReproError for a file that is not such a table."""
    path = kept(figure, cell, root)
    if not path.exists():
        return None
    try:
        table = pd.read_csv(path)
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if list(table.columns) != COLUMNS[kind] or facts != {"cell": str(cell), "kind": kind, "rows": len(table)}:
            raise ValueError("columns or number of rows")
        return table
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FedReproError(f"{shorten(path)}: not the {kind} of a cell with its JSON beside it: {error}") from None


def maker(kind: str) -> Callable[[str, Cell, Path], Path]:
    """(figure, cell, root) -> the path of what was computed and kept."""
    return lambda figure, cell, root: write(kind, figure, cell, compute(kind, cell, root), root)
