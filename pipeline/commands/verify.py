"""`fedrepro verify [cell, scenario or paper ...]`: train again and compare each round with the stored result.

The seeds of a cell are trained again by the real training function (`pipeline/training/walk.py`), from round
0, in an order that is drawn in each call, until the time is over. Every round is compared with history.csv,
bit for bit. If all values are equal for enough rounds to distinguish a method from its ablations
(`stamps.LEAST`), papers/<paper>/verified.yaml records it, and the result counts as today's. If a value
differs, its cell, seed, round and name are printed, and the exit code is 1. Results trained with another
arithmetic than this machine's cannot be compared here.

With a commit, the code of that commit first trains the seeds on this machine, and its rounds replace the
stored ones (`former_code.py`). In this way a change of code can be verified on any processor, for results
that were valid for that commit.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from pipeline.cells import inputs, results, stamps
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.commands import former_code
from pipeline.commands.former_code import FormerCode
from pipeline.commands.run import partition_stage
from pipeline.errors import FedReproError, unknown
from pipeline.place import cores
from pipeline.provenance import identity
from pipeline.schema import ROOT, Cell
from pipeline.schema.cell import Seeded
from pipeline.schema.documents import visible
from pipeline.training.progress import clock

# Versions that two machines must have in common to round alike, besides portable arithmetic or a processor.
ALIKE = ("torch", "numpy")
# Columns of history.csv that say which row it is.
NOT_COMPARED = ("seed", "round")


class Differs(Exception):
    """A round or a mean that is not what the result has: one line."""


class NotHere(FedReproError):
    """A training here says nothing of the result, such as with arithmetic of another machine: one line."""


@dataclass
class Walk:
    """A seed that is trained once more, and how far that came.

    result: of its cell
    rows: of the seed in history.csv, by round
    machine: that trains it now, once known
    states: had every walked round a state to compare?
    walked: the last round that was compared
    ended: did the training come to its end?
    former: whether the rows are what the code of an earlier commit gives on this machine
    """

    cell: Cell
    result: Result
    seed: int
    rows: dict[int, dict]
    machine: dict = field(default_factory=dict)
    states: bool = True
    walked: int = 0
    ended: bool = False
    former: bool = False

    @property
    def at(self) -> int:
        """The seed's place in the result."""
        return self.result["seeds"].index(self.seed)

    def take(self, line: dict) -> None:
        """Compare what the training says; Differs where the result has another value, NotHere where it cannot
        have the same bits."""
        if "machine" in line:
            self.machine = line["machine"]
            if not self.former:
                check_machine(self.machine, results.machines(self.result)[self.at])
        elif "result" in line:
            if not self.former:
                self._means(line["result"])
            self.ended = True
        else:
            self._row(line)

    def _means(self, result: Result) -> None:
        """Compare what the training has at its end: means over the last rounds, and accuracies of clients."""
        recorded = results.reported(self.result)
        trained = results.reported(result)
        for part, measures in recorded.items():
            for name, values in measures.items():
                now = trained[part].get(name, [None])[0]
                self._compare(now, values[self.at], name, f"the means of {part}")
        accuracies = zip(result["clients"][0], self.result["clients"][self.at], strict=True)
        for client, (now, then) in enumerate(accuracies, 1):
            self._compare(now, then, f"accuracy of client {client}", "the last round")

    def _row(self, line: dict) -> None:
        """Compare a round."""
        recorded = self.rows[line["round"]]
        names = recorded.keys() - {*NOT_COMPARED, results.STATE}
        for name in sorted(names, key=lambda name: (name != "loss", name)):
            self._compare(line.get(name), recorded[name], name, f"round {line['round']}")
        state = recorded.get(results.STATE)
        if isinstance(state, str):
            self._compare(line[results.STATE], state, results.STATE, f"round {line['round']}")
        else:
            self.states = False
        self.walked = max(self.walked, line["round"])

    def _compare(self, now: Any, then: Any, name: str, where: str) -> None:
        # NaN, which differs from itself, stands for no value.
        now = None if now != now else now
        then = None if then != then else then
        if now != then:
            raise Differs(f"seed {self.seed}, {where}: {name} is {now} instead of {then}")


def check_machine(here: dict, there: dict) -> None:
    """NotHere unless two machines, as results describe them, round alike: both with portable arithmetic or
    the same processor, and with the same versions of what computes."""
    differences = []
    arithmetic_there = there.get("arithmetic") or there.get("processor")
    if (here.get("arithmetic") or here.get("processor")) != arithmetic_there:
        differences.append(arithmetic_there or "an unknown processor")
    for name in ALIKE:
        if here[name] != there.get(name):
            differences.append(f"{name} {there.get(name)}")
    if differences:
        trained_on = ", ".join(differences)
        raise NotHere(f"cannot be compared here; trained on {trained_on}; train again, or verify it there")


