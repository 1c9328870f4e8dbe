"""The texts of paper.yaml: short, no typed measured numbers, placeholders that can be filled."""

import re

import pytest

from pipeline.cells import results
from pipeline.cells.readings import filled
from pipeline.schema import ROOT, Cell, Paper, load_paper

PAPERS = ("fedccl", "fcclplus", "fedlsa", "rahfl", "fedcrl")
MOST = 40  # words of a text

# What an accuracy or a difference of accuracies looks like: a decimal number of one or more, a number of
# points, a decimal share. A setting is not refused: rates and Dirichlet parameters are below one or stand in
# brackets (`Dir(5.0)`); neither is the number of a section (`Sec. 4.1`), nor a number of the print marked as
# such: `printed 73.66`, `73.66 printed`.
MEASURED = re.compile(
    r"(?<![\w.(,])(?<!Sec\. )(?<!printed )[1-9]\d*\.\d+(?! printed)"
    r"|\d[\d.]* (?:percentage )?points?\b"
    r"|(?<!printed )\b\d+\.\d+ %(?! printed)"
)
PLACE = re.compile(r"\{[\w-]+(?: [\w. -]+)?\}")


def measured(cell: Cell) -> dict | None:
    """Its result, where it has run."""
    file = cell.folder(ROOT) / "result.json"
    return results.read(file) if file.exists() else None


def texts(paper: Paper) -> dict[str, str]:
    """key of paper.yaml -> text, of all that is prose on the pages."""
    actual = {"idea": paper.idea, "headline": paper.headline}
    actual |= {f"why[{i}]": text for i, text in enumerate(paper.why)}
    actual |= {f"titles.{scenario}": text for scenario, text in paper.titles.items()}
    actual |= {
        f"notes.{name}[{i}]": text for name in paper.notes for i, text in enumerate(paper.points(name))
    }
    for i, one in enumerate(paper.readings):
        actual |= {f"readings[{i}].{part}": getattr(one, part) for part in ("paper", "run", "why")}
    for key, table in paper.tables.items():
        actual |= {f"tables.{key}.title": table.title, f"tables.{key}.note": table.note}
    return actual | {f"figures.{key}.title": figure.title for key, figure in paper.figures.items()}


@pytest.mark.parametrize("paper", PAPERS)
def test_texts_are_short_and_have_no_typed_measured_number(paper):
    for key, text in texts(load_paper(paper)).items():
        assert len(PLACE.sub("0", text).split()) <= MOST, key
        assert not MEASURED.findall(text), key


@pytest.mark.parametrize("paper", PAPERS)
def test_every_placeholder_can_be_filled(paper):
    """Where the text is filled; elsewhere a bracket would stay on the page."""
    for key, text in texts(load_paper(paper)).items():
        scenario = key.removeprefix("notes.").partition("[")[0] if key.startswith("notes.") else ""
        if key.startswith(("notes.", "why")) or (key.startswith("readings[") and key.endswith(".why")):
            text = filled(text, key, paper, measured, scenario)
        assert not PLACE.search(text), key
