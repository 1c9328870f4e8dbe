"""`fedrepro status [paper ...]`: which results are finished, stale, failed or missing, and the hours left.

A cell is in one of these states:
- done;
- stale: other code, parameters, seeds or partitions than today's made its result, or it cannot be read;
- failed: its last run ended with an error;
- missing: it has not run;
- no stage: no grid of paper.yaml contains it yet.

`plan`, `explain`, `check` and `verify` ask here which results are stale. Neither torch nor DVC is loaded, so
this takes only seconds.
"""

import contextlib
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pipeline import locks
from pipeline.cells import choices, stamps
from pipeline.cells.declarations import declarations, missing_seeds
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.commands.hours import Rate, estimate, rates_of
from pipeline.commands.options import wrapped
from pipeline.errors import DAMAGED, FedReproError, ParamError, unknown
from pipeline.files import read_csv
from pipeline.provenance import changes, companions, identity
from pipeline.schema import (
    LISTED,
    MINIATURE,
    ROOT,
    Cell,
    Paper,
    Table,
    Trial,
    Tuned,
    load_paper,
    papers,
    planned,
    shorten,
    visible,
)
from pipeline.schema.paper import PUBLISHED
from pipeline.sealing import is_sealed

# The states of a cell, as they are printed.
# a result.json that cannot be read or was altered; as it is empty, it counts as stale
UNREADABLE = cast(Result, {})

DONE = "done"
STALE = "stale"
FAILED = "failed"
MISSING = "missing"
UNPLANNED = "no stage"
STATES = (DONE, STALE, FAILED, MISSING, UNPLANNED)
# States of cells that a run would train.
LEFT = (STALE, FAILED, MISSING)
# Columns of the name at the beginning of a row; a longer name has a line of its own.
NAME = 20
# Columns of the number of cells, then of each of STATES.
WIDTHS = (5, 5, 6, 7, 8, 9)
# Columns of a printed line.
WIDTH = 80
# Hours from which on an estimate is printed without a decimal.
WHOLE_HOURS = 100


@dataclass(frozen=True)
class Status:
    """The state of a cell.

    state     one of STATES
    stage     the stage that trains it, as `dvc repro` takes it; empty: there is none
    error     how its last run failed; empty: it did not
    hours     of training that are left, for one process; None: nothing is left, or there is no estimate
    verified  how it was shown that today's code gives a result of earlier code, or since when this is no
              longer shown; empty: neither
    cause     why it is stale, one of the causes of `pipeline.provenance.changes`; empty: it is not
    """

    state: str
    stage: str = ""
    error: str = ""
    hours: float | None = None
    verified: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Overview:
    """The states of a paper's cells.

    cells    all of them
    tables   name of a table ("miniature", "table II") or of an additional scenario -> its cells
    tunings  "tuning of mini" -> the cells that the tuning compares; their hours include those of choosing
    """

    cells: dict[Cell, Status]
    tables: dict[str, dict[Cell, Status]]
    tunings: dict[str, dict[Cell, Status]]

    @property
    def parts(self) -> dict[str, dict[Cell, Status]]:
        """The tables, then the tunings."""
        return self.tables | self.tunings


def table_rows(
    key: str, paper: Paper, table: Table, root: Path = ROOT
) -> list[tuple[dict[str, str], Cell | None, str]]:
    """Every number that a table of a paper prints, with the cell and the measure that reproduce it.

    key    of the paper, and `paper` its paper.yaml
    table  one of its tables

    Returns (row of the file of published numbers, cell, measure) for each number; the cell is None and the
    measure "" if no run measures it. Raises ParamError if the file does not exist.
    """
    path = root / "papers" / key / "published" / table.published
    try:
        records = read_csv(path, PUBLISHED)
    except FileNotFoundError:
        raise ParamError(f"{shorten(path)}: no such file, although paper.yaml names it") from None
    rows = []
    for _, row in records:
        block = table.block(row["setting"], row["dataset"], row["method"])
        method = paper.method_of(table, row["method"])
        cell = Cell(key, block.scenario, method) if block and method else None
        measure = table.measure(block, row["column"]) if block else None
        rows.append((row, cell, measure or ""))
    return rows


