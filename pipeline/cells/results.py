"""Read and check result.json and history.csv of trained cells; summarise them as tables of means and spreads.

A cell's folder `papers/<paper>/runs/<scenario>/<method>/` has result.json (everything that was measured,
sealed by a hash) and history.csv (one row for each seed and scored round).
"""

import csv
import io
import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from pipeline.cells import choices, plausible, stamps
from pipeline.cells.documents import Measures, Percent, Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.quick_check import plainly
from pipeline.errors import FedReproError, ParamError, unknown
from pipeline.files import as_text
from pipeline.schema import MINIATURE, ROOT, Cell, check, shorten, visible
from pipeline.schema.checker import check_known
from pipeline.schema.discovery import method_module
from pipeline.sealing import is_sealed

# A column of history.csv: 16 hex digits of a digest of the state of server and clients after the round.
STATE = plausible.STATE
COLUMNS = ["paper", "scenario", "method", "measure", "mean", "std", "seeds"]
FIRST = ("average", "weighted", "clients_std")  # the order in which a reader wants the measures
LOWER_IS_BETTER = ("clients_std", "loss", "traffic", "memory", "seconds")
# further means over the last so many rounds
MEANS = {"final": 1, "last3": 3, "last5": 5}
OF_SEEDS = ("clients", "seconds", "by_class", "partitions", "machines")
# (`self` of a result, digest of a history) that were found to agree in this process.
_AGREEING: set[tuple[str, str]] = set()
ROUNDED = 0.002  # largest gap between the mean of numbers with four decimals and the rounded mean


@dataclass(frozen=True)
class Summary:
    """A measured number: mean over the seeds, and standard deviation (ddof 1; None for one seed)."""

    mean: float
    std: float | None
    seeds: int

    def __str__(self) -> str:
        """`57.20 ± 0.31 %`."""
        return f"{self.mean:.2f}" + ("" if self.std is None else f" ± {self.std:.2f}") + " %"


