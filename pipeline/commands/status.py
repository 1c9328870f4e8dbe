"""`fedrepro status [paper ...]`: which results are finished, stale, failed or missing, and the hours left.

A cell is done; stale, if other code, parameters, seeds or partitions than today's made its result, or if it
cannot be read; failed, if its last run ended with an error; missing; or without a stage, if no grid of
paper.yaml contains it yet. Neither torch nor DVC is loaded, so this takes only seconds.
"""

import contextlib
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import locks
from pipeline.cells import choices, stamps
from pipeline.cells.declarations import declarations, missing_seeds
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

DONE, STALE, FAILED, MISSING, UNPLANNED = STATES = "done", "stale", "failed", "missing", "no stage"
LEFT = (STALE, FAILED, MISSING)
NAME = 20  # columns of a name; a longer one has another line
WIDTH = 80


@dataclass(frozen=True)
class Status:
    """A cell: its state, the stage that trains it, and the hours of training left."""

    state: str
    stage: str = ""  # as `dvc repro` takes it; empty where there is none
    error: str = ""
    # of one process; None where nothing is left or no estimate is possible
    hours: float | None = None
    # what shows that today's code gives a result of earlier code, or that nothing does any more
    verified: str = ""
    # why it is stale, in a word: see pipeline.provenance.changes
    cause: str = ""


@dataclass(frozen=True)
class Overview:
    """A paper's cells; those of each table ("miniature", "table II"), and those of each tuning ("tuning of
    mini"), whose hours include the choosing."""

    cells: dict[Cell, Status]
    tables: dict[str, dict[Cell, Status]]
    tunings: dict[str, dict[Cell, Status]]

    @property
    def parts(self) -> dict[str, dict[Cell, Status]]:
        return self.tables | self.tunings


def table_rows(
    key: str, paper: Paper, table: Table, root: Path = ROOT
) -> list[tuple[dict[str, str], Cell | None, str]]:
    """Every number that a table prints, with the cell and its measure; None and "" for what no run has."""
    path = root / "papers" / key / "published" / table.published
    try:
        records = read_csv(path, PUBLISHED)
    except FileNotFoundError:
        raise ParamError(f"{shorten(path)}: no such file, although paper.yaml names it") from None
    rows = []
    for _, row in records:
        block = table.block(row["setting"], row["dataset"], row["method"])
        method = paper.method_of(table, row["method"])
        measure = (block and table.measure(block, row["column"])) or ""
        rows.append((row, Cell(key, block.scenario, method) if block and method else None, measure))
    return rows


class Board:
    """The state of the cells of all papers: their results, what finished ones cost, errors of failed ones.

    device: hours are estimated from what was measured on it alone; None: from everything
    """

    def __init__(self, root: Path = ROOT, device: str | None = None):
        self.root = root
        self.device = device
        self.results = read_results(root)
        self.rates = rates_of(self.results, root, device)
        self.failures = failures(root)

    def overview(self, key: str, tunings: bool = True) -> Overview:
        """A paper's cells and tables; without `tunings`, which take long, not those of its tunings."""
        paper, stages = load_paper(key, self.root), planned(key, self.root)
        names = dict(zip(paper.extra_scenarios, paper.extra_scenarios)) | LISTED
        of_scenarios = {
            name: [cell for cell in stages if cell.scenario == scenario] for scenario, name in names.items()
        }
        listed = {LISTED[MINIATURE]: of_scenarios.pop(LISTED[MINIATURE])}
        for table in paper.tables.values():
            rows = table_rows(key, paper, table, self.root)
            listed[f"table {table.number}"] = [cell for _, cell, measure in rows if cell and measure]
        listed |= of_scenarios
        every = dict.fromkeys([*stages, *(cell for cells in listed.values() for cell in cells)])
        with_stage = set(stages)
        states = {cell: self.status(cell, cell in with_stage) for cell in every}
        tables = {name: {cell: states[cell] for cell in cells} for name, cells in listed.items() if cells}
        tuned = {f"tuning of {name}": self._tuned(key, name) for name in paper.tuning if tunings}
        return Overview(states, tables, tuned)

    def status(self, cell: Cell, has_stage: bool = True) -> Status:
        """The state of one cell, also of one that belongs to a tuning."""
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
        state = FAILED if error else MISSING if result is None else STALE
        return Status(state, stage, error, estimate(cell, self.rates, self.root), verified, why)

    def _tuned(self, key: str, scenario: str) -> dict[Cell, Status]:
        """The cells that a tuning compares: of each method with the chosen values and with the row's."""
        tuning, compared = load_paper(key, self.root).tuning[scenario], {}
        for cell in (Cell(key, scenario, method) for method in tuning.methods):
            choosing = 0.0
            try:
                chosen = choices.tuned(cell, self.root)
            except FedReproError:  # not chosen yet, or to be chosen again
                chosen = Tuned.of(cell, (), seeds=tuple(tuning.test_seeds))
                trial = Trial.of(cell, (), number=0, seeds=tuple(tuning.seeds))
                choosing = tuning.configurations * (estimate(trial, self.rates, self.root) or 0)
            for one in (chosen, choices.published(cell, self.root)):
                compared[one] = self.status(one)
            if choosing:
                hours = (compared[chosen].hours or 0) + choosing
                compared[chosen] = dataclasses.replace(compared[chosen], state=MISSING, hours=hours)
        return compared