class Board:
    """The states of the cells of all papers.

    root    folder of the repository
    device  hours are estimated from cells that ran on a device whose name has this part; None: from all
    """

    def __init__(self, root: Path = ROOT, device: str | None = None):
        self.root = root
        self.device = device
        self.results = read_results(root)
        self.rates = rates_of(self.results, root, device)
        self.failures = failures(root)

    def overview(self, key: str, tunings: bool = True) -> Overview:
        """The states of one paper's cells, by table and by tuning.

        key      of the paper
        tunings  whether also those of its tunings, which take long
        """
        paper = load_paper(key, self.root)
        stages = planned(key, self.root)
        names = {scenario: scenario for scenario in paper.extra_scenarios} | LISTED
        of_scenarios: dict[str, list[Cell]] = {}
        for scenario, name in names.items():
            of_scenarios[name] = [cell for cell in stages if cell.scenario == scenario]

        # The miniature comes first, the additional scenarios last.
        listed = {LISTED[MINIATURE]: of_scenarios.pop(LISTED[MINIATURE])}
        for table in paper.tables.values():
            rows = table_rows(key, paper, table, self.root)
            listed[f"table {table.number}"] = [cell for _, cell, measure in rows if cell and measure]
        listed |= of_scenarios

        every = dict.fromkeys(stages)
        for cells in listed.values():
            every |= dict.fromkeys(cells)
        with_stage = set(stages)
        states = {cell: self.status(cell, cell in with_stage) for cell in every}
        tables: dict[str, dict[Cell, Status]] = {}
        for name, cells in listed.items():
            if cells:
                tables[name] = {cell: states[cell] for cell in cells}
        tuned = {f"tuning of {name}": self._tuned(key, name) for name in paper.tuning if tunings}
        return Overview(states, tables, tuned)

    def status(self, cell: Cell, has_stage: bool = True) -> Status:
        """The state of one cell, also of one that belongs to a tuning.

        has_stage  whether a stage trains it
        """
        stage = cell.stage(load_paper(cell.paper, self.root)) if has_stage else ""
        result = self.results[cell] if cell in self.results else read_result(cell, self.root)
        if result is not None and not stale(cell, result, self.root):
            stamp = identity.verified(result, Experiment.of(cell, self.root))
            words = stamps.words(stamp, len(result["seeds"])) if stamp else ""
            return Status(DONE, stage, verified=words)

        why = "" if result is None else cause(cell, result, self.root)
        verified = not_verified(cell, result, self.root) if result else ""
        if not stage:
            return Status(UNPLANNED if result is None else STALE, verified=verified, cause=why)
        error = self.failures.get(cell, "")
        if error:
            state = FAILED
        elif result is None:
            state = MISSING
        else:
            state = STALE
        return Status(state, stage, error, estimate(cell, self.rates, self.root), verified, why)

    def _tuned(self, key: str, scenario: str) -> dict[Cell, Status]:
        """The cells that a tuning compares: each method with the chosen values and with those of its row."""
        tuning = load_paper(key, self.root).tuning[scenario]
        compared: dict[Cell, Status] = {}
        for method in tuning.methods:
            cell = Cell(key, scenario, method)
            hours_of_choosing = 0.0
            try:
                chosen = choices.tuned(cell, self.root)
            except FedReproError:  # not chosen yet, or to be chosen again
                chosen = Tuned.of(cell, (), seeds=tuple(tuning.test_seeds))
                trial = Trial.of(cell, (), number=0, seeds=tuple(tuning.seeds))
                hours_of_choosing = tuning.configurations * (estimate(trial, self.rates, self.root) or 0)
            compared[chosen] = self.status(chosen)
            untuned = choices.published(cell, self.root)
            compared[untuned] = self.status(untuned)
            if hours_of_choosing:
                hours = (compared[chosen].hours or 0) + hours_of_choosing
                compared[chosen] = dataclasses.replace(compared[chosen], state=MISSING, hours=hours)
        return compared


# -- stale and failed ----------------------------------------------------------------------------------------


def read_results(root: Path = ROOT) -> dict[Cell, Result]:
    """The results of all cells that have run, as they are in result.json.

    A result is UNREADABLE, which counts as stale, if it cannot be read, was altered or has lost lines of its
    history. `pipeline.cells.results` checks more, but needs pandas, which takes long to import.
    """
    by_cell: dict[Cell, Result] = {}
    for path in visible(root, "papers/*/runs/*/*/result.json"):
        cell = Cell(path.parts[-5], *path.parts[-3:-1])
        by_cell[cell] = read_result(cell, root) or UNREADABLE
    return by_cell


def read_result(cell: Cell, root: Path = ROOT) -> Result | None:
    """The result.json of a cell; None if there is none.

    It is UNREADABLE if it cannot be read or was altered, or if history.csv is not the one that was written
    with it.
    """
    folder = cell.folder(root)
    try:
        document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        history = (folder / "history.csv").read_bytes()
        whole = history.count(b"\n") == 1 + len(document["seeds"]) * (document["rounds"] + 1)
        stamps.check_history(cell, document, history, root)
        return document if whole and is_sealed(document) else UNREADABLE
    except FileNotFoundError:
        return UNREADABLE if (folder / "result.json").exists() else None
    except (*DAMAGED, FedReproError):
        return UNREADABLE


