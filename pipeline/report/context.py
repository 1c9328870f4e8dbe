"""What the pages show: one context per paper and one for the index, the same for every format."""
import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from pipeline.cells.arithmetic import kinds
from pipeline.errors import FedReproError
from pipeline.report.claims import Printed, read_claims
from pipeline.report.communication import communication
from pipeline.report.drawings import Drawing, FigureView, figure_views
from pipeline.report.evidence import Evidence
from pipeline.report.findings import findings, overall
from pipeline.report.judgement import Judgement, orders, variants
from pipeline.report.judging import judge
from pipeline.report.own_table import OwnTable, over_rounds, own_table
from pipeline.report.panels import Panel, Row, Value, merge_heads
from pipeline.report.pictures import Picture, corruptions
from pipeline.report.runs import RunsPage, departures, runs_page
from pipeline.report.scatter import Scatter, against_print
from pipeline.report.standings import of_table
from pipeline.report.study import Study
from pipeline.report.tables import Note, TableView, table_view
from pipeline.report.told import Told, ValueRow, every, values
from pipeline.report.tuning import after_tuning
from pipeline.report.verdicts import UNTESTED, Verdict
from pipeline.schema import ACROSS, MINIATURE, MINIATURES, Cell, Paper, printed

PROVENANCE = [
    "runs",
    "data",
    "source",
    "data digest",
    "public data",
    "partition",
    "seeds",
    "device",
    "torch",
    "commit",
    "wall time, s",
]
SHORT = 12                                       # characters shown of a digest
MOST_POINTS = 30                                 # to both sides of 0 on the claims' scale
Hours = Callable[[Cell], float | None]           # of one process, for all seeds of a cell
Made = TypeVar("Made")


@dataclass(frozen=True)
class Said:
    """A claim with its verdict, and with those from tables that measure its numbers in other settings."""
    verdict: Verdict
    again: list[tuple[str, Verdict]]             # (what the other setting is called, its verdict)


