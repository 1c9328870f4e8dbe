"""Tables as LaTeX: they compile inside a paper, and read back from the PDF."""

import re
import shutil
import subprocess
import unicodedata
from collections import Counter
from dataclasses import replace

import pytest

from pipeline.cells.results import collect
from pipeline.report import latex
from pipeline.report.page import Page
from pipeline.report.study import Study
from pipeline.report.words import minus
from pipeline.report.writing import render

NUMBER = re.compile(r"[−+-]?\d+\.\d+")
compiled = pytest.mark.skipif(
    not (shutil.which("pdflatex") and shutil.which("pdftotext")),
    reason="pdflatex or pdftotext is not installed: no LaTeX table was compiled",
)


def compile_inputs(folder, files):
    """The text of the PDF of a paper that reads these files."""
    inputs = "".join(rf"\input{{{key}}} \clearpage" for key in files)
    (folder / "main.tex").write_text(
        r"\documentclass[twocolumn,a4paper]{article}\usepackage{amssymb,booktabs,graphicx}"
        rf"\begin{{document}}{inputs}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-1500:]
    read = ["pdftotext", "-layout", "main.pdf", "-"]
    return subprocess.run(read, cwd=folder, capture_output=True, text=True, check=True).stdout


def numbers(tab):
    """Those that a table shows, from its values and not from the LaTeX that is tested."""
    values = [value for row in tab.panel.rows for value in row.values if value.mean]
    texts = [text for value in values for text in (value.mean, value.spread, value.published)]
    return Counter(number for text in texts for number in NUMBER.findall(minus(text)))


def names(text):
    return re.sub(r"\s", "", unicodedata.normalize("NFKC", text))


@pytest.fixture
def tab(measured):
    return Page(Study.of("fedcrl", collect(measured), measured)).tabs[0]


@compiled
def test_every_number_is_in_the_pdf_of_a_paper_that_reads_the_files(pages, tmp_path):
    files = {key.rpartition("/")[2]: text for one in pages.values() for key, text in latex.files(one).items()}
    assert [*files] == [f"{one.key}-{tab.key}.tex" for one in pages.values() for tab in one.tabs]
    assert files
    for key, text in files.items():
        (tmp_path / key).write_text(text, encoding="utf-8")
    read = compile_inputs(tmp_path, files)
    wanted = Counter()
    for one in pages.values():
        for tab in one.tabs:
            wanted += numbers(tab)
    assert wanted.total() > 100
    assert not wanted - Counter(NUMBER.findall(read))
    labels = re.findall(r"\\label\{([^}]*)\}", "".join(files.values()))
    assert len(labels) == len({*labels}) == len(files)


@compiled
def test_texts_that_hold_markup(tmp_path, tab):
    row = tab.panel.rows[0]
    odd = "\\end{x} 50% of_$a^2$ & #1 ~ {b} [c] é θ ≥"
    rows = [replace(row, stub=[odd]), replace(row, stub=["[x] \n\n \\\\"])]
    odd_tab = replace(tab, title=odd, panel=replace(tab.panel, rows=rows))
    (tmp_path / "odd.tex").write_text(latex.table(odd_tab, "A & B"), encoding="utf-8")
    read = compile_inputs(tmp_path, ["odd.tex"])
    assert all(part in names(read) for part in (r"\end{x}50%of", "2$&#1", "{b}[c]éθ≥"))


def test_a_table_has_the_measured_numbers_with_their_marks_alone(tab):
    text = latex.table(tab, "X")
    marked = [value for row in tab.panel.rows for value in row.values if value.mark]
    assert {value.mark for value in marked} == {"best", "second"}
    for value in marked:
        command = {"best": "textbf", "second": "underline"}[value.mark]
        assert rf"\{command}{{{value.mean}}}" in text
    assert "FedProx" not in text
    assert "43.33" not in text


def test_a_table_may_have_one_row(tab):
    row = tab.panel.rows[0]
    one = replace(tab, panel=replace(tab.panel, rows=[row]))
    text = latex.table(one, "X")
    assert all(value.mean in text for value in row.values)


def test_everything_special_is_escaped():
    assert latex.tex(r"a_b & 5% #1 {x} $y^2~\z") == (
        r"a\_b \& 5\% \#1 \{x\} \$y\textasciicircum{}2\textasciitilde{}\textbackslash{}z"
    )
    assert latex.tex("β ± 1, θ0 Δ λ ✓ é") == r"$\beta$ $\pm$ 1, $\theta$0 $\Delta$ $\lambda$ \checkmark{} é"
    assert (latex.tex("one\n\n two"), latex.tex("−18.56")) == ("one two", "$-$18.56")


def test_a_table_that_is_gone_leaves_no_file(measured):
    folder = measured / "reports/tables"
    folder.mkdir(parents=True)
    for name in ("fedcrl-table9.tex", "other-table1.tex"):
        (folder / name).write_text("old")
    render(["fedcrl"], root=measured)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert "fedcrl-table9.tex" not in files
    assert files["other-table1.tex"] == "old"
    assert {"fedcrl-table1.tex", "fedcrl-table2.tex"} <= set(files)
