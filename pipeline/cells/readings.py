"""Readings: how gaps and contradictions of a paper are resolved, and the source of each setting.

The readings of methods are in pipeline/methods/readings.yaml; those of a paper, and the sources of its rows,
are in its paper.yaml. No stage depends on these texts, so changing their words trains nothing again.
"""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.errors import ParamError, unknown
from pipeline.schema import MINIATURES, ROOT, Cell, check, load_paper, read_yaml, shorten
from pipeline.schema.discovery import method_module
from pipeline.schema.loader import overlay, varied_keys
from pipeline.schema.paper import Source
from pipeline.schema.scenario import setting

if TYPE_CHECKING:
    from pipeline.methods import Method

FILE = ROOT / "pipeline" / "methods" / "readings.yaml"
# The source of a value that a user has changed.
CHANGED = "changed by papers/{}/params.yaml"
YAML = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Reading:
    """One choice, in words."""

    # what the paper says, and where
    paper: str
    # what is run
    run: str
    # released code with repository and file, or our choice
    why: str
    # which option gives the other form: "clip_params: true"; empty where none does
    option: str = ""


@dataclass(frozen=True)
class Setting:
    """A value of a cell and where it comes from."""

    name: str
    value: Any
    source: str


# `method measure` or `scenario method measure`, and of a difference the second one.
_NUMBER = r"(?:([\w-]+) )?([\w-]+) ([\w.]+)"
_PLACE = re.compile(rf"{{{_NUMBER}(?: - {_NUMBER})?}}")


def filled(
    text: str,
    where: str,
    key: str,
    look: Callable[[Cell], Result | None],
    scenario: str = "",
    root: Path = ROOT,
) -> str:
    """A text of paper.yaml with its measured numbers: `{fedavg post.average}` is the mean over seeds of that
    measure of the scenario's cell, `{mnist-dir-005 fedavg average}` that of another scenario, `{fpl
    average - fedavg average}` the difference of two over the seeds that both have, `not yet measured` where a
    cell has not run.

    where: key of the text in paper.yaml. key: of the paper. look: gives a cell's result. scenario: of the
    text; empty: every number names one. ParamError for a scenario, method or measure that there is not.
    """
    paper = load_paper(key, root)

    def by_seed(place: str | None, method: str, measure: str) -> dict[int, float]:
        cell = Cell(key, place or scenario, method)
        result = look(cell)
        seeds = result["seeds"] if result else []
        measures = result["measures"] if result else {measure: []}
        for kind, name, known in (
            ("scenario", cell.scenario, paper.scenarios),
            ("method", method, paper.methods),
            ("measure", measure, measures),
        ):
            if name not in known:
                raise ParamError(f"papers/{key}/paper.yaml: {where}: {unknown(kind, name, known)}")
        return dict(zip(seeds, measures[measure]))

    def number(match: re.Match) -> str:
        left = by_seed(*match.group(1, 2, 3))
        right = by_seed(*match.group(4, 5, 6)) if match[5] else dict.fromkeys(left, 0.0)
        if not (both := left.keys() & right.keys()):
            return "not yet measured"
        return f"{fmean(left[seed] - right[seed] for seed in both):.1f}".replace("-", "−")

    return _PLACE.sub(number, text)


def described(algorithm: str, paper: str | None = None, root: Path = ROOT) -> "Method | None":
    """The method, of all papers or of this one, with its defaults; None where it has no file."""
    if method_module(algorithm, paper, root) is None:
        return None
    from pipeline import methods  # seconds, for torch

    return methods.find(algorithm, f"method {algorithm!r}", paper, root)()


def _method_of(experiment: Experiment) -> "Method | None":
    return described(experiment.algorithm, experiment.cell.paper, experiment.root)


def model_copies(experiment: Experiment) -> int | None:
    """Models that a client of the cell holds while it trains, as many times |theta| (FCCL+, Tables 3 and 4:
    `Para. Space`); None where the cell's algorithm has no file."""
    method = _method_of(experiment)
    return None if method is None else dataclasses.replace(method, **experiment.hyper).copies


@dataclass(frozen=True)
class Entry:
    """A reading as readings.yaml has it: by the values of an option, or of what no option changes."""

    paper: str
    why: str
    # value of the option -> what is run
    forms: dict[str, str] = field(default_factory=dict)
    # the same where there is no choice
    run: str = ""
    # of a number: the value that gives the other form
    option: str = ""
    # The reading holds only where these options have one of these values.
    when: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.forms) == bool(self.run):
            raise ValueError("give either 'forms' or 'run'")


