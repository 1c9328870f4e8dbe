"""Tables as LaTeX: they compile alone and inside a paper, fit its page, and read back from the PDF."""

import re
import shutil
import subprocess
import unicodedata
from collections import Counter
from dataclasses import replace

import pytest

from pipeline.cells.results import Summary, collect
from pipeline.report import latex, render
from pipeline.report.page import page
from pipeline.report.published import Head, Panel, Row, Value
from pipeline.report.study import Study
from pipeline.report.words import minus
from pipeline.schema import papers

NUMBER = re.compile(r"[−+-]?\d+\.\d+")
# Points that a line may be too wide by, which nobody sees.
SLACK = 1.0
compiled = pytest.mark.skipif(
    not (shutil.which("pdflatex") and shutil.which("pdftotext")),
    reason="pdflatex or pdftotext is not installed: no LaTeX table was compiled",
)


def compile_tex(folder, name):
    """The log and the text of a file's PDF."""
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-1500:]
    read = ["pdftotext", "-layout", f"{name}.pdf", "-"]
    return done.stdout, subprocess.run(read, cwd=folder, capture_output=True, text=True, check=True).stdout


def fits(log):
    """Whether no line is too wide and no float too tall for its page."""
    wide = [float(points) for points in re.findall(r"Overfull \\hbox \(([\d.]+)pt", log)]
    return max(wide, default=0.0) < SLACK and "Float too large" not in log


def numbers(tab):
    """Those that a table shows, from its values and not from the LaTeX that is tested."""
    values = [value for panel in tab.panels for row in panel.rows for value in row.values if value.mean]
    texts = [text for value in values for text in (value.mean, value.spread, value.published)]
    return Counter(number for text in texts for number in NUMBER.findall(minus(text)))


def names(text):
    return re.sub(r"\s", "", unicodedata.normalize("NFKC", text))


@pytest.fixture
def tab(measured):
    return page(Study.of("fedcrl", collect(measured), measured)).tabs[0]


NUMBER_OF_A_RUN = Value("measured", Summary(71.23, 0.41, 5), "70.90", 70.90)


def panel(rows=3, columns=4, name="method", head="accuracy"):
    """A table of made-up numbers."""
    heads = [[Head("group", columns)], [Head(f"{head} {i}") for i in range(columns)]]
    lines = [Row(f"{name} {r}", [f"{name} {r}"], [NUMBER_OF_A_RUN] * columns) for r in range(rows)]
    return Panel("", ["method"], heads, lines)


@compiled
@pytest.mark.parametrize("name", papers())
def test_every_number_is_in_the_pdf_of_a_file(pages, tmp_path, name):
    files = latex.files(pages[name])
    assert list(files) == [f"tables/{name}-{tab.key}.tex" for tab in pages[name].tabs] and files
    for tab, text in zip(pages[name].tabs, files.values()):
        (tmp_path / f"{tab.key}.tex").write_text(text, encoding="utf-8")
        log, read = compile_tex(tmp_path, tab.key)
        wanted = numbers(tab)
        assert fits(log) and wanted.total() > 5 and not wanted - Counter(NUMBER.findall(read)), tab.key


@compiled
@pytest.mark.parametrize("columns", [1, 2])
def test_every_file_is_part_of_a_paper(pages, tmp_path, columns):
    files = {key.rpartition("/")[2]: text for one in pages.values() for key, text in latex.files(one).items()}
    for key, text in files.items():
        (tmp_path / key).write_text(text, encoding="utf-8")
    inputs = "\n".join(rf"\input{{{key}}} \clearpage" for key in files)
    (tmp_path / "main.tex").write_text(
        rf"\documentclass[{['onecolumn', 'twocolumn'][columns - 1]},a4paper]{{article}}"
        rf"\usepackage{{booktabs,amssymb}}\begin{{document}}{inputs} The end.\end{{document}}"
    )
    log, read = compile_tex(tmp_path, "main")
    printed, wanted = Counter(NUMBER.findall(read)), Counter()
    for one in pages.values():
        for tab in one.tabs:
            wanted += numbers(tab)
    assert not wanted - printed and "The end." in read
    assert columns == 1 or fits(log)
    labels = re.findall(r"\\label\{([^}]*)\}", "".join(files.values()))
    assert len(labels) == len({*labels}) == len(files)


@compiled
@pytest.mark.parametrize(
    "rows, columns, name, head",
    [
        (3, 30, "method", "accuracy"),
        (70, 4, "method", "accuracy"),
        (40, 12, "a method with a long name (of option 0.1, another 0.2)", "accuracy of locally trained"),
    ],
)
def test_a_table_that_is_too_wide_or_too_tall_goes_over_several(tmp_path, tab, rows, columns, name, head):
    large = replace(tab, panels=[panel(rows, columns, name, head)])
    (tmp_path / "large.tex").write_text(latex.table(large, "X"), encoding="utf-8")
    log, read = compile_tex(tmp_path, "large")
    assert fits(log) and Counter(NUMBER.findall(read)) >= numbers(large)
    assert len(list(latex.fitting(large.panels[0]))) > 1


@compiled
def test_texts_that_hold_markup(tmp_path, tab):
    row = tab.panels[0].rows[0]
    odd = "\\end{x} 50% of_$a^2$ & #1 ~ {b} [c] é θ ≥ 漢"
    rows = [replace(row, stub=[odd]), replace(row, stub=["[x] \n\n \\\\"])]
    odd_tab = replace(tab, title=odd, panels=[replace(tab.panels[0], rows=rows)])
    (tmp_path / "odd.tex").write_text(latex.table(odd_tab, "A & B"), encoding="utf-8")
    _, read = compile_tex(tmp_path, "odd")
    assert all(part in names(read) for part in (r"\end{x}50%of", "2$&#1", "{b}[c]éθ≥(U+6F22)"))


def test_type_is_never_smaller_than_seven_points(pages):
    text = "".join(text for one in pages.values() for text in latex.files(one).values())
    assert not re.search(r"\\(resizebox|scalebox|fontsize|tiny)", text)


def test_a_table_has_the_measured_numbers_with_their_marks_alone(tab):
    text = latex.table(tab, "X")
    marked = [value for panel in tab.panels for row in panel.rows for value in row.values if value.mark]
    assert {value.mark for value in marked} == {"best", "second"}
    for value in marked:
        command = {"best": "textbf", "second": "underline"}[value.mark]
        assert rf"\{command}{{{value.mean}}}" in text
    assert "FedProx" not in text and "43.33" not in text


def test_everything_special_is_escaped():
    assert latex.tex(r"a_b & 5% #1 {x} $y^2~\z") == (
        r"a\_b \& 5\% \#1 \{x\} \$y\textasciicircum{}2\textasciitilde{}\textbackslash{}z"
    )
    assert latex.tex("β ± 1, θ0 Δ λ ✓ é 漢 ŧ Α\u202e") == (
        r"$\beta$ $\pm$ 1, $\theta$0 $\Delta$ $\lambda$ \checkmark{} é (U+6F22) (U+0167) (U+0391)(U+202E)"
    )
    assert (latex.tex("one\n\n two"), latex.tex("−18.56")) == ("one two", "$-$18.56")


def test_a_table_that_is_gone_leaves_no_file(measured):
    folder = measured / "reports/tables"
    folder.mkdir(parents=True)
    for name in ("fedcrl-table9.tex", "other-table1.tex"):
        (folder / name).write_text("old")
    render(["fedcrl"], root=measured)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert "fedcrl-table9.tex" not in files and files["other-table1.tex"] == "old"
    assert {"fedcrl-table1.tex", "fedcrl-table2.tex"} <= set(files)
