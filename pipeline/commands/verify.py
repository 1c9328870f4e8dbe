"""`fedrepro verify [cell, scenario or paper ...]`: train again and compare each round with the stored result.

It answers: does today's code still give the numbers that an earlier version gave? If so, the result counts as
current, and nobody has to train it to the end again.

The seeds of a cell are trained again from round 0 by the real training function (`pipeline/training/walk.py`)
until the time is over. Their order is drawn anew in each call. Every round is compared with history.csv, bit
for bit. There are four outcomes:

same        all values were equal, for enough rounds to tell a method from its ablations (`stamps.LEAST`); a
            stamp in papers/<paper>/verified.yaml records it
DIFFERENT   a value differs; its seed, round and name are printed, and the exit code is 1
too short   too few rounds were trained in the time
elsewhere   the result was trained with another arithmetic than this machine's, and cannot be compared here

With `--code COMMIT`, the code of that commit first trains the seeds on this machine, and its rounds replace
the stored ones (`former_code.py`). In this way a change of code can be verified on any processor, for results
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

import pandas as pd
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

# Packages whose versions two machines must share to round alike, besides portable arithmetic or a processor.
SAME_VERSIONS = ("torch", "numpy")
# Columns of history.csv that say which row it is; all others are compared.
NOT_COMPARED = ("seed", "round")


class Differs(Exception):
    """A value of the new training differs from that of the result; the message is one line."""


class NotHere(FedReproError):
    """A training on this machine says nothing about the result, for example since the processor rounds
    otherwise; the message is one line."""


@dataclass
class Walk:
    """A seed that is trained once more, and how far that came.

    cell     that is trained
    result   the stored result of the cell
    seed     that is trained
    rows     round -> the row that is compared with, of history.csv unless `former`
    machine  that trains it now; empty until it is known
    states   whether every compared round has a digest of the state of server and clients
    walked   the last round that was compared; 0: none yet
    ended    whether the training came to its end
    former   whether the rows are those of an earlier commit's code, trained on this machine
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
        """Compare a line of the training's output with the result.

        line  the machine, the result at the end, or a round

        Raises Differs where the result has another value, and NotHere where this machine cannot give the same
        bits.
        """
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
        """Compare a round: the loss first, where a difference begins, then the measures, then the state."""
        number = line["round"]
        recorded = self.rows[number]
        names = recorded.keys() - {*NOT_COMPARED, results.STATE}
        for name in sorted(names, key=lambda name: (name != "loss", name)):
            self._compare(line.get(name), recorded[name], name, f"round {number}")

        state = recorded.get(results.STATE)
        if isinstance(state, str):
            self._compare(line[results.STATE], state, results.STATE, f"round {number}")
        else:
            self.states = False
        self.walked = max(self.walked, number)

    def _compare(self, now: Any, then: Any, name: str, where: str) -> None:
        """Raise Differs where a value is another one now than then."""
        # NaN, which differs from itself, stands for no value.
        now = None if now != now else now
        then = None if then != then else then
        if now != then:
            raise Differs(f"seed {self.seed}, {where}: {name} is {now} instead of {then}")


def check_machine(here: dict, there: dict) -> None:
    """Raise NotHere unless two machines round alike: both with portable arithmetic or the same processor, and
    with the same versions of the packages that compute.

    here   this machine, as a result describes one
    there  the machine that trained the result
    """
    differences = []
    arithmetic_here = here.get("arithmetic") or here.get("processor")
    arithmetic_there = there.get("arithmetic") or there.get("processor")
    if arithmetic_here != arithmetic_there:
        differences.append(arithmetic_there or "an unknown processor")
    for name in SAME_VERSIONS:
        if here[name] != there.get(name):
            differences.append(f"{name} {there.get(name)}")
    if differences:
        trained_on = ", ".join(differences)
        raise NotHere(f"cannot be compared here; trained on {trained_on}; train again, or verify it there")


@dataclass
class Recording:
    """A seed that an earlier commit's code trains on this machine.

    cell    that is trained
    result  the stored result of the cell
    seed    that is trained
    rows    round -> what the training said of it
    walked  the last round so far; 0: none yet
    ended   whether the training came to its end
    """

    cell: Cell
    result: Result
    seed: int
    rows: dict[int, dict] = field(default_factory=dict)
    walked: int = 0
    ended: bool = False

    def take(self, line: dict) -> None:
        """Keep what a line of the training's output says of a round."""
        if "result" in line:
            self.ended = True
        elif "machine" not in line:
            self.rows[line["round"]] = line
            self.walked = max(self.walked, line["round"])


