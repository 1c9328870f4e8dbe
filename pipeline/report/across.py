"""The page across papers: all algorithms by accuracy, rank and cost; effects of tuning, leakage, rounding.

A paper's miniature is a small scenario in which all algorithms run that can. The page compares them there. If
several rows of paper.yaml run one algorithm, as in ablations, the unmodified one counts.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
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
from pipeline.schema import MINIATURE, MINIATURES, ROOT, Cell, Paper, Scenario, method_names
from pipeline.schema.discovery import CEILING

# What a miniature lacks -> why an algorithm does not run in it; the first reason that applies is named.
REASONS = {
    "public data": "needs unlabelled public images",
    "one network": "needs one network for all clients",
    "held-out images": "needs labelled images that no client holds",
    "images": "augments images",
    "pixels in [0, 1]": "attacks images, which here are normalised",
    "not listed": "could run, but paper.yaml does not list it",
}
# Algorithms whose rows are always open: federated averaging, and training without federation.
REFERENCES = ("fedavg", "local")
# Methods whose rows are open besides those and the papers' own: the best so many.
TOP = 6
# Methods, and miniatures, from which on mean ranks are computed: Friedman's test needs three methods.
FEWEST_RANKED = 3
# How far an axis reaches below the best accuracy, in units of the median's distance from it. Further, one
# method that fails would press all others together.
AXIS_DEPTH = 2.5
# Size of a panel of costs, and its margins (left, right without the names, top, bottom), in pixels.
PANEL_SIZE = (344, 244)
PANEL_LEFT = 34
PANEL_RIGHT = 18
PANEL_TOP = 34
PANEL_BOTTOM = 32
# Opacity of the dots without names.
FAINT = 0.35
# Bytes in a kB.
KILO = 1000


class Miniature:
    """A paper's miniature.

    study   of the paper
    labels  algorithm -> its name on the page

    name      of the paper
    scenario  the miniature, as paper.yaml describes it
    cells     name of an algorithm -> its cell, if the miniature has one
    results   name of an algorithm -> its result, if the cell has run
    headline  the measure that most of its cells report, by which all are compared; empty: none has run
    numbers   name -> mean and standard deviation of that measure, the largest first
    notes     sentences on the results that report another measure
    lower     whether small numbers are the better ones
    places    name -> rank
    """

    def __init__(self, study: Study, labels: dict[str, str]):
        self.study = study
        self.name = study.name
        self.scenario = study.paper.scenarios[MINIATURE]

        rows = {cell.method: cell for scenario in MINIATURES for cell in study.planned_in(scenario)}
        self.cells = {}
        for algorithm, label in labels.items():
            row = plain(algorithm, study.paper, [*rows])
            if row in rows:
                self.cells[label] = rows[row]
        self.results = {
            name: study.results[cell] for name, cell in self.cells.items() if cell in study.results
        }

        headlines = [result["headline"] for result in self.results.values()]
        self.headline = max(headlines, key=headlines.count, default="")
        numbers = {}
        for name, result in self.results.items():
            values = result["measures"].get(self.headline)
            if values:
                numbers[name] = summarise(values)
        self.numbers = dict(sorted(numbers.items(), key=lambda item: -item[1].mean))
        self.lower = lower_is_better(self.headline)
        self.places = ranked({name: number.mean for name, number in self.numbers.items()}, self.lower)
        self.notes = [*self._otherwise_scored()]

    def _otherwise_scored(self) -> Iterator[str]:
        """A sentence for each measure that results report instead of the common one, by which they are shown;
        and one that names the results without the common one, which are left out."""
        common = measure_words(self.headline)
        # Measure -> names of the methods whose results report it.
        others: dict[str, list[str]] = {}
        for name in self.numbers:
            reported = self.results[name]["headline"]
            if reported != self.headline:
                others.setdefault(reported, []).append(name)
        for measure, names in others.items():
            reported = measure_words(measure)
            yield (
                f"{self.name}: all are shown by the accuracy “{common}”; “{reported}” is what the results "
                f"report of {', '.join(names)}."
            )
        without = [name for name in self.results if name not in self.numbers]
        if without:
            yield f"{self.name}: left out, without the accuracy “{common}”: {', '.join(without)}."

    @property
    def axis(self) -> Axis:
        """The axis that shows all numbers."""
        return Axis.of_summaries(self.numbers.values())

    def about(self, labels: dict[str, str]) -> list[str]:
        """What the miniature is, in short texts: data, clients, networks and rounds; what is computed
        otherwise than in the paper; and by reason which algorithms have no cell in it.

        labels  algorithm -> its name on the page
        """
        scenario = self.scenario
        training = scenario.training
        networks = []
        for network in scenario.networks:
            networks.append(f"{network.name} with a projector" if network.projector else network.name)
        texts = [
            f"{scenario.data.set}, {scenario.clients} clients, {len(scenario.seeds)} seeds",
            f"{', '.join(dict.fromkeys(networks))}; {training.rounds} rounds, "
            f"local epochs: {training.local_epochs}",
        ]
        if scenario.public:
            texts.append(f"public images: {scenario.public.set}")
        if self.headline:
            texts.append(f"accuracy: {measure_words(self.headline)}")
        differences = self.study.computed_otherwise(self.cells.values())
        if differences:
            texts.append(differences)

        without_cell: dict[str, list[str]] = {}
        for algorithm, label in labels.items():
            if label not in self.cells:
                reason = REASONS[excluded(algorithm, scenario) or "not listed"]
                without_cell.setdefault(reason, []).append(label)
        return texts + [f"{reason}: {', '.join(names)}" for reason, names in without_cell.items()]


def plain(algorithm: str, paper: Paper, planned: Sequence[str]) -> str:
    """The row of paper.yaml that runs an algorithm unmodified.

    It is the row with the algorithm's name, else the first one that the miniature has, else the first one;
    empty if no row runs the algorithm.

    algorithm  name of the method's module
    paper      whose rows are looked at
    planned    rows that the miniature has
    """
    rows = [key for key in paper.methods if paper.algorithm(key) == algorithm]
    if algorithm in rows:
        return algorithm
    in_miniature = [key for key in rows if key in planned]
    return next(iter(in_miniature or rows), "")


def excluded(algorithm: str, scenario: Scenario) -> str:
    """What an algorithm needs and a scenario lacks, a key of REASONS; empty if it can run.

    A projector does not count, as the algorithm's row in paper.yaml would add it.

    algorithm  name of the method's module
    scenario   in which it would run
    """
    method = described(algorithm)
    lacking = method.requires - scenario.provides if method else ()
    return next((need for need in REASONS if need in lacking), "")


def labels_of(studies: Iterable[Study]) -> dict[str, str]:
    """Every federated algorithm -> its label as the papers print it, in alphabetical order.

    If several algorithms have one label, all but the first have the end of their own name in brackets.
    """
    papers = [study.paper for study in studies]
    # Label -> the algorithms that have it.
    same: dict[str, list[str]] = {}
    for algorithm in method_names():
        # A centralised model is a ceiling for federated ones and not their rival.
        if algorithm == CEILING:
            continue
        label = _printed_label(algorithm, papers)
        name, _ = variant(label)
        same.setdefault(name, []).append(algorithm)

    labels = {}
    for label, (first, *others) in same.items():
        labels[first] = label
        for algorithm in others:
            labels[algorithm] = f"{label} ({algorithm.rpartition('_')[2]})"
    return dict(sorted(labels.items(), key=lambda item: item[1].lower()))


def _printed_label(algorithm: str, papers: Iterable[Paper]) -> str:
    """The label of an algorithm in the first paper with a row of its name, else in the first paper with any
    row that runs it; its own name if no paper has one."""
    labels = []
    for paper in papers:
        row = plain(algorithm, paper, [])
        if algorithm in paper.methods and row:
            return paper.label(row)
        if row:
            labels.append(paper.label(row))
    return labels[0] if labels else algorithm


# -- places and ranks ----------------------------------------------------------------------------------------


class Group:
    """Miniatures in which the same algorithms can run.

    title   what they have in common
    labels  algorithm -> its name on the page
    papers  names of the papers, which are those of their methods

    columns  the miniatures
    rows     names of the best methods, of the papers' own and of the references, the best first
    rest     names of the other methods, the best first
    shared   mean ranks of the methods that ran in all of them; None: too few methods or miniatures
    """

    def __init__(self, title: str, columns: list[Miniature], labels: dict[str, str], papers: Iterable[str]):
        self.title = title
        self.columns = columns
        # Name -> the shades of its ranks; their mean tells which methods are the best.
        shades = {}
        for name in labels.values():
            shades[name] = [column.places[name].shade for column in columns if name in column.places]
        order = sorted((name for name in shades if shades[name]), key=lambda name: -fmean(shades[name]))
        chosen = {*order[:TOP], *papers, *(labels[name] for name in REFERENCES)}
        self.rows = [name for name in order if name in chosen]
        self.rest = [name for name in order if name not in chosen]

        # Name -> its mean in each miniature, of methods that ran in all of them.
        in_all = {}
        for name in shades:
            if len(shades[name]) == len(columns):
                in_all[name] = [column.numbers[name].mean for column in columns]
        self.shared = None
        if min(len(columns), len(in_all)) >= FEWEST_RANKED:
            self.shared = ranks(in_all, [column.lower for column in columns])


def groups(miniatures: list[Miniature], labels: dict[str, str]) -> list[Group]:
    """The finished miniatures in two groups: without public images and with them, which most algorithms
    either need or cannot use."""
    papers = [miniature.name for miniature in miniatures]
    finished = [miniature for miniature in miniatures if miniature.results]
    without = [miniature for miniature in finished if not miniature.scenario.public]
    with_images = [miniature for miniature in finished if miniature.scenario.public]
    found = []
    if without:
        found.append(Group("without public images", without, labels, papers))
    if with_images:
        found.append(Group("with public images", with_images, labels, papers))
    return found


# -- accuracy against cost -----------------------------------------------------------------------------------


def costs(miniatures: Iterable[Miniature]) -> list[tuple[str, draw.Picture]]:
    """Pictures of accuracy against a cost, with a panel for each miniature.

    Returns (cost, its picture): the traffic of a client in a round, and the seconds of a round. A picture
    without panels is left out.
    """
    charts: dict[str, list[draw.Panel]] = {"kB a round": [], "seconds a round": []}
    for miniature in miniatures:
        rows = []
        for name in miniature.numbers:
            result = miniature.results[name]
            traffic = result["traffic"]["bytes"] / KILO
            seconds = fmean(result["seconds"]) / result["rounds"]
            rows.append((name, traffic, seconds))
        table = pd.DataFrame(rows, columns=["name", *charts])
        table["y"] = [miniature.numbers[name].mean for name in table["name"]]
        for unit, panels in charts.items():
            chart = table[table[unit] > 0].rename(columns={unit: "x"})
            if chart["x"].nunique() > 1:
                panels.append(pareto(miniature.name, unit, chart, miniature.name))
    return [(unit, draw.Picture(panels)) for unit, panels in charts.items() if panels]


def front(table: pd.DataFrame) -> pd.DataFrame:
    """The Pareto front: the points that are better than every cheaper one, the cheapest first.

    table  columns x (a cost) and y (an accuracy)
    """
    ordered = table.sort_values(["x", "y"], ascending=[True, False], kind="stable")
    return ordered[ordered["y"] > ordered["y"].cummax().shift().fillna(-math.inf)]


@rc_context(draw.STYLE)
def pareto(title: str, unit: str, table: pd.DataFrame, proposed: str) -> draw.Panel:
    """A panel with a dot for each method, over a logarithmic axis of costs. The Pareto front has a line and
    names, the paper's method has its name in the accent colour.

    title     of the panel
    unit      what x is
    table     columns name, x, y (accuracy in percent); what is far below the median is drawn at the lower
              edge
    proposed  name of the paper's method
    """
    best = front(table)
    top = table["y"].max()
    lowest = top - AXIS_DEPTH * (top - table["y"].median())
    table = table.assign(y=table["y"].clip(lower=lowest))
    named = table[table["name"].isin({*best["name"], proposed})]
    inks = {name: draw.Ink("ink") for name in named["name"]}
    if proposed in inks:
        inks[proposed] = draw.Ink("accent", bold=True)
    right = PANEL_RIGHT + draw.LETTER * max(map(len, inks))
    canvas = draw.Canvas(PANEL_SIZE, (PANEL_LEFT, right, PANEL_TOP, PANEL_BOTTOM), title)
    axes = canvas.axes
    axes.step(best["x"], best["y"], where="post", color=draw.PAINT["line"], lw=1.6, zorder=1)
    for row in table.itertuples():
        gid = canvas.of(row.name, f"{row.name}: {row.x:,.4g}, {row.y:.1f} %")
        ink = inks.get(row.name, draw.Ink("mute"))
        alpha = 1 if row.name in inks else FAINT
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
    """A summary of reports/processors.csv, which has cells that were trained on two processors.

    Returns None without the file, else
    cells    number of cells that were compared
    same     number of these with the same numbers in every round
    earlier  number of these that were compared in a setting that is not today's
    makers   names of the makers of the two processors
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
    """What the templates of the page show.

    studies  paper -> its results

    Raises ParamError for a malformed leakage.csv or processors.csv.
    """
    labels = labels_of(studies.values())
    miniatures = {
        key: Miniature(study, labels) for key, study in studies.items() if MINIATURE in study.paper.scenarios
    }
    root = next((study.root for study in studies.values()), ROOT)
    done, problems = tunings(root, studies)
    tabs = tuning_tabs({key: miniature.study for key, miniature in miniatures.items()}, labels, done)
    tuned = [tuning for tab in tabs for tuning in tab.tunings.values()]

    # Cells of the miniatures; of those what `fedrepro run` takes to train the missing ones; stale cells.
    planned: list[Cell] = []
    waiting = []
    older: list[Cell] = []
    for miniature in miniatures.values():
        study = miniature.study
        for name, cell in miniature.cells.items():
            planned.append(cell)
            if cell in study.problems:
                problems.append(study.problems[cell])
            if name not in miniature.results:
                waiting.append(study.target(cell))
            elif not identity.current(miniature.results[name], Experiment.of(cell, root)):
                older.append(cell)
    older += [tuning.cell for tuning in tuned if tuning.older]
    return {
        "done": len(planned) - len(waiting),
        "planned": len(planned),
        "algorithms": len(labels),
        "groups": groups([*miniatures.values()], labels),
        "costs": costs(miniatures.values()),
        "tuned": tabs,
        "changes": [change for tab in tabs for change in tab.changes],
        "same": sum(tuning.same for tuning in tuned if tuning.before),
        "leakage": leakage(studies, root),
        "processors": processors(root),
        "about": {miniature.name: miniature.about(labels) for miniature in miniatures.values()},
        "older": list(map(str, older)),
        "command": f"fedrepro run {' '.join(waiting)}" if waiting else "",
        "problems": problems,
    }
