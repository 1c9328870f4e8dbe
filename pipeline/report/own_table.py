"""The table of a scenario that no table of the paper shows: the miniature, or an additional run."""
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.cells.results import Summary, lower_is_better, ordered, summarise
from pipeline.report.drawings import Drawing, curves_of, run_command
from pipeline.report.panels import Panel, Row, Value, mark, merge_heads
from pipeline.report.study import Study
from pipeline.report.tables import HOOKS, SCORED
from pipeline.report.told import Told, by_row
from pipeline.report.words import GROUPS, MEASURES, measure_words
from pipeline.schema import CEILING, Cell

FACTS = [["run", SCORED], ["run", "rounds"], ["run", "seeds"]]
HOOKED = ("pre.", "post.", "method.")            # of other models than the scored ones, or a method's own
RISE = 5                                         # points of accuracy above round 0 that count as learning


@dataclass(frozen=True)
class OwnTable:
    """The table, and figures where something was run."""
    title: str
    texts: list[str]                             # what differs from the paper
    command: str                                 # runs what is missing; empty: nothing is
    panel: Panel
    done: int
    planned: int
    ranking: list[tuple[str, Summary]]           # (method, headline measure), best first
    told: list[tuple[str, list[Told]]]           # (methods, their readings)
    note: str  # methods that end below or about where they began or were computed otherwise than most
    others: dict[str, list[tuple[str, Summary]]]  # the ranking by each other group's mean: `inter.AVG`
    mixed: bool                                  # some methods are scored before local training, some after
    headline: str                                # measure of the ranking and of the curves
    curves: Drawing | None
    histogram: str


def own_table(study: Study, scenario: str, texts: list[str]) -> OwnTable:
    """The table of one scenario's planned cells: methods down, measures and facts of the run across.

    texts: what differs from the paper.
    """
    runs = study.asked(scenario)
    done = {cell: result for cell, result in runs.items() if result}
    missing = [cell for cell in runs if cell not in done]
    same = _group_mean([result["measures"] for result in done.values()])
    measures = _shown(name for result in done.values() for name in result["measures"]) or ["average"]
    measures = [name for name in measures if not same or name != "average"]
    names = {cell: study.label(cell.method) for cell in runs}
    told = {cell: study.readings[cell] for cell in runs}
    values = {
        cell: _values(cell, result, measures, study.problems.get(cell, "")) for cell, result in runs.items()
    }
    rows = [Row(names[cell], [names[cell]], values[cell], told=told[cell]) for cell in runs]
    rivals = [cell for cell in runs if study.paper.algorithm(cell.method) != CEILING]
    for i, measure in enumerate(measures):
        mark([values[cell][i] for cell in rivals], lower_is_better(measure))
    headline = same or next((result["headline"] for result in done.values()), "average")

    def ranking(measure: str) -> list[tuple[str, Summary]]:
        means = [(names[cell], summarise(done[cell]["measures"][measure])) for cell in rivals
                 if cell in done and measure in done[cell]["measures"]]
        sign = 1 if lower_is_better(measure) else -1
        return sorted(means, key=lambda item: (sign * item[1].mean, item[0] != study.name))

    rises = {names[cell]: _rise(study, cell) for cell in done}
    below = [name for name, rise in rises.items() if rise < 0]
    still = [name for name, rise in rises.items() if 0 <= rise < RISE]
    notes = [f"Lower than round 0 in the end: {', '.join(below)}." if below else "",
             f"Less than {RISE} points above round 0: {', '.join(still)}." if still else "",
             study.computed_otherwise(done)]
    return OwnTable(
        study.title(scenario),
        texts,
        run_command(study, missing) if missing else "",
        Panel("", ["method"], merge_heads([_head(m) for m in measures] + FACTS), rows),
        done=len(done),
        planned=len(runs),
        ranking=ranking(headline),
        others={name: ranking(name) for name in measures if name.endswith(".AVG") and name != headline},
        mixed=len({result["hook"] for result in done.values() if _moves(result, headline)}) > 1,
        told=by_row(study.paper, {cell.method: found for cell, found in told.items()}),
        note=" ".join(filter(None, notes)),
        headline=headline,
        curves=over_rounds(study, scenario, list(done), headline) if done else None,
        histogram=_histogram(study, scenario),
    )


def over_rounds(study: Study, scenario: str, cells: list[Cell], headline: str) -> Drawing:
    """The headline accuracy of every method over the rounds, as measured."""
    caption = (
        f"Measured accuracy ({measure_words(headline)}) after each round; round 0 is the state before the "
        "first, after any pretraining."
    )
    return curves_of(study, f"figures/{study.key}-{scenario}.svg", {scenario: cells}, [headline], 1, caption)


def _moves(result: dict, headline: str) -> bool:
    """Whether local training changes the models that are scored: of clients that train alone it does not."""
    other = "post." if result["hook"] == "pre" else "pre."
    measures = result["measures"]
    return other + headline in measures and measures[other + headline] != measures.get(headline)


def _histogram(study: Study, scenario: str) -> str:
    """The drawn partition, from reports/; empty where it was not drawn."""
    path = Path("papers", study.key, "runs", scenario, "clients.svg")
    return f"../{path.as_posix()}" if (study.root / path).exists() else ""


def _rise(study: Study, cell: Cell) -> float:
    """Points of accuracy from round 0 to the reported rounds, mean over seeds; infinite where round 0 was not
    scored."""
    table, result = study.history(cell), study.results[cell]
    headline = result["headline"]
    start = table.loc[table["round"] == 0, headline].mean() if headline in table else math.nan
    return math.inf if math.isnan(start) else summarise(result["measures"][headline]).mean - start


def _group_mean(runs: list[dict]) -> str:
    """The group's mean that the average repeats, such as `clean.AVG`; empty where it repeats none."""
    return next((name for run in runs[:1] for name in run
                 if name.endswith(".AVG") and not name.startswith(HOOKED)
                 and all(other.get(name) == other.get("average") for other in runs)), "")


def _shown(names: Iterable[str]) -> list[str]:
    """Accuracies of the scored model and their spread, not the loss nor a method's own numbers; a group's
    mean comes last in it."""
    plain = [name for name in ordered(names) if name != "loss" and not name.startswith(HOOKED)]
    groups = list(dict.fromkeys(name.rpartition(".")[0] for name in plain))
    return sorted(plain, key=lambda name: (groups.index(name.rpartition(".")[0]), name.endswith(".AVG")))


def _head(measure: str) -> list[str]:
    group, _, name = measure.rpartition(".")
    return [f"{GROUPS.get(group, group)}, %" if group else "measured, %", MEASURES.get(name, name)]


def _values(cell: Cell, result: dict | None, measures: list[str], problem: str) -> list[Value]:
    if result is None:
        return [Value("missing", problem=problem) for _ in measures] + [Value("text") for _ in FACTS]
    found = result["measures"]
    values = [
        Value("measured", summarise(found[m]), cell=cell) if m in found else Value("outside")
        for m in measures
    ]
    facts = [HOOKS[result["hook"]], str(result["rounds"]), ", ".join(map(str, result["seeds"]))]
    return values + [Value("text", text=fact) for fact in facts]
