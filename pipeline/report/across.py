"""The page across papers: all algorithms by accuracy, rank and cost; effects of tuning, leakage, rounding.

Of several rows of paper.yaml that run one algorithm, as in ablations, the unmodified one counts.
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean

import pandas as pd
from matplotlib import rc_context

from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import described
from pipeline.cells.results import lower_is_better, summarise
from pipeline.data.reading import reading
from pipeline.provenance import identity
from pipeline.report import figures as draw
from pipeline.report.comparison import Axis, ranked
from pipeline.report.leakage import leakage
from pipeline.report.statistics import ranks
from pipeline.report.study import Study
from pipeline.report.tunings import tuning_tabs, tunings
from pipeline.report.words import measure_words, variant
from pipeline.schema import MINIATURE, MINIATURES, ROOT, Paper, Scenario, method_names
from pipeline.schema.discovery import CEILING

# Why an algorithm does not run in a miniature, in the order in which it is looked for.
REASONS = {
    "public data": "needs unlabelled public images",
    "one network": "needs one network for all clients",
    "held-out images": "needs labelled images that no client holds",
    "images": "augments images",
    "pixels in [0, 1]": "attacks images, which here are normalised",
    "not listed": "could run, but paper.yaml does not list it",
}
# Always listed.
REFERENCES = ("fedavg", "local")
# Methods above the fold, besides those and the papers'.
TOP = 6
# Fewer methods or miniatures make no mean ranks.
FEWEST = 3
# How far below the best an axis goes, in distances of the median from it.
FAR = 2.5


class Miniature:
    """A paper's miniature.

    cells     name of an algorithm -> the cell that it asks for; results: of those that have run
    numbers   name -> accuracy, the best first; places: their ranks
    headline  the measure that its cells report; empty where none has run
    """

    def __init__(self, study: Study, labels: dict[str, str]):
        self.study, self.name = study, study.name
        self.scenario = study.paper.scenarios[MINIATURE]
        rows = {cell.method: cell for scenario in MINIATURES for cell in study.planned_in(scenario)}
        self.cells = {
            label: rows[row]
            for algorithm, label in labels.items()
            if (row := plain(algorithm, study.paper, [*rows])) in rows
        }
        self.results = {name: study.results[at] for name, at in self.cells.items() if at in study.results}
        self.headline = next((result["headline"] for result in self.results.values()), "")
        every = {label: summarise(one["measures"][one["headline"]]) for label, one in self.results.items()}
        self.numbers = dict(sorted(every.items(), key=lambda item: -item[1].mean))
        self.lower = lower_is_better(self.headline)
        self.places = ranked({name: number.mean for name, number in self.numbers.items()}, self.lower)

    @property
    def axis(self) -> Axis:
        return Axis.of_summaries(self.numbers.values())

    def about(self, labels: dict[str, str]) -> list[str]:
        """Data, clients, networks and rounds, what was computed otherwise, and which algorithms have no cell
        here, by reason."""
        scenario, training = self.scenario, self.scenario.training
        networks = (m.name + (" with a projector" if m.projector else "") for m in scenario.networks)
        texts = [
            f"{scenario.data.set}, {scenario.clients} clients, {len(scenario.seeds)} seeds",
            f"{', '.join(dict.fromkeys(networks))}; {training.rounds} rounds, "
            f"local epochs: {training.local_epochs}",
            f"public images: {scenario.public.set}" if scenario.public else "",
            f"accuracy: {measure_words(self.headline)}" if self.headline else "",
            self.study.computed_otherwise(self.cells.values()),
        ]
        out: dict[str, list[str]] = {}
        for algorithm, label in labels.items():
            if label not in self.cells:
                out.setdefault(REASONS[excluded(algorithm, scenario) or "not listed"], []).append(label)
        return [*filter(None, texts), *(f"{reason}: {', '.join(names)}" for reason, names in out.items())]


def plain(algorithm: str, paper: Paper, planned: Sequence[str]) -> str:
    """The row of paper.yaml that runs an algorithm as the paper does: the one of its name, else the first
    that the miniature has, else the first; empty where no row runs it."""
    rows = [key for key in paper.methods if paper.algorithm(key) == algorithm]
    return [*{algorithm} & {*rows}, *(key for key in rows if key in planned), *rows, ""][0]


def excluded(algorithm: str, scenario: Scenario) -> str:
    """What an algorithm needs and a scenario lacks, a key of REASONS; empty where it can run. A projector
    does not count, as the algorithm's row would add it."""
    method = described(algorithm)
    lacking = method.requires - scenario.provides if method else ()
    return next((need for need in REASONS if need in lacking), "")


