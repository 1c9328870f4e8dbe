"""Load and check params.yaml and papers/<paper>/paper.yaml."""

import copy
import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import ParamError, cause, unknown
from pipeline.schema.checker import Name, Spelling, Whole, check
from pipeline.schema.discovery import partition_kinds
from pipeline.schema.documents import ROOT, check_files, check_trusted, is_untrusted, read_yaml, shorten
from pipeline.schema.paper import ACROSS, MINIATURE, MINIATURES, Choice, Figure, Grid, Paper
from pipeline.schema.partitions import KINDS
from pipeline.schema.scenario import Scenario, check_seeds, setting

# What a method's row may hold besides hyper-parameters, which the method itself checks. sweep: values that
# the row has in every scenario, and that its label names.
ROW = {
    "algorithm": Name,
    "label": str,
    "sweep": dict[str, Any],
    "scenarios": dict[str, dict[str, Any]],
}
# hyper-parameters that a label spells in another way
PRINTED = {"lam": "lambda"}
# of a paper's params.yaml; names of which DVC reads none in paper.yaml
VARIED = ("methods", "settings")
# names that commands and pages give to something else
TAKEN = (*MINIATURES, "index")


@dataclass(frozen=True)
class DataChoice:
    # Where sets that are not bundled come from; auto: the mirror, else the canonical source.
    source: Literal["auto", "mirror", "canonical"] = "auto"
    # Weights of the frozen ViT-Ti/16; untrained: for machines that cannot download them.
    weights: Literal["pretrained", "untrained"] = "pretrained"


@dataclass(frozen=True)
class Common:
    """Values that all miniatures share, unless a paper sets its own; None: the default of a scenario."""

    seeds: list[Whole] | None = None
    arithmetic: Literal["portable"] | None = None

    def __post_init__(self) -> None:
        if self.seeds is not None:
            check_seeds(self.seeds)


@dataclass(frozen=True)
class Params:
    """params.yaml: settings for users to change."""

    data: DataChoice = field(default_factory=DataChoice)
    miniature: Common = field(default_factory=Common)


@cache
def load_params(root: Path = ROOT) -> Params:
    """params.yaml of the repository at `root`."""
    path = root / "params.yaml"
    return check(Params, read_yaml(path), f"{shorten(path)}:")


def papers(root: Path = ROOT) -> tuple[str, ...]:
    """The papers: all folders of `papers/` with a paper.yaml, sorted by `order` in these files."""
    return tuple(sorted(folders(root), key=lambda name: (load_paper(name, root).order, name)))


def folders(root: Path = ROOT) -> list[str]:
    """The names of the papers' folders in alphabetical order, without reading them; hidden folders are
    left out."""
    everything = (path.parent.name for path in root.glob("papers/*/paper.yaml"))
    names = sorted(name for name in everything if not name.startswith("."))
    names = [name for name in names if not is_untrusted(root / "papers" / name, root)]
    for name in names:
        check_name(name)
    return names


def check_name(name: str) -> None:
    """Raise ParamError if a paper's folder cannot have this name."""
    taken = f"must be none of {', '.join(TAKEN)}" if name in TAKEN else None
    if problem := Spelling().problem(name) or taken:
        raise ParamError(f"papers/{name}: a paper's folder {problem}")


@cache
def load_paper(name: str, root: Path = ROOT) -> Paper:
    """papers/<name>/paper.yaml, with values of its params.yaml laid over it.

    The miniature is added as the scenario `mini`, and as `across` for other papers' methods. ParamError names
    the file that has the wrong value.
    """
    try:
        return _loaded(name, root, varied=True)
    except ParamError as error:
        if not overlay(name, root):
            raise
        try:
            _loaded(name, root, varied=False)
        except ParamError:
            raise error from None
        raise ParamError(_of_overlay(str(error), name)) from None


def _of_overlay(text: str, name: str) -> str:
    """An error of paper.yaml in the words of the overlay, where its value stands."""
    folder = f"papers/{name}"
    text = text.replace(f"{folder}/paper.yaml", f"{folder}/params.yaml")
    text = text.replace(": miniature.scenario.", f": settings.{MINIATURE}.")
    return re.sub(r": scenarios\.", ": settings.", text)


