"""What the pages show: one context per paper and one for the index, the same for every format."""
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pipeline.cells.results import Problem, history, lower_is_better, ordered, summarise
from pipeline.errors import FedReproError
from pipeline.report.claims import Printed, read_claims
from pipeline.report.communication import communication
from pipeline.report.drawings import Drawing, FigureView, curves_of, figure_views, run_command
from pipeline.report.evidence import Evidence
from pipeline.report.judgement import Judgement, orders, variants
from pipeline.report.judging import judge
from pipeline.report.pictures import Picture, corruptions
from pipeline.report.runs import RunsPage, departures, runs_page
from pipeline.report.standings import of_table
from pipeline.report.tables import Panel, Row, TableView, Value, mark, merge_heads, table_view
from pipeline.report.told import Readings, Told, ValueRow, by_row, every, numbered, values
from pipeline.report.verdicts import Verdict
from pipeline.report.words import GROUPS, MEASURES, measure_words, method_label, scenario_title
from pipeline.schema import ACROSS, MINIATURE, ROOT, Cell, Paper, load_paper

NAMES = {"fedccl": "FedCCL", "fcclplus": "FCCL+", "fedlsa": "FedLSA", "rahfl": "RAHFL", "fedcrl": "FedCRL"}
IDEAS = {
    "fedccl": "Clients send clusters of class features instead of plain means, and contrast their features with everyone's clusters.",
    "fcclplus": "Clients with different networks agree on unlabelled public images and distil their own past so as not to forget.",
    "fedlsa": "The server learns one anchor per class on the unit sphere; the features of every domain are drawn to it.",
    "rahfl": "Clients with different networks and corrupted images learn from better clients only, and by contrast at home.",
    "fedcrl": "Mean representations are shared and contrasted with; each client mixes in the shared model by its loss.",
}
FACTS = [["run", "hook"], ["run", "rounds"], ["run", "seeds"]]
PROVENANCE = ["runs", "data", "source", "data digest", "public data", "partition", "seeds", "device", "torch", "commit",
              "wall time, s"]
SHORT = 12                                       # characters shown of a digest
RISE = 5                                         # points of accuracy that tell learning from noise
Made = TypeVar("Made")


@dataclass(frozen=True)
class Note:
    """What differs from the paper in a scenario."""
    scenario: str
    title: str
    texts: list[str]


@dataclass(frozen=True)
class OwnTable:
    """A scenario that no table of the paper shows, the miniature or one beside its tables: its own table, and figures where something was run."""
    title: str
    texts: list[str]                             # what differs from the paper
    command: str                                 # runs what is missing; empty: nothing is
    panel: Panel
    done: int
    planned: int
    best: str                                    # "FedCRL 93.10", empty when nothing was run
    told: list[tuple[str, list[Told]]]           # (methods, their readings)
    still: str                                   # which methods end about where they began; empty where none does
    headline: str                                # measure of `best` and of the curves
    curves: Drawing | None
    histogram: str


@dataclass(frozen=True)
class Page:
    """Everything about one paper."""
    key: str
    name: str                                    # as the paper spells itself
    paper: Paper
    idea: str
    mini: OwnTable
    beside: list[OwnTable]
    tables: list[TableView]
    judgement: Judgement                         # over all tables
    elsewhere: list[Verdict]                     # on claims about figures, or in words
    figures: list[FigureView]
    corruptions: Picture | None                  # of the clients' images, where the paper has them
    communication: list[Panel]                   # one per scenario that has a run
    done: int                                    # cells of the grids that have a result
    planned: int
    provenance: Panel | None
    notes: list[Note]
    readings: list[Told]                         # each once, under its number
    values: list[ValueRow]                       # of scenarios and rows, with their sources
    runs: list[RunsPage]
    problems: list[str]                          # files that could not be used, one line each

    @property
    def beside_words(self) -> str:
        """What was measured beside the tables, to stand behind the count of the grids; empty where nothing was asked for."""
        planned = sum(own.planned for own in self.beside)
        return f", {sum(own.done for own in self.beside)} of {planned} beside the tables" if planned else ""

    @property
    def drawings(self) -> list[Drawing]:
        """Every SVG that the page shows and that is drawn for it."""
        drawn = [*(table.curves for table in (self.mini, *self.beside)),
                 *(drawing for figure in self.figures for drawing in (figure.miniature, figure.drawing)),
                 *(table.standing.drawing for table in self.tables if table.standing)]
        return [drawing for drawing in drawn if isinstance(drawing, Drawing)]


