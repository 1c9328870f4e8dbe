"""What a client sends and receives, and how evenly the clients fare, for every scenario that was run."""
import math
from statistics import fmean

from pipeline.cells.results import summarise
from pipeline.report.panels import Panel, Row, Value, mark, merge_heads
from pipeline.report.study import Study
from pipeline.report.words import bytes_words
from pipeline.schema import Cell, Communication

SENT, SENT_BY_SOME = "per client and round", "per participant and round"
FAIRNESS = "accuracy of the clients, %"


def worst_tenth(accuracies: list[float | None]) -> float | None:
    """Mean accuracy of the worst tenth of the clients, one client at least; None for fewer than two with test
    images."""
    known = sorted(accuracy for accuracy in accuracies if accuracy is not None)
    return fmean(known[:math.ceil(len(known) / 10)]) if len(known) > 1 else None


def communication(study: Study, scenario: str) -> Panel:
    """A row per finished method of a scenario: scalars and bytes, the paper's own count, spread over clients,
    worst tenth."""
    runs, counted = study.runs[scenario], study.paper.communication
    spread = any("clients_std" in result["measures"] for result in runs.values())
    sent = SENT_BY_SOME if any("participants" in result for result in runs.values()) else SENT
    heads = [[sent, "up, scalars"], [sent, "down, scalars"], [sent, "both, bytes"]]
    heads += [[sent, "both, the paper's count"]] if counted else []
    heads += [[FAIRNESS, "std."]] if spread else []
    heads += [[FAIRNESS, "worst 10 %"]]
    names = {cell: study.label(cell.method) for cell in runs}
    rows = [Row(names[cell], [names[cell]], _values(cell, result, counted, spread))
            for cell, result in runs.items()]
    if spread:
        mark([row.values[-2] for row in rows], lower=True)
    mark([row.values[-1] for row in rows], lower=False)
    return Panel(study.title(scenario), ["method"], merge_heads(heads), rows)


def _values(cell: Cell, result: dict, counted: Communication | None, spread: bool) -> list[Value]:
    sent = result["traffic"]
    values = [
        Value("text", text=text, order=count)
        for text, count in (
            (f"{sent['up']:,.0f}", sent["up"]),
            (f"{sent['down']:,.0f}", sent["down"]),
            (bytes_words(sent["bytes"]), sent["bytes"]),
        )
    ]
    if counted:
        values.append(Value("quoted", published=counted.counts.get(cell.method, "")))
    if spread:
        values.append(_measured(cell, result["measures"].get("clients_std")))
    worst = [worst for run in result["clients"] if (worst := worst_tenth(run)) is not None]
    return [*values, _measured(cell, worst if len(worst) == len(result["clients"]) else None)]


def _measured(cell: Cell, values: list[float] | None) -> Value:
    return Value("measured", summarise(values), cell=cell) if values else Value("outside")