def summarise(values: list[float]) -> Summary:
    """Mean and standard deviation of one value for each seed."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return Summary(statistics.fmean(values), std, len(values))


def traffic_of_seeds(result: Result, name: Literal["up", "down", "bytes"]) -> list[float]:
    """What a client of each seed sends (`up`) or receives (`down`) in a round, in scalars, or both in bytes.

    Older results have one value for all seeds.
    """
    each = result.get("traffic_of_seeds")
    return each[name] if each else [result["traffic"][name]] * len(result["seeds"])


def partitions(result: Result) -> list[str]:
    """The digest of the data on which each seed was trained; seeds with the same draw share it."""
    return result.get("partitions") or [result["partition"]] * len(result["seeds"])


def machines(result: Result) -> list[dict]:
    """The machine on which each seed was trained."""
    return result.get("machines") or [result["versions"]] * len(result["seeds"])


def lower_is_better(measure: str) -> bool:
    """Whether small values of `measure` are good.

    This holds for the spread over clients, the loss, costs of a run, and a paper's metrics whose name ends
    with `_error` or `_gap`.
    """
    group, _, name = measure.rpartition(".")
    return name in LOWER_IS_BETTER or group.endswith("metric") and name.endswith(("_error", "_gap"))


def of_cell(cell: Cell, root: Path = ROOT) -> Result | None:
    """The result of a cell of a scenario; None if it has not run. FedReproError as in `read`."""
    path = cell.folder(root) / "result.json"
    return read(path) if path.exists() else None


def read(path: Path, content: bytes | None = None) -> Result:
    """A result.json, or its content in another commit.

    FedReproError if it cannot be parsed, was altered or is in the folder of another cell.
    """
    try:
        document = _checked(path.read_bytes() if content is None else content)
        folder = "/".join((path.parts[-5], *path.parts[-3:-1]))
        if document["cell"] != folder:
            raise FedReproError(f"'cell' is {document['cell']!r}, but the folder is that of {folder!r}")
        return document
    except FedReproError as error:
        problem = str(error)
    except (ValueError, RecursionError) as error:
        problem = f"not whole JSON, perhaps cut short: {error}"
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"not a result: {error!r}"
    raise FedReproError(f"{shorten(path)}: {problem}; run the cell again")


@cache
def _checked(content: bytes) -> Result:
    """What a result.json holds, checked once in a process; whoever changes it works on a copy."""
    document = json.loads(content)
    if not is_sealed(document):
        raise FedReproError("'self' is not the hash of the rest; the file was altered")
    _check_values(document)
    return document


def _check_values(document: Result) -> None:
    """Types, ranges and sizes of what a result holds; FedReproError says what is wrong with it."""
    if not plainly(Result)(document):
        check_known(Result, document, "result")
    if "torch" not in document["versions"]:
        raise FedReproError("versions: the key 'torch' is missing")
    if document["git"] and "commit" not in document["git"]:
        raise FedReproError("git: the key 'commit' is missing")

    seeds = document["seeds"]
    if not seeds or len(set(seeds)) != len(seeds):
        raise FedReproError(f"seeds: must be different whole numbers, not {seeds!s:.80}")

    for part, measures in reported(document).items():
        if document["headline"] not in measures:
            raise FedReproError(f"{part}: {unknown('headline', document['headline'], measures)}")
        for name, values in measures.items():
            if is_percent(name) and not plainly(list[Percent])(values):
                check(list[Percent], values, f"{part}.{name}")

    for name, each in _of_seeds(document):
        if len(each) != len(seeds):
            raise FedReproError(f"{len(each)} values of {name!r} for {len(seeds)} seeds")

    counts = {len(clients) for clients in document["clients"]}
    if "holdings" in document:
        counts.update(map(len, document["holdings"]["images"]))
        counts.update(map(len, document["holdings"]["classes"]))
    if len(counts) > 1:
        raise FedReproError("clients: not the same number for every seed, or in 'holdings'")

    named = f"{document['paper']}/{document['scenario']}/{document['method']}"
    if document["cell"] != named:
        raise FedReproError(f"'cell' is {document['cell']!r:.80}, which paper, scenario and method are not")


def reported(result: Result) -> dict[str, Measures]:
    """The means over last rounds that a result has: `measures`, and by MEANS."""
    document: Mapping[str, Any] = result
    return {part: document[part] for part in ("measures", *MEANS)}


def _of_seeds(result: Result) -> Iterator[tuple[str, Sequence]]:
    """Name and content of every list that has one entry for each seed."""
    document: Mapping[str, Any] = result
    for name in OF_SEEDS:
        if name in document:
            yield name, document[name]
    for part in ("measures", *MEANS, "traffic_of_seeds", "holdings", "memory"):
        yield from (document.get(part) or {}).items()


def is_percent(measure: str) -> bool:
    """Whether a measure is between 0 and 100: all except the loss and diagnostics of methods."""
    return measure != "loss" and not measure.startswith("method.")


def collect(root: Path = ROOT, paper: str = "*", scenario: str = "*") -> dict[Cell, Result]:
    """Every finished cell, of all papers and scenarios or of one, in the order of the paths, with its checked
    result.json."""
    documents = map(read, visible(root, f"papers/{paper}/runs/{scenario}/*/result.json"))
    return {Cell.parse(document["cell"]): document for document in documents}


def of_tuning(cell: Cell, root: Path = ROOT) -> dict[Cell, Result]:
    """The results of a cell's tuning, with the chosen values and with its row's values, if they were trained.

    FedReproError for a tuning that paper.yaml does not ask for.
    """
    try:
        choices.tuning_of(cell, root)
    except FedReproError as error:
        raise FedReproError(f"{shorten(choices.path(cell, root))}: delete it: {error}") from None
    return {
        one: read(file)
        for one in (choices.tuned(cell, root), choices.published(cell, root))
        if (file := one.folder(root) / "result.json").exists()
    }


def survey(root: Path = ROOT) -> tuple[dict[Cell, Result], dict[Cell, str]]:
    """As `collect`, and of each cell whose files cannot be trusted one line that names the file. Besides what
    `read` refuses, that is a cell that paper.yaml does not know, or a history.csv that disagrees with
    result.json."""
    usable, problems = {}, {}
    for path in visible(root, "papers/*/runs/*/*/result.json"):
        cell = Cell(path.parts[-5], *path.parts[-3:-1])
        try:
            try:  # a result under an old name must not silently drop out of the tables
                Experiment.of(cell, root)
            except ParamError as error:
                again = "delete the folder, or run the cell under its new name"
                raise FedReproError(f"{shorten(path)}: {error}; {again}") from None
            document = read(path)
            if not _agrees(cell, document, root):
                checked_history(cell, document, root)  # says what is wrong
        except FedReproError as error:
            problems[cell] = str(error)
        else:
            usable[cell] = document
    return usable, problems


def checked_history(cell: Cell, result: Result, root: Path) -> pd.DataFrame:
    """As `history`; FedReproError also where it is not the result's."""
    path = cell.folder(root) / "history.csv"
    content = _content(path)
    table = parse_history(content, path)
    stamps.check_history(cell, result, content, root)
    pair = result["self"], stamps.digest(content)
    if pair not in _AGREEING:
        check_history(result, table, path)
        _AGREEING.add(pair)
    return table