@dataclass
class Verification:
    """A cell's result that is compared with new trainings, and what was found.

    cell        that is verified
    result      its stored result
    seeds       in the order in which they are trained again
    table       history.csv
    digests     for the stamp: of the code that trained the result, of today's code, and of history.csv
    former      the code of an earlier commit, whose rounds replace the stored ones; None: none
    walks       of the seeds that were begun
    difference  the first value that differs, or why a training fails; empty: neither
    elsewhere   why a training on this machine says nothing; empty: it does
    """

    cell: Cell
    result: Result
    seeds: list[int]
    table: pd.DataFrame
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
        """The verification of a stored result, before its first training.

        cell    of the result
        result  that is verified
        root    folder of the repository
        wanted  only this seed; None: all
        former  the code of an earlier commit to compare with; None: the stored rounds are compared with

        Raises NotHere if no wanted seed can be compared on this machine, and FedReproError if the result is
        damaged, was not trained on a CPU or not with today's parameters, or lacks the wanted seed.
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

        # Unpredictable, so that repeated short calls do not compare the same seed each time.
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
        """Seconds of a round of the quickest seed."""
        return min(self.result["seconds"]) / self.result["rounds"]

    def walk(self, seed: int) -> Walk:
        """The walk of a seed along the stored rounds, before its first round."""
        stored = self.table[self.table["seed"] == seed].to_dict("records")
        return Walk(self.cell, self.result, seed, {row["round"]: row for row in stored})

    def walk_of_former(self, seed: int, seconds: float, rounds: int) -> Walk:
        """The walk of a seed along the rounds of the former code, which trains it here first.

        seed     that is trained
        seconds  that the former code trains at most
        rounds   that the former code trains at most
        """
        assert self.former is not None
        recording = Recording(self.cell, self.result, seed)
        _trained(recording, seconds, rounds, self.former.root)
        return Walk(self.cell, self.result, seed, recording.rows, former=True)

    @property
    def how(self) -> str:
        """What was compared, as a stamp records it: with a former code, bits of states, or numbers alone."""
        if self.former is not None:
            return f"{stamps.FORMER} {self.former.commit}"
        return stamps.BITS if all(walk.states for walk in self.walks) else stamps.NUMBERS

    @property
    def least(self) -> int:
        """Rounds of a seed without which nothing is stamped."""
        return stamps.needed(self.how, self.result["rounds"])

    @property
    def reach(self) -> dict[int, int]:
        """Seed -> the last round that agrees, of the seeds that came far enough for a stamp."""
        return {walk.seed: walk.walked for walk in self.walks if walk.walked >= self.least}

    def stamp(self, root: Path) -> dict:
        """The entry of verified.yaml, joined with an earlier entry about the same result and code."""
        git = identity.git_state(root, self.cell.paper)
        reach = self.reach
        how = self.how
        now = self.digests | {"result": self.result["self"]}
        earlier = stamps.of(self.cell, root)
        if earlier and any(earlier[key] != now[key] for key in ("result", "code", "made")):
            earlier = None

        if earlier and {how, earlier["how"]} == {stamps.BITS, stamps.NUMBERS}:
            how = stamps.NUMBERS
        elif earlier and how != earlier["how"]:  # one of them compared two codes, the other one a result
            earlier = None
        if earlier:
            for seed, last in stamps.reach(earlier).items():
                reach[seed] = max(last, reach.get(seed, 0))
        return now | self._entry(reach, how, git)

    def refusal(self, root: Path) -> dict:
        """The entry of verified.yaml that says which value differs."""
        git = identity.git_state(root, self.cell.paper)
        now = self.digests | {"result": self.result["self"]}
        return now | self._entry({}, f"{stamps.REFUSED}{self.difference}", git)

    def _entry(self, reach: dict[int, int], how: str, git: dict) -> dict:
        """What an entry of verified.yaml has besides the digests.

        reach  seed -> the last round that agrees
        how    what was compared
        git    commit of the checkout, and whether it has changes
        """
        commit = git.get("commit", "unknown")
        if git.get("dirty"):
            commit += ", with changes"
        return stamps.spans(reach, self.result["rounds"]) | {
            "how": how,
            "commit": commit,
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
    """Train cells again, compare them with their results, print and record what was found.

    what     cells, scenarios (paper/scenario) or papers; empty: every stale cell whose data are here, the
             quickest first
    seconds  time for each cell, counted from the first line of its first training
    jobs     number of cells at once; None: one for each core
    seed     only this seed; None: all, in an order that is drawn anew
    rounds   number of rounds of each seed, at most; None: all
    code     a commit whose code is compared with today's; None: the stored results are
    root     folder of the repository

    Returns the exit code: 1 if a value differs, if a cell had too little time, or if a named cell could not
    be compared. Raises FedReproError for an unknown name or commit.
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
    """As `verify`, with the former code checked out; None: without one."""
    begun = time.monotonic()
    found, lacking, elsewhere = _found(wanted, seed, former, root)
    for line in dict.fromkeys(lacking + elsewhere):
        print(f"  not walked {line}", file=sys.stderr, flush=True)

    counts = Counter[str]()
    stamped = set[str]()
    parallel = Parallel(jobs or cores(), prefer="threads", return_as="generator_unordered")
    tasks = (delayed(_follow)(verification, seconds, rounds, root) for verification in found)
    for done in parallel(tasks):
        kind, text, is_stamped = _recorded(done, former, root)
        print(f"  {kind:<10} {done.cell}: {text}", flush=True)
        counts[kind] += 1
        if is_stamped:
            stamped.add(done.cell.paper)
    # DVC learns from the papers' sources.yaml which cells are stale.
    for paper in sorted(stamped):
        subprocess.run([sys.executable, "-m", "stages.sources", paper], cwd=root, check=True)

    different = counts["DIFFERENT"]
    left = counts["too short"] + counts["elsewhere"] + len(lacking) + len(elsewhere)
    took = clock(time.monotonic() - begun)
    print(f"{counts['same']} the same, {different} different, {left} not compared, in {took}")
    # What was named and could not be compared is an error; what was found by itself is not.
    named_but_not_walked = wanted and (lacking or elsewhere or counts["elsewhere"])
    return 1 if different or counts["too short"] or named_but_not_walked else 0