def page(key: str, results: dict[Cell, dict], root: Path = ROOT, problems: list[Problem] | None = None) -> Page:
    """The context of one paper. `problems`: what could not be read; the page says so where the numbers are missing."""
    paper = load_paper(key, root)
    asked = miniature_runs(key, results, root)
    own = {cell: result for cell, result in results.items()
           if cell.paper == key and cell.scenario != ACROSS and (cell.scenario != MINIATURE or cell in asked)}
    broken = {problem.cell: problem.text for problem in problems or [] if problem.cell and problem.cell.paper == key}
    grid = [Cell(key, s, m) for grid in paper.grids.values() for s in grid.scenarios for m in grid.methods]
    cells = {cell for cell in grid if cell.scenario not in paper.beside}
    said, by_scenario = notes(paper, own, root), _by_scenario(paper, own)
    readings = numbered(paper, [*grid, *asked], own, root)
    tables, elsewhere = judged(key, paper, own, said, root, broken, readings)
    figures, undrawn = _or_why(lambda: figure_views(key, paper, own, root), [])
    sheet, unseen = _or_why(lambda: corruptions(key, root), None)
    once = [table.judgement for table in tables if table.key not in variants(paper)]        # a claim counts once
    everything = Judgement([v for judgement in once for v in judgement.verdicts] + elsewhere,
                           [order for judgement in once for order in judgement.orders], several=True)
    others = _others(key, results, root)
    texts = {note.scenario: note.texts for note in [*said, *(note for note in notes(paper, others, root) if note.scenario == ACROSS)]}
    beside = [own_table(key, scenario, paper, {cell: results.get(cell) for cell in grid if cell.scenario == scenario},
                        texts.get(scenario, []), root, broken, readings) for scenario in paper.beside]
    return Page(key=key, name=NAMES[key], paper=paper, idea=IDEAS[key],
                mini=own_table(key, MINIATURE, paper, asked, texts.get(MINIATURE, []), root, broken, readings), beside=beside,
                tables=tables, judgement=everything, elsewhere=elsewhere, figures=figures, corruptions=sheet,
                communication=[communication(scenario, paper, runs) for scenario, runs in by_scenario.items()],
                done=len(cells & own.keys()), planned=len(cells),
                provenance=provenance(paper, own), notes=said, readings=every(readings), values=values(paper, grid, root),
                runs=[runs_page(key, NAMES[key], paper, scenario, runs, texts.get(scenario, []), root)
                      for scenario, runs in (by_scenario | _by_scenario(paper, others)).items()],
                problems=[*broken.values(), *undrawn, *unseen])


def judged(key: str, paper: Paper, results: dict[Cell, dict], said: list[Note], root: Path,
           broken: dict[Cell, str], readings: Readings) -> tuple[list[TableView], list[Verdict]]:
    """Every table with its verdict and the deviations that it stands under; verdicts on claims that are about no table."""
    printed = Printed(key, paper, root)
    claims, again, views = read_claims(key, paper, root), variants(paper), []
    evidence = {variant: Evidence(key, paper, results, printed, root, variant)
                for variant in {"", *(name for _, name in again.values())}}
    for name in paper.tables:
        view = table_view(name, key, paper, results, root, broken, readings)
        base, variant = again.get(name, (name, ""))
        judgement = Judgement([judge(claim, evidence[variant]) for claim in claims if claim.table == base],
                              orders(name, evidence[""]))
        standing = of_table(name, evidence[""])
        deviations = [(note.title, " ".join(note.texts)) for note in said if note.scenario in view.scenarios]
        views.append(dataclasses.replace(view, judgement=judgement, deviations=deviations, standing=standing))
    return views, [judge(claim, evidence[""]) for claim in claims if not claim.table]