def labels_of(studies: Iterable[Study]) -> dict[str, str]:
    """Every federated algorithm -> its label as the papers print it; of several with one label all but the
    first have the end of their name in brackets."""
    papers = [study.paper for study in studies]
    same: dict[str, list[str]] = {}
    # a centralised model is a ceiling, no rival
    for algorithm in (name for name in method_names() if name != CEILING):
        rows = [
            (algorithm in paper.methods, paper.label(row))
            for paper in papers
            if (row := plain(algorithm, paper, []))
        ]
        label = max(rows, key=lambda row: row[0])[1] if rows else algorithm
        same.setdefault(variant(label)[0], []).append(algorithm)
    labels = {
        algorithm: label if algorithm == first else f"{label} ({algorithm.rpartition('_')[2]})"
        for label, (first, *others) in same.items()
        for algorithm in (first, *others)
    }
    return dict(sorted(labels.items(), key=lambda item: item[1].lower()))


# -- places and ranks ----------------------------------------------------------------------------------------


class Group:
    """Miniatures that the same algorithms can run in.

    rows    names of the best and those of the papers; rest: the others alike
    shared  mean ranks of those that ran in all; None where these are few
    """

    def __init__(self, title: str, columns: list[Miniature], labels: dict[str, str], papers: Iterable[str]):
        self.title, self.columns = title, columns
        shades = {
            name: [column.places[name].shade for column in columns if name in column.places]
            for name in labels.values()
        }
        order = sorted((name for name in shades if shades[name]), key=lambda name: -fmean(shades[name]))
        chosen = {*order[:TOP], *papers, *(labels[name] for name in REFERENCES)}
        self.rows, self.rest = ([n for n in order if (n in chosen) == top] for top in (True, False))
        rows = {
            name: [column.numbers[name].mean for column in columns]
            for name in shades
            if len(shades[name]) == len(columns)
        }
        few = min(len(columns), len(rows)) < FEWEST
        self.shared = None if few else ranks(rows, [column.lower for column in columns])


def groups(miniatures: list[Miniature], labels: dict[str, str]) -> list[Group]:
    """Miniatures without and with public images, which most algorithms either need or cannot use."""
    titles, made = {False: "without public images", True: "with public images"}, []
    for public, title in titles.items():
        if columns := [one for one in miniatures if one.results and bool(one.scenario.public) == public]:
            made.append(Group(title, columns, labels, [one.name for one in miniatures]))
    return made


# -- accuracy against cost -----------------------------------------------------------------------------------


def costs(miniatures: Iterable[Miniature]) -> list[tuple[str, draw.Picture]]:
    """(cost, a panel per miniature): accuracy against bytes and against seconds of a round."""
    charts: dict[str, list[draw.Panel]] = {"kB a round": [], "seconds a round": []}
    for one in miniatures:
        rows = [
            (name, result["traffic"]["bytes"] / 1000, fmean(result["seconds"]) / result["rounds"])
            for name, result in one.results.items()
        ]
        table = pd.DataFrame(rows, columns=["name", *charts])
        table["y"] = [one.numbers[name].mean for name in table["name"]]
        for unit, panels in charts.items():
            chart = table[table[unit] > 0].rename(columns={unit: "x"})
            panels += [pareto(one.name, unit, chart, one.name)] if chart["x"].nunique() > 1 else []
    return [(unit, draw.Picture(panels)) for unit, panels in charts.items() if panels]


def front(table: pd.DataFrame) -> pd.DataFrame:
    """The points (x, y) that no other beats in both, cheapest first."""
    ordered = table.sort_values(["x", "y"], ascending=[True, False], kind="stable")
    return ordered[ordered["y"] > ordered["y"].cummax().shift().fillna(-math.inf)]


