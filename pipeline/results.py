"""The measured numbers: reading, checking and flattening what the training stage wrote.

A cell leaves `papers/<paper>/runs/<scenario>/<method>/` with result.json (everything that was measured, sealed
by its own hash) and history.csv (one row per seed and evaluated round), and `papers/<paper>/metrics/<scenario>/<method>.json`
(a few flat keys, for DVC).
"""
import hashlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipeline.errors import FedReproError
from pipeline.params import ROOT, Cell, shorten

COLUMNS = ["paper", "scenario", "method", "measure", "mean", "std", "seeds"]
FIRST = ("average", "weighted", "clients_std")    # the order in which a reader wants the measures
LOWER_IS_BETTER = ("clients_std", "loss")


@dataclass(frozen=True)
class Summary:
    """One measured number: mean over the seeds, and their standard deviation (ddof 1; None for one seed)."""
    mean: float
    std: float | None
    seeds: int


def summarise(values: list[float]) -> Summary:
    """Mean and spread of one value per seed."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, len(values))


def lower_is_better(measure: str) -> bool:
    """Whether a small value of `measure` is a good one: spread over clients and loss, not accuracy."""
    return measure.rpartition(".")[2] in LOWER_IS_BETTER


# -- sealing -----------------------------------------------------------------------------------------------

def _hash(document: dict) -> str:
    content = json.loads(json.dumps({key: value for key, value in document.items() if key != "self"}))    # as a file gives it back
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(document: dict) -> dict:
    """`document` with `self`: sha256 of its canonical JSON without that key. ValueError for NaN or infinity."""
    return {**document, "self": _hash(document)}


# -- reading -----------------------------------------------------------------------------------------------

def read(path: Path) -> dict:
    """One result.json; FedReproError where it cannot be parsed, was altered or lies in another cell's folder."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        sealed = document["self"] == _hash(document)
    except (ValueError, KeyError, TypeError) as error:
        raise FedReproError(f"{shorten(path)}: not a result: {error!r}") from None
    if not sealed:
        raise FedReproError(f"{shorten(path)}: 'self' is not the hash of the rest; the file was altered, run the cell again")
    folder = "/".join((path.parts[-5], *path.parts[-3:-1]))
    if document["cell"] != folder:
        raise FedReproError(f"{shorten(path)}: 'cell' is {document['cell']!r}, but the folder is that of {folder!r}")
    return document


def collect(root: Path = ROOT) -> dict[Cell, dict]:
    """Every finished cell of every paper, in the order of the paths, with its checked result.json."""
    found = {}
    for path in sorted(root.glob("papers/*/runs/*/*/result.json")):
        document = read(path)
        found[Cell.parse(document["cell"])] = document
    return found


def history(cell: Cell, root: Path = ROOT) -> pd.DataFrame:
    """history.csv of a cell: seed, round (0 is before training), loss, then measures in percent.

    FedReproError where the file is missing or is not such a table.
    """
    path = cell.folder(root) / "history.csv"
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise FedReproError(f"{shorten(path)}: no such file, although the cell has a result.json") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise FedReproError(f"{shorten(path)}: not a table: {error}") from None
    for name in ("seed", "round"):
        if name not in table:
            raise FedReproError(f"{shorten(path)}: the column {name!r} is missing")
    return table


def ordered(measures) -> list[str]:
    """Measure names as a table shows them: the usual ones first, the rest as they come."""
    names = list(dict.fromkeys(measures))
    return [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]


def tidy(results: dict[Cell, dict]) -> pd.DataFrame:
    """All measured numbers: one row per cell and measure, percent but for the loss; std is empty for a single seed."""
    rows = []
    for cell in sorted(results, key=str):
        for measure in ordered(results[cell]["measures"]):
            number = summarise(results[cell]["measures"][measure])
            rows.append((cell.paper, cell.scenario, cell.method, measure, number.mean, number.std, number.seeds))
    return pd.DataFrame(rows, columns=COLUMNS)


def curves(results: dict[Cell, dict], root: Path = ROOT) -> pd.DataFrame:
    """Accuracy over rounds, mean over seeds: columns method, round, accuracy (the headline measure, percent)."""
    tables = [pd.DataFrame(columns=["method", "round", "accuracy"])]
    for cell, result in results.items():
        means = history(cell, root).groupby("round")[result["headline"]].mean().dropna()
        tables.append(pd.DataFrame({"method": result["label"], "round": means.index, "accuracy": means.to_numpy()}))
    return pd.concat([t for t in tables if len(t)] or tables, ignore_index=True)