def stale(cell: Cell, result: Result, root: Path = ROOT) -> bool:
    """Whether a cell's parameters, its code, its seeds or its data differ from those of its result.

    A partition that is not on this machine is not compared: its digest is taken from the result.
    """
    try:
        experiment = Experiment.of(cell, root)
        return (
            not identity.current(result, experiment)
            or set(result["seeds"]) != set(experiment.scenario.seeds)
            or identity.redrawn(result, experiment.scenario)
            or bool(changes.other_inputs(result, experiment))
        )
    # an unreadable result, or a scenario or method that no longer exists
    except (*DAMAGED, ParamError):
        return True


def cause(cell: Cell, result: Result, root: Path = ROOT) -> str:
    """Why a result is stale: the first of the causes in `pipeline.provenance.changes`."""
    try:
        return changes.cause(result, Experiment.of(cell, root))
    except (*DAMAGED, FedReproError):
        return changes.UNKNOWN


def not_verified(cell: Cell, result: Result, root: Path = ROOT) -> str:
    """`not verified since 1a2b3c4d` for a stale result whose earlier verification no longer counts; empty for
    any other."""
    try:
        commit = identity.unverified_since(result, Experiment.of(cell, root))
    except (*DAMAGED, FedReproError):
        return ""
    return f"not verified since {commit[:8]}" if commit else ""


def failures(root: Path = ROOT) -> dict[Cell, str]:
    """The cells whose last run failed, and their errors.

    A failed run leaves .cells/<digest>/error.json. It counts as long as the cell still has this digest, which
    also covers the partition, features and corrupted images.
    """
    failed = {}
    for path in sorted(root.glob(".cells/*/error.json")):
        try:
            mark = json.loads(path.read_text(encoding="utf-8"))
            experiment = Experiment.of(Cell.parse(mark["cell"]), root)
            partition = inputs(experiment, experiment.scenario.seeds[0])["digest"]
            digest = identity.cell_digest(experiment, partition, mark["precision"], mark["executor"])
            if path.parent.name == digest:
                failed[experiment.cell] = str(mark["error"])
        except (*DAMAGED, FedReproError):
            continue  # an incomplete mark, or one of a cell that no longer exists
    return failed


# -- printed lines -------------------------------------------------------------------------------------------


def status(
    wanted: Sequence[str] = (), table: str | None = None, root: Path = ROOT, device: str | None = None
) -> int:
    """Print the states of the papers' cells; returns the exit code.

    wanted  papers whose tables are printed; without any, a line for each paper
    table   print nothing but the names of the stages that this table still needs
    root    folder of the repository
    device  part of the name of the device that is to train, such as h200; None: any that has trained

    Raises ParamError for a table that no paper has.
    """
    # In a checkout where nobody may write, damaged locks stay as they are.
    with contextlib.suppress(FedReproError):
        for line in locks.mend_locks(root):
            print(line, file=sys.stderr)
    board = Board(root, device)
    overviews = {key: board.overview(key, bool(wanted or table)) for key in wanted or papers(root)}
    if table is not None:
        print("\n".join(_stages(overviews, table)))
        return 0
    print("\n".join(lines(overviews, board.rates, bool(wanted), device)))
    for line in declared(overviews, board):
        print(line)
    for key in overviews:
        for line in companions.problems(key, board.results, root):
            print(f"damaged: {line}")
    return 0


def declared(keys: Iterable[str], board: Board) -> Iterator[str]:
    """A line for each cell of a declared experiment that lacks some of its seeds.

    keys   of papers
    board  the states of all cells
    """
    for key in keys:
        for name, experiment in declarations(key, board.root).items():
            for cell, seeds in missing_seeds(key, experiment, board.results).items():
                numbers = ", ".join(map(str, seeds))
                yield f"declared in experiments/{name}.yaml, not run: {cell}, seeds {numbers}"


