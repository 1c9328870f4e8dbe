"""How far rounding alone moves a miniature: the same cells and seeds under other arithmetic settings, as reports/noise.csv has them.

The file is written by hand from real runs: columns cell (`fedccl/mini/fedpcl`), setting (what computed it) and accuracy (percent, mean over
the seeds, as the tables show it). Without the file nothing is shown.
"""
import csv
import math
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ParamError
from pipeline.params import ROOT, Cell, load_paper, shorten
from pipeline.report.statistics import replicates
from pipeline.report.tables import Panel, Row, Value, merge_heads
from pipeline.report.words import listed, method_label

COLUMNS = ["cell", "setting", "accuracy"]


@dataclass(frozen=True)
class Noise:
    """What a page shows of it."""
    text: str
    panel: Panel


def noise(names: dict[str, str], root: Path = ROOT) -> Noise | None:
    """None without the file, or where no cell was run under two settings. names: each paper as it spells itself."""
    cells = {cell: runs for cell, runs in read(root).items() if len(runs) > 1}
    found = replicates([*runs.values()] for runs in cells.values())
    if found is None:
        return None
    settings = list(dict.fromkeys(setting for runs in cells.values() for setting in runs))
    spans = {cell: max(runs.values()) - min(runs.values()) for cell, runs in cells.items()}
    widest, rows = max(spans, key=spans.__getitem__), []
    for cell, runs in cells.items():
        label = f"{names[cell.paper]}: {method_label(load_paper(cell.paper, root), cell.method)}"
        numbers = [*(runs.get(setting) for setting in settings), spans[cell]]
        rows.append(Row(label, [label], [Value("outside") if x is None else Value("text", text=f"{x:.2f}", order=x) for x in numbers]))
    text = (f"The same cells and seeds were run under {len(settings)} settings of the processor's arithmetic: {listed(settings)}. Nothing but rounding "
            f"differs, which training amplifies. {len(cells)} cells move by {min(spans.values()):.2f} to {max(spans.values()):.2f} points, "
            f"{names[widest.paper]}'s {method_label(load_paper(widest.paper, root), widest.method)} most. The standard deviation of one such number is "
            f"{found.s:.2f} points ({found.df} degrees of freedom, 95 %: {found.low:.2f} to {found.high:.2f}), so two differ by about "
            f"{found.s * math.sqrt(2):.2f} by rounding alone: a smaller difference between two machines is no result, and further processors are "
            "no further seeds.")
    return Noise(text, Panel("", ["cell"], merge_heads([[setting] for setting in (*settings, "largest difference")]), rows))


def read(root: Path = ROOT) -> dict[Cell, dict[str, float]]:
    """{cell: {setting: accuracy}} in the order of the file, empty without it; ParamError names the line that is wrong."""
    path = root / "reports" / "noise.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    if reader.fieldnames != COLUMNS:
        raise ParamError(f"{shorten(path)}: the columns must be {','.join(COLUMNS)}")
    found: dict[Cell, dict[str, float]] = {}
    for line, row in enumerate(rows, 2):
        try:
            cell, accuracy = Cell.parse(row["cell"]), float(row["accuracy"])
            cell.resolve(root)
        except (ValueError, TypeError, ParamError) as error:
            raise ParamError(f"{shorten(path)}:{line}: {error}") from None
        if row["setting"] in found.setdefault(cell, {}) or not 0 <= accuracy <= 100:
            raise ParamError(f"{shorten(path)}:{line}: {row['cell']} under {row['setting']!r}: given twice, or not a percentage")
        found[cell][row["setting"]] = accuracy
    return found
