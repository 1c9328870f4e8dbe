"""The page across papers: all algorithms by accuracy, rank and cost; effects of tuning, leakage, rounding.

Of several rows of paper.yaml that run one algorithm, as in ablations, the unmodified one counts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from statistics import fmean

import pandas as pd
from markupsafe import Markup
from matplotlib import rc_context

from pipeline.cells import provenance
from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import described
from pipeline.cells.results import Summary, lower_is_better, summarise
from pipeline.report import figures as draw
from pipeline.report import markdown
from pipeline.report.comparison import Column, Dot, Dots, Rank, Setting, ranked
from pipeline.report.experiments import leakage, processors, tuning_tabs, tunings
from pipeline.report.published import result_path
from pipeline.report.statistics import Ranks, ranks
from pipeline.report.study import Study
from pipeline.report.words import measure_words, signed, variant
from pipeline.schema import CEILING, MINIATURE, MINIATURES, ROOT, Cell, Paper, Scenario, method_names

At = tuple[str, str]  # (algorithm, key of the paper)
Place = tuple[Dot, Rank, str]
Places = tuple[str, list[Place | None]]
# Why an algorithm does not run in a miniature, in the order in which it is looked for.
REASONS = {
    "public data": "needs unlabelled public images",
    "one network": "needs one network for all clients",
    "held-out images": "needs labelled images that no client holds",
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


class Miniatures:
    """studies: papers that have a miniature; labels: of every algorithm; cells: that the miniatures ask for;
    results: of those that have run."""

    def __init__(self, studies: dict[str, Study]):
        self.studies = {key: study for key, study in studies.items() if MINIATURE in study.paper.scenarios}
        self.labels = _labels(studies.values())
        rows = {
            key: {cell.method: cell for scenario in MINIATURES for cell in study.planned_in(scenario)}
            for key, study in self.studies.items()
        }
        self.cells: dict[At, Cell] = {
            (algorithm, key): rows[key][row]
            for algorithm in algorithms()
            for key, study in self.studies.items()
            if (row := plain(algorithm, study.paper, [*rows[key]])) in rows[key]
        }
        self.results: dict[At, dict] = {
            at: result
            for at, cell in self.cells.items()
            if (result := self.studies[at[1]].results.get(cell))
            and result["measures"].get(result["headline"])
        }

    def headline(self, key: str) -> str:
        """The measure that a miniature's cells report; empty where none has run."""
        return next((result["headline"] for (_, paper), result in self.results.items() if paper == key), "")

    def accuracy(self, at: At) -> Summary:
        result = self.results[at]
        return summarise(result["measures"][result["headline"]])

    def ran(self, key: str) -> list[str]:
        """Algorithms with a number in a miniature."""
        return [algorithm for algorithm in self.labels if (algorithm, key) in self.results]

    def ranks(self, key: str) -> dict[str, Rank]:
        """Of the algorithms that ran in a miniature."""
        means = {name: self.accuracy((name, key)).mean for name in self.ran(key)}
        return ranked(means, lower_is_better(self.headline(key)))


def algorithms() -> list[str]:
    """Every federated algorithm; a centralised model is a ceiling, no rival."""
    return [name for name in method_names() if name != CEILING]


def plain(algorithm: str, paper: Paper, planned: Sequence[str]) -> str:
    """The row of paper.yaml that runs an algorithm as the paper does: the one of its name, else the first
    that the miniature has, else the first; empty where no row runs it."""
    rows = [key for key in paper.methods if paper.algorithm(key) == algorithm]
    return [*{algorithm} & {*rows}, *(key for key in rows if key in planned), *rows, ""][0]


def excluded(algorithm: str, scenario: Scenario) -> str:
    """What an algorithm needs and a scenario lacks, a key of REASONS; empty where it can run. A projector
    does not count, as the algorithm's row would add it."""
    kind = described(algorithm)
    lacking = kind.says("requires", {}) - scenario.provides if kind else ()
    return next((need for need in REASONS if need in lacking), "")


