"""`fedrepro verify [cell, scenario or paper ...]`: retrain and compare each round with the stored result.

For each cell one seed is trained once more by the training function itself, from round 0 and as far as the
time goes (`pipeline/cells/walk.py`), and every round is compared with history.csv. Where all agree,
papers/<paper>/verified.yaml says so, and the result counts as today's. Where a value differs, its cell, round
and name are printed, nothing is recorded, and the exit code is 1.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from pipeline.cells import inputs, provenance, results, stamps
from pipeline.cells.experiment import Experiment
from pipeline.cells.progress import clock
from pipeline.commands.run import partition_stage
from pipeline.errors import FedReproError, unknown
from pipeline.place import cores
from pipeline.schema import ROOT, Cell
from pipeline.schema.cell import Seeded
from pipeline.schema.documents import visible

ALIKE = ("torch", "numpy")  # of machines that round alike; else also the processor
NOT_COMPARED = ("seed", "round")
# Between an Intel and an AMD processor without portable arithmetic, rounds of FedLSA's Office-Caltech
# differ by less than 0.0001 of the loss until training has amplified the last bits (round 11), from a round
# to the next by at most ten times more, and later by up to 1 % of the loss and 7 points (two images) of a
# domain's accuracy.
# of the loss, as a share of it
LEAST, GROWTH, MOST = 1e-4, 20.0, 0.05
# of an accuracy, and for each unit of the loss's share
POINTS, MORE, MOST_POINTS = 4.0, 1000.0, 15.0


class Differs(Exception):
    """A round or a mean that is not what the result has: one line."""


@dataclass
class Walk:
    """A cell's result, the seed that is trained once more, and how far that came.

    rows: of the seed in history.csv, by round
    digests: for the stamp, of the code that trained the result, of today's and of history.csv
    exact: do the two machines round alike?
    states: had every round a state to compare?
    grown: largest difference of the loss so far, as a share of it
    """

    cell: Cell
    result: dict
    seed: int
    rows: dict[int, dict]
    digests: dict[str, str] = field(default_factory=dict)
    exact: bool = True
    states: bool = True
    grown: float = LEAST
    machine: dict = field(default_factory=dict)
    walked: int = 0
    ended: bool = False

    @classmethod
    def of(cls, cell: Cell, result: dict, root: Path) -> "Walk":
        """FedReproError where there is nothing that could be walked or compared."""
        if result["device"] != "cpu":
            raise FedReproError(f"it was trained on {result['device']}, which is not compared")
        experiment = Experiment.of(cell, root)
        if (made := provenance.made_by(result, experiment)) is None:
            raise FedReproError("its parameters have changed since; train it again")
        table = results.checked_history(cell, result, root)
        here, machines = provenance.machine()["processor"], zip(result["seeds"], results.machines(result))
        alike = [seed for seed, machine in machines if machine.get("processor") == here]
        seed = [*alike, result["seeds"][0]][0]
        inputs.verify(Experiment.of(Seeded(cell.paper, cell.scenario, cell.method, (seed,)), root))
        rows = {row["round"]: row for row in table[table["seed"] == seed].to_dict("records")}
        code = provenance.digest_of(experiment, result["executor"])
        history = stamps.digest((cell.folder(root) / "history.csv").read_bytes())
        return cls(cell, result, seed, rows, {"made": made, "code": code, "history": history})

    @property
    def at(self) -> int:
        """The seed's place in the result."""
        return self.result["seeds"].index(self.seed)

    @property
    def seconds(self) -> float:
        """What a round took when the seed was trained."""
        return self.result["seconds"][self.at] / self.result["rounds"]

    def take(self, line: dict) -> None:
        """Compare what the training says; Differs where the result has another value."""
        if "machine" in line:
            here, there = line["machine"], results.machines(self.result)[self.at]
            self.machine = here
            kinds = {machine.get("arithmetic") or machine.get("processor") for machine in (here, there)}
            self.exact = len(kinds) == 1 and all(here[key] == there.get(key) for key in ALIKE)
        elif "result" in line:
            self._means(line["result"])
            self.ended = True
        else:
            self._row(line)

    def _means(self, result: dict) -> None:
        for part in ("measures", *results.MEANS):
            for name, values in self.result[part].items():
                now = result[part].get(name, [None])[0]
                self._compare(now, values[self.at], name, f"the means of {part}")
        clients = zip(result["clients"][0], self.result["clients"][self.at])
        for number, (now, then) in enumerate(clients, 1):
            self._compare(now, then, f"accuracy of client {number}", "the last round")

    def _row(self, line: dict) -> None:
        recorded = self.rows[line["round"]]
        # The loss first: it says how far rounding has grown.
        names = recorded.keys() - {*NOT_COMPARED, results.STATE}
        for name in sorted(names, key=lambda name: (name != "loss", name)):
            self._compare(line.get(name), recorded[name], name, f"round {line['round']}")
        state = recorded.get(results.STATE)
        self.states &= isinstance(state, str)
        if self.exact and isinstance(state, str):
            self._compare(line[results.STATE], state, results.STATE, f"round {line['round']}")
        self.walked = max(self.walked, line["round"])

    def _compare(self, now: Any, then: Any, name: str, where: str) -> None:
        now, then = (None if value != value else value for value in (now, then))
        if now != then and (self.exact or None in (now, then) or not self._rounded(name, now, then)):
            kind = "" if self.exact else ", more than the rounding of another processor"
            raise Differs(f"seed {self.seed}, {where}: {name} is {now} instead of {then}{kind}")

    def _rounded(self, name: str, now: float, then: float) -> bool:
        """Whether another processor's rounding may give `now`."""
        if results.is_percent(name):
            return abs(now - then) <= min(POINTS + MORE * self.grown, MOST_POINTS)
        share = abs(now - then) / max(abs(then), 1.0)
        allowed = share <= min(GROWTH * self.grown, MOST)
        if name == "loss":
            self.grown = max(self.grown, share)
        return allowed

    def stamp(self, root: Path) -> dict:
        """The entry of verified.yaml."""
        git = provenance.git_state(root, self.cell.paper)
        return self.digests | {
            "result": self.result["self"],
            "seed": str(self.seed),
            "rounds": self.rounds,
            "how": self.how,
            "commit": git.get("commit", "unknown") + (", with changes" if git.get("dirty") else ""),
            "processor": self.machine["processor"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    @property
    def rounds(self) -> str:
        return f"1-{self.walked} of {self.result['rounds']}"

    @property
    def how(self) -> str:
        return stamps.ROUNDING if not self.exact else stamps.BITS if self.states else stamps.NUMBERS


def verify(
    what: Iterable[str] = (), seconds: float = 60.0, jobs: int | None = None, root: Path = ROOT
) -> int:
    """Walk, record and print; returns the exit code.

    what: cells, scenarios (paper/scenario) or papers; empty: every stale cell whose data are here, the
    quickest first. seconds: for each cell, from where its training begins. jobs: how many at once,
    by default one for each core.
    """
    begun, wanted = time.monotonic(), [*what]
    walks, lacking = _walks(wanted, root)
    for line in dict.fromkeys(lacking):
        print(f"  not walked {line}", file=sys.stderr, flush=True)
    counts, papers = Counter[str](), set[str]()
    each = Parallel(jobs or cores(), prefer="threads", return_as="generator_unordered")
    for walk, outcome in each(delayed(_follow)(walk, seconds, root) for walk in walks):
        kind = "DIFFERENT" if outcome else "same" if walk.walked else "no round"
        if kind == "same":
            stamps.write({walk.cell: walk.stamp(root)}, root)
            papers.add(walk.cell.paper)
            outcome = f"seed {walk.seed}, rounds {walk.rounds}, {walk.how}"
        elif kind == "no round":
            outcome = f"none was over after {seconds:g} s; --seconds gives it more"
        print(f"  {kind:<10} {walk.cell}: {outcome}", flush=True)
        counts[kind] += 1
    for paper in sorted(papers):  # by which DVC knows which cells are stale
        subprocess.run([sys.executable, "-m", "stages.sources", paper], cwd=root, check=True)
    same, different = counts["same"], counts["DIFFERENT"]
    rest = f"{counts['no round'] + len(lacking)} not compared, in {clock(time.monotonic() - begun)}"
    print(f"{same} the same, {different} different, {rest}")
    return 1 if different or counts["no round"] or lacking and wanted else 0


def _walks(wanted: list[str], root: Path) -> tuple[list[Walk], list[str]]:
    """What is to be walked, the quickest round first, and a line for each cell that cannot be."""
    walks, failed, known = list[Walk](), list[str](), set[str]()
    for path in visible(root, "papers/*/runs/*/*/result.json"):
        cell = Cell(path.parts[-5], *path.parts[-3:-1])
        mine = {str(cell), f"{cell.paper}/{cell.scenario}", cell.paper}
        known |= mine
        if wanted and not mine.intersection(wanted):
            continue
        try:
            result = results.read(path)
            if not wanted and provenance.current(result, Experiment.of(cell, root)):
                continue
            if (root / "papers" / cell.paper / "partitions" / cell.partition).is_dir():
                walks.append(Walk.of(cell, result, root))
            else:
                missing = f"no partition here yet: fedrepro run {partition_stage(cell)}"
                failed.append(f"{cell.paper}/{cell.partition}: {missing}")
        except FedReproError as error:
            failed.append(str(error) if str(cell) in str(error) else f"{cell}: {error}")
    for name in wanted:
        if name not in known:
            raise FedReproError(unknown("measured cell, scenario or paper", name, known))
    return sorted(walks, key=lambda walk: walk.seconds), failed


def _follow(walk: Walk, seconds: float, root: Path) -> tuple[Walk, str]:
    """Train, and compare until the time is over; with the first value that is not the same, or why the
    training fails, and nothing where all are."""
    settings = {"DEVICE": "cpu", "WORKERS": "1", "FORCE": "", "TRACKING": "off", "EVENTS": ""}
    settings |= {"EXECUTOR": walk.result["executor"], "PRECISION": walk.result["precision"]}
    environment = os.environ | {f"FEDREPRO_{name}": value for name, value in settings.items()}
    with (
        tempfile.TemporaryDirectory(prefix="fedrepro-verify-", ignore_cleanup_errors=True) as folder,
        open(Path(folder, "errors"), "w+", encoding="utf-8", errors="replace") as errors,
    ):
        words = map(str, (walk.cell, walk.seed, Path(folder, "root"), root, seconds))
        command = [sys.executable, "-m", "pipeline.cells.walk", *words]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        with subprocess.Popen(command, cwd=root, env=environment, **pipes) as process:
            try:
                for line in process.stdout or ():
                    if line.endswith("\n"):  # else it was stopped in the middle of it
                        walk.take(json.loads(line))
            except Differs as difference:
                process.kill()
                return walk, str(difference)
        if not walk.ended and process.returncode != -signal.SIGALRM:
            errors.seek(0)
            return walk, f"the training fails: {(errors.read().splitlines() or ['no answer'])[-1]}"
    return walk, ""
