"""What the terminal shows while a cell trains: cell, seed, round, accuracy, time left."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from pipeline.cells.documents import Result, Round, Run
from pipeline.errors import DAMAGED, ParamError, warn
from pipeline.schema import Cell, Count, NonNegative, Scenario, Whole, check
from pipeline.schema.checker import Finite

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_EVENTS = 0.5
EVENT: dict[str, Any] = {
    "seed": Whole,
    "round": Whole,
    "rounds": Count,
    "accuracy": Finite,
    "left": NonNegative,
    "seeds": Count,
    "done": bool,
}


class Progress:
    """Prints a line every few seconds, and one when the cell is done.

    Where FEDREPRO_EVENTS names a file, the same goes there as JSON lines, for a program that shows several
    cells (pipeline/commands/run.py).
    """

    def __init__(self, cell: Cell, scenario: Scenario):
        from pipeline.devices import slow_bf16
        from pipeline.engine.environment import default_device, precision

        if precision() == "bf16" and default_device().type == "cpu" and (note := slow_bf16()):
            warn(note)
        self.cell, self.rounds, self.seeds = cell, scenario.training.rounds, scenario.seeds
        self.measure = scenario.evaluation.measure
        # rounds behind each seed
        self.done = dict.fromkeys(self.seeds, 0)
        # rounds trained in this process, not resumed
        self.fresh = 0
        self.begun = self.printed = time.monotonic()
        self.sent = 0.0

    def report(self, row: Round) -> None:
        """A round of a seed is over: `row` is its line of history.csv."""
        seed, number, accuracy, now = row["seed"], row["round"], row.get(self.measure), time.monotonic()
        self.done[seed] = number
        self.fresh += 1
        left = (now - self.begun) / self.fresh * sum(self.rounds - done for done in self.done.values())
        if now - self.sent >= SECONDS_BETWEEN_EVENTS:
            self.sent, rounds = now, self.rounds
            self._event(seed=seed, round=number, rounds=rounds, accuracy=accuracy, left=round(left, 1))
        if now - self.printed >= SECONDS_BETWEEN_LINES:
            self.printed = now
            share = "" if accuracy is None else f"accuracy {accuracy:5.2f} %"
            self.say(f"seed {seed}  round {number}/{self.rounds}  {share}  {clock(left)} left")

    def seed_done(self, finished: Run) -> None:
        self.done[finished["seed"]] = self.rounds

    def cell_done(self, result: Result) -> None:
        values = result["measures"][result["headline"]]
        mean = sum(values) / len(values)
        accuracy = f"{result['headline']} accuracy {mean:.2f} % in {clock(time.monotonic() - self.begun)}"
        self.say(f"{self.rounds} rounds, {len(values)} seeds: {accuracy}")
        self._event(seeds=len(values), accuracy=round(mean, 4), done=True)

    def say(self, text: str) -> None:
        """A line about the cell."""
        print(f"{str(self.cell):<32} {text}", file=sys.stderr, flush=True)

    def _event(self, **event: Any) -> None:
        path = os.environ.get("FEDREPRO_EVENTS")
        with contextlib.suppress(OSError):  # a lost event only costs a line on the display
            if path:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"cell": str(self.cell), **event}) + "\n")


def event(line: bytes) -> dict[str, Any]:
    """What a line of FEDREPRO_EVENTS tells, which another machine may have sent; empty where it is none."""
    try:
        document = check(dict[str, Any], json.loads(line), "")
        values = {
            key: check(EVENT[key], document[key], key) for key in EVENT if document.get(key) is not None
        }
    except (*DAMAGED, ParamError):
        return {}
    whole = "accuracy" in values if "done" in values else {"seed", "round", "rounds"} <= values.keys()
    return values if whole else {}


def clock(seconds: float) -> str:
    """`1:05`, `2:03:04`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def counter(name: str, total: int) -> Callable[[int], None]:
    """A function that takes how many images are done, and every few seconds prints it with the time left."""
    begun = printed = time.monotonic()

    def count(done: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if done and now - printed >= SECONDS_BETWEEN_LINES:
            printed, left = now, clock((now - begun) / done * (total - done))
            print(f"{name}: {done:,} of {total:,} images, {left} left", file=sys.stderr, flush=True)

    return count