# -- stale and failed ----------------------------------------------------------------------------------------


def read_results(root: Path = ROOT) -> dict[Cell, dict]:
    """Every result, whole or not: one that cannot be read, was altered or has lost lines of its history is
    empty, which is stale. `pipeline.cells.results` checks more, and costs the import of pandas."""
    by_cell = {}
    for path in visible(root, "papers/*/runs/*/*/result.json"):
        cell = Cell(path.parts[-5], *path.parts[-3:-1])
        by_cell[cell] = read_result(cell, root) or {}
    return by_cell


def read_result(cell: Cell, root: Path = ROOT) -> dict | None:
    """A result.json, empty if it cannot be read or was altered, or if history.csv is not the one that was
    written with it; None where there is none."""
    folder = cell.folder(root)
    try:
        document = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        history = (folder / "history.csv").read_bytes()
        whole = history.count(b"\n") == 1 + len(document["seeds"]) * (document["rounds"] + 1)
        stamps.check_history(cell, document, history, root)
        return document if whole and is_sealed(document) else {}
    except FileNotFoundError:
        return {} if (folder / "result.json").exists() else None
    except (*DAMAGED, FedReproError):
        return {}


def stale(cell: Cell, result: dict, root: Path = ROOT) -> bool:
    """Whether the cell's parameters, the code that it runs or what it is trained on differ from those of its
    result. A partition that is not here counts as its parameters: its digest is taken from the result."""
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


def cause(cell: Cell, result: dict, root: Path = ROOT) -> str:
    """Why a result is stale, in a word: the first reason."""
    try:
        return changes.cause(result, Experiment.of(cell, root))
    except (*DAMAGED, FedReproError):
        return changes.UNKNOWN


def not_verified(cell: Cell, result: dict, root: Path = ROOT) -> str:
    """`not verified since 1a2b3c4d` of a stale result whose former verification counts no more; else
    nothing."""
    try:
        commit = identity.unverified_since(result, Experiment.of(cell, root))
    except (*DAMAGED, FedReproError):
        return ""
    return f"not verified since {commit[:8]}" if commit else ""


def failures(root: Path = ROOT) -> dict[Cell, str]:
    """The failed cells and their errors. A mark next to the checkpoints counts while the cell still has the
    digest that its folder, .cells/<digest>, is named after: with the partition, features and corrupted images
    as they are now."""
    failed = {}
    for path in sorted(root.glob(".cells/*/error.json")):
        try:
            mark = json.loads(path.read_text(encoding="utf-8"))
            experiment = Experiment.of(Cell.parse(mark["cell"]), root)
            partition = inputs(experiment, experiment.scenario.seeds[0])["digest"]
            how = mark["precision"], mark["executor"]
            if path.parent.name == identity.cell_digest(experiment, partition, *how):
                failed[experiment.cell] = str(mark["error"])
        except (*DAMAGED, FedReproError):
            continue  # an incomplete mark, or one of a cell that no longer exists
    return failed


# -- printed lines -------------------------------------------------------------------------------------------


def status(
    wanted: Sequence[str] = (), table: str | None = None, root: Path = ROOT, device: str | None = None
) -> int:
    """Print the state of the papers; returns the exit code.

    wanted: papers whose tables are printed; without any, a line for each paper.
    table: print only the names of the stages that this table still needs.
    device: part of the name of what is to train, such as h200; None: whatever has trained
    """
    # of a checkout where nobody may write
    with contextlib.suppress(FedReproError):
        for line in locks.mend_locks(root):
            print(line, file=sys.stderr)
    board = Board(root, device)
    overviews = {key: board.overview(key, bool(wanted or table)) for key in wanted or papers(root)}
    printed = (
        lines(overviews, board.rates, bool(wanted), device) if table is None else _stages(overviews, table)
    )
    print("\n".join(printed))
    if table is None:
        for line in declared(overviews, board):
            print(line)
        for key in overviews:
            for line in companions.problems(key, board.results, root):
                print(f"damaged: {line}")
    return 0