def lines(
    overviews: dict[str, Overview], rates: list[Rate], tables: bool, device: str | None = None
) -> Iterator[str]:
    """The table of states, then what failed and how to go on; WIDTH columns, but for errors and commands.

    overviews  paper -> the states of its cells
    rates      of the measured cells, from which hours are estimated
    tables     whether each table of a paper has a row
    device     part of the name of the device that is to train; None: any
    """
    yield _row("", ("cells", *STATES), "hours left")
    for key, view in overviews.items():
        yield _counted(key, list(view.cells.values()))
        if tables:
            for name, part in view.parts.items():
                yield _counted(f"  {name}", list(part.values()))
    yield ""
    cells = [item for view in overviews.values() for item in view.cells.items()]
    for cell, status in cells:
        if status.state == FAILED:
            yield f"failed: {cell}: {status.error}"
    stale_cells = [status for _, status in cells if status.state == STALE]
    causes = Counter(status.cause for status in stale_cells)
    if causes:
        yield "stale by " + ", ".join(f"{name}: {count}" for name, count in causes.most_common())
    unverified = [status for status in stale_cells if status.verified]
    if unverified:
        number = f"{len(unverified)} of the stale cells were verified once"
        yield f"{number}, which no longer counts; fedrepro explain CELL"
    left: list[Status] = []
    for view in overviews.values():
        for part in view.parts.values():
            left += [status for status in part.values() if status.state in LEFT]
    yield from _legend(left, rates, device)
    if tables:
        yield from _next(overviews)
    else:
        yield f"The tables of a paper: fedrepro status {next(iter(overviews), 'PAPER')}"


def _row(name: str, counts: tuple, left: str) -> str:
    """A row of the table: a name, the number of cells and of each state, the hours left."""
    numbers = "".join(f"{count:>{width}}" for count, width in zip(counts, WIDTHS, strict=True))
    if len(name) > NAME:
        name = f"{name}\n{'':<{NAME}}"
    return f"{name:<{NAME}}{numbers} {left:>19}".rstrip()


def _counted(name: str, statuses: list[Status]) -> str:
    """The row of these cells; a point stands for 0."""
    count = Counter(status.state for status in statuses)
    counts = (len(statuses), *(count[state] for state in STATES))
    return _row(name, tuple(number or "." for number in counts), _hours(statuses))


def _hours(statuses: list[Status]) -> str:
    """The hours that are left, `1.5 + 2 cells`; cells without an estimate are counted."""
    left = [status.hours for status in statuses if status.state in LEFT]
    if left and all(hours is None for hours in left):
        return "unknown"
    known = sum(filter(None, left))
    without_estimate = left.count(None)
    parts = []
    if known:
        decimals = 0 if known >= WHOLE_HOURS else 1
        parts.append(f"{max(known, 0.1):,.{decimals}f}")
    if without_estimate:
        parts.append(f"{without_estimate} cells")
    return " + ".join(parts)


def _legend(left: list[Status], rates: list[Rate], device: str | None) -> list[str]:
    """Lines that say what the hours are estimated from; none if nothing is left."""
    if not left:
        return []
    if not rates:
        on_device = f"on {device} " if device else ""
        return [f"Hours: unknown, nothing was measured {on_device}yet."]
    devices = " and ".join(sorted({rate.device for rate in rates}))
    text = f"Hours: an estimate for one process on {devices}, from {len(rates)} measured cells."
    if any(status.hours is None for status in left):
        text += " + cells: the size of their data is not known yet."
    return wrapped(text, 3, WIDTH)


def _next(overviews: dict[str, Overview]) -> Iterator[str]:
    """The commands that train what is left."""
    commands = []
    for key, view in overviews.items():
        # A paper's own stages and those of its grids are run by its name, a separate grid by its file.
        stages = [status.stage for status in view.cells.values() if status.state in LEFT and status.stage]
        files = dict.fromkeys(stage.partition(":")[0].replace("/grids/", "/") for stage in stages)
        for file in files:
            target = key if file == f"papers/{key}/dvc.yaml" else file
            commands.append(f"fedrepro run {target}")
        if any(map(_is_left, view.tunings.values())):
            commands.append(f"fedrepro tune {key}")
        for name, cells in view.tables.items():
            if name not in LISTED.values() and _is_left(cells):
                commands.append(f"fedrepro status {key} --stages '{name}' | xargs -r fedrepro run")
                break
    yield "To go on:" if commands else "Nothing to run: every cell that has a stage is done."
    for command in commands:
        yield f"  {command}"


def _is_left(cells: dict[Cell, Status]) -> bool:
    """Whether some of these cells are to be trained."""
    return any(status.state in LEFT for status in cells.values())


def _stages(overviews: dict[str, Overview], table: str) -> list[str]:
    """The stages that a table still needs, by its name in any case; ParamError if no paper has it."""
    names = {name.lower(): name for view in overviews.values() for name in view.parts}
    name = names.get(table.lower(), table)
    if name not in names.values():
        raise ParamError(unknown("table", table, names.values()))
    stages = []
    for view in overviews.values():
        for status in view.parts.get(name, {}).values():
            if status.state in LEFT and status.stage:
                stages.append(status.stage)
    return stages