def _loaded(name: str, root: Path, varied: bool) -> Paper:
    path = root / "papers" / name / "paper.yaml"
    if Spelling().problem(name) or not path.is_file():
        raise ParamError(unknown("paper", name, folders(root)))
    check_trusted(path, root)
    check_files(path.parent)
    where = f"{shorten(path)}:"
    paper = check(Paper, _document(name, root, varied), where)
    rows = {key: _row(row, f"{where} methods.{key}") for key, row in paper.methods.items()}
    for scenario in {MINIATURE, ACROSS} & paper.scenarios.keys():
        raise ParamError(f"{where} scenarios.{scenario}: the miniature has this name")
    added = {}
    if paper.miniature:
        names = (MINIATURE, ACROSS) if paper.miniature.others else (MINIATURE,)
        added = dict.fromkeys(names, paper.miniature.scenario)
    paper = dataclasses.replace(paper, methods=rows, scenarios={**paper.scenarios, **added})
    for at, kind, used in _references(paper):
        known = paper.scenarios if kind == "scenario" else paper.methods
        for item in used:
            if item not in known:
                raise ParamError(f"{where} {at}: {unknown(kind, item, known)}")
    _check_tunings(paper, where)
    for key in paper.sources.settings:
        if all(setting(scenario, key) is None for scenario in paper.scenarios.values()):
            raise ParamError(f"{where} sources.settings.{key}: no scenario has such a value")
    return paper


def find_scenario(what: str, root: Path = ROOT) -> tuple[str, str, Scenario]:
    """Paper, name and settings of `fedcrl/mini`; ParamError for an unknown one."""
    paper, _, name = what.partition("/")
    scenarios = load_paper(paper, root).scenarios
    if name not in scenarios:
        raise ParamError(f"papers/{paper}/paper.yaml: {unknown('scenario', name, scenarios)}")
    return paper, name, scenarios[name]


def overlay(name: str, root: Path = ROOT) -> dict:
    """papers/<name>/params.yaml, values that a user changes: {methods: {row: ...}, settings: {scenario:
    ...}}.

    They replace those of paper.yaml; null is a value, too. ParamError for a name that paper.yaml does not
    have.
    """
    path = root / "papers" / name / "params.yaml"
    if not path.is_file():
        return {}
    found = [one.stat() for one in (path, path.with_name("paper.yaml")) if one.exists()]
    version = tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)
    return copy.deepcopy(_overlay(path, version))


@cache
def _overlay(path: Path, version: tuple) -> dict:
    """`overlay` of a params.yaml; version: what changes with it or the paper.yaml beside it, since a report
    asks for it two thousand times."""
    if not (given := _without_null(read_yaml(path))):
        return {}
    below = read_yaml(path.with_name("paper.yaml"))
    names = {"methods": [*(below.get("methods") or ())]}
    names["settings"] = [MINIATURE, *(below.get("scenarios") or ())]
    for part, values in given.items():
        if part not in VARIED or not isinstance(values, dict):
            raise ParamError(f"{shorten(path)}: {part}: expected a mapping of {', '.join(VARIED)}")
        for key in values:
            if key not in names[part]:
                raise ParamError(f"{shorten(path)}: {part}: {unknown('key', key, names[part])}")
    return given