def _agrees(cell: Cell, result: Result, root: Path) -> bool:
    """Whether history.csv is plainly the result's; where not, `checked_history` knows. It is what that
    checks, without a table of pandas."""
    path = cell.folder(root) / "history.csv"
    content = _content(path)
    stamps.check_history(cell, result, content, root)
    try:
        table = _columns(content.decode())
        rounds = list(range(result["rounds"] + 1))
        seeds = [seed for seed in result["seeds"] for _ in rounds]
        if table["seed"] != seeds or table["round"] != rounds * len(result["seeds"]) or "loss" not in table:
            return False
        for part, measures in reported(result).items():
            last = MEANS.get(part, result["last"])
            for name, each in measures.items():
                for k, mean in enumerate(each):
                    of_seed = table[name][k * len(rounds) : (k + 1) * len(rounds)]
                    known = [one for one in of_seed if one == one]
                    if not known or not abs(statistics.fmean(known[-last:]) - mean) <= ROUNDED:
                        return False
    except (KeyError, ValueError):
        return False
    return True


def check_history(result: Result, table: pd.DataFrame, file: Path) -> None:
    """FedReproError unless the history, which `file` held, has every round of every seed, and the reported
    numbers are the means over the last rounds."""
    path, again = shorten(file), "the file was cut or altered, run the cell again"
    names = dict.fromkeys(name for measures in reported(result).values() for name in measures)
    if lost := [name for name in ("loss", *names) if name not in table]:
        raise FedReproError(f"{path}: the column {lost[0]!r} is missing; {again}")
    rounds = {int(seed): rows.tolist() for seed, rows in table.groupby("seed")["round"]}
    if rounds != dict.fromkeys(result["seeds"], list(range(result["rounds"] + 1))):
        raise FedReproError(f"{path}: not the seeds and rounds that result.json has; {again}")
    seeds, values = table["seed"].to_numpy(), table[[*names]].to_numpy(float)
    for k, seed in enumerate(result["seeds"]):
        rows = values[seeds == seed]
        columns = {name: column[~np.isnan(column)] for name, column in zip(names, rows.T)}
        for part, measures in reported(result).items():
            last = MEANS.get(part, result["last"])
            for name, each in measures.items():
                mean = columns[name][-last:].mean() if len(columns[name]) else math.nan
                if not abs(mean - each[k]) <= ROUNDED:
                    gives = f"the last rounds of seed {seed} give {name} {mean:.4f}"
                    raise FedReproError(f"{path}: {gives}, result.json says {each[k]}; {again}")


