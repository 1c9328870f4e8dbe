"""Whether measured numbers fit together: what can be seen in a result without training it again.

`problem` names the first thing that cannot be: a client more or less, an accuracy that the clients' own do
not give, a mean that its parts do not give. An honest result always passes; an altered one does only where
all that belongs together was altered alike, which `fedrepro verify` finds.
"""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Largest gap of two means of accuracies that were rounded to four decimals, in points.
ROUNDED = 0.002
# Columns that are no domain's accuracy, although they have a plain name.
PLAIN = {
    *("seed", "round", "state", "loss", "participants"),
    *("average", "weighted", "clients_std", "fgsm", "pgd"),
}
HOOKS = ("pre.", "post.")


def kind_of(measures: Collection[str]) -> str:
    """Whose test sets the accuracies with these names are of, as `evaluation.tests` has it."""
    if "weighted" in measures:
        return "clients"
    if "intra.AVG" in measures:
        return "cross"
    domains = [name for name in measures if name not in PLAIN and "." not in name]
    return "domains" if domains else "pooled"


@dataclass(frozen=True)
class Expected:
    """What every seed of a cell has.

    rounds: trained; clients: of the partition; classes: of the data set; hook: of the scored models
    """

    rounds: int
    clients: int
    classes: int
    hook: str


def of_seed(run: Mapping[str, Any], expected: Expected) -> str:
    """What cannot be in a finished seed, wherever it was trained; nothing where all fits."""
    rows = run["rows"]
    if len(rows) != expected.rounds + 1:
        return f"{len(rows) - 1} rounds, the scenario has {expected.rounds}"
    if run["hook"] != expected.hook:
        return f"scores the models {run['hook']!r}, the cell scores {expected.hook!r}"
    holdings = run.get("holdings") or {}
    of_clients = {"clients": run["clients"], **{f"holdings.{name}": each for name, each in holdings.items()}}
    for name, each in of_clients.items():
        if len(each) != expected.clients:
            return f"{name}: {len(each)} clients, the partition has {expected.clients}"
    if len(run.get("by_class") or range(expected.classes)) != expected.classes:
        return f"by_class: {len(run['by_class'])} classes, the data set has {expected.classes}"
    if any(not 0 <= held <= expected.classes for held in holdings.get("classes", ())):
        return f"holdings.classes: a client has at most {expected.classes}"
    names: set[str] = set()
    for row in rows:
        names.update(row)
        for name, value in row.items():
            problem = _out_of_range(name, value)
            if problem:
                return f"round {row['round']}: {problem}"
    kind = kind_of(names)
    for row in rows:
        problem = of_row(row, kind)
        if problem:
            return f"round {row['round']}: {problem}"
    return of_clients_last(rows[-1], run["clients"], kind)


def _out_of_range(name: str, value: object) -> str:
    if not isinstance(value, (int, float)) or name in ("seed", "round"):
        return ""
    if not math.isfinite(value):
        return f"{name}: {value} is no number"
    if name == "participants":
        return "" if value >= 0 else f"participants: {value} is negative"
    percent = name != "loss" and not name.startswith("method.")
    return f"{name}: {value} is not between 0 and 100" if percent and not 0 <= value <= 100 else ""


def of_row(row: Mapping[str, object], kind: str) -> str:
    """What cannot be in a line of history.csv; nothing where all fits.

    kind: whose test sets the accuracies are of, as `evaluation.tests`.
    """
    for prefix in ("", *HOOKS):
        values = {
            name.removeprefix(prefix): float(value)
            for name, value in row.items()
            if name.startswith(prefix) and isinstance(value, (int, float)) and not math.isnan(value)
        }
        if not prefix:
            values = {name: value for name, value in values.items() if not name.startswith(HOOKS)}
        problem = _of_measures(values, kind)
        if problem:
            return prefix + problem
    return ""


def _of_measures(values: Mapping[str, float], kind: str) -> str:
    average = values.get("average")
    if average is None:
        return ""
    if kind == "domains":
        parts = {name: value for name, value in values.items() if name not in PLAIN and "." not in name}
        return _mean("average", average, parts.values(), "the domains")
    if kind == "cross":
        for group in ("intra", "inter"):
            stated = values.get(f"{group}.AVG")
            parts = {name: value for name, value in values.items() if name.startswith(f"{group}.")}
            parts.pop(f"{group}.AVG", None)
            if stated is not None:
                problem = _mean(f"{group}.AVG", stated, parts.values(), "the clients")
                if problem:
                    return problem
        return _mean("average", average, [values.get("intra.AVG", average)], "intra.AVG")
    return ""


def of_clients_last(row: Mapping[str, object], clients: Sequence[float | None], kind: str) -> str:
    """What cannot be between the last line of a seed and the accuracies of its clients in that round."""
    known = [value for value in clients if value is not None]
    average, spread, weighted = (row.get(name) for name in ("average", "clients_std", "weighted"))
    if not known or not isinstance(average, (int, float)) or math.isnan(average):
        return ""
    if kind in ("clients", "pooled", "cross"):
        problem = _mean("average", average, known, "the clients")
        if problem:
            return problem
    if kind == "clients" and isinstance(spread, (int, float)):
        given = statistics.pstdev(known)
        if not abs(given - spread) <= ROUNDED:
            return f"clients_std is {spread}, the clients give {given:.4f}"
    if kind == "clients" and isinstance(weighted, (int, float)):
        if not min(known) - ROUNDED <= weighted <= max(known) + ROUNDED:
            return f"weighted is {weighted}, the clients lie between {min(known)} and {max(known)}"
    return ""


def _mean(name: str, stated: float, parts: Iterable[float], of: str) -> str:
    """`average is 60.1, the domains give 55.1` where a mean is not that of its parts."""
    known = list(parts)
    if not known or abs(statistics.fmean(known) - stated) <= ROUNDED:
        return ""
    return f"{name} is {stated}, {of} give {statistics.fmean(known):.4f}"
