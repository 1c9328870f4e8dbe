"""Every algorithm in every miniature: accuracy, communication, time and memory of the five papers on one page.

A row is an algorithm, a file of pipeline/methods; a column block is a paper's miniature. Its own methods run there, and as `others` of
params.yaml those of the other papers. Of several rows of paper.yaml that run one algorithm (an ablation, another strength) only the plain
one is shown. A cell that was not run says why, or has its command in the tooltip.
"""
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pipeline.cells.readings import described
from pipeline.cells.results import lower_is_better, summarise
from pipeline.report.drawings import Drawing
from pipeline.report.measures import numbers as measured
from pipeline.report.ranks import METHODS, ranks
from pipeline.report.standings import SCENARIOS, Standing, shared, standing
from pipeline.report.tables import Panel, Row, Value, mark, merge_heads
from pipeline.report.words import listed, measure_words, variant
from pipeline.schema import (
    ACROSS,
    MINIATURE,
    NEEDS,
    ROOT,
    Cell,
    Dirichlet,
    Domains,
    Paper,
    Pathological,
    Scenario,
    Subset,
    load_paper,
)
from pipeline.schema import (
    papers as paper_keys,
)

REASONS = {                                           # why a cell is empty: what an algorithm needs, or nobody asks for
    "public data": "agrees on unlabelled public images, of which this miniature has none",
    "one network": "averages parameters, or compares representations of one length; the clients of this miniature hold different "
                   "networks, and no row of its gives the algorithm one network for all",
    "held-out images": "compares the clients, unless a row says otherwise, on labelled images that none of them holds; this miniature "
                       "sets none aside",
    "pixels in [0, 1]": "attacks images while it trains; this miniature normalises them",
    "not asked for": "could run, but nobody asks for it. A row in papers/<paper>/paper.yaml and its name under `others` in params.yaml "
                     "add it",
}
FACTS = ("accuracy, %", "kB", "s", "MB")              # of a cell: score, bytes and seconds of a round, peak memory


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
    asked: int                                        # cells that params.yaml asks for
    device: str                                       # of all cells; empty where they differ, each then names its own
    reasons: list[tuple[str, str]]                    # of those cells that cannot be run or that nobody asks for
    command: str                                      # runs what is missing
    standing: Standing | None = None                  # mean ranks of the algorithms that many miniatures share

    @property
    def drawings(self) -> list[Drawing]:
        return [self.standing.drawing] if self.standing else []


def algorithms() -> list[str]:
    """Every algorithm: the files of pipeline/methods."""
    folder = Path(__file__).resolve().parent.parent / "methods"
    return sorted(path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "base"))


def plain(algorithm: str, paper: Paper, asked: list[str]) -> str:
    """The row of paper.yaml that runs an algorithm as the paper does: the one of its name, else the first that the miniature asks for,
    else the first; empty where no row runs it."""
    rows = [key for key, values in paper.methods.items() if (values or {}).get("algorithm", key) == algorithm]
    return next((key for key in rows if key == algorithm), next((key for key in rows if key in asked), rows[0] if rows else ""))


def excluded(algorithm: str, scenario: Scenario) -> str:
    """What an algorithm needs and a scenario lacks, a key of REASONS; empty where it can run. A projector its row would give it."""
    lacking = described(algorithm).says("needs", {}) - scenario.offers
    return next((need for need in REASONS if need in lacking), "")


def across(names: dict[str, str], results: dict[Cell, dict], root: Path = ROOT, problems: dict[Cell, str] | None = None) -> Across:
    """The page. names: each paper as it spells itself; problems: cells whose result cannot be used."""
    papers = {key: load_paper(key, root) for key in paper_keys(root)}
    minis = {key: paper.miniature for key, paper in papers.items() if paper.miniature}
    asked = {key: dict.fromkeys(mini.methods, MINIATURE) | dict.fromkeys(mini.others, ACROSS) for key, mini in minis.items()}
    cells = {(algorithm, key): Cell(key, asked[key][row], row) for algorithm in algorithms() for key in minis
             if (row := plain(algorithm, papers[key], [*asked[key]])) in asked[key]}
    found = {at: results[cell] for at, cell in cells.items() if cell in results}
    devices = list(dict.fromkeys(result["device"] for result in found.values()))
    values = {at: _values(cell, results.get(cell), papers[cell.paper], (problems or {}).get(cell, ""), len(devices) > 1)
              for at, cell in cells.items()}
    rows, reasons = [], set()
    for label, algorithm in sorted(_labels(papers).items(), key=lambda item: item[0].lower()):
        shown = []
        for key, mini in minis.items():
            if (algorithm, key) not in values:
                reasons.add(reason := excluded(algorithm, mini.scenario) or "not asked for")
                values[algorithm, key] = [Value("excluded", text=_words(reason)), *_nothing()]
            shown += values[algorithm, key]
        rows.append(Row(label, [label], shown))
    for i, key in enumerate(minis):
        headline = next((result["headline"] for (_, paper), result in found.items() if paper == key), "average")
        mark([row.values[len(FACTS) * i] for row in rows], lower_is_better(headline))
    waiting = [papers[cell.paper].stage(cell) for at, cell in cells.items() if at not in found]
    return Across(Panel("", ["algorithm"], merge_heads([[names[key], fact] for key in minis for fact in FACTS]), rows),
                  [Column(key, names[key], _about(key, mini.scenario, cells, found, papers[key], root)) for key, mini in minis.items()],
                  len(found), len(cells), devices[0] if len(devices) == 1 else "",
                  [(_words(reason), meaning) for reason, meaning in REASONS.items() if reason in reasons],
                  f"fedrepro run {' '.join(waiting)}" if waiting else "",
                  _standing(found, _labels(papers), names))


