"""What was recorded of a run beside its accuracies, as plain Python data: one function per question.

    by_holdings       accuracy of a client against the images and classes that it trains on
    by_class          accuracy per class after the last round
    to_target         rounds and bytes to a target accuracy
    costs             wall time and peak memory
    over_rounds       a method's own number over the rounds: FedCRL's tau, FedCCL's global_clusters
    teachers          RAHFL's matrix over the rounds: which client learns from which

`result` is a checked result.json (`results.read`), `table` its history (`results.history`). Where something
was not recorded yet, or does not exist for the method, the answer is empty.
"""

import re
from pathlib import Path

import pandas as pd

from pipeline.cells.results import ROUNDED
from pipeline.errors import FedReproError
from pipeline.schema import ROOT, Cell, shorten

_LEARNS = re.compile(r"method\.learns\.(\d+)\.(\d+)")


def by_holdings(cell: Cell, result: dict, root: Path = ROOT) -> list[dict]:
    """One entry per seed and client, in this order: seed, client (its place), images and classes (numbers of
    its training images and of their classes), accuracy (percent; None without test images).

    From `holdings` and `clients` of the result. Of one recorded before there were `holdings`, from
    clients.csv of the scenario, which has the first seed's partition: of all seeds where they share it, else
    of the first seed alone. FedReproError for a clients.csv that is not such a table.
    """
    held, seeds = result.get("holdings"), result["seeds"]
    if held is None:
        seeds = seeds[:1] if "partitions" in result else seeds
        held = {name: [values] * len(seeds) for name, values in _counted(cell, root).items()}
    if not held:
        return []
    rows = []
    for at, seed in enumerate(seeds):
        of_clients = zip(held["images"][at], held["classes"][at], result["clients"][at], strict=True)
        rows += [
            {"seed": seed, "client": k, "images": images, "classes": classes, "accuracy": accuracy}
            for k, (images, classes, accuracy) in enumerate(of_clients)
        ]
    return rows


def _counted(cell: Cell, root: Path) -> dict[str, list[int]]:
    """{images, classes} of the clients in clients.csv, which the partition stage writes; empty without it."""
    path = cell.folder(root).parent / "clients.csv"
    if not path.exists():
        return {}
    try:
        table = pd.read_csv(path, index_col="client")
        images = table["train"].astype(int)
        classes = (table.drop(columns=["domain", "train", "test"]).astype(int) > 0).sum(axis=1)
    except (ValueError, KeyError) as error:
        raise FedReproError(f"{shorten(path)}: not the images per class and client: {error}") from None
    return {"images": images.tolist(), "classes": classes.tolist()}


def by_class(result: dict) -> dict[int, list[float | None]]:
    """Seed -> accuracy on the test images of each class in percent, classes in the order of their labels
    (None without test images), of the headline hook after the last round; see `evaluation.by_class`."""
    return dict(zip(result["seeds"], result.get("by_class", [])))


def to_target(result: dict, table: pd.DataFrame, target: float | dict[int, float]) -> dict[int, dict | None]:
    """Seed -> {round, bytes}: the first round whose headline accuracy reaches the target (percent, one for
    all or one per seed), and what a client has sent and received by then; None where no round does. Of the
    rounds that were evaluated, without round 0. Seeds without a target are left out.
    """
    targets = target if isinstance(target, dict) else dict.fromkeys(result["seeds"], target)
    found: dict[int, dict | None] = {}
    for seed in [seed for seed in result["seeds"] if seed in targets]:
        rows = table[(table["seed"] == seed) & (table["round"] > 0)]
        reached = rows[rows[result["headline"]] >= targets[seed] - ROUNDED]["round"]
        first = 0 if reached.empty else int(reached.min())
        found[seed] = {"round": first, "bytes": first * result["traffic"]["bytes"]} if first else None
    return found


def costs(result: dict) -> dict[int, dict]:
    """Seed -> {seconds, seconds_per_round, memory_mb}: wall time of the training, and the largest memory, of
    the device where it has its own, else of the process (None where it was not recorded)."""
    memory = result.get("memory") or {}
    known = (memory.get(name) or [None] for name in ("device_mb", "process_mb"))
    most = next((found for found in known if None not in found), [None] * len(result["seeds"]))
    return {
        seed: {"seconds": seconds, "seconds_per_round": seconds / result["rounds"], "memory_mb": mb}
        for seed, seconds, mb in zip(result["seeds"], result["seconds"], most, strict=True)
    }


def over_rounds(table: pd.DataFrame, name: str) -> dict[int, dict[int, float]]:
    """Seed -> {round: number} of a method's own number, the column method.<name> of the history: `tau` of
    FedCRL (mean over clients), `global_clusters` and `local_signals` of FedCCL. Empty without it."""
    column = f"method.{name}"
    if column not in table:
        return {}
    known = table.dropna(subset=[column]).sort_values("round")
    return {
        int(seed): dict(zip(rows["round"].tolist(), rows[column].tolist()))
        for seed, rows in known.groupby("seed")
    }


def teachers(table: pd.DataFrame) -> dict[int, dict[int, list[list[int]]]]:
    """Seed -> {round: M}, M[p][q] = 1 where client p learns from client q in that round, else 0 (RAHFL Eq.
    12), from the columns method.learns.<p>.<q> of the history. Empty without them."""
    pairs = {str(name): (int(at[1]), int(at[2])) for name in table if (at := _LEARNS.fullmatch(str(name)))}
    if not pairs:
        return {}
    size, found = 1 + max(map(max, pairs.values())), {}
    for seed, rows in table.dropna(subset=[*pairs]).sort_values("round").groupby("seed"):
        found[int(seed)] = {
            int(row["round"]): [
                [int(row[f"method.learns.{p}.{q}"]) if p != q else 0 for q in range(size)]
                for p in range(size)
            ]
            for row in rows.to_dict("records")
        }
    return found
