"""Reading params.yaml and papers/<paper>/paper.yaml, checked."""
import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from pipeline.errors import ParamError, unknown
from pipeline.schema.checker import Whole, check
from pipeline.schema.paper import ACROSS, MINIATURE, Figure, Grid, Paper
from pipeline.schema.scenario import setting

ROOT = Path(__file__).resolve().parents[2]


# What a paper's folder may be called, since the name is part of stages, paths and commands.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
TAKEN = (MINIATURE, ACROSS, "index")                # names that commands and pages give to something else


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


@dataclass(frozen=True)
class Params:
    """params.yaml: the settings that a user tunes."""
    data: DataChoice = field(default_factory=DataChoice)
    miniature: Common = field(default_factory=Common)


def read_yaml(path: Path) -> dict:
    """One YAML mapping; a missing file, a syntax error or a repeated key is a ParamError naming file and
    line."""
    shown = shorten(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys) or {}
    except FileNotFoundError:
        raise ParamError(f"{shown}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParamError(f"{shown}: {' '.join(str(error).split())}") from None


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """safe_load, by libyaml where PyYAML was built with it, that refuses a key given twice, which YAML would
    silently overwrite."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


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


def check_name(name: str) -> None:
    """ParamError for a name that a paper's folder cannot have."""
    if not NAME.fullmatch(name) or name in TAKEN:
        raise ParamError(f"papers/{name}: a paper's folder is named with letters, digits, - and _, "
                         f"and is none of {', '.join(TAKEN)}")


@cache
def load_paper(name: str, root: Path = ROOT) -> Paper:
    """papers/<name>/paper.yaml. Its miniature is added as the scenario `mini`, and once more for the other
    papers' methods."""
    path = root / "papers" / name / "paper.yaml"
    if not NAME.fullmatch(name) or not path.is_file():
        raise ParamError(unknown("paper", name, folders(root)))
    document = read_yaml(path)
    mini = document.get("miniature")
    if isinstance(mini, dict) and isinstance(mini.get("scenario"), dict):
        common = dataclasses.asdict(load_params(root).miniature)
        given = {key: value for key, value in common.items() if value is not None}
        document = {**document, "miniature": {**mini, "scenario": {**given, **mini["scenario"]}}}
    paper = check(Paper, document, f"{shorten(path)}:")
    if paper.miniature:
        added = {MINIATURE: paper.miniature.scenario} | (
            {ACROSS: paper.miniature.scenario} if paper.miniature.others else {}
        )
        paper = dataclasses.replace(paper, scenarios={**paper.scenarios, **added})
    for where, kind, item in _references(paper):
        known = paper.scenarios if kind == "scenario" else paper.methods
        if item not in known:
            raise ParamError(f"{shorten(path)}: {where}: {unknown(kind, item, known)}")
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
        yield from ((f"tables.{key}.blocks.{at}", "scenario", name) for at, block in table.blocks.items()
                    for name in (block.scenario, block.previous) if name is not None)
        yield from (
            (f"tables.{key}.rows.{row}", "method", name)
            for row, name in table.rows.items()
            if name is not None
        )
    for part in ("titles", "notes", "beside"):
        yield from ((part, "scenario", name) for name in getattr(paper, part))
    for part in ("methods", "others") if paper.miniature else ():
        yield from ((f"miniature.{part}", "method", name) for name in getattr(paper.miniature, part))
    if paper.communication:
        yield from (("communication.counts", "method", name) for name in paper.communication.counts)
    for key, values in paper.methods.items():
        yield from (
            (f"methods.{key}.scenarios", "scenario", name) for name in (values or {}).get("scenarios", {})
        )
    for at, choice in enumerate(paper.readings):
        yield from ((f"readings[{at}].scenarios", "scenario", name) for name in choice.scenarios)
        yield from ((f"readings[{at}].methods", "method", name) for name in choice.methods)
    algorithms = {(values or {}).get("algorithm") for values in paper.methods.values()}
    yield from (
        ("sources.methods", "method", name) for name in paper.sources.methods if name not in algorithms
    )