def _values(cell: Cell, result: dict | None, paper: Paper, problem: str, with_device: bool) -> list[Value]:
    """FACTS of a cell that params.yaml asks for."""
    number = result and result["measures"].get(result["headline"])
    if not number:
        return [Value("missing", target=paper.stage(cell), problem=problem), *_nothing()]
    sent, seconds = result["traffic"]["bytes"], fmean(result["seconds"]) / result["rounds"]
    memory = [*measured(cell, result, "run.memory").values()]
    return [Value("measured", summarise(number), cell=cell), Value("text", text=f"{sent / 1000:,.1f}", order=sent),
            Value("text", text=f"{seconds:.2f}" + (f" ({result['device']})" if with_device else ""), order=seconds),
            Value("text", text=f"{fmean(memory):,.0f}", order=fmean(memory)) if memory else Value("outside")]


def _standing(found: dict[tuple[str, str], dict], labels: dict[str, str],
              names: dict[str, str]) -> Standing | None:
    """Mean ranks over the most miniatures that enough algorithms have all run in, each by its headline."""
    numbers = {at: summarise(result["measures"][result["headline"]]).mean for at, result in found.items()}
    methods, minis = shared(numbers, [key for key in names if any(at[1] == key for at in found)])
    if len(minis) < SCENARIOS:
        return None
    lower = [lower_is_better(next(found[method, key]["headline"] for method in methods)) for key in minis]
    rows = {label: [numbers[name, key] for key in minis] for label, name in labels.items() if name in methods}
    further = (f" They are those of {listed(names[key] for key in minis)}, the most that {METHODS} algorithms or more "
               "have all run in.")
    return standing(ranks(rows, lower), "miniatures", "figures/across-ranks.svg", further)


def _words(reason: str) -> str:
    return f"needs {reason}" if reason in NEEDS else reason


def _nothing() -> list[Value]:
    """Behind an accuracy that is not there."""
    return [Value("outside") for _ in FACTS[1:]]


def _labels(papers: dict[str, Paper]) -> dict[str, str]:
    """{label: algorithm}, as the papers print it; algorithms of one label are told apart by their names."""
    found: dict[str, list[str]] = {}
    for algorithm in algorithms():
        own = [(algorithm in paper.methods, paper.label(row)) for paper in papers.values() if (row := plain(algorithm, paper, []))]
        label = max(own, key=lambda pair: pair[0])[1] if own else algorithm
        found.setdefault(variant(label)[0], []).append(algorithm)
    return {label if algorithm == same[0] else f"{label} ({algorithm.rpartition('_')[2]})": algorithm
            for label, same in found.items() for algorithm in same}


def _about(key: str, scenario: Scenario, cells, found, paper: Paper, root: Path) -> str:
    """Data, clients, networks and protocol of a miniature; which methods have other networks than it says."""
    training = scenario.training
    headline = next((result["headline"] for (_, name), result in found.items() if name == key), "")
    parts = [scenario.data.set, f"{_clients(scenario)} clients", f"networks {_networks(scenario)}",
             f"{training.rounds} rounds of {training.local_epochs} local epoch{'s' if training.local_epochs > 1 else ''}",
             f"public images {scenario.public.set}" if scenario.public else "", f"{len(scenario.seeds)} seeds",
             f"accuracy: {measure_words(headline)}" if headline else ""]
    others: dict[str, list[str]] = {}
    for cell in (cell for (_, name), cell in cells.items() if name == key):
        if (networks := _networks(cell.resolve(root)[0])) != _networks(scenario):
            others.setdefault(networks, []).append(paper.label(cell.method))
    own = "; ".join(f"{', '.join(variant(label)[0] for label in labels)}: {networks}" for networks, labels in others.items())
    return "; ".join(filter(None, parts)) + "." + (f" Networks of their own: {own}." if own else "")


def _clients(scenario: Scenario) -> int:
    match scenario.partition:
        case Dirichlet(clients=count) | Pathological(clients=count):
            return count
        case Domains(clients=counts):
            return sum(counts.values())
        case Subset(sizes=sizes):
            return len(sizes)


def _networks(scenario: Scenario) -> str:
    """The networks by name, with what a method adds to them."""
    return ", ".join(dict.fromkeys(model.name + (" with a projector" if model.projector else "") for model in scenario.networks))