def declared(keys: Iterable[str], board: Board) -> Iterator[str]:
    """A line for each row of a declared experiment that lacks some of its seeds."""
    for key in keys:
        for name, one in declarations(key, board.root).items():
            for cell, seeds in missing_seeds(key, one, board.results).items():
                numbers = ", ".join(map(str, seeds))
                yield f"declared in experiments/{name}.yaml, not run: {cell}, seeds {numbers}"


def lines(
    overviews: dict[str, Overview], rates: list[Rate], tables: bool, device: str | None = None
) -> Iterator[str]:
    """A row for each paper, or for each of its tables; then what failed and how to go on. At most 80 columns,
    but for errors and commands."""
    yield _row("", ("cells", *STATES), "hours left")
    for key, view in overviews.items():
        yield _counted(key, list(view.cells.values()))
        if tables:
            yield from (_counted(f"  {name}", list(cells.values())) for name, cells in view.parts.items())
    yield ""
    cells = [item for view in overviews.values() for item in view.cells.items()]
    yield from (f"failed: {cell}: {one.error}" for cell, one in cells if one.state == FAILED)
    causes = Counter(one.cause for _, one in cells if one.state == STALE)
    if causes:
        yield "stale by " + ", ".join(f"{name}: {count}" for name, count in causes.most_common())
    if unverified := [one for _, one in cells if one.state == STALE and one.verified]:
        number = f"{len(unverified)} of the stale cells are"
        yield f"{number} not verified since the commit that trained them; fedrepro explain CELL"
    every = [one for view in overviews.values() for part in view.parts.values() for one in part.values()]
    yield from _legend([one for one in every if one.state in LEFT], rates, device)
    if tables:
        yield from _next(overviews)
    else:
        yield f"The tables of a paper: fedrepro status {next(iter(overviews), 'PAPER')}"


def _row(name: str, counts: tuple, left: str) -> str:
    numbers = "".join(f"{count:>{width}}" for count, width in zip(counts, (5, 5, 6, 7, 8, 9), strict=True))
    name = name if len(name) <= NAME else f"{name}\n{'':<{NAME}}"
    return f"{name:<{NAME}}{numbers} {left:>19}".rstrip()


def _counted(name: str, statuses: list[Status]) -> str:
    count = Counter(status.state for status in statuses)
    counts = (len(statuses), *(count[state] for state in STATES))
    return _row(name, tuple(number or "." for number in counts), _hours(statuses))


def _hours(statuses: list[Status]) -> str:
    """Of what is left; cells of unknown length are counted."""
    left = [status.hours for status in statuses if status.state in LEFT]
    if left and not any(hours is not None for hours in left):
        return "unknown"
    unsized, known = left.count(None), sum(filter(None, left))
    text = f"{max(known, 0.1):,.{0 if known >= 100 else 1}f}" if known else ""
    return " + ".join(filter(None, (text, f"{unsized} cells" if unsized else "")))


def _legend(left: list[Status], rates: list[Rate], device: str | None) -> list[str]:
    if not left:
        return []
    if not rates:
        return [f"Hours: unknown, nothing was measured {f'on {device} ' if device else ''}yet."]
    devices = " and ".join(sorted({rate.device for rate in rates}))
    text = f"Hours: an estimate for one process on {devices}, from {len(rates)} measured cells."
    if any(one.hours is None for one in left):
        text += " + cells: the size of their data is not known yet."
    return wrapped(text, 3, WIDTH)


def _next(overviews: dict[str, Overview]) -> Iterator[str]:
    """Commands that go on."""
    commands = []
    for key, view in overviews.items():
        stages = [one.stage for one in view.cells.values() if one.state in LEFT and one.stage]
        files = dict.fromkeys(stage.partition(":")[0].replace("/grids/", "/") for stage in stages)
        commands += [f"fedrepro run {key if file == f'papers/{key}/dvc.yaml' else file}" for file in files]
        if any(one.state in LEFT for cells in view.tunings.values() for one in cells.values()):
            commands.append(f"fedrepro tune {key}")
        for name, cells in view.tables.items():
            if name not in LISTED.values() and any(one.state in LEFT for one in cells.values()):
                commands.append(f"fedrepro status {key} --stages '{name}' | xargs -r fedrepro run")
                break
    yield "To go on:" if commands else "Nothing to run: every cell that has a stage is done."
    yield from (f"  {command}" for command in commands)


def _stages(overviews: dict[str, Overview], table: str) -> list[str]:
    known = {name.lower(): name for view in overviews.values() for name in view.parts}
    if (table := known.get(table.lower(), table)) not in known.values():
        raise ParamError(unknown("table", table, known.values()))
    parts = [view.parts.get(table, {}) for view in overviews.values()]
    return [one.stage for part in parts for one in part.values() if one.state in LEFT and one.stage]
