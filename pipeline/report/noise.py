"""How much rounding alone changes the numbers of a miniature: the same cells and seeds under other arithmetic
settings, from reports/noise.csv.

The file is written by benchmarks/rounding.py: columns cell (`fedccl/mini/fedpcl`), setting (what computed it)
and accuracy (percent, mean over the seeds, as the tables show it). Without the file nothing is shown.
"""
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pipeline import files
from pipeline.errors import ParamError
from pipeline.report.panels import Panel, Row, Value, merge_heads
from pipeline.report.statistics import replicates
from pipeline.report.study import Study
from pipeline.report.words import listed
from pipeline.schema import ROOT, Cell, shorten

COLUMNS = ["cell", "setting", "accuracy"]


@dataclass(frozen=True)
class Noise:
    """The text and the table that a page shows."""
    text: str
    panel: Panel


def noise(studies: dict[str, Study], root: Path = ROOT) -> Noise | None:
    """None without the file, or where no cell was run under two settings."""
    cells = {cell: runs for cell, runs in read(root).items() if len(runs) > 1}
    found = replicates([*runs.values()] for runs in cells.values())
    if found is None:
        return None
    settings = list(dict.fromkeys(setting for runs in cells.values() for setting in runs))
    labels = {cell: f"{studies[cell.paper].name}: {studies[cell.paper].label(cell.method)}" for cell in cells}
    spans = {cell: max(runs.values()) - min(runs.values()) for cell, runs in cells.items()}
    rows = [Row(labels[cell], [labels[cell]], [_value(x) for x in (*map(runs.get, settings), spans[cell])])
            for cell, runs in cells.items()]
    low, high = min(spans.values()), max(spans.values())
    widest = max(spans, key=spans.__getitem__)
    rest = replicates([*runs.values()] for cell, runs in cells.items() if cell != widest)
    mostly = (f"; most of that is {labels[widest]}, without which it is {rest.s:.2f}"
              if rest and 2 * rest.s ** 2 * rest.df < found.s ** 2 * found.df else "")
    text = (
        f"The same cells and seeds were run under {len(settings)} settings of the processor's arithmetic: "
        f"{listed(settings)}. Nothing but rounding differs, which training amplifies. {len(cells)} cells "
        f"move by {low:.2f} to {high:.2f} points ({labels[widest]}), half of them by "
        f"{median(spans.values()):.2f} at most. The standard deviation of one such number, pooled over cells "
        f"of very different spread, is {found.s:.2f} points{mostly}. So two differ by about "
        f"{found.s * math.sqrt(2):.2f} by rounding alone, in some cells by more: such a difference between "
        "two machines means nothing, and runs on other processors do not count as further seeds."
    )
    heads = merge_heads([[name] for name in (*settings, "largest difference")])
    return Noise(text, Panel("", ["cell"], heads, rows))


def _value(number: float | None) -> Value:
    return Value("outside") if number is None else Value("text", text=f"{number:.2f}", order=number)


def read(root: Path = ROOT) -> dict[Cell, dict[str, float]]:
    """{cell: {setting: accuracy}} in the order of the file, empty without it; ParamError names the line that
    is wrong."""
    path = root / "reports" / "noise.csv"
    if not path.exists():
        return {}
    found: dict[Cell, dict[str, float]] = {}
    for line, row in files.read_csv(path, COLUMNS):
        try:
            cell, accuracy = Cell.parse(row["cell"]), float(row["accuracy"])
            cell.resolve(root)
        except (ValueError, ParamError) as error:
            raise ParamError(f"{shorten(path)}:{line}: {error}") from None
        if row["setting"] in found.setdefault(cell, {}) or not 0 <= accuracy <= 100:
            what = f"{row['cell']} under {row['setting']!r}"
            raise ParamError(f"{shorten(path)}:{line}: {what}: given twice, or not a percentage")
        found[cell][row["setting"]] = accuracy
    return found
