"""Every algorithm in every miniature: accuracy, communication, time and memory of the five papers on one
page.

A row is an algorithm, a file of pipeline/methods; a column block is a paper's miniature. Its own methods run
there, and those of the other papers, or of none, that its miniature lists under `others`. If several rows of
paper.yaml run the same algorithm (ablations, other strengths), only the unmodified one is shown. A cell that
was not run gives the reason, or has its command in the tooltip.
"""
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from pipeline.cells.readings import described
from pipeline.cells.results import lower_is_better, summarise
from pipeline.report.arena import At, Speed, Tuned, speed, tuned
from pipeline.report.drawings import Drawing
from pipeline.report.measures import numbers as measured
from pipeline.report.panels import Panel, Row, Value, mark, merge_heads
from pipeline.report.ranks import Ranks, ranks
from pipeline.report.runs import departures
from pipeline.report.scatter import Scatter, against_cost
from pipeline.report.standings import SCENARIOS, Standing, shared, standing
from pipeline.report.study import Study
from pipeline.report.tuning import tunings
from pipeline.report.words import listed, measure_words, variant
from pipeline.schema import CEILING, MINIATURE, MINIATURES, NEEDS, Cell, Paper, Scenario, method_names

REASONS = {  # why a cell is empty: what the algorithm needs, or that the cell is not asked for
    "public data": "agrees on unlabelled public images, of which this miniature has none",
    "one network": "averages parameters, or compares representations of one length; the clients of this "
                   "miniature have different networks, and no row of its paper gives the algorithm "
                   "one network for all",
    "held-out images": "compares the clients, unless a row says otherwise, on labelled images that none of "
                       "them holds; this miniature sets none aside",
    "pixels in [0, 1]": "attacks images while it trains; this miniature normalises them",
    "not asked for": "could run, but paper.yaml does not ask for it: it needs a row under `methods` there "
                     "and its name under `others` of the miniature",
}
# Columns of a block: score, bytes and seconds of a round, peak memory.
FACTS = ("accuracy, %", "kB", "s", "MB")


@dataclass(frozen=True)
class Column:
    """A paper's miniature, in words."""
    key: str                                          # of the paper
    name: str
    about: str


@dataclass(frozen=True)
class Across:
    """The page."""
    panel: Panel
    columns: list[Column]
    measured: int                                     # cells
    asked: int                                        # cells that the miniatures ask for
    device: str  # of all cells; empty where they differ, each then names its own
    machines: int                                     # types of processor that trained them
    reasons: list[tuple[str, str]]  # of the cells that cannot run or are not asked for
    command: str                                      # runs what is missing
    standing: Standing | None = None  # mean ranks of the algorithms that many miniatures have in common
    # (paper, accuracy of its miniature against bytes and against seconds)
    costs: list[tuple[str, list[Scatter]]] = field(default_factory=list)
    speed: Speed | None = None
    tuned: Tuned | None = None
    problems: list[str] = field(default_factory=list)         # files of tunings that were altered

    @property
    def drawings(self) -> list[Drawing]:
        after = self.tuned.drawing if self.tuned else None
        return [*([self.standing.drawing] if self.standing else []), *([after] if after else [])]


def algorithms() -> list[str]:
    """Every algorithm: the files of pipeline/methods."""
    return method_names()


def plain(algorithm: str, paper: Paper, asked: list[str]) -> str:
    """The row of paper.yaml that runs an algorithm as the paper does: the one of its name, else the first
    that the miniature asks for, else the first; empty where no row runs it."""
    rows = [key for key in paper.methods if paper.algorithm(key) == algorithm]
    return next(
        (key for key in rows if key == algorithm),
        next((key for key in rows if key in asked), rows[0] if rows else ""),
    )


def excluded(algorithm: str, scenario: Scenario) -> str:
    """What an algorithm needs and a scenario lacks, a key of REASONS; empty where it can run. A projector
    does not count, as the algorithm's row would add it."""
    kind = described(algorithm)
    lacking = kind.says("needs", {}) - scenario.offers if kind else ()
    return next((need for need in REASONS if need in lacking), "")