def _or_why(make: Callable[[], Made], otherwise: Made) -> tuple[Made, list[str]]:
    """What `make` returns, or `otherwise` and why."""
    try:
        return make(), []
    except FedReproError as error:
        return otherwise, [str(error)]


# -- the miniature and scenarios beside the tables ------------------------------------------------------------------------

def miniature_runs(key: str, results: dict[Cell, dict], root: Path = ROOT) -> dict[Cell, dict | None]:
    """The cells that params.yaml asks for, in its order; None where a cell has not run."""
    asked = load_paper(key, root).miniature
    cells = [Cell(key, MINIATURE, method) for method in (asked.methods if asked else [])]
    return {cell: results.get(cell) for cell in cells}


def own_table(key: str, scenario: str, paper: Paper, runs: dict[Cell, dict | None], texts: list[str], root: Path = ROOT,
              broken: dict[Cell, str] | None = None, readings: Readings | None = None) -> OwnTable:
    """The table of one scenario's cells (None: not run): methods down, measures and facts of the run across."""
    done, missing = {cell: result for cell, result in runs.items() if result}, [cell for cell, result in runs.items() if not result]
    measures = _shown(name for result in done.values() for name in result["measures"]) or ["average"]
    names = {cell: method_label(paper, cell.method) for cell in runs}
    told = {cell: (readings or {}).get(cell, []) for cell in runs}
    rows = [Row(names[cell], [names[cell]], _values(cell, result, measures, (broken or {}).get(cell, "")), told=told[cell])
            for cell, result in runs.items()]
    for i, measure in enumerate(measures):
        mark([row.values[i] for row in rows], lower_is_better(measure))
    headline = next((result["headline"] for result in done.values()), "average")
    best = max(done, key=lambda cell: summarise(done[cell]["measures"][headline]).mean, default=None)
    still = [names[cell] for cell, result in done.items() if _rise(cell, result, root) < RISE]
    histogram = Path("papers", key, "runs", scenario, "clients.svg")
    return OwnTable(scenario_title(paper, scenario), texts, run_command(paper, missing) if missing else "",
                    Panel("", ["method"], merge_heads([_head(m) for m in measures] + FACTS), rows),
                    done=len(done), planned=len(runs),
                    best=f"{names[best]} {summarise(done[best]['measures'][headline]).mean:.2f}" if best else "",
                    told=by_row(paper, {cell.method: found for cell, found in told.items()}),
                    still=f"Less than {RISE} points above round 0: {', '.join(still)}." if still else "",
                    headline=headline, curves=_curves(key, scenario, list(done), headline, paper, root) if done else None,
                    histogram=f"../{histogram.as_posix()}" if (root / histogram).exists() else "")


def _curves(key: str, scenario: str, cells: list[Cell], headline: str, paper: Paper, root: Path) -> Drawing:
    """The headline accuracy of every method over the rounds, as measured."""
    return curves_of(f"figures/{key}-{scenario}.svg", {scenario: cells}, [headline], paper, root, 1,
                     f"Measured accuracy ({measure_words(headline)}) after each round; round 0 is the state before the first, after any pretraining.")


def _rise(cell: Cell, result: dict, root: Path) -> float:
    """Points of accuracy from round 0 to the reported rounds, mean over seeds; infinite where round 0 was not scored."""
    table, headline = history(cell, root), result["headline"]
    start = table.loc[table["round"] == 0, headline].mean() if headline in table else math.nan
    return math.inf if math.isnan(start) else summarise(result["measures"][headline]).mean - start


def _shown(names) -> list[str]:
    """Accuracies of the scored model and their spread, not the loss nor a method's own numbers; a group's mean comes last in it."""
    plain = [name for name in ordered(names) if name != "loss" and not name.startswith(("pre.", "post.", "method."))]
    groups = list(dict.fromkeys(name.rpartition(".")[0] for name in plain))
    return sorted(plain, key=lambda name: (groups.index(name.rpartition(".")[0]), name.endswith(".AVG")))


def _head(measure: str) -> list[str]:
    group, _, name = measure.rpartition(".")
    return [f"{GROUPS.get(group, group)}, %" if group else "measured, %", MEASURES.get(name, name)]