@dataclass
class Recording:
    """A seed that an earlier commit's code trains, and the rounds that it said."""

    cell: Cell
    result: Result
    seed: int
    rows: dict[int, dict] = field(default_factory=dict)
    walked: int = 0
    ended: bool = False

    def take(self, line: dict) -> None:
        """Keep what the training says of a round."""
        if "result" in line:
            self.ended = True
        elif "machine" not in line:
            self.rows[line["round"]] = line
            self.walked = max(self.walked, line["round"])


@dataclass
class Verification:
    """A cell's result, its seeds in the order in which they are walked, and what was found.

    digests: for the stamp, of the code that trained the result, of today's and of history.csv
    walks: of the seeds that were begun
    difference: the first value that is not the same, or why a training fails
    elsewhere: why the training here says nothing
    former: the code of an earlier commit, whose rounds stand in the place of the stored ones
    """

    cell: Cell
    result: Result
    seeds: list[int]
    table: Any
    digests: dict[str, str]
    former: FormerCode | None = None
    walks: list[Walk] = field(default_factory=list)
    difference: str = ""
    elsewhere: str = ""

    @classmethod
    def of(
        cls,
        cell: Cell,
        result: Result,
        root: Path,
        wanted: int | None = None,
        former: FormerCode | None = None,
    ) -> "Verification":
        """Of a stored result.

        wanted: only this seed; None: all

        Raises FedReproError where there is nothing that could be walked or compared.
        """
        if result["device"] != "cpu":
            raise FedReproError(f"it was trained on {result['device']}, which is not compared")
        experiment = Experiment.of(cell, root)
        made = identity.made_by(result, experiment)
        if made is None:
            raise FedReproError("its parameters have changed since; train it again")
        table = results.checked_history(cell, result, root)
        results.check_plausible(result, table, cell.folder(root) / "history.csv")
        if wanted is not None and wanted not in result["seeds"]:
            raise FedReproError(unknown("seed", str(wanted), map(str, result["seeds"])))
        expected = _expected_machine(experiment)
        seeds = []
        elsewhere: list[NotHere] = []
        for seed, machine in zip(result["seeds"], results.machines(result), strict=True):
            try:
                if former is None:
                    check_machine(expected, machine)
            except NotHere as reason:
                elsewhere.append(reason)
            else:
                seeds.append(seed)
        if wanted is not None:
            seeds = [seed for seed in seeds if seed == wanted]
        if not seeds:
            raise elsewhere[0]
        random.SystemRandom().shuffle(seeds)
        inputs.verify(Experiment.of(Seeded(cell.paper, cell.scenario, cell.method, tuple(seeds)), root))
        digests = {
            "made": made,
            "code": identity.digest_of(experiment, result["executor"]),
            "history": stamps.digest((cell.folder(root) / "history.csv").read_bytes()),
        }
        return cls(cell, result, seeds, table, digests, former)

    @property
    def seconds(self) -> float:
        """What a round of the quickest seed took."""
        return min(self.result["seconds"]) / self.result["rounds"]

    def walk(self, seed: int) -> Walk:
        """The walk of a seed, before its first round."""
        stored = self.table[self.table["seed"] == seed].to_dict("records")
        return Walk(self.cell, self.result, seed, {row["round"]: row for row in stored})

    def walk_of_former(self, seed: int, seconds: float, rounds: int) -> Walk:
        """The same, once the former code has trained the seed for so many seconds or rounds."""
        assert self.former is not None
        recording = Recording(self.cell, self.result, seed)
        _trained(recording, seconds, rounds, self.former.root)
        return Walk(self.cell, self.result, seed, recording.rows, former=True)

    @property
    def how(self) -> str:
        """What was compared."""
        if self.former is not None:
            return f"{stamps.FORMER} {self.former.commit}"
        return stamps.BITS if all(walk.states for walk in self.walks) else stamps.NUMBERS

    @property
    def least(self) -> int:
        """Rounds of a seed without which nothing is stamped."""
        return stamps.needed(self.how, self.result["rounds"])

    @property
    def reach(self) -> dict[int, int]:
        """Seed -> the last round that agrees, of those that came far enough for a stamp."""
        return {walk.seed: walk.walked for walk in self.walks if walk.walked >= self.least}

    def stamp(self, root: Path) -> dict:
        """The entry of verified.yaml, with what an earlier one says of the same result and code."""
        git = identity.git_state(root, self.cell.paper)
        reach = self.reach
        how = self.how
        now = self.digests | {"result": self.result["self"]}
        earlier = stamps.of(self.cell, root)
        if earlier and any(earlier[key] != now[key] for key in ("result", "code", "made")):
            earlier = None
        if earlier and {how, earlier["how"]} == {stamps.BITS, stamps.NUMBERS}:
            how = stamps.NUMBERS
        elif earlier and how != earlier["how"]:  # two codes, and not a code and a result, were compared
            earlier = None
        if earlier:
            for seed, last in stamps.reach(earlier).items():
                reach[seed] = max(last, reach.get(seed, 0))
        return now | self._entry(reach, how, git)

    def refusal(self, root: Path) -> dict:
        """The entry of verified.yaml that says which number was another one."""
        git = identity.git_state(root, self.cell.paper)
        now = self.digests | {"result": self.result["self"]}
        return now | self._entry({}, f"{stamps.REFUSED}{self.difference}", git)

    def _entry(self, reach: dict[int, int], how: str, git: dict) -> dict:
        return stamps.spans(reach, self.result["rounds"]) | {
            "how": how,
            "commit": git.get("commit", "unknown") + (", with changes" if git.get("dirty") else ""),
            "processor": self.walks[0].machine.get("processor", "unknown"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def _expected_machine(experiment: Experiment) -> dict:
    """This machine as the walk of a cell will describe it: under its scenario's arithmetic."""
    return identity.machine() | {"arithmetic": experiment.scenario.arithmetic or ""}


def verify(
    what: Iterable[str] = (),
    seconds: float = 60.0,
    jobs: int | None = None,
    seed: int | None = None,
    rounds: int | None = None,
    code: str | None = None,
    root: Path = ROOT,
) -> int:
    """Walk, record and print; returns the exit code.

    what     cells, scenarios (paper/scenario) or papers; empty: every stale cell whose data are here, the
             quickest first
    seconds  for each cell, from where its first training begins
    jobs     how many cells at once; None: one for each core
    seed     only this one; None: all, in an order that is drawn anew
    rounds   of each seed at most; None: all
    code     a commit whose code is compared with today's; None: stored results are
    """
    with contextlib.ExitStack() as stack:
        former = stack.enter_context(former_code.checked_out(code, root)) if code else None
        return _verify([*what], seconds, jobs, seed, rounds, former, root)


def _verify(
    wanted: list[str],
    seconds: float,
    jobs: int | None,
    seed: int | None,
    rounds: int | None,
    former: FormerCode | None,
    root: Path,
) -> int:
    """As `verify`."""
    begun = time.monotonic()
    found, lacking, elsewhere = _found(wanted, seed, former, root)
    for line in dict.fromkeys(lacking + elsewhere):
        print(f"  not walked {line}", file=sys.stderr, flush=True)
    counts = Counter[str]()
    stamped = set[str]()
    parallel = Parallel(jobs or cores(), prefer="threads", return_as="generator_unordered")
    tasks = (delayed(_follow)(verification, seconds, rounds, root) for verification in found)
    for done in parallel(tasks):
        cell = done.cell
        if done.difference:
            kind = "DIFFERENT"
            text = done.difference
            if former is None or stamps.of(cell, root) is not None:  # it no longer counts
                stamps.write({cell: done.refusal(root)}, root)
                stamped.add(cell.paper)
        elif done.reach:
            kind = "same"
            entry = done.stamp(root)
            stamps.write({cell: entry}, root)
            stamped.add(cell.paper)
            text = stamps.words(entry, len(done.result["seeds"]))
        elif done.elsewhere:
            kind = "elsewhere"
            text = done.elsewhere
        else:
            kind = "too short"
            furthest = max((walk.walked for walk in done.walks), default=0)
            text = f"{furthest} of the {done.least} rounds that a stamp needs; --seconds gives it more"
        print(f"  {kind:<10} {cell}: {text}", flush=True)
        counts[kind] += 1
    for paper in sorted(stamped):  # by which DVC knows which cells are stale
        subprocess.run([sys.executable, "-m", "stages.sources", paper], cwd=root, check=True)
    different = counts["DIFFERENT"]
    left = counts["too short"] + counts["elsewhere"] + len(lacking) + len(elsewhere)
    took = clock(time.monotonic() - begun)
    print(f"{counts['same']} the same, {different} different, {left} not compared, in {took}")
    # What was named and could not be compared is an error; what was found by itself is not.
    named_but_not_walked = wanted and (lacking or elsewhere or counts["elsewhere"])
    return 1 if different or counts["too short"] or named_but_not_walked else 0


def _found(
    wanted: list[str], seed: int | None, former: FormerCode | None, root: Path
) -> tuple[list[Verification], list[str], list[str]]:
    """What is to be walked, the quickest round first; a line for each cell that cannot be; and a line for
    each that can be on another machine alone."""
    found: list[Verification] = []
    lacking: list[str] = []
    elsewhere: list[str] = []
    known = set[str]()
    for path in visible(root, "papers/*/runs/*/*/result.json"):
        cell = Cell(path.parts[-5], *path.parts[-3:-1])
        names = {str(cell), f"{cell.paper}/{cell.scenario}", cell.paper}
        known |= names
        if wanted and not names.intersection(wanted):
            continue
        try:
            result = results.read(path)
            if not wanted and identity.current(result, Experiment.of(cell, root)):
                continue
            if (root / "papers" / cell.paper / "partitions" / cell.partition).is_dir():
                found.append(Verification.of(cell, result, root, seed, former))
            else:
                missing = f"no partition here yet: fedrepro run {partition_stage(cell)}"
                lacking.append(f"{cell.paper}/{cell.partition}: {missing}")
        except NotHere as error:
            elsewhere.append(f"{cell}: {error}")
        except FedReproError as error:
            lacking.append(str(error) if str(cell) in str(error) else f"{cell}: {error}")
    if former is not None:
        found, refused = _counted(found, former)
        lacking += refused
    for name in wanted:
        if name not in known:
            raise FedReproError(unknown("measured cell, scenario or paper", name, known))
    return sorted(found, key=lambda verification: verification.seconds), lacking, elsewhere


def _counted(found: list[Verification], former: FormerCode) -> tuple[list[Verification], list[str]]:
    """Those whose result counts for the former code, and a line for each of the others."""
    counted = []
    refused = []
    answers = former.ask([verification.cell for verification in found])
    for verification in found:
        try:
            former.check_counts(verification.result, answers[verification.cell])
        except FedReproError as error:
            refused.append(f"{verification.cell}: {error}")
        else:
            counted.append(verification)
    return counted, refused


def _follow(verification: Verification, seconds: float, rounds: int | None, root: Path) -> Verification:
    """Train the seeds in turn and compare until the time is over, to the first value that is not the same or
    the first training that fails.

    Returns the verification, with its walks and what was found.
    """
    left = seconds
    for seed in verification.seeds:
        if left <= 0:
            break
        last = rounds or verification.result["rounds"]
        before = len(verification.walks)
        try:
            if verification.former:
                walk = verification.walk_of_former(seed, left, last)
                last = max(walk.rows, default=0)  # its time may have been over before
            else:
                walk = verification.walk(seed)
            verification.walks.append(walk)
            left -= _trained(walk, left, last, root)
        except NotHere as reason:
            del verification.walks[before:]
            verification.elsewhere = str(reason)
            break
        except (Differs, FedReproError) as difference:
            verification.difference = str(difference)
            break
    return verification


def _trained(walk: Walk | Recording, seconds: float, rounds: int, root: Path) -> float:
    """Follow a seed, trained by the code in `root`, for so many seconds, from its first line on, or rounds;
    returns the seconds that it took. Differs for another value; FedReproError where the training fails."""
    settings = {"DEVICE": "cpu", "WORKERS": "1", "FORCE": "", "TRACKING": "off", "EVENTS": ""}
    settings |= {"EXECUTOR": walk.result["executor"], "PRECISION": walk.result["precision"]}
    environment = os.environ | {f"FEDREPRO_{name}": value for name, value in settings.items()}
    with (
        tempfile.TemporaryDirectory(prefix="fedrepro-verify-", ignore_cleanup_errors=True) as folder,
        open(Path(folder, "errors"), "w+", encoding="utf-8", errors="replace") as errors,
    ):
        words = map(str, (walk.cell, walk.seed, Path(folder, "root"), root))
        command = [sys.executable, "-m", former_code.walk_module(root), *words]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        stopped = False
        begun: float | None = None
        timer: threading.Timer | None = None
        with subprocess.Popen(command, cwd=root, env=environment, **pipes) as process:
            over = threading.Event()

            def stop() -> None:
                over.set()
                process.kill()

            try:
                for line in process.stdout or ():
                    if not line.endswith("\n"):  # it was stopped in the middle of it
                        break
                    walk.take(json.loads(line))
                    if begun is None:
                        begun = time.monotonic()
                        timer = threading.Timer(seconds, stop)
                        timer.daemon = True
                        timer.start()
                    if walk.walked >= rounds and rounds < walk.result["rounds"]:
                        stopped = True
                        break
            finally:
                if timer is not None:
                    timer.cancel()
                if not walk.ended:
                    process.kill()
        if not (walk.ended or stopped or over.is_set()):
            if process.returncode < 0:  # by the system, short of memory, or by a user: that says nothing
                raise NotHere(f"its training was ended by signal {-process.returncode}; verify it again")
            errors.seek(0)
            lines = errors.read().splitlines()
            raise FedReproError(f"the training fails: {lines[-1] if lines else 'no answer'}")
    return time.monotonic() - (begun or time.monotonic())
