"""Reading params.yaml and papers/<paper>/paper.yaml, checked."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from pipeline.errors import ParamError, conflict, unknown
from pipeline.schema.checker import Name, Spelling, Whole, check
from pipeline.schema.paper import ACROSS, MINIATURE, MINIATURES, Figure, Grid, Paper
from pipeline.schema.scenario import check_seeds, setting

ROOT = Path(__file__).resolve().parents[2]


# Of a YAML document; the largest here has some 6,000 values in 6 levels.
MOST_VALUES = 100_000
DEEPEST = 50
# What may stand in a method's row beside hyper-parameters, which the method itself checks.
ROW = {"algorithm": Name, "label": str, "scenarios": dict[str, dict[str, Any]]}
TAKEN = (*MINIATURES, "index")  # names that commands and pages give to something else


@dataclass(frozen=True)
class DataChoice:
    # Where sets that are not bundled come from; auto: the mirror, else the canonical source.
    source: Literal["auto", "mirror", "canonical"] = "auto"
    # Weights of the frozen ViT-Ti/16; untrained: for machines that cannot download them.
    weights: Literal["pretrained", "untrained"] = "pretrained"


@dataclass(frozen=True)
class Common:
    """Values that the miniatures of all papers share unless a paper's miniature has its own; None: the
    scenario's default."""

    seeds: list[Whole] | None = None
    arithmetic: Literal["portable"] | None = None

    def __post_init__(self):
        if self.seeds is not None:
            check_seeds(self.seeds)


@dataclass(frozen=True)
class Params:
    """params.yaml: the settings that a user tunes."""

    data: DataChoice = field(default_factory=DataChoice)
    miniature: Common = field(default_factory=Common)