def check_plausible(result: Result, table: pd.DataFrame, file: Path) -> None:
    """FedReproError where the numbers of the history, of any seed, do not fit together, with the clients'
    accuracies of the last round or with the other seeds (`pipeline/cells/plausible.py`)."""
    kind = plausible.kind_of(result["measures"])
    again = "the file was altered, run the cell again"
    seeds = {seed: table[table["seed"] == seed].to_dict("records") for seed in result["seeds"]}
    for k, (seed, lines) in enumerate(seeds.items()):
        for line in lines:
            where = f"{shorten(file)}: seed {seed}, round {line['round']}"
            wrong = plausible.of_row(line, kind)
            if not wrong and line is lines[-1]:
                if math.isnan(line.get("average", math.nan)):
                    wrong = "average is missing"
                else:
                    wrong = plausible.of_clients_last(line, result["clients"][k], kind)
            if wrong:
                raise FedReproError(f"{where}: {wrong}; {again}")
        if wrong := plausible.of_states(lines):
            raise FedReproError(f"{shorten(file)}: seed {seed}: {wrong}; {again}")
    if wrong := plausible.of_seeds(seeds) or _of_machines(result, file.parents[3]):
        raise FedReproError(f"{shorten(file)}: {wrong}; {again}")


def _of_machines(result: Result, paper: Path) -> str:
    """What cannot be in what the clients of a seed send, and in what trained it; nothing where all fits.
    paper: the folder of the result's paper, whose own methods send what they like."""
    sent = list(zip(traffic_of_seeds(result, "up"), traffic_of_seeds(result, "down"), strict=True))
    algorithm = result["algorithm"]
    own = (paper / "methods" / f"{algorithm}.py").exists() or method_module(algorithm) is None
    silent = None if own else algorithm in plausible.SILENT
    for seed, one, versions in zip(result["seeds"], sent, machines(result), strict=True):
        if wrong := plausible.of_traffic(one, silent) or plausible.of_torch(versions):
            return f"seed {seed}: {wrong}"
    return ""


def history(cell: Cell, root: Path = ROOT) -> pd.DataFrame:
    """history.csv of a cell: seed, round (0 is before training), loss, then measures in percent.

    FedReproError if the file is missing or is not such a table.
    """
    path = cell.folder(root) / "history.csv"
    return parse_history(_content(path), path)


def columns(cell: Cell, root: Path = ROOT) -> dict[str, list]:
    """Like `history`, as a list for each column but STATE, with NaN where there is no number.

    For one pass through the numbers this takes a fifth of the time of a pandas table.
    """
    path = cell.folder(root) / "history.csv"
    try:
        return _columns(_content(path).decode())
    except ValueError:  # only the table of pandas knows whether something is wrong, and what
        return {str(name): column.tolist() for name, column in history(cell, root).items() if name != STATE}


def _columns(text: str) -> dict[str, list]:
    """The columns of a history.csv; ValueError for what is not plainly right."""
    if not text.isascii():  # `float` and `int` read the digits of any script
        raise ValueError
    try:
        names, *lines = csv.reader(text.splitlines())
    except csv.Error as error:
        raise ValueError from error
    if len({*names}) < len(names) or "_" in text.partition("\n")[2]:  # `float` allows 1_000
        raise ValueError
    found: dict[str, list] = {}
    for name, texts in zip(names, zip(*lines, strict=True), strict=True):
        if name in ("seed", "round"):
            found[name] = list(map(int, texts))
        elif name == STATE:
            if not all(plausible.DIGEST.fullmatch(text) for text in texts if text):
                raise ValueError
        else:
            found[name] = [float(text or "nan") for text in texts]
            known = [value for value in found[name] if value == value]
            low, high = (0.0, 100.0) if is_percent(name) else (-sys.float_info.max, sys.float_info.max)
            if known and not low <= min(known) <= max(known) <= high:
                raise ValueError
    if not {"seed", "round"} <= found.keys():
        raise ValueError
    return found


