"""Training costs of a run: time, memory, rounds and bytes to a target accuracy; RAHFL's teacher matrix.

    to_target         rounds and bytes to a target accuracy
    costs             wall time and peak memory
    teachers          RAHFL's matrix over the rounds: which client learns from which

`result` is a checked result.json (`results.read`), `table` its history (`results.history`). Where something
was not recorded yet, or does not exist for the method, the answer is empty.
"""

import re

import pandas as pd

from pipeline.cells.results import ROUNDED

_LEARNS = re.compile(r"method\.learns\.(\d+)\.(\d+)")


def to_target(result: dict, table: pd.DataFrame, target: float) -> dict[int, dict | None]:
    """Seed -> {round, bytes}: the first evaluated round, from round 1 on, whose headline accuracy reaches the
    target (percent), and what a client has sent and received by then; None where no round does."""
    rows = table[(table["round"] > 0) & (table[result["headline"]] >= target - ROUNDED)]
    first = rows.groupby("seed")["round"].min().to_dict()
    sent = result["traffic"]["bytes"]
    return {
        seed: {"round": int(first[seed]), "bytes": int(first[seed]) * sent} if seed in first else None
        for seed in result["seeds"]
    }


def costs(result: dict) -> dict[int, dict]:
    """Seed -> {seconds, seconds_per_round, memory_mb}: wall time of the training, and the largest memory, of
    the device where it has memory, else of the process (None where it was not recorded)."""
    memory = result.get("memory") or {}
    known = (memory.get(name) or [None] for name in ("device_mb", "process_mb"))
    most = next((values for values in known if None not in values), [None] * len(result["seeds"]))
    return {
        seed: {"seconds": seconds, "seconds_per_round": seconds / result["rounds"], "memory_mb": mb}
        for seed, seconds, mb in zip(result["seeds"], result["seconds"], most, strict=True)
    }


def teachers(table: pd.DataFrame) -> dict[int, dict[int, list[list[int]]]]:
    """Seed -> {round: M}, M[p][q] = 1 where client p learns from client q in that round, else 0 (RAHFL Eq.
    12), from the columns method.learns.<p>.<q> of the history. Empty without them."""
    pairs = {str(name): (int(at[1]), int(at[2])) for name in table if (at := _LEARNS.fullmatch(str(name)))}
    if not pairs:
        return {}
    size, matrices = 1 + max(map(max, pairs.values())), {}
    for seed, rows in table.dropna(subset=[*pairs]).sort_values("round").groupby("seed"):
        matrices[int(seed)] = {
            int(row["round"]): [
                [int(row[f"method.learns.{p}.{q}"]) if p != q else 0 for q in range(size)]
                for p in range(size)
            ]
            for row in rows.to_dict("records")
        }
    return matrices
