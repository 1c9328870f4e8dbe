"""`fedrepro explain CELL` or `fedrepro explain PAPER TABLE WORD ...`: what is behind a number of a paper.

A cell is one method in one scenario of a paper. For a cell it prints the printed and the measured number, how
current the result is, the data, the settings with their sources in the paper, the hyper-parameters, and what
was decided where the paper is silent. Words of a table's row and column find the cell.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline import findings_file
from pipeline.cells import choices
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import CHANGED, filled, hyper_parameters, readings_of, settings_of
from pipeline.commands import status
from pipeline.commands.options import columns, wrapped
from pipeline.errors import ParamError, unknown
from pipeline.provenance import changes
from pipeline.schema import ACROSS, MINIATURES, ROOT, Cell, Paper, Table, load_paper, shorten
from pipeline.schema.loader import overlay, varied_keys
from pipeline.training.progress import clock

# Widest output, in characters: longer lines are hard to read in a wide terminal.
WIDTH = 100
# Indents of continued lines, in characters: of an entry, of an item of a section, and of a reading.
ENTRY_INDENT = 10
ITEM_INDENT = 23
READING_INDENT = 4
# At most so many cells are explained in one call; of more only the names are printed.
MOST_CELLS = 2
# Parts of a scenario, in the order of their sections.
PARTS = ("data", "public", "partition", "training", "evaluation")
# Fields of a printed number that are matched with the words of a call.
FIELDS = ("setting", "dataset", "column", "method")
# cell -> (row of the CSV, the measure that runs have of it; "" for none)
NumbersByCell = dict[Cell, list[tuple[dict[str, str], str]]]


def explain(what: Sequence[str], root: Path = ROOT, clients: bool = False) -> int:
    """Print what is behind a cell, or behind the numbers of a table that the words choose.

    what     a cell, `paper/scenario/method`; or a paper, a table and words of row and column; or `methods`,
             which lists all methods
    root     folder of the repository
    clients  print instead how many images of each class the clients hold; `what` is then a scenario or cell

    Returns the exit code. Raises ParamError for what is none of these.
    """
    if clients:
        from pipeline.commands import partition  # with pandas: a second

        if len(what) != 1 or "/" not in what[0]:
            raise ParamError("explain --clients: name a scenario, such as fedlsa/mini")
        return partition.table(what[0], root)
    if tuple(what) == ("methods",):
        from pipeline.commands import methods  # with torch: seconds

        return methods.main()

    if len(what) == 1 and what[0].count("/") == 2:
        print("\n".join(lines(Cell.parse(what[0]), [], root)))
        return 0

    if len(what) > 2 and what[1].lower() == "table":  # without quotes
        what = (what[0], " ".join(what[1:3]), *what[3:])
    if len(what) < 2:
        expected = "a cell, <paper>/<scenario>/<method>, or a paper, a table and words of row and column"
        raise ParamError(f"explain {what[0]}: expected {expected}: fedcrl 'table II' CIFAR-10 FedProx")
    paper = load_paper(what[0], root)
    table = _table(paper, what[1])
    by_cell = chosen(what[0], paper, table, what[2:], root)
    if len(by_cell) > MOST_CELLS:
        print(f"table {table.number} has {len(by_cell)} cells that these words name; say more, or one of:")
        print("\n".join(f"  fedrepro explain {cell}" for cell in by_cell))
        return 0
    texts = ("\n".join(lines(cell, printed, root)) for cell, printed in by_cell.items())
    print(f"\n\n{'-' * columns(WIDTH)}\n\n".join(texts))
    return 0


def _table(paper: Paper, name: str) -> Table:
    """The table that is called `II`, `table II` or `Table 2`; ParamError where there is none."""
    tables = {table.number.lower(): table for table in paper.tables.values()}
    number = name.lower().removeprefix("table").strip()
    if number not in tables:
        known = [f"table {table.number}" for table in tables.values()]
        raise ParamError(unknown("table", name, known))
    return tables[number]


def chosen(key: str, paper: Paper, table: Table, words: Sequence[str], root: Path = ROOT) -> NumbersByCell:
    """The cells behind the printed numbers that match every word.

    key    of the paper
    paper  as paper.yaml describes it
    table  in which the numbers are printed
    words  each a setting, data set, column or method, or a part of one; a whole name goes before a part
    root   folder of the repository

    Raises ParamError for a word that matches nothing, and where no run measures the numbers.
    """
    rows = status.table_rows(key, paper, table, root)
    for word in words:
        wanted = word.lower()
        whole = []
        part = []
        for entry in rows:
            names = _names(entry[0])
            if wanted in names:
                whole.append(entry)
            if any(wanted in name for name in names):
                part.append(entry)
        if not whole and not part:
            printed = {row[field] for row, *_ in rows for field in FIELDS if row[field]}
            raise ParamError(f"table {table.number} of {key}: {unknown('row or column', word, printed)}")
        rows = whole or part

    by_cell: NumbersByCell = {}
    for row, cell, measure in rows:
        if cell:
            by_cell.setdefault(cell, []).append((row, measure))
    if not by_cell:
        raise ParamError(f"table {table.number} of {key}: no run measures this number")
    return by_cell


def _names(row: dict[str, str]) -> list[str]:
    """What a printed number can be called by, in small letters."""
    return [row[field].lower() for field in FIELDS]


# -- as text -------------------------------------------------------------------------------------------------


def lines(cell: Cell, printed: list[tuple[dict[str, str], str]], root: Path = ROOT) -> Iterator[str]:
    """Everything about a cell, as lines of text.

    cell     that is explained
    printed  (row of the published table, the measure that runs have of it) of the paper's numbers; if it is
             empty, the main measure is shown
    root     folder of the repository
    """
    paper = load_paper(cell.paper, root)
    experiment = Experiment.of(cell, root)
    algorithm = experiment.algorithm
    board = status.Board(root)
    now = board.status(cell)
    result = board.results.get(cell) or status.UNREADABLE

    yield from _entry("cell", f"{cell}: {paper.label(cell.method)} ({algorithm}) of {paper.name}")
    title = paper.titles.get(cell.scenario, cell.scenario)
    yield from _entry("scenario", "the miniature" if cell.scenario in MINIATURES else title)
    yield from _entry("state", _state(now, result))
    if now.verified and result:
        yield from _entry("code", f"trained at {result['git'].get('commit', 'unknown')}, {now.verified}")
    if result and now.state == status.STALE:
        for line in changes.lines(result, experiment):
            yield from _entry("differs", line)

    for row, measure in printed:
        place = ", ".join(filter(None, map(row.get, FIELDS)))
        yield from _entry("printed", f"{row['value']} ({place})")
        yield from _entry("measured", _measured(result, measure, cell, root))
    if not printed:
        yield from _entry("measured", _measured(result, result.get("headline", ""), cell, root))
    yield from _tuned(cell, root)
    for row in findings_file.of_cell(str(cell), root):
        yield from _entry("finding", _finding(row))

    yield from _entry("command", f"fedrepro run {cell}" if now.stage else "none: no grid has this cell")
    yield from _entry("stage", now.stage or "none")
    folder = cell.folder(root)
    yield from _entry("files", f"{shorten(folder)}/" if folder.is_dir() else "none yet")
    yield from _entry("page", f"reports/{'across' if cell.scenario == ACROSS else cell.paper}.html")
    yield from _scenario(experiment)
    yield from _method(experiment, board.results)


def _state(now: status.Status, result: Result) -> str:
    """Whether a cell is measured, and with what; how long it took, and what is left."""
    if now.state == status.DONE:
        text = "measured"
    elif now.state == status.STALE and now.cause:
        text = f"stale: measured with other {now.cause}"
    else:
        text = now.state
    if result.get("seconds"):
        text += f", {clock(sum(result['seconds']))} of one process"
    if now.hours is not None and now.state in status.LEFT:
        text += f"; about {clock(3600 * now.hours)} of one process left"
    if now.error:
        text += f"; failed: {now.error}"
    return text


def _finding(row: dict[str, str]) -> str:
    """A row of reports/findings.csv: the claim, its verdict and the numbers."""
    interval = f" [{row['low']}, {row['high']}]" if row["low"] else ""
    unit = f" {row['unit']}" if row["unit"] else ""
    printed = f", printed {row['printed']}" if row["printed"] else ""
    return f"{row['id']} {row['claim']}: {row['verdict']} ({row['difference']}{interval}{unit}{printed})"


def _tuned(cell: Cell, root: Path) -> Iterator[str]:
    """The accuracy with the values that tuning chose, and these values; nothing if tuning chose none.

    Where one of these results is stale, a line before them says why. Where the tuning has other seeds than
    the cell, the accuracy with the row's own values on those seeds comes first.
    """
    tuning = load_paper(cell.paper, root).tuning.get(cell.scenario)
    if not tuning or cell.method not in tuning.methods or not choices.path(cell, root).exists():
        return

    choice = choices.read(cell, root)
    configurations = choice["configurations"]
    best = configurations[choice["chosen"]]
    untuned = choices.published(cell, root)
    tuned = choices.tuned(cell, root)
    yield from _stale_tuning(dict.fromkeys((untuned, tuned)), cell, root)
    if untuned != cell:
        yield from _entry("untuned", f"{_headline(untuned, root)} with the row's values")

    values = ", ".join(f"{name} {value}" for name, value in best["values"].items())
    which = "the best" if best["changes"] else "the values of the row, the best"
    where = f"of {len(configurations)} configurations in {shorten(choices.path(cell, root))}"
    yield from _entry("tuned", f"{_headline(tuned, root)} with {values}: {which} {where}")


def _stale_tuning(trained: Iterable[Cell], cell: Cell, root: Path) -> Iterator[str]:
    """Why the numbers of a tuning are stale, and what follows; nothing if they are current.

    trained  the cells that the tuning compares, with the row's values and with the chosen ones
    cell     that was tuned
    root     folder of the repository
    """
    causes = []
    for one in trained:
        result = status.read_result(one, root)
        if one != cell and result and status.stale(one, result, root):
            causes.append(_cause(one, result, root))
    if causes:
        yield from _entry(
            "tuning",
            f"stale by {' and '.join(dict.fromkeys(causes))}: its numbers may differ from those above for "
            f"this reason alone; `fedrepro tune {cell}` measures them again",
        )


def _cause(cell: Cell, result: Result, root: Path) -> str:
    """Why a result is stale, with the numbers of rounds where they differ: `parameters (15 rounds, today
    8)`."""
    why = status.cause(cell, result, root)
    rounds = Experiment.of(cell, root).scenario.training.rounds
    if result["rounds"] == rounds:
        return why
    return f"{why} ({result['rounds']} rounds, today {rounds})"


def _headline(cell: Cell, root: Path) -> str:
    """The main measure of a cell that belongs to a tuning, with a note if it is stale."""
    result = status.read_result(cell, root) or status.UNREADABLE
    accuracy = _measured(result, result.get("headline", ""), cell, root)
    if result and status.stale(cell, result, root):
        return f"stale: {accuracy}"
    return accuracy


def _measured(result: Result, measure: str, cell: Cell, root: Path = ROOT) -> str:
    """`71.23 (average; seeds 0, 1: 70.90, 71.56)`, or why there is no number.

    result   of the cell; empty if it has not run
    measure  its name; empty if no run measures it
    """
    if not result:
        return "not yet"
    if not measure:
        return "no run measures it"
    by_seed = dict(zip(result["seeds"], result["measures"].get(measure, [])))
    if not by_seed:  # of a curve, a figure or a cost; a second, for pandas
        from pipeline.report.measures import numbers

        by_seed = numbers(cell, result, measure, root)
    if not by_seed:
        return "not in the result"
    numbers_of_seeds = ", ".join(f"{value:.2f}" for value in by_seed.values())
    noun = "seeds" if len(by_seed) > 1 else "seed"
    seeds = ", ".join(map(str, by_seed))
    return f"{fmean(by_seed.values()):.2f} ({measure}; {noun} {seeds}: {numbers_of_seeds})"


def _scenario(experiment: Experiment) -> Iterator[str]:
    """The settings of a cell's scenario, part by part, each with its source."""
    scenario = experiment.scenario
    sources = _sources(experiment)
    for part in PARTS:
        settings = getattr(scenario, part)
        if settings is None:
            continue
        kind = f" ({settings.kind})" if hasattr(settings, "kind") else ""
        yield from ("", part.capitalize() + kind)
        yield from _values(dataclasses.asdict(settings), sources, f"{part}.")
        if part == "data":
            yield from _found(settings.set, experiment, experiment.root)
        if part == "public":
            yield from _found(settings.set, None, experiment.root)

    yield from ("", "Networks")
    for client, model in (scenario.models or {"all clients": scenario.networks[0]}).items():
        given = {key: value for key, value in dataclasses.asdict(model).items() if value is not None}
        name = given.pop("name")
        options = [f"{key} {value}" for key, value in given.items()]
        yield from _item(client, ", ".join([name, *options]))

    yield from ("", "Seeds")
    yield from _item("seeds", ", ".join(map(str, scenario.seeds)), sources.get("seeds", ""))
    drawn = "one serves all seeds" if scenario.partition.fixed else "each seed draws one"
    yield from _item("partitions", drawn)


