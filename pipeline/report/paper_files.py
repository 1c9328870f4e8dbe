"""What a paper's own files draw and write: its figures.py, and the sections of its templates/*.md.

The result of figures.py is shown as an image, so that scripts in an SVG do not run. A section is Markdown;
HTML in it is shown as text, and Jinja fills in the results in a sandbox.
"""

import base64
import io
from collections.abc import Iterator

import jinja2
import jinja2.sandbox
import pandas as pd
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib import pyplot as plt
from matplotlib.figure import Figure as Drawn

from pipeline.cells.results import summarise
from pipeline.errors import DAMAGED, ParamError, cause
from pipeline.report.curves import label
from pipeline.report.figures import Panel, Picture
from pipeline.report.study import Study
from pipeline.report.templates import fixed
from pipeline.schema import Cell, Figure, load_module, shorten, visible

# Text stays text, and the same picture is the same bytes.
SVG = {"svg.hashsalt": "fedrepro", "svg.fonttype": "none"}


def drawn(study: Study, key: str, figure: Figure, scenarios: list[str]) -> Picture:
    """What a function of figures.py draws of the finished cells of these scenarios; without such nothing.

    Raises ParamError, with file and function, for one that fails or returns no picture.
    """
    cells = list(study.finished(scenarios, figure.methods))
    if not cells or not figure.function:
        return Picture()
    file = study.root / "papers" / study.key / "figures.py"
    module = load_module(f"papers.{study.key}.figures", file)
    try:
        with plt.rc_context(SVG):  # type: ignore[arg-type]  # of literals
            plt.switch_backend("svg")
            function = getattr(module, figure.function)
            text = _svg(function(_numbers(study, cells), _rounds(study, cells)))
    except (Exception, SystemExit) as error:
        raise ParamError(f"{shorten(file)}: {figure.function}: {cause(error)}") from error
    encoded = base64.b64encode(text.encode()).decode()
    return Picture([Panel("", 0, src=f"data:image/svg+xml;base64,{encoded}", words=figure.title)])


def _numbers(study: Study, cells: list[Cell]) -> pd.DataFrame:
    """The reported measures, a row for every seed."""
    rows = []
    for cell in cells:
        result = study.results[cell]
        for measure, values in result["measures"].items():
            for seed, value in zip(result["seeds"], values):
                rows.append((cell.scenario, label(study, cell.method), seed, measure, value))
    return pd.DataFrame(rows, columns=["scenario", "method", "seed", "measure", "value"])


def _rounds(study: Study, cells: list[Cell]) -> pd.DataFrame:
    """history.csv of all cells, behind `scenario` and `method`."""
    return pd.concat(
        study.history(cell).assign(scenario=cell.scenario, method=label(study, cell.method)) for cell in cells
    )


def _svg(picture: object) -> str:
    """The text of an SVG, or of a figure of matplotlib."""
    if isinstance(picture, Drawn):
        target = io.StringIO()
        picture.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(picture)
        return target.getvalue()
    if isinstance(picture, str) and "<svg" in picture:
        return picture
    raise TypeError("returned neither a figure of matplotlib nor the text of an SVG")


def sections(study: Study) -> Iterator[tuple[str, Markup]]:
    """(title, HTML) of every templates/*.md in the order of the names; the title is the name in words.

    The templates see `results`, {scenario: {method: {measure: Summary}}} of the finished cells. ParamError
    names the file that cannot be filled in.
    """
    results: dict[str, dict] = {scenario: {} for scenario in study.paper.scenarios}
    for cell, result in study.results.items():
        numbers = {name: summarise(values) for name, values in result["measures"].items()}
        results.setdefault(cell.scenario, {})[cell.method] = numbers
    jinja = jinja2.sandbox.ImmutableSandboxedEnvironment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    jinja.filters["fixed"] = fixed
    markdown = MarkdownIt("js-default").disable("image")
    for path in visible(study.root / "papers" / study.key, "templates/*.md"):
        if path.is_symlink():
            raise ParamError(f"{shorten(path)}: a link; put the template itself there")
        try:
            text = jinja.from_string(path.read_text(encoding="utf-8")).render(results=results)
        except (jinja2.TemplateError, *DAMAGED) as error:
            raise ParamError(f"{shorten(path)}: {cause(error)}") from None
        title = path.stem.replace("-", " ").replace("_", " ")
        yield title[:1].upper() + title[1:], Markup(markdown.render(text))
