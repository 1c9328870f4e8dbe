"""What the terminal shows while a cell trains: cell, seed, round, accuracy, time left."""
import sys
import time

from pipeline.evaluation import HEADLINE
from pipeline.params import Cell, Scenario

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Prints a line every few seconds, and one when the cell is done."""

    def __init__(self, cell: Cell, scenario: Scenario):
        self.cell, self.rounds, self.seeds = cell, scenario.training.rounds, scenario.seeds
        self.measure = HEADLINE[scenario.evaluation.tests]
        self.done = dict.fromkeys(self.seeds, 0)              # rounds behind each seed
        self.fresh = 0                                        # rounds trained in this process, not resumed
        self.begun = self.shown = time.monotonic()

    def report(self, row: dict) -> None:
        """A round of a seed is over: `row` is its line of history.csv."""
        self.done[row["seed"]] = row["round"]
        self.fresh += 1
        now = time.monotonic()
        if now - self.shown < SECONDS_BETWEEN_LINES:
            return
        self.shown = now
        left = sum(self.rounds - done for done in self.done.values())
        accuracy = f"accuracy {row[self.measure]:5.2f} %" if row.get(self.measure) is not None else ""
        self._print(f"seed {row['seed']}  round {row['round']}/{self.rounds}  {accuracy}  "
                    f"{clock((now - self.begun) / self.fresh * left)} left")

    def seed_done(self, finished: dict) -> None:
        self.done[finished["seed"]] = self.rounds

    def cell_done(self, result: dict) -> None:
        values = result["measures"][result["headline"]]
        mean = sum(values) / len(values)
        self._print(f"{self.rounds} rounds, {len(values)} seeds: {result['headline']} accuracy {mean:.2f} % "
                    f"in {clock(time.monotonic() - self.begun)}")

    def _print(self, text: str) -> None:
        print(f"{str(self.cell):<32} {text}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """`1:05`, `2:03:04`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