def across(studies: dict[str, Study]) -> Across:
    """The page."""
    minis = {key: study for key, study in studies.items() if MINIATURE in study.paper.scenarios}
    cells, labels = _cells(minis), _labels(studies)
    found = {at: minis[at[1]].results[cell] for at, cell in cells.items() if cell in minis[at[1]].results}
    devices = list(dict.fromkeys(result["device"] for result in found.values()))
    values = {at: _values(minis[at[1]], cell, len(devices) > 1) for at, cell in cells.items()}
    missing = {
        (algorithm, key): excluded(algorithm, study.paper.scenarios[MINIATURE]) or "not asked for"
        for algorithm in labels.values()
        for key, study in minis.items()
        if (algorithm, key) not in cells
    }
    values |= {at: [Value("excluded", text=_words(reason)), *_nothing()] for at, reason in missing.items()}
    rows = [Row(label, [label], [value for key in minis for value in values[algorithm, key]])
            for label, algorithm in sorted(labels.items(), key=lambda item: item[0].lower())]
    for key in minis:
        ranked = [values[algorithm, key][0] for algorithm in labels.values() if algorithm != CEILING]
        mark(ranked, lower_is_better(_headline(key, found) or "average"))
    waiting = [
        cell.stage(minis[key].paper)
        for (algorithm, key), cell in cells.items()
        if (algorithm, key) not in found
    ]
    heads = merge_heads([[study.name, fact] for study in minis.values() for fact in FACTS])
    chosen, problems = tunings(next(iter(minis.values())).root) if minis else ([], [])
    return Across(
        Panel("", ["algorithm"], heads, rows),
        [Column(key, study.name, _about(study, cells, found)) for key, study in minis.items()],
        len(found),
        len(cells),
        devices[0] if len(devices) == 1 else "",
        len({result["versions"].get("processor") for result in found.values()}),
        [(_words(reason), meaning) for reason, meaning in REASONS.items() if reason in missing.values()],
        f"fedrepro run {' '.join(waiting)}" if waiting else "",
        _standing(found, labels, minis),
        _costs(found, labels, minis),
        speed(minis, cells, found, labels),
        tuned(minis, chosen, labels, lambda numbers: _ranked(numbers, found, labels, minis)),
        problems,
    )


def _cells(minis: dict[str, Study]) -> dict[At, Cell]:
    """The cells that the miniatures ask for, each algorithm by its unmodified row."""
    asked = {key: {cell.method: cell for scenario in MINIATURES for cell in study.asked(scenario)}
             for key, study in minis.items()}
    return {(algorithm, key): asked[key][row] for algorithm in algorithms() for key, study in minis.items()
            if (row := plain(algorithm, study.paper, [*asked[key]])) in asked[key]}


def _headline(key: str, found: dict[At, dict]) -> str:
    """The measure that a miniature's cells report; empty where none has run."""
    return next((result["headline"] for (_, paper), result in found.items() if paper == key), "")


def _values(study: Study, cell: Cell, with_device: bool) -> list[Value]:
    """FACTS of a cell that a miniature asks for."""
    result = study.results.get(cell)
    if not result or not (number := result["measures"].get(result["headline"])):
        return [
            Value("missing", target=study.target(cell), problem=study.problems.get(cell, "")),
            *_nothing(),
        ]
    sent, seconds = result["traffic"]["bytes"], fmean(result["seconds"]) / result["rounds"]
    memory = [*measured(cell, result, "run.memory").values()]
    return [
        Value("measured", summarise(number), cell=cell),
        Value("text", text=f"{sent / 1000:,.1f}", order=sent),
        Value(
            "text", text=f"{seconds:.2f}" + (f" ({result['device']})" if with_device else ""), order=seconds
        ),
        Value("text", text=f"{fmean(memory):,.0f}", order=fmean(memory)) if memory else Value("outside"),
    ]


def _standing(found: dict[At, dict], labels: dict[str, str], minis: dict[str, Study]) -> Standing | None:
    """Mean ranks of the algorithms by their headline measures."""
    numbers = {at: summarise(result["measures"][result["headline"]]).mean for at, result in found.items()}
    if (ranked := _ranked(numbers, found, labels, minis)) is None:
        return None
    further = (
        f" The miniatures are those of {listed(ranked[1])}, in which all of these algorithms have run: no "
        f"other {SCENARIOS} or more share as many numbers."
    )
    return standing(ranked[0], "miniatures", "figures/across-ranks.svg", further)


