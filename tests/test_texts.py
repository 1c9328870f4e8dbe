"""The texts of paper.yaml: short, and without typed measured numbers."""

import re

import pytest

from pipeline.schema import Paper, load_paper

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