@dataclass(frozen=True)
class Section:
    """What readings.yaml says of a class; the classes below it inherit it."""

    # By option or topic; null: the base class's reading does not hold here.
    readings: dict[str, Entry | None] = field(default_factory=dict)
    # default of a number -> source
    values: dict[str, Source] = field(default_factory=dict)
    # option that only ablations change -> where
    varied: dict[str, str] = field(default_factory=dict)


@cache
def sections() -> dict[str, Section]:
    """readings.yaml, checked."""
    return check(dict[str, Section], read_yaml(FILE), f"{shorten(FILE)}:")


def _of(method: "Method", part: str) -> dict:
    """A part of the sections of a method's class and its bases."""
    merged: dict = {}
    for kind in type(method).__mro__[::-1]:
        merged |= getattr(sections().get(kind.__name__, Section()), part)
    return merged


def readings_of(experiment: Experiment, resolved: dict | None = None) -> list[Reading]:
    """Every reading of a cell, the paper's first. `resolved`: hyper-parameters as a result has them."""
    cell, hyper = experiment.cell, experiment.hyper
    paper = load_paper(cell.paper, experiment.root)
    everywhere = cell.scenario not in MINIATURES
    readings = [
        Reading(choice.paper, choice.run, choice.why, choice.option)
        for choice in paper.readings
        if cell.method in (choice.methods or [cell.method])
        and (cell.scenario in choice.scenarios if choice.scenarios else everywhere)
    ]
    if (method := _method_of(experiment)) is None:
        return readings
    options, sources = {**vars(method), **(resolved or hyper)}, _row_sources(experiment)
    for name, entry in _of(method, "readings").items():
        if entry is None or not all(
            options[key] in values for key, values in entry.when.items() if key in options
        ):
            continue
        if not entry.forms:
            readings.append(Reading(entry.paper, entry.run, entry.why, entry.option))
            continue
        value = str(options[name])
        others = "; ".join(f"{name}: {YAML.get(other, other)}" for other in entry.forms if other != value)
        why = str(sources[name]) if name in hyper and name in sources else entry.why
        readings.append(Reading(entry.paper, entry.forms.get(value, value), why, others))
    return readings


def hyper_parameters(experiment: Experiment, resolved: dict | None = None) -> list[Setting]:
    """Every hyper-parameter of a cell, defaults included, with its source; empty without code."""
    hyper, rows = experiment.hyper, _row_sources(experiment)
    if (method := _method_of(experiment)) is None:
        return []
    whys = {name: entry.why for name, entry in _of(method, "readings").items() if entry}
    defaults = whys | _of(method, "varied") | _of(method, "values")

    cell = experiment.cell
    varied = overlay(cell.paper, experiment.root).get("methods", {}).get(cell.method, {})

    def source(name: str, value: Any) -> str:
        if name in varied:
            return CHANGED.format(cell.paper)
        if name in hyper and name in rows:
            return str(rows[name])
        return str(defaults.get(name, "")) if name not in hyper or value == vars(method).get(name) else ""

    values = {**vars(method), **(resolved or hyper)}
    return [Setting(name, value, source(name, value)) for name, value in values.items()]


def settings_of(experiment: Experiment) -> list[Setting]:
    """The values of a cell's scenario that paper.yaml gives a source; none of the miniature, which is ours
    throughout. The source is that of the paper's scenarios: where a further one has another value than all
    of them, that is our choice."""
    cell, scenario = experiment.cell, experiment.scenario
    if cell.scenario in MINIATURES:
        return []
    paper = load_paper(cell.paper, experiment.root)
    theirs = [
        one for name, one in paper.scenarios.items() if name not in {*paper.extra_scenarios, *MINIATURES}
    ]

    def ours(name: str, value: Any) -> bool:
        known = [setting(one, name) for one in theirs]
        return (
            cell.scenario in paper.extra_scenarios and value not in known and known.count(None) < len(known)
        )

    varied = varied_keys(overlay(cell.paper, experiment.root).get("settings", {}).get(cell.scenario, {}))
    settings = []
    for name, source in paper.sources.settings.items():
        value = setting(scenario, name)
        if value is None:
            continue
        if any(key == name or key.startswith(f"{name}.") for key in varied):
            said = CHANGED.format(cell.paper)
        else:
            said = "our choice" if ours(name, value) else str(source)
        settings.append(Setting(name, value, said))
    return settings


def _row_sources(experiment: Experiment) -> dict[str, Source]:
    """Hyper-parameter -> source for a cell's row, else for its algorithm."""
    sources = load_paper(experiment.cell.paper, experiment.root).sources.methods
    return {**sources.get(experiment.algorithm, {}), **sources.get(experiment.cell.method, {})}