def _content(path: Path) -> bytes:
    """Of a history.csv."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FedReproError(f"{shorten(path)}: no such file, although the cell has a result.json") from None


def parse_history(content: bytes, path: Path) -> pd.DataFrame:
    """Like `history`, for the content that `path` had in another commit."""
    return _parsed(content, path).copy()


@cache
def _parsed(content: bytes, path: Path) -> pd.DataFrame:
    """The table, parsed and checked once in a process; not to be changed."""
    try:
        table = pd.read_csv(io.BytesIO(content), dtype={STATE: str, "seed": int, "round": int})
    except (ValueError, OverflowError) as error:  # also pandas' errors and UnicodeDecodeError
        raise FedReproError(f"{shorten(path)}: not a table: {' '.join(str(error).split())}") from None
    if lost := [name for name in ("seed", "round") if name not in table]:
        raise FedReproError(f"{shorten(path)}: the column {lost[0]!r} is missing")
    numbers = table.drop(columns=STATE, errors="ignore")
    for name in numbers.select_dtypes(exclude="number") if len(table) else ():
        raise FedReproError(f"{shorten(path)}: {name}: not a column of numbers")
    percent = [is_percent(str(name)) and name not in ("seed", "round") for name in numbers]
    values = numbers.to_numpy(float)
    wrong = np.isinf(values) | np.where(percent, (values < 0) | (values > 100), False)
    for line, column in np.argwhere(wrong)[:1]:
        wanted = "between 0 and 100" if percent[column] else "finite"
        what = f"{numbers.columns[column]}: {values[line, column]:g}"
        raise FedReproError(f"{shorten(path)}:{line + 2}: {what} is not {wanted}")
    states = table[STATE].dropna() if STATE in table else pd.Series(dtype=str)
    # As lists: going through a column of pandas takes ten times as long.
    for line, text in zip(states.index.tolist(), states.tolist(), strict=True):
        if not plausible.DIGEST.fullmatch(text):
            raise FedReproError(f"{shorten(path)}:{line + 2}: {STATE}: {text!r:.80} is not 16 hex digits")
    return table


def ordered(measures: Iterable[str]) -> list[str]:
    """Names of measures in the order of tables: the usual ones first, the others as they come."""
    names = list(dict.fromkeys(measures))
    return [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]


def tidy(results: dict[Cell, Result]) -> pd.DataFrame:
    """All measured numbers, a row for each cell and measure; std is empty for a single seed."""
    rows = [
        (cell.paper, cell.scenario, cell.method, name, *astuple(summarise(results[cell]["measures"][name])))
        for cell in sorted(results, key=str)
        for name in ordered(results[cell]["measures"])
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def metrics(paper: str, results: dict[Cell, Result]) -> str:
    """reports/metrics/<paper>.json for `dvc metrics`: {method: accuracy in percent} of the miniature."""
    numbers = {
        cell.method: round(statistics.fmean(result["measures"][result["headline"]]), 4)
        for cell, result in results.items()
        if (cell.paper, cell.scenario) == (paper, MINIATURE)
    }
    return json.dumps(numbers, indent=1, sort_keys=True) + "\n"


def as_csv(table: pd.DataFrame) -> str:
    """A table as text, the same on every machine; no text in it is read as a formula (`files.as_text`)."""
    table = table.rename(columns=as_text)
    for name in table.select_dtypes(exclude="number"):
        table[name] = table[name].map(as_text)
    return table.to_csv(index=False, float_format="%.4f", lineterminator="\n")


def curves(results: dict[Cell, Result], root: Path = ROOT) -> pd.DataFrame:
    """Accuracy over rounds, mean over seeds, with the columns method, round, accuracy (the main measure,
    percent)."""
    rows = []
    for cell, result in results.items():
        rounds = checked_history(cell, result, root).groupby("round")
        rows += [(result["label"], *one) for one in rounds[result["headline"]].mean().dropna().items()]
    return pd.DataFrame(rows, columns=["method", "round", "accuracy"])
