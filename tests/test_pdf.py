"""The LaTeX pages as PDFs: they compile, and every number of their tables can be read in them with its
sign."""
import re
import shutil
import subprocess
from collections import Counter

import pytest

from pipeline.cells.results import Summary, survey
from pipeline.report.across import across
from pipeline.report.context import page
from pipeline.report.formats import fill, tex, tex_measured, tex_published
from pipeline.report.leakage import leakage
from pipeline.report.noise import noise
from pipeline.report.panels import Value
from pipeline.report.study import studies
from pipeline.report.words import minus
from pipeline.schema import ROOT, papers

MARGIN = 51                                           # points: 18 mm, beyond which a line would be cut
NUMBER = re.compile(r"[−+-]?\d+\.\d+")


@pytest.fixture(scope="module")
def pages():
    results, problems = survey()
    known = studies(results, ROOT, problems)
    made = {key: page(study) for key, study in known.items()}
    texts = {key: fill("paper", "tex", page=one, pages=made, failed={}) for key, one in made.items()}
    table = across(known)
    texts["across"] = fill(
        "across", "tex", page=table, pages=made, noise=noise(known, ROOT), leakage=leakage(known)
    )
    panels = {key: [panel for view in one.tables for panel in view.panels]
              + [own.panel for own in (one.mini, *one.beside)] for key, one in made.items()}
    return texts, panels | {"across": [table.panel]}


@pytest.mark.skipif(not (shutil.which("pdflatex") and shutil.which("pdftotext")),
                    reason="pdflatex or pdftotext is not installed: the PDFs are not compiled")
@pytest.mark.parametrize("name", [*papers(), "across"])
def test_every_number_of_the_tables_is_in_the_pdf(pages, tmp_path, name):
    texts, panels = pages
    (tmp_path / "page.tex").write_text(texts[name], encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"-output-directory={tmp_path}",
         str(tmp_path / "page.tex")],
        cwd=ROOT / "reports",                         # from which the pages name their pictures
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-1500:]
    assert all(float(wide) < MARGIN for wide in re.findall(r"Overfull \\hbox \(([\d.]+)pt", done.stdout))
    read = subprocess.run(["pdftotext", "-layout", "page.pdf", "-"], cwd=tmp_path, capture_output=True,
                          text=True, check=True).stdout
    found, shown = Counter(NUMBER.findall(read)), numbers(panels[name])
    assert shown.total() > 50 and not shown - found


def numbers(panels) -> Counter:
    """The numbers that the tables show, from the values, not from the LaTeX that is tested."""
    count: Counter = Counter()
    for value in (value for panel in panels for row in panel.rows for value in row.values):
        if value.number and value.state == "measured":
            count[minus(format(value.number.mean, "+.2f" if value.signed else ".2f"))] += 1
        if value.printed is not None and value.published:
            count += Counter(NUMBER.findall(minus(value.published)))
    return count


@pytest.mark.parametrize("mean, signed", [(-18.56, True), (-0.41, False)])
def test_a_sign_is_no_bare_character(mean, signed):
    value = Value("measured", Summary(mean, 0.5, 2), published="−1.25", printed=-1.25, signed=signed)
    measured, published = tex_measured(value), tex_published(value)
    assert f"$-${abs(mean)}" in measured and "$-$1.25" in published and "−" not in measured + published


def test_a_blank_line_ends_no_paragraph():
    assert tex("one\n\n two") == "one two"
