"""Costs and rounds to a target of a run, from its result and history.

    to_target         rounds and bytes to a target accuracy
    costs             wall time and peak memory

`result` is a checked result.json (`results.read`), `table` its history (`results.history`). Where something
was not recorded yet, or does not exist for the method, the answer is empty.
"""

import pandas as pd

from pipeline.cells.results import ROUNDED


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
