"""Figures that no paper has: what a method costs, what it records, and who learns from whom."""

import re
from collections.abc import Callable
from statistics import fmean

import numpy as np
import pandas as pd

from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import model_copies
from pipeline.cells.results import ROUNDED
from pipeline.report import figures as draw
from pipeline.report.curves import finished_methods, label, method_inks, over_seeds
from pipeline.report.figures import Ink, Picture
from pipeline.report.measures import numbers
from pipeline.report.study import Study
from pipeline.report.words import pretty
from pipeline.schema import Cell

# Share of the methods whose reported accuracy lies below the target.
SHARE_BELOW = 0.25
# Rounds of a setting from which on the round of a target distinguishes methods.
ENOUGH_ROUNDS = 15
# By this factor costs must differ to be shown.
NOTABLE = 1.2
# A column that says in which rounds a client learned from a teacher.
LEARNS = re.compile(r"method\.learns\.(\d+)\.(\d+)")


def _cost(study: Study, scenario: str) -> Picture:
    """Rounds and MB to a target accuracy, seconds a round, peak memory of each method, where these differ."""
    names = {}
    for cell in finished_methods(study, scenario):
        name = label(study, cell.method)
        # Variants of the paper's method are left out.
        if name == study.name or not name.startswith(study.name):
            names[cell] = name
    if len(names) < 3:
        return Picture()

    results = [study.results[cell] for cell in names]
    accuracies = [fmean(result["measures"][result["headline"]]) for result in results]
    target = int(np.quantile(accuracies, SHARE_BELOW))
    # (title, unit) of every cost that `spent` has.
    words = {
        "seconds": ("Time", "seconds a round"),
        "memory": ("Peak memory", "MB"),
        "copies": ("Models of a client", "in its memory while it trains"),
    }
    caption = ""
    if results[0]["rounds"] >= ENOUGH_ROUNDS:
        to_target = {
            "rounds": (f"Rounds to {target} %", "rounds"),
            "sent": (f"Sent to {target} %", "MB per client, both ways"),
        }
        words = to_target | words
        caption = f"Three in four methods report {target} % or more; a dash: a seed does not reach it."

    table = pd.DataFrame([spent(study, cell, target) for cell in names], list(names.values()))
    panels = []
    for name, (title, unit) in words.items():
        if table[name].max() > NOTABLE * table[name].min():
            column = table[[name]].sort_values(name, kind="stable")
            panels.append(draw.rows(title, unit, column, {name: Ink("ink")}, study.name))
    return Picture(panels, caption)


def spent(study: Study, cell: Cell, target: float) -> dict[str, float]:
    """What a finished cell needs, mean over its seeds; NaN where that is unknown or a seed does not reach the
    target, an accuracy in percent.

    seconds  wall time of a round
    memory   peak of the seed that needs most, in MB
    copies   models that a client has in its memory while it trains
    rounds   until the target is reached
    sent     MB that a client sends and receives until then
    """
    result = study.results[cell]
    seconds = numbers(cell, result, "run.seconds").values()
    memory = numbers(cell, result, "run.memory").values()
    table = study.history(cell)
    reached = table[(table["round"] > 0) & (table[result["headline"]] >= target - ROUNDED)]
    rounds = reached.groupby("seed")["round"].min().reindex(result["seeds"]).mean(skipna=False)
    return {
        "seconds": fmean(seconds),
        "memory": max(memory, default=np.nan),
        "copies": float(model_copies(Experiment.of(cell, study.root)) or np.nan),
        "rounds": rounds,
        "sent": rounds * result["traffic"]["bytes"] / 1e6,
    }


def _signals(study: Study, scenario: str) -> Picture:
    """What the paper's method records of itself over rounds, such as a number of clusters."""
    methods = finished_methods(study, scenario)
    rows = [cell for cell in methods if study.label(cell.method).startswith(study.name)]
    histories = {label(study, cell.method): study.history(cell) for cell in rows}
    columns = dict.fromkeys(column for history in histories.values() for column in history)
    panels = []
    for column in columns:
        if not column.startswith("method.") or ".learns." in column:
            continue
        tables = {}
        for name, history in histories.items():
            if column in history and history[column].nunique() > 1:
                tables[name] = over_seeds(history, column)
        if tables:
            words = pretty(column.removeprefix("method.").replace(".", ", "))
            panels.append(draw.lines(words, "", "round", tables, method_inks(study, tables)))
    return Picture(panels, "Mean over seeds; shaded: their range.")


def _teachers(study: Study, scenario: str) -> Picture:
    """Who learns from whom (RAHFL Eq. 12) in the first and in the second half of the rounds, where the
    columns method.learns.<client>.<teacher> record it."""
    panels = []
    for cell in finished_methods(study, scenario):
        if label(study, cell.method) != study.name:
            continue
        table = study.history(cell)
        # column -> (client, teacher)
        pairs = {}
        for column in table:
            match = LEARNS.fullmatch(str(column))
            if match:
                pairs[column] = (int(match[1]), int(match[2]))
        if not pairs:
            continue
        clients = [str(k) for k in range(1 + max(map(max, pairs.values())))]
        table = table.dropna(subset=[*pairs])
        late = table["round"] > study.results[cell]["rounds"] / 2
        for words, rows in (("first half", table[~late]), ("second half", table[late])):
            if len(rows):
                shares = np.zeros((len(clients), len(clients)))
                for column, pair in pairs.items():
                    shares[pair] = rows[column].mean()
                panels.append(draw.squares(words, "", shares, clients, clients, "teacher"))
    return Picture(
        panels, "Share of rounds in which a client (row) learns from another (column), over seeds."
    )


# Key -> (title, what draws it).
ADDITIONAL: dict[str, tuple[str, Callable[[Study, str], Picture]]] = {
    "cost": ("What a method costs", _cost),
    "signals": ("What the method records", _signals),
    "teachers": ("Who learns from whom", _teachers),
}