def _sources(experiment: Experiment) -> dict[str, str]:
    """Whole key of a setting -> the place in the paper that its value is from, or params.yaml, if that gives
    the value."""
    cell = experiment.cell
    changed = overlay(cell.paper, experiment.root).get("settings", {}).get(cell.scenario, {})
    ours = dict.fromkeys(varied_keys(changed), CHANGED.format(cell.paper))
    return ours | {setting.name: setting.source for setting in settings_of(experiment)}


def _found(name: str, experiment: Experiment | None, root: Path) -> Iterator[str]:
    """What was noticed about a data set when it was prepared, and about a scenario's test images when they
    were divided over the clients.

    name        of the data set
    experiment  whose test images are meant; None: of none
    """
    from pipeline.data import gate, twins  # with numpy

    for line in gate.told(name, root):
        yield from _item("found", line)
    if experiment:
        cell = experiment.cell
        line = twins.told(cell.paper, cell.scenario, root)
        if line:
            yield from _item("tests", line)


def _method(experiment: Experiment, results: dict[Cell, Result]) -> Iterator[str]:
    """The hyper-parameters that a cell ran with, or would, and the readings of its method."""
    cell = experiment.cell
    result = results.get(cell)
    resolved = result.get("resolved") if result else None
    values = hyper_parameters(experiment, resolved)
    if values:
        yield from ("", "Hyper-parameters")
    for setting in values:
        yield from _item(setting.name, setting.value, setting.source)

    readings = readings_of(experiment, resolved)
    if readings:
        yield from ("", "Readings: what is run where the paper says something else or is silent")
    for reading in readings:
        why = filled(reading.why, "readings", cell.paper, results.get, root=experiment.root)
        yield from wrapped(f"  - The paper: {reading.paper}", READING_INDENT, WIDTH)
        for name, text in {"Run": reading.run, "Why": why, "Other form": reading.option}.items():
            if text:
                yield from wrapped(f"    {name}: {text}", READING_INDENT, WIDTH)


def _values(values: dict[str, Any], sources: dict[str, str], start: str) -> Iterator[str]:
    """A line for each value that is set, with its source; nested sections are named by their whole key.

    values   key -> value; a value may be a section of its own
    sources  whole key -> the place in the paper that the value is from
    start    how the whole keys begin, such as `training.`
    """
    for name, value in values.items():
        key = start + name
        if isinstance(value, dict) and key not in sources:
            yield from _values(value, sources, f"{key}.")
        elif value not in (None, False, {}, []):
            if isinstance(value, dict):
                value = ", ".join(f"{item} {number}" for item, number in value.items() if number is not None)
            yield from _item(key.partition(".")[2], value, sources.get(key, ""))


def _entry(name: str, text: object) -> list[str]:
    """`name:  text`, wrapped: a line at the top of the explanation."""
    return wrapped(f"{name + ':':<{ENTRY_INDENT}}{text}", ENTRY_INDENT, WIDTH)


def _item(name: str, value: object, source: str = "") -> list[str]:
    """`  name  value   [source]`, wrapped: a line of a section."""
    where = f"   [{source}]" if source else ""
    return wrapped(f"  {name:<{ITEM_INDENT - 3}} {value}{where}", ITEM_INDENT, WIDTH)