def read_yaml(path: Path) -> dict:
    """One YAML mapping; a missing file, a syntax error, a repeated key, or a document that aliases blow up is
    a ParamError naming file and line."""
    shown = shorten(path)
    try:
        text = path.read_text(encoding="utf-8")
        _check_size(text)
        document = yaml.load(text, _UniqueKeys)
    except FileNotFoundError:
        raise ParamError(f"{shown}: no such file") from None
    except yaml.MarkedYAMLError as error:
        raise ParamError(f"{shown}{conflict(text) or _told(error, text)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParamError(f"{shown}: {' '.join(str(error).split())}") from None
    if document is not None and not isinstance(document, dict):
        raise ParamError(f"{shown}: expected a mapping, found {document!r:.80}")
    return document or {}


def _told(error: yaml.MarkedYAMLError, text: str) -> str:
    """`:12: what is wrong`."""
    said, mark = ", ".join(filter(None, (error.context, error.problem))), error.problem_mark
    if (
        mark
        and text.splitlines()[mark.line :]
        and text.splitlines()[mark.line][mark.column :].startswith("\t")
    ):
        said = "a tab; YAML is indented with spaces"
    return f"{f':{mark.line + 1}' if mark else ''}: {' '.join(said.split())}"


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """safe_load, by libyaml where PyYAML was built with it, that refuses a key given twice, which YAML would
    silently overwrite, and says the line of a value that is not what it looks like (2024-13-45)."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
                self._check_spelling(key)
        return super().construct_mapping(node, deep)

    def _check_spelling(self, key: yaml.ScalarNode) -> None:
        """YAML 1.1 reads the names `on`, `007` and `12:30` as True, 7 and 750."""
        if key.value in ("true", "false", "null"):  # values of an option, as readings have them
            return
        if key.tag != "tag:yaml.org,2002:str" and str(value := self.construct_object(key)) != key.value:
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"YAML reads the key {key.value!r:.80} as {value!r:.80}: put it in quotes",
                key.start_mark,
            )

    def construct_object(self, node, deep=False):
        try:
            value = super().construct_object(node, deep)
        # int() of too many digits, a date that is none, a tag that does not fit its text
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise _not_a_value(node) from error
        if isinstance(value, int) and abs(value) >= 2**63:
            raise _not_a_value(node)
        return value


# YAML 1.1, which PyYAML reads, takes 1e-2 for text; YAML 1.2, as which DVC reads the same file, for a
# number.
_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _not_a_value(node: yaml.Node) -> yaml.MarkedYAMLError:
    kind = node.tag.rpartition(":")[2]
    return yaml.constructor.ConstructorError(
        None, None, f"{node.value!r:.80} is no {kind} that can be used", node.start_mark
    )


def _check_size(text: str) -> None:
    """MarkedYAMLError for a document that is nested too deeply or, with every alias written out, has too many
    values: each level of aliases may multiply those of the one before."""
    whole: dict[str, int] = {}  # anchor -> the values below it, aliases written out
    inside: list[tuple[str | None, int]] = [(None, 0)]  # (anchor, values before it) of what is open
    count = 0
    for event in yaml.parse(text, _UniqueKeys):
        if isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in inside):
                raise yaml.MarkedYAMLError(None, None, f"*{event.anchor} is inside itself", event.start_mark)
            count += whole.get(event.anchor, 0)
        elif isinstance(event, yaml.NodeEvent):
            inside.append((event.anchor, count))
            count += 1
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionEndEvent)):
            anchor, before = inside.pop()
            if anchor:
                whole[anchor] = count - before
        if count > MOST_VALUES or len(inside) > DEEPEST:
            most = f"{DEEPEST} levels" if count <= MOST_VALUES else f"{MOST_VALUES:,} values, aliases too"
            raise yaml.MarkedYAMLError(None, None, f"more than {most}", event.start_mark)


def shorten(path: Path) -> str:
    """A path as a user sees it: relative to the repository where it lies inside."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@cache
def load_params(root: Path = ROOT) -> Params:
    """params.yaml of the repository at `root`."""
    path = root / "params.yaml"
    return check(Params, read_yaml(path), f"{shorten(path)}:")


def papers(root: Path = ROOT) -> tuple[str, ...]:
    """The papers: every folder of `papers/` with a paper.yaml, in the order that these give."""
    return tuple(sorted(folders(root), key=lambda name: (load_paper(name, root).order, name)))


def folders(root: Path = ROOT) -> list[str]:
    """Names of the papers' folders by the alphabet, without reading what is in them; hidden ones are none."""
    names = sorted(
        path.parent.name for path in root.glob("papers/*/paper.yaml") if not path.parent.name.startswith(".")
    )
    for name in names:
        check_name(name)
    return names


def visible(root: Path, pattern: str) -> list[Path]:
    """The files of a pattern by their paths, without what tools hide beside ours (`._fedprox.json`)."""
    return sorted(
        path
        for path in root.glob(pattern)
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    )


def _special(folder: Path) -> Iterator[Path]:
    """Devices, pipes and sockets below a folder, or links to them: to read one may never end. Hidden names
    are left out, such as a repository's own."""
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or entry.is_file():
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _special(Path(entry.path))
        elif not entry.is_dir() and os.path.exists(entry.path):
            yield Path(entry.path)


def check_name(name: str) -> None:
    """ParamError for a name that a paper's folder cannot have."""
    taken = f"must be none of {', '.join(TAKEN)}" if name in TAKEN else None
    if problem := Spelling().problem(name) or taken:
        raise ParamError(f"papers/{name}: a paper's folder {problem}")


@cache
def load_paper(name: str, root: Path = ROOT) -> Paper:
    """papers/<name>/paper.yaml. Its miniature is added as the scenario `mini`, and once more for the other
    papers' methods."""
    path = root / "papers" / name / "paper.yaml"
    if not Spelling().problem(name) and path.parent.is_dir():
        for one in _special(path.parent):
            raise ParamError(f"{shorten(one)}: a device, a pipe or a socket, not a file: remove it")
    if Spelling().problem(name) or not path.is_file():
        raise ParamError(unknown("paper", name, folders(root)))
    document = read_yaml(path)
    mini = document.get("miniature")
    if isinstance(mini, dict) and isinstance(mini.get("scenario"), dict):
        common = dataclasses.asdict(load_params(root).miniature)
        given = {key: value for key, value in common.items() if value is not None}
        document = {**document, "miniature": {**mini, "scenario": {**given, **mini["scenario"]}}}
    paper = check(Paper, document, f"{shorten(path)}:")
    for method, row in paper.methods.items():
        for key in ROW.keys() & row.keys():
            check(ROW[key], row[key], f"{shorten(path)}: methods.{method}.{key}")
    for name in {MINIATURE, ACROSS} & paper.scenarios.keys():
        raise ParamError(f"{shorten(path)}: scenarios.{name}: the miniature has this name")
    if paper.miniature:
        added = {MINIATURE: paper.miniature.scenario} | (
            {ACROSS: paper.miniature.scenario} if paper.miniature.others else {}
        )
        paper = dataclasses.replace(paper, scenarios={**paper.scenarios, **added})
    for where, kind, item in _references(paper):
        known = paper.scenarios if kind == "scenario" else paper.methods
        if item not in known:
            raise ParamError(f"{shorten(path)}: {where}: {unknown(kind, item, known)}")
    for name, tuning in paper.tuning.items():
        scenario = paper.scenarios[name]
        drawn = {0, *map(scenario.draw, scenario.seeds)}
        if not tuning.seeds or not drawn.issuperset(map(scenario.draw, tuning.seeds)):
            raise ParamError(
                f"{shorten(path)}: tuning.{name}.seeds: must be 0 or some of the scenario's "
                f"{scenario.seeds}, found {tuning.seeds}"
            )
    for name in paper.sources.settings:
        if all(setting(scenario, name) is None for scenario in paper.scenarios.values()):
            raise ParamError(f"{shorten(path)}: sources.settings.{name}: no scenario has such a value")
    return paper


def _references(paper: Paper) -> Iterator[tuple[str, str, str]]:
    """(key, scenario or method, name) of every place in a paper.yaml that names a scenario or a method."""
    plans: dict[str, Mapping[str, Grid | Figure]] = {"grids": paper.grids, "figures": paper.figures}
    for kind, plan in plans.items():
        for key, named in plan.items():
            yield from ((f"{kind}.{key}.scenarios", "scenario", name) for name in named.scenarios)
            yield from ((f"{kind}.{key}.methods", "method", name) for name in named.methods)
    for key, table in paper.tables.items():
        yield from (
            (f"tables.{key}.blocks.{at}", "scenario", block.scenario) for at, block in table.blocks.items()
        )
        yield from (
            (f"tables.{key}.rows.{row}", "method", name)
            for row, name in table.rows.items()
            if name is not None
        )
    for part in ("titles", "notes", "beside"):
        yield from ((part, "scenario", name) for name in getattr(paper, part))
    for part in ("methods", "others") if paper.miniature else ():
        yield from ((f"miniature.{part}", "method", name) for name in getattr(paper.miniature, part))
    for key, tuning in paper.tuning.items():
        yield "tuning", "scenario", key
        yield from ((f"tuning.{key}.methods", "method", name) for name in tuning.methods)
    if paper.communication:
        yield from (("communication.counts", "method", name) for name in paper.communication.counts)
    for key, values in paper.methods.items():
        yield from ((f"methods.{key}.scenarios", "scenario", name) for name in values.get("scenarios", {}))
    for at, choice in enumerate(paper.readings):
        yield from ((f"readings[{at}].scenarios", "scenario", name) for name in choice.scenarios)
        yield from ((f"readings[{at}].methods", "method", name) for name in choice.methods)
    algorithms = {values.get("algorithm") for values in paper.methods.values()}
    yield from (
        ("sources.methods", "method", name) for name in paper.sources.methods if name not in algorithms
    )