@dataclass(frozen=True)
class Page:
    """Everything about one paper."""
    key: str
    name: str                                    # the paper's short name
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
    older: int                                   # cells done, but otherwise than paper.yaml now asks
    provenance: Panel | None
    notes: list[Note]
    readings: list[Told]                         # each once, under its number
    values: list[ValueRow]                       # of scenarios and rows, with their sources
    runs: list[RunsPage]
    problems: list[str]                          # files that could not be used, one line each
    findings: list[str]                          # sentences that the page begins with
    scatter: Scatter | None                      # measured against published
    curves: list[Drawing]                        # of the tables' scenarios, over rounds

    @property
    def command(self) -> str:
        """Runs every cell of the grids."""
        apart = [name for name, grid in self.paper.grids.items() if grid.apart]
        return " ".join(["fedrepro run", self.key, *(f"papers/{self.key}/{name}/dvc.yaml" for name in apart)])

    @property
    def miniature(self) -> str:
        """The page of the miniature, from reports/."""
        return f"runs/{self.key}/miniature.html"

    @property
    def said(self) -> list[Said]:
        """Every claim once, with what other settings say of it."""
        again: dict[str, list[tuple[str, Verdict]]] = {}
        for table in self.tables:
            if table.key in variants(self.paper):
                for verdict in table.judgement.verdicts:
                    if verdict.tested:
                        again.setdefault(verdict.claim.id, []).append((table.heading, verdict))
        return [Said(verdict, again.get(verdict.claim.id, [])) for verdict in self.judgement.verdicts]

    @property
    def span(self) -> int:
        """Points to both sides of 0 that the claims' scale shows; what lies farther stands at its end."""
        shown = [abs(end) for one in self.said for verdict in (one.verdict, *(v for _, v in one.again))
                 for end in (verdict.point, verdict.printed) if end is not None and verdict.scaled]
        return 5 * min(max(math.ceil(max(shown, default=5) / 5), 1), MOST_POINTS // 5)

    @property
    def progress(self) -> str:
        """How many of the paper's cells are measured, and of the additional runs where some are asked for."""
        planned = sum(own.planned for own in self.beside)
        done = sum(own.done for own in self.beside)
        beside = f", {done} of {planned} of the additional runs" if planned else ""
        return (f"{self.done} of {self.planned} cells of its tables, and of further settings for them, "
                f"measured{beside}")

    @property
    def drawings(self) -> list[Drawing]:
        """Every SVG that the page shows and that is drawn for it."""
        drawn = [*self.curves, *(table.curves for table in (self.mini, *self.beside)),
                 *(drawing for figure in self.figures for drawing in (figure.miniature, figure.drawing)),
                 *(table.standing.drawing for table in self.tables if table.standing)]
        return [drawing for drawing in drawn if isinstance(drawing, Drawing)]


def page(study: Study, hours: Hours | None = None) -> Page:
    """The context of one paper. Where a result cannot be used the page says so in place of the number."""
    paper, said = study.paper, notes(study)
    texts = {note.scenario: note.texts for note in said}
    said = [note for note in said if note.scenario != ACROSS]
    cells = printed(study.key, study.root)
    tables, elsewhere = judged(study, said)
    tables = [dataclasses.replace(table, hours=_hours(table.left, hours)) for table in tables]
    mini = own_table(study, MINIATURE, texts.get(MINIATURE, []))
    beside = [own_table(study, scenario, texts.get(scenario, [])) for scenario in paper.beside]
    judgement = _everything(paper, tables, elsewhere)
    left = [cell for cell in cells if cell not in study.results]
    figures, undrawn = _or_why(lambda: figure_views(study))
    sheet, unseen = _or_why(lambda: corruptions(study.key, study.root))
    equal, altered = after_tuning(study)
    return Page(
        key=study.key,
        name=study.name,
        paper=paper,
        idea=paper.idea,
        mini=mini,
        beside=beside,
        tables=tables,
        judgement=judgement,
        elsewhere=elsewhere,
        figures=figures or [],
        corruptions=sheet,
        communication=[communication(study, scenario) for scenario in study.runs if scenario != ACROSS],
        done=len(cells) - len(left),
        planned=len(cells),
        older=sum(bool(departures(study, cell)) for cell in cells if cell in study.results),
        provenance=provenance(study),
        notes=said,
        readings=every(study.readings),
        values=values(paper, study.grid, study.root),
        runs=[runs_page(study, scenario, texts.get(scenario, [])) for scenario in study.runs],
        problems=[*study.problems.values(), *undrawn, *unseen, *altered],
        findings=findings(
            paper, tables, variants(paper), judgement, beside, equal, (len(left), _hours(left, hours))
        ),
        scatter=against_print(tables, variants(paper), study.name),
        curves=_curves(study, tables),
    )


def found_in(pages: Iterable[Page]) -> str:
    """The overview's first sentences."""
    pages = list(pages)
    return overall([(page.done, page.planned, page.older) for page in pages],
                   [verdict for page in pages for verdict in page.judgement.verdicts])


def _hours(cells: list[Cell], hours: Hours | None) -> float | None:
    """Of one process; None where it is not known of every cell."""
    known = [hours(cell) if hours else None for cell in cells]
    return None if None in known else sum(hour or 0 for hour in known)


def _curves(study: Study, tables: list[TableView]) -> list[Drawing]:
    """Accuracy over rounds of every scenario that a table shows, with the methods that it shows."""
    rows: dict[str, dict[Cell, None]] = {}
    for value in (value for table in tables for panel in table.panels for row in panel.rows
                  for value in row.values):
        if value.cell:
            rows.setdefault(value.cell.scenario, {})[value.cell] = None
    return [over_rounds(study, scenario, list(cells), study.results[next(iter(cells))]["headline"])
            for scenario, cells in rows.items() if len(cells) > 1]


def judged(study: Study, said: list[Note]) -> tuple[list[TableView], list[Verdict]]:
    """Every table with its verdict and the deviations that apply to it, and the verdicts on claims beyond the
    tables."""
    printed, again, views = Printed(study), variants(study.paper), []
    claims = read_claims(printed)
    evidence = {
        variant: Evidence(printed, variant) for variant in {"", *(name for _, name in again.values())}
    }
    for name in study.paper.tables:
        view = table_view(name, study)
        base, variant = again.get(name, (name, ""))
        verdicts = [judge(claim, evidence[variant]) for claim in claims if claim.table == base]
        if variant:                                   # which measures a part of the table's numbers
            verdicts = [verdict for verdict in verdicts if verdict.word != UNTESTED]
        judgement = Judgement(verdicts, orders(name, evidence[""]))
        standing = of_table(name, evidence[""])
        deviations = [note for note in said if note.scenario in view.scenarios]
        views.append(dataclasses.replace(view, judgement=judgement, deviations=deviations, standing=standing))
    return views, [judge(claim, evidence[""]) for claim in claims if not claim.table]


def _everything(paper: Paper, tables: list[TableView], elsewhere: list[Verdict]) -> Judgement:
    """The judgement over all tables except those that measure another table's numbers again, so that a claim
    counts once."""
    once = [table.judgement for table in tables if table.key not in variants(paper)]
    return Judgement([verdict for judgement in once for verdict in judgement.verdicts] + elsewhere,
                     [order for judgement in once for order in judgement.orders], several=True)


def _or_why(make: Callable[[], Made]) -> tuple[Made | None, list[str]]:
    """What `make` returns, or None and why."""
    try:
        return make(), []
    except FedReproError as error:
        return None, [str(error)]


# -- where the numbers come from -----------------------------------------------------------------------------

def provenance(study: Study) -> Panel | None:
    """One row per scenario that has a run; a field lists every value that occurs in its runs."""
    rows = []
    for scenario, found in study.runs.items():
        if scenario != ACROSS:
            title, facts = study.title(scenario), _facts(list(found.values()))
            rows.append(Row(title, [title], [Value("text", text=_distinct(fact)) for fact in facts]))
    return Panel("", ["scenario"], merge_heads([[name] for name in PROVENANCE]), rows) if rows else None


def _facts(runs: list[dict]) -> list[list]:
    """PROVENANCE of the results of a scenario."""
    data, public = [run["data"] for run in runs], [run["public"] for run in runs if run["public"]]
    return [
        [len(runs)],
        [d["set"] for d in data],
        [d["source"] for d in data],
        [d["digest"][:SHORT] for d in data],
        [f"{p['set']} ({p['source']}, {p['digest'][:SHORT]})" for p in public] or ["none"],
        [digest[:SHORT] for run in runs for digest in run.get("partitions", [run["partition"]])],
        [", ".join(map(str, run["seeds"])) for run in runs],
        [run["device"] for run in runs],
        [run["versions"]["torch"] for run in runs],
        [_commit(run["git"]) for run in runs],
        [f"{sum(sum(run['seconds']) for run in runs):,.0f}"],
    ]


def _distinct(values) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))