def _values(cell: Cell, result: dict | None, measures: list[str], problem: str) -> list[Value]:
    if result is None:
        return [Value("missing", problem=problem) for _ in measures] + [Value("text") for _ in FACTS]
    found = result["measures"]
    values = [Value("measured", summarise(found[m]), cell=cell) if m in found else Value("outside") for m in measures]
    facts = [result["hook"], str(result["rounds"]), ", ".join(map(str, result["seeds"]))]
    return values + [Value("text", text=fact) for fact in facts]


# -- where the numbers come from -----------------------------------------------------------------------------------

def _by_scenario(paper: Paper, results: dict[Cell, dict]) -> dict[str, dict[Cell, dict]]:
    """Finished runs of each scenario, the miniature first; scenarios and methods in the order of paper.yaml."""
    place = {method: i for i, method in enumerate(paper.methods)}
    cells = sorted(results, key=lambda cell: place.get(cell.method, len(place)))
    found = {scenario: {cell: results[cell] for cell in cells if cell.scenario == scenario}
             for scenario in dict.fromkeys([MINIATURE, *paper.scenarios])}
    return {scenario: runs for scenario, runs in found.items() if runs}


def _others(key: str, results: dict[Cell, dict], root: Path) -> dict[Cell, dict]:
    """Finished runs of the other papers' methods, which have a page of runs but no part in the paper's tables and figures."""
    mini = load_paper(key, root).miniature
    asked = {Cell(key, ACROSS, method) for method in (mini.others if mini else [])}
    return {cell: results[cell] for cell in asked & results.keys()}


def provenance(paper: Paper, results: dict[Cell, dict]) -> Panel | None:
    """One row per scenario that has a run; a field lists every value that occurs in its runs."""
    rows = []
    for scenario, found in _by_scenario(paper, results).items():
        runs = list(found.values())
        data, public = [run["data"] for run in runs], [run["public"] for run in runs if run["public"]]
        fields = [[len(runs)], [d["set"] for d in data], [d["source"] for d in data], [d["digest"][:SHORT] for d in data],
                  [f"{p['set']} ({p['source']}, {p['digest'][:SHORT]})" for p in public] or ["none"],
                  [digest[:SHORT] for run in runs for digest in run.get("partitions", [run["partition"]])],
                  [", ".join(map(str, run["seeds"])) for run in runs],
                  [run["device"] for run in runs], [run["versions"]["torch"] for run in runs], [_commit(run["git"]) for run in runs],
                  [f"{sum(sum(run['seconds']) for run in runs):,.0f}"]]
        title = scenario_title(paper, scenario)
        rows.append(Row(title, [title], [Value("text", text=_distinct(values)) for values in fields]))
    return Panel("", ["scenario"], merge_heads([[name] for name in PROVENANCE]), rows) if rows else None


def _distinct(values) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))


def _commit(git: dict) -> str:
    """Short commit; a plus where code or parameters had uncommitted changes."""
    return git["commit"][:SHORT] + ("+" if git.get("dirty") else "") if git else "unknown"


def notes(paper: Paper, results: dict[Cell, dict], root: Path = ROOT) -> list[Note]:
    """Deviations from the paper: those that paper.yaml states, those of the data and those of the runs."""
    runs = _by_scenario(paper, results)
    found = []
    for scenario in dict.fromkeys([MINIATURE, *paper.scenarios]):
        texts, differ = [paper.notes.get(scenario, "")], {}
        for cell, run in runs.get(scenario, {}).items():
            for data in filter(None, (run["data"], run["public"])):
                other = "" if data["source"] == "canonical" else f"from {data['source']}, not from its canonical source"
                texts.append(f"{data['set']}: {data['deviation'] or other}" if data["deviation"] or other else "")
            texts += run.get("warnings", [])
            for text in departures(cell, run, paper, root):
                differ.setdefault(text, []).append(method_label(paper, cell.method))
        texts += [f"{', '.join(labels) if len(labels) < len(runs[scenario]) else 'all methods'}: {text}" for text, labels in differ.items()]
        if texts := [text for text in dict.fromkeys(texts) if text]:
            sentences = [text if text.endswith((".", "!", "?")) else f"{text}." for text in texts]
            found.append(Note(scenario, scenario_title(paper, scenario), sentences))
    return found