def _without_null(values: dict) -> dict:
    """Nested mappings without null, and without mappings that held nothing else."""
    parts = {key: _without_null(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in parts.items() if value is not None and value != {}}


def _laid_over(below: dict, above: dict) -> dict:
    merged = {
        key: _laid_over(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in above.items()
    }
    return {**below, **merged}


def _document(name: str, root: Path, varied: bool = True) -> dict:
    """paper.yaml under its overlay, unless not `varied`, and the common values of miniatures, partitions of
    its kinds checked."""
    path = root / "papers" / name / "paper.yaml"
    above_it, where = overlay(name, root) if varied else {}, f"{shorten(path)}:"
    settings = {**above_it.get("settings", {})}
    of_miniature = {"scenario": settings.pop(MINIATURE, None)}
    above = {"methods": above_it.get("methods"), "scenarios": settings, "miniature": of_miniature}
    below = read_yaml(path)
    document = _with_notes(_laid_over(below, _without_null(above)), below, settings, name)
    miniature, scenarios = document.get("miniature"), document.get("scenarios")
    if isinstance(miniature, dict) and isinstance(miniature.get("scenario"), dict):
        common = dataclasses.asdict(load_params(root).miniature)
        given = {key: value for key, value in common.items() if value is not None}
        scenario = _partitioned({**given, **miniature["scenario"]}, name, root, f"{where} miniature.scenario")
        document = {**document, "miniature": {**miniature, "scenario": scenario}}
    if isinstance(scenarios, dict):
        checked = {
            key: _partitioned(value, name, root, f"{where} scenarios.{key}")
            for key, value in scenarios.items()
        }
        document = {**document, "scenarios": checked}
    return document


def _with_notes(document: dict, below: dict, settings: dict, name: str) -> dict:
    """The document with a note on every scenario that the overlay changes, which stands under its tables.

    below: paper.yaml as it is
    settings: scenario -> what the overlay has for it
    """
    notes = document.get("notes")
    scenarios = below.get("scenarios")
    if not settings or not isinstance(notes or {}, dict) or not isinstance(scenarios, dict):
        return document
    notes = dict(notes or {})
    for scenario, values in settings.items():
        before = scenarios.get(scenario)
        changes = [
            f"{key} {value} in the place of {_at(before, key)}" for key, value in varied_keys(values).items()
        ]
        known = notes.get(scenario) or []
        known = known if isinstance(known, list) else [known]
        notes[scenario] = [*known, f"Changed by papers/{name}/params.yaml: {', '.join(changes)}."]
    return {**document, "notes": notes}


def varied_keys(values: dict) -> dict[str, Any]:
    """Nested settings by their dotted keys: `training.optimiser.lr`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": one for inner, one in varied_keys(value).items()}
        else:
            flat[key] = value
    return flat


def _at(values: Any, key: str) -> Any:
    """The value of a dotted key; `the default` where there is none."""
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return "the default"
        values = values[part]
    return values


def _partitioned(scenario: Any, paper: str, root: Path, where: str) -> Any:
    """A scenario as written, with its partition checked where it is of a kind of the paper."""
    cut = scenario.get("partition") if isinstance(scenario, dict) else None
    cut = cut if isinstance(cut, dict) else {}
    kind = cut.get("kind")
    if not isinstance(kind, str) or kind in KINDS:
        return scenario
    if kind not in (kinds := partition_kinds(paper, root)):
        raise ParamError(f"{where}.partition.kind: {unknown('kind', kind, kinds)}")
    values = {key: value for key, value in cut.items() if key != "kind"}
    try:
        return {**scenario, "partition": check(kinds[kind], values, f"{where}.partition")}
    except ParamError:
        raise
    except Exception as error:  # of the class in the paper's file
        file = shorten(root / "papers" / paper / "partitions.py")
        raise ParamError(f"{file}: the kind {kind!r} fails: {cause(error)}") from error


def _row(row: dict[str, Any], where: str) -> dict[str, Any]:
    """A method's row, its `sweep` written out: in the row, in each of its scenarios, and in its label."""
    for key in ROW.keys() & row.keys():
        check(ROW[key], row[key], f"{where}.{key}")
    if "sweep" not in row:
        return row
    swept = row["sweep"]
    values = (
        f"{PRINTED.get(key, key)} {f'{value:g}' if isinstance(value, float) else value}"
        for key, value in swept.items()
    )
    row = {key: value for key, value in row.items() if key != "sweep"} | swept
    if "label" in row:
        row["label"] += f" ({', '.join(values)})"
    of = {name: {**given, **swept} for name, given in row.get("scenarios", {}).items()}
    return {**row, "scenarios": of} if of else row


def _check_tunings(paper: Paper, where: str) -> None:
    """ParamError for a tuning with seeds whose partitions no seed of its scenario draws."""
    for name, tuning in paper.tuning.items():
        scenario = paper.scenarios[name]
        drawn = {0, *map(scenario.draw, scenario.seeds)}
        if not tuning.seeds or not drawn.issuperset(map(scenario.draw, tuning.seeds)):
            raise ParamError(
                f"{where} tuning.{name}.seeds: must be 0 or some of the scenario's {scenario.seeds}, not "
                f"{tuning.seeds}"
            )


def _references(paper: Paper) -> Iterator[tuple[str, str, Iterable[str]]]:
    """(key, scenario or method, names) of every place in a paper.yaml that names scenarios or methods."""
    named: dict[str, Grid | Figure | Choice] = {f"grids.{key}": grid for key, grid in paper.grids.items()}
    named |= {f"figures.{key}": figure for key, figure in paper.figures.items()}
    named |= {f"readings[{at}]": choice for at, choice in enumerate(paper.readings)}
    for at, item in named.items():
        yield f"{at}.scenarios", "scenario", item.scenarios
        yield f"{at}.methods", "method", item.methods
    for key, table in paper.tables.items():
        for at, block in table.blocks.items():
            yield f"tables.{key}.blocks.{at}", "scenario", [block.scenario]
        for row, name in table.rows.items():
            yield f"tables.{key}.rows.{row}", "method", [] if name is None else [name]
    for part in ("titles", "notes", "extra_scenarios", "tuning"):
        yield part, "scenario", getattr(paper, part)
    for part in ("methods", "others") if paper.miniature else ():
        yield f"miniature.{part}", "method", getattr(paper.miniature, part)
    for key, tuning in paper.tuning.items():
        yield f"tuning.{key}.methods", "method", tuning.methods
    findings = paper.findings
    yield "findings.same_network", "method", [*findings.same_network, *findings.same_network.values()]
    yield "findings.looks", "scenario", findings.looks
    for place, answer in enumerate(findings.answers):
        yield f"findings.answers[{place}].scenario", "scenario", filter(None, [answer.scenario])
    if paper.communication:
        yield "communication.counts", "method", paper.communication.counts
    for key, values in paper.methods.items():
        yield f"methods.{key}.scenarios", "scenario", values.get("scenarios", {})
    algorithms = {values.get("algorithm") for values in paper.methods.values()}
    yield "sources.methods", "method", paper.sources.methods.keys() - algorithms