def _commit(git: dict) -> str:
    """Short commit; a plus where code or parameters had uncommitted changes."""
    return git["commit"][:SHORT] + ("+" if git.get("dirty") else "") if git else "unknown"


def notes(study: Study) -> list[Note]:
    """Deviations from the paper: those that paper.yaml states, those of the data and those of the runs."""
    found: list[Note] = []
    own = [name for name in study.paper.scenarios if name not in MINIATURES]
    for scenario in (MINIATURE, *own, ACROSS):    # the last is no page's, so that it moves no mark
        stated = study.notes(scenario)
        if texts := [text for text in dict.fromkeys([*stated, *_of_runs(study, scenario)]) if text]:
            sentences = [text if text.endswith((".", "!", "?")) else f"{text}." for text in texts]
            found.append(Note(scenario, study.title(scenario), sentences, f"D{len(found) + 1}"))
    return found


def _machines(study: Study, runs: dict[Cell, dict]) -> list[str]:
    """That cells come from processors or devices which round differently; nothing where all are alike."""
    found: dict[str, list[str]] = {}
    for cell, run in runs.items():
        for kind in kinds(run):
            methods = found.setdefault(kind, [])
            if study.label(cell.method) not in methods:
                methods.append(study.label(cell.method))
    if len(found) < 2:
        return []
    told = "; ".join(f"{', '.join(methods)} on {name}" for name, methods in found.items())
    return [f"The cells were trained on {len(found)} kinds of machine, which round sums differently: {told}"]


def _of_runs(study: Study, scenario: str) -> list[str]:
    """How the data and the finished runs of a scenario differ from what the paper asks for."""
    runs = study.runs.get(scenario, {})
    texts = _machines(study, runs)
    differ: dict[str, list[str]] = {}
    for cell, run in runs.items():
        for data in filter(None, (run["data"], run["public"])):
            other = (
                ""
                if data["source"] == "canonical"
                else f"from {data['source']}, not from its canonical source"
            )
            texts.append(f"{data['set']}: {data['deviation'] or other}" if data["deviation"] or other else "")
        texts += run.get("warnings", [])
        for text in departures(study, cell):
            differ.setdefault(text, []).append(study.label(cell.method))
    return texts + [f"{', '.join(labels) if len(labels) < len(runs) else 'all methods'}: {text}"
                    for text, labels in differ.items()]