def _recorded(done: Verification, former: FormerCode | None, root: Path) -> tuple[str, str, bool]:
    """Write what a verification found to verified.yaml, if it is to be recorded.

    Returns (outcome in a word, what was found, whether verified.yaml was written).
    """
    cell = done.cell
    if done.difference:
        # A different former code refutes only what a stamp said.
        refuted = former is None or stamps.of(cell, root) is not None
        if refuted:
            stamps.write({cell: done.refusal(root)}, root)
        return "DIFFERENT", done.difference, refuted
    if done.reach:
        entry = done.stamp(root)
        stamps.write({cell: entry}, root)
        return "same", stamps.words(entry, len(done.result["seeds"])), True
    if done.elsewhere:
        return "elsewhere", done.elsewhere, False
    furthest = max((walk.walked for walk in done.walks), default=0)
    text = f"{furthest} of the {done.least} rounds that a stamp needs; --seconds gives it more"
    return "too short", text, False


def _found(
    wanted: list[str], seed: int | None, former: FormerCode | None, root: Path
) -> tuple[list[Verification], list[str], list[str]]:
    """Look for the results that are to be verified.

    Returns (what is to be trained again, the quickest round first; a line for each cell that cannot be; a
    line for each cell that can be on another machine alone). Raises FedReproError for an unknown name.
    """
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
    """(those whose result was valid for the former code, a line for each of the others)."""
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
    """Train the seeds in turn and compare, until the time is over, a value differs or a training fails.

    seconds  for all seeds together
    rounds   of each seed at most; None: all

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
                last = max(walk.rows, default=0)  # the former code may have trained fewer rounds
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
    """Train a seed in a process of its own, by the code in `root`; each line of its output goes to `walk`.

    walk     what takes the lines
    seconds  after which the process is stopped, from its first line on
    rounds   after which it is stopped

    Returns the seconds that it took. Raises Differs or NotHere as `walk.take` does, NotHere too if a signal
    ended the process, and FedReproError if the training fails.
    """
    settings = {"DEVICE": "cpu", "WORKERS": "1", "FORCE": "", "TRACKING": "off", "EVENTS": ""}
    settings |= {"EXECUTOR": walk.result["executor"], "PRECISION": walk.result["precision"]}
    environment = os.environ | {f"FEDREPRO_{name}": value for name, value in settings.items()}

    with (
        tempfile.TemporaryDirectory(prefix="fedrepro-verify-", ignore_cleanup_errors=True) as folder,
        open(Path(folder, "errors"), "w+", encoding="utf-8", errors="replace") as errors,
    ):
        arguments = map(str, (walk.cell, walk.seed, Path(folder, "root"), root))
        command = [sys.executable, "-m", former_code.walk_module(root), *arguments]
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
                    # A training to the last round goes on: its means come after it.
                    if walk.walked >= rounds and rounds < walk.result["rounds"]:
                        stopped = True
                        break
            finally:
                if timer is not None:
                    timer.cancel()
                if not walk.ended:
                    process.kill()

        if not (walk.ended or stopped or over.is_set()):
            # The system, short of memory, or a user ended it: that says nothing about the result.
            if process.returncode < 0:
                raise NotHere(f"its training was ended by signal {-process.returncode}; verify it again")
            errors.seek(0)
            lines = errors.read().splitlines()
            raise FedReproError(f"the training fails: {lines[-1] if lines else 'no answer'}")
    return time.monotonic() - (begun or time.monotonic())