def _ranked(numbers: Mapping[At, float], found: dict[At, dict], labels: dict[str, str],
            minis: dict[str, Study]) -> tuple[Ranks, list[str]] | None:
    """(mean ranks, names of the miniatures) over those miniatures that share the most numbers of the same
    algorithms; None for less than SCENARIOS."""
    rivals = {at: number for at, number in numbers.items() if at[0] != CEILING}
    methods, keys = shared(rivals, [key for key in minis if _headline(key, found)])
    if not keys:
        return None
    lower = [lower_is_better(_headline(key, found)) for key in keys]
    rows = {label: [numbers[name, key] for key in keys] for label, name in labels.items() if name in methods}
    return ranks(rows, lower), [minis[key].name for key in keys]


def _costs(
    found: dict[At, dict], labels: dict[str, str], minis: dict[str, Study]
) -> list[tuple[str, list[Scatter]]]:
    """Of every miniature with two algorithms or more its accuracy against bytes and seconds of a round."""
    charts = []
    for key, study in minis.items():
        points: dict[str, list[tuple[str, float, float, str]]] = {}
        for label, algorithm in labels.items():
            if not (result := found.get((algorithm, key))) or not result["measures"].get(result["headline"]):
                continue
            accuracy = summarise(result["measures"][result["headline"]]).mean
            costs = result["traffic"]["bytes"] / 1000, fmean(result["seconds"]) / result["rounds"]
            for unit, cost in zip(("kB of a round", "seconds of a round"), costs):
                words = f"{label}: {accuracy:.2f} %, {cost:,.2f} {unit}"
                points.setdefault(unit, []).extend([(label, cost, accuracy, words)] if cost > 0 else [])
        scatters = [against_cost(f"Accuracy against {unit}", unit, rows, study.name)
                    for unit, rows in points.items() if len(rows) > 1]
        charts += [(study.name, scatters)] if scatters else []
    return charts


def _words(reason: str) -> str:
    return f"needs {reason}" if reason in NEEDS else reason


def _nothing() -> list[Value]:
    """Empty values for the other FACTS of a cell without an accuracy."""
    return [Value("outside") for _ in FACTS[1:]]


def _labels(studies: dict[str, Study]) -> dict[str, str]:
    """{label: algorithm}, as the papers print it; algorithms of one label are told apart by their names."""
    papers = [study.paper for study in studies.values()]
    found: dict[str, list[str]] = {}
    for algorithm in algorithms():
        own = [
            (algorithm in paper.methods, paper.label(row))
            for paper in papers
            if (row := plain(algorithm, paper, []))
        ]
        label = max(own, key=lambda pair: pair[0])[1] if own else algorithm
        found.setdefault(variant(label)[0], []).append(algorithm)
    return {label if algorithm == same[0] else f"{label} ({algorithm.rpartition('_')[2]})": algorithm
            for label, same in found.items() for algorithm in same}


def _about(study: Study, cells: dict[At, Cell], found: dict[At, dict]) -> str:
    """Data, clients, networks and protocol of a miniature; which methods have other networks than it says."""
    scenario, headline = study.paper.scenarios[MINIATURE], _headline(study.key, found)
    training = scenario.training
    parts = [
        scenario.data.set,
        f"{scenario.clients} clients",
        f"networks {_networks(scenario)}",
        f"{training.rounds} rounds of {training.local_epochs} local "
        f"epoch{'s' if training.local_epochs > 1 else ''}",
        f"public images {scenario.public.set}" if scenario.public else "",
        f"{len(scenario.seeds)} seeds",
        f"accuracy: {measure_words(headline)}" if headline else "",
    ]
    others: dict[str, list[str]] = {}
    mine = [cell for (_, name), cell in cells.items() if name == study.key]
    for cell in mine:
        if (networks := _networks(cell.resolve(study.root)[0])) != _networks(scenario):
            others.setdefault(networks, []).append(study.paper.label(cell.method))
    own = "; ".join(
        f"{', '.join(variant(label)[0] for label in labels)}: {networks}"
        for networks, labels in others.items()
    )
    older = [study.paper.label(cell.method) for cell in mine
             if cell in study.results and departures(study, cell)]
    notes = [f"Networks of their own: {own}." if own else "", study.computed_otherwise(mine),
             f"By other code, parameters or seeds than today's: {listed(older)}." if older else ""]
    return " ".join(filter(None, ["; ".join(filter(None, parts)) + ".", *notes]))


def _networks(scenario: Scenario) -> str:
    """The networks by name, with what a method adds to them."""
    return ", ".join(
        dict.fromkeys(
            model.name + (" with a projector" if model.projector else "") for model in scenario.networks
        )
    )