@rc_context(draw.STYLE)
def pareto(title: str, unit: str, table: pd.DataFrame, proposed: str) -> draw.Panel:
    """A dot per method, x logarithmic; a line and names for the front, the accent for the paper's method.

    table: columns name, x, y; what is far below the median is drawn at the lower edge.
    """
    best, top = front(table), table["y"].max()
    table = table.assign(y=table["y"].clip(lower=top - FAR * (top - table["y"].median())))
    named = table[table["name"].isin({*best["name"], proposed})]
    inks = {
        name: draw.Ink("accent" if name == proposed else "ink", bold=name == proposed)
        for name in named["name"]
    }
    right = 18 + draw.LETTER * max(map(len, inks))
    canvas = draw.Canvas((344, 244), (34, right, 34, 32), title)
    axes = canvas.axes
    axes.step(best["x"], best["y"], where="post", color=draw.PAINT["line"], lw=1.6, zorder=1)
    for row in table.itertuples():
        ink, alpha = inks.get(row.name, draw.Ink("mute")), 1 if row.name in inks else 0.35
        gid = canvas.of(row.name, f"{row.name}: {row.x:,.4g}, {row.y:.1f} %")
        draw.dots(canvas, gid, [row.x], [row.y], ink, 8, alpha)
    axes.margins(0.08, 0.1)
    draw.few_ticks(axes, table["x"].to_numpy(), True)
    axes.yaxis.set_major_locator(draw.MaxNLocator(4))
    draw.dress(axes, unit, "accuracy, %", "y")
    ends = {row.name: pd.DataFrame({"x": [row.x], "mean": [row.y]}) for row in named.itertuples()}
    draw.name_lines(canvas, ends, inks)
    return canvas.panel(f"{title}: accuracy against {unit}; best: {', '.join(best['name'])}")


# -- processors ----------------------------------------------------------------------------------------------


def processors(root: Path = ROOT) -> dict | None:
    """Of reports/processors.csv, which has cells that were trained on two processors; None without the file.

    cells    how many were compared
    same     how many of them have the same numbers in every round
    earlier  in how many the compared setting is not today's
    makers   who makes the processors
    """
    path = root / "reports" / "processors.csv"
    if not path.exists():
        return None
    with reading(path):
        table = pd.read_csv(path)
        makers = [re.split(r"\W", table.loc[0, side])[0] for side in ("first", "second")]
        same = int((table["different"] == 0).sum())
        earlier = int((table["setting"] == "an earlier one").sum())
        return {"cells": len(table), "same": same, "earlier": earlier, "makers": makers}


# -- the page ------------------------------------------------------------------------------------------------


def across(studies: dict[str, Study]) -> dict:
    """The context of the templates. A malformed leakage.csv is a ParamError that names its line."""
    labels = labels_of(studies.values())
    miniatures = {
        key: Miniature(study, labels) for key, study in studies.items() if MINIATURE in study.paper.scenarios
    }
    root = next((study.root for study in studies.values()), ROOT)
    done, problems = tunings(root, studies)
    tabs = tuning_tabs({key: one.study for key, one in miniatures.items()}, labels, done)
    tuned = [one for tab in tabs for one in tab.tunings.values()]
    planned = [(one, name, cell) for one in miniatures.values() for name, cell in one.cells.items()]
    waiting = [one.study.target(cell) for one, name, cell in planned if name not in one.results]
    problems += [one.study.problems[cell] for one, _, cell in planned if cell in one.study.problems]
    older = [
        cell
        for one, name, cell in planned
        if name in one.results and not identity.current(one.results[name], Experiment.of(cell, root))
    ]
    return {
        "done": len(planned) - len(waiting),
        "planned": len(planned),
        "algorithms": len(labels),
        "groups": groups([*miniatures.values()], labels),
        "costs": costs(miniatures.values()),
        "tuned": tabs,
        "changes": [change for tab in tabs for change in tab.changes],
        "same": sum(one.same for one in tuned if one.before),
        "leakage": leakage(studies, root),
        "processors": processors(root),
        "about": {one.name: one.about(labels) for one in miniatures.values()},
        "older": [str(cell) for cell in [*older, *(one.cell for one in tuned if one.older)]],
        "command": f"fedrepro run {' '.join(waiting)}" if waiting else "",
        "problems": problems,
    }
