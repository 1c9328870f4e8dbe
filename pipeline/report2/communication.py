"""What a client sends and receives, and how evenly the clients fare, for every scenario that was run."""
import math
from statistics import fmean

from pipeline.cells.results import summarise
from pipeline.report2.panels import Panel, Row, Value, mark, merge_heads
from pipeline.report2.study import Study
from pipeline.report2.words import bytes_words
from pipeline.schema import Cell, Communication

SENT, SENT_BY_SOME = "per client and round", "per participant and round"
FAIRNESS = "accuracy of the clients, %"


def worst_tenth(accuracies: list[float | None]) -> float | None:
    """Mean accuracy of the worst tenth of the clients, one client at least; None where no two clients differ,
    such as with one model and one test set for all."""
    known = sorted(accuracy for accuracy in accuracies if accuracy is not None)
    return fmean(known[:math.ceil(len(known) / 10)]) if len(set(known)) > 1 else None


def communication(study: Study, scenario: str) -> Panel:
    """A row per finished method of a scenario: scalars and bytes, the paper's own count, and where clients
    differ, their spread and worst tenth."""
    runs, counted = study.runs[scenario], study.paper.communication
    spread = any("clients_std" in result["measures"] for result in runs.values())
    sent = SENT_BY_SOME if any("participants" in result for result in runs.values()) else SENT
    heads = [[sent, "up, scalars"], [sent, "down, scalars"], [sent, "both, bytes"]]
    heads += [[sent, "both, the paper's count"]] if counted else []
    heads += [[FAIRNESS, "std."]] if spread else []
    worst = {cell: _worst(result) for cell, result in runs.items()}
    differ = any(worst.values())
    heads += [[FAIRNESS, "worst 10 %"]] if differ else []
    names = {cell: study.label(cell.method) for cell in runs}
    rows = [Row(names[cell], [names[cell]], _values(cell, result, counted, spread)
                + [_measured(cell, worst[cell])] * differ) for cell, result in runs.items()]
    if spread:
        mark([row.values[-1 - differ] for row in rows], lower=True)
    if differ:
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
    return values


def _worst(result: dict) -> list[float] | None:
    """The worst tenth's accuracy of every seed; None where one has none."""
    found = [worst for run in result["clients"] if (worst := worst_tenth(run)) is not None]
    return found if len(found) == len(result["clients"]) else None


def _measured(cell: Cell, values: list[float] | None) -> Value:
    return Value("measured", summarise(values), cell=cell) if values else Value("outside")