def _labels(studies: Iterable[Study]) -> dict[str, str]:
    """Every algorithm -> its label as the papers print it; of several with one label all but the first have
    the end of their name in brackets."""
    papers = [study.paper for study in studies]
    same: dict[str, list[str]] = {}
    for algorithm in algorithms():
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

    columns   a miniature each: every method on one axis
    places    the rank of the paper's method in each, None where it has not run
    rows      (name, per miniature its dot, rank and file, or None): the best and those of the papers
    rest      the other methods alike
    shared    mean ranks of those that ran in all
    pairs     how many pairs differ by them, of how many
    """

    def __init__(self, title: str, keys: list[str], miniatures: Miniatures):
        self.title, self.columns = title, [_column(key, miniatures) for key in keys]
        dot = {(row.name, key): row for key, column in zip(keys, self.columns) for row in column.rows}
        ranks_of = {key: miniatures.ranks(key) for key in keys}
        rows: dict[str, list[Place | None]] = {}
        for name, label in miniatures.labels.items():
            places = [
                (dot[label, key], ranks_of[key][name], result_path(miniatures.cells[name, key]))
                if (name, key) in miniatures.results
                else None
                for key in keys
            ]
            rows |= {name: places} if any(places) else {}
        order = sorted(rows, key=lambda name: -fmean(one[1].shade for one in rows[name] if one))
        names = {study.name for study in miniatures.studies.values()}
        chosen = {*order[:TOP], *REFERENCES, *(n for n in order if miniatures.labels[n] in names)}
        self.rows: list[Places]
        self.rest: list[Places]
        self.rows, self.rest = (
            [(miniatures.labels[name], rows[name]) for name in order if (name in chosen) == top]
            for top in (True, False)
        )
        self.shared = _shared(keys, miniatures)
        self.places = [
            next((one[1].place for row in rows.values() if (one := row[i]) and one[0].proposed), None)
            for i in range(len(keys))
        ]
        self.pairs = differing(self.shared) if self.shared else (0, 0)


def groups(miniatures: Miniatures) -> list[Group]:
    """Miniatures without and with public images, which most algorithms either need or cannot use."""
    scenarios = {key: miniatures.studies[key].paper.scenarios[MINIATURE] for key in miniatures.studies}
    ran = {key: bool(one.public) for key, one in scenarios.items() if miniatures.headline(key)}
    titles = {False: "without public images", True: "with public images"}
    return [
        Group(title, [key for key in ran if ran[key] == public], miniatures)
        for public, title in titles.items()
        if public in ran.values()
    ]


def _column(key: str, miniatures: Miniatures) -> Dots:
    numbers = {miniatures.labels[name]: miniatures.accuracy((name, key)) for name in miniatures.ran(key)}
    column, study = Column("", numbers, MINIATURE, miniatures.headline(key)), miniatures.studies[key]
    return Dots(Setting(study.name, key, {}, [column]), study.name)


def _shared(keys: list[str], miniatures: Miniatures) -> Ranks | None:
    """Mean ranks of the algorithms that ran in every one of these miniatures."""
    rows = {
        label: [miniatures.accuracy((algorithm, key)).mean for key in keys]
        for algorithm, label in miniatures.labels.items()
        if all((algorithm, key) in miniatures.results for key in keys)
    }
    if min(len(keys), len(rows)) < FEWEST:
        return None
    return ranks(rows, [lower_is_better(miniatures.headline(key)) for key in keys])


def differing(shared: Ranks) -> tuple[int, int]:
    """(pairs of methods that differ by Nemenyi's distance, pairs)."""
    pairs = [abs(one - other) >= shared.distance for one, other in combinations(shared.means.values(), 2)]
    return sum(pairs), len(pairs)


# -- accuracy against cost -----------------------------------------------------------------------------------


def costs(miniatures: Miniatures) -> list[tuple[str, Markup]]:
    """(cost, a panel per miniature): accuracy against bytes and against seconds of a round."""
    charts: dict[str, list[draw.Panel]] = {"kB a round": [], "seconds a round": []}
    for key, study in miniatures.studies.items():
        rows = []
        for name in miniatures.ran(key):
            result = miniatures.results[name, key]
            spent = result["traffic"]["bytes"] / 1000, fmean(result["seconds"]) / result["rounds"]
            rows.append((miniatures.labels[name], *spent, miniatures.accuracy((name, key)).mean))
        table = pd.DataFrame(rows, columns=["name", *charts, "y"])
        for unit, panels in charts.items():
            chart = table[table[unit] > 0].rename(columns={unit: "x"})
            panels += [pareto(study.name, unit, chart, study.name)] if chart["x"].nunique() > 1 else []
    return [(unit, draw.page(panels)) for unit, panels in charts.items() if panels]


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
    panel = draw.Panel((344, 244), (34, right, 34, 32), title)
    axes = panel.axes
    axes.step(best["x"], best["y"], where="post", color=draw.PAINT["line"], lw=1.6, zorder=1)
    for row in table.itertuples():
        style: dict = {"color": draw.PAINT[inks[row.name].colour if row.name in inks else "mute"]}
        style["alpha"] = 1 if row.name in inks else 0.35
        at = [row.x] * 2, [row.y] * 2
        axes.plot(
            *at,
            lw=8,
            solid_capstyle="round",
            zorder=3,
            gid=panel.of(row.name, f"{row.name}: {row.x:,.4g}, {row.y:.1f} %"),
            **style,
        )
    axes.margins(0.08, 0.1)
    draw.few_ticks(axes, table["x"].to_numpy(), True)
    axes.yaxis.set_major_locator(draw.MaxNLocator(4))
    draw.dress(axes, unit, "accuracy, %", "y")
    ends = {row.name: pd.DataFrame({"x": [row.x], "mean": [row.y]}) for row in named.itertuples()}
    draw.name_lines(panel, ends, inks)
    return panel.finish(f"{title}: accuracy against {unit}; best: {', '.join(best['name'])}")


# -- the page ------------------------------------------------------------------------------------------------


def about(study: Study, miniatures: Miniatures) -> list[str]:
    """Data, clients, networks and rounds of a miniature, what was computed otherwise, and which
    algorithms have no cell there, by reason."""
    scenario, headline = study.paper.scenarios[MINIATURE], miniatures.headline(study.key)
    training = scenario.training
    networks = dict.fromkeys(m.name + (" with a projector" if m.projector else "") for m in scenario.networks)
    texts = [
        f"{scenario.data.set}, {scenario.clients} clients, {len(scenario.seeds)} seeds",
        f"{', '.join(networks)}; {training.rounds} rounds, local epochs: {training.local_epochs}",
        f"public images: {scenario.public.set}" if scenario.public else "",
        f"accuracy: {measure_words(headline)}" if headline else "",
        study.computed_otherwise(cell for (_, key), cell in miniatures.cells.items() if key == study.key),
    ]
    out: dict[str, list[str]] = {}
    for name, label in miniatures.labels.items():
        if (name, study.key) not in miniatures.cells:
            out.setdefault(REASONS[excluded(name, scenario) or "not listed"], []).append(label)
    return [*filter(None, texts), *(f"{reason}: {', '.join(names)}" for reason, names in out.items())]


def across(studies: dict[str, Study]) -> dict:
    """The context of the templates."""
    miniatures = Miniatures(studies)
    root = next((study.root for study in studies.values()), ROOT)
    (tried, problems), cells = tunings(root), miniatures.cells
    waiting = [
        miniatures.studies[at[1]].target(cell) for at, cell in cells.items() if at not in miniatures.results
    ]
    problems += [p for at, cell in cells.items() if (p := miniatures.studies[at[1]].problems.get(cell))]
    tabs = tuning_tabs(miniatures.studies, miniatures.labels, tried)
    tuned = [one for tab in tabs for _, _, one, _ in tab.rows]
    changes = [one.change for one in tuned if one.change is not None]
    current = {
        at: provenance.current(result, Experiment.of(cells[at], root))
        for at, result in miniatures.results.items()
    }
    return {
        "done": len(miniatures.results),
        "planned": len(cells),
        "algorithms": len(miniatures.labels),
        "groups": groups(miniatures),
        "costs": costs(miniatures),
        "tuned": tabs,
        "changes": changes,
        "change": signed(fmean(changes), 1) if changes else "",
        "same": sum(one.same for one in tuned if one.before),
        "leakage": leakage(studies, root),
        "processors": processors(root),
        "about": {study.name: about(study, miniatures) for study in miniatures.studies.values()},
        "older": [
            *(str(cells[at]) for at in current if not current[at]),
            *(str(one.cell) for one in tuned if one.older),
        ],
        "command": f"fedrepro run {' '.join(waiting)}" if waiting else "",
        "problems": problems,
    }


def files(studies: dict[str, Study], fill: Callable[..., str], **shared) -> dict[str, str]:
    """Name in reports/ -> text. fill: makes HTML of a template and its context, `shared` what every page
    has (pages, cite). A malformed leakage.csv is a ParamError that names its line."""
    context = across(studies)
    return {
        "across.html": fill("across.html", view=context, **shared),
        "across.md": markdown.fill("across.md", view=context),
    }
