"""Writes papers/<paper>/dvc.yaml from paper.yaml: a stage per partition, grid and computed figure, and the
miniature's.

DVC has no way to include a file or to list folders, so the stages are written out, with its own templating,
and committed. The root's dvc.yaml knows no paper: it depends on folders under reports/ into which every
paper's `results` stage writes.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jinja2

from pipeline.cells import stamps
from pipeline.cells.checks import check_names
from pipeline.errors import ParamError
from pipeline.files import write_text
from pipeline.schema import (
    ACROSS,
    COMPUTED,
    MINIATURE,
    MINIATURES,
    PICTURE,
    ROOT,
    SPACES,
    Cell,
    Paper,
    Scenario,
    load_paper,
    papers,
    planned,
    read_yaml,
    shorten,
)

TEMPLATE, TUNING = "dvc.yaml.j2", "tuning.yaml.j2"
ENDS = (".csv", ".json")  # of the files that a computed figure is drawn from


def sync(root: Path = ROOT, check: bool = False) -> list[Path]:
    """Write what differs, and return it; with `check` nothing is written. ParamError for a further file of
    DVC's in a paper's folder, whose commands would run beside the written ones."""
    texts = written(root)
    for path in _others(root, texts):
        raise ParamError(f"{shorten(path)}: no file of DVC's that `fedrepro sync` writes: remove it")
    found = {
        path: text
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text
    }
    if not check:
        for path, text in found.items():
            write_text(path, text)
    return list(found)


def _others(root: Path, texts: dict[Path, str]) -> Iterator[Path]:
    """What DVC would read below papers/ beside the files written: another dvc.yaml, or a *.dvc."""
    for folder, inside, names in os.walk(root / "papers"):
        inside[:] = [name for name in inside if name not in (".git", ".dvc")]
        yield from (
            path
            for name in names
            if name == "dvc.yaml" or name.endswith(".dvc")
            if (path := Path(folder, name)) not in texts
        )


def written(root: Path = ROOT) -> dict[Path, str]:
    """Every dvc.yaml of the papers, as it should be, and the stamps of a paper that has none yet."""
    texts = {}
    for key in papers(root):
        check_names(key, root)
        folder, grids = root / "papers" / key, load_paper(key, root).grids
        texts[folder / "dvc.yaml"] = _filled(
            key, [name for name, grid in grids.items() if not grid.apart], root
        )
        texts |= {
            folder / name / "dvc.yaml": _filled(key, [name], root, apart=True)
            for name, grid in grids.items()
            if grid.apart
        }
        if not (folder / stamps.FILE).exists():  # DVC waits for it
            texts[folder / stamps.FILE] = stamps.HEADER
        if load_paper(key, root).tuning:
            texts[folder / "tuning" / "dvc.yaml"] = _tuning(key, root)
    return texts


def _tuning(key: str, root: Path) -> str:
    paper, document = load_paper(key, root), read_yaml(root / "papers" / key / "paper.yaml")

    def settings(name: str) -> list[str]:
        """A configuration trains with the tuning's seeds: more of the scenario's change no choice."""
        scenario = document["miniature"]["scenario"] if name in MINIATURES else document["scenarios"][name]
        return [setting for setting in scenario if setting != "seeds"]

    tunings = [
        {
            "scenario": name,
            "partition": Cell(key, name, "").partition,
            "mini": (mini := name in MINIATURES),
            "at": "miniature.scenario" if mini else f"scenarios.{name}",
            "settings": settings(name),
            "extra": _extra(paper.scenarios[name]),
            "methods": [f"{m}: {paper.algorithm(m)}" for m in tuning.methods],
            "seeds": bool(tuning.test_seeds),
        }
        for name, tuning in paper.tuning.items()
    ]
    splits = dict.fromkeys(str(one["partition"]) for one in tunings)
    return _environment().get_template(TUNING).render(key=key, tunings=tunings, splits=splits, spaces=SPACES)


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=False,
        lstrip_blocks=True,
    )
    made.filters["quoted"] = _quoted
    return made


def _quoted(text: str) -> str:
    """A user's text between YAML's single quotes, in which DVC replaces nothing."""
    return " ".join(text.split()).replace("'", "''").replace("${", "\\${")


def _filled(key: str, names: list[str], root: Path, apart: bool = False) -> str:
    paper, folder = load_paper(key, root), root / "papers" / key
    grids = [_grid(key, name, paper, at > 0) for at, name in enumerate(names)]
    figures = [] if apart else list(_figures(key, paper, root))
    context = {
        "key": key,
        "paper": paper,
        "apart": apart,
        "grids": grids,
        "figures": figures,
        "mini": None if apart else _mini(paper),
        "own": (folder / "methods").is_dir(),
        "partitions": [] if apart else list(_partitions(paper)),
        "corruptions": not apart
        and any(scenario.corruption is not None for scenario in paper.scenarios.values()),
    }
    return _environment().get_template(TEMPLATE).render(**context, **_dependencies(key, folder, context))


def _dependencies(key: str, folder: Path, context: dict) -> dict[str, list[str]]:
    """What the stages `results` and `report` read."""
    mine = f"papers/{key}"
    figures = [out for figure in context["figures"] for out in figure["of_mini"]]
    figures += [f"{mine}/figures/corruptions.png"] if context["corruptions"] else []
    texts = [
        f"{mine}/{name}" for name in ("paper.yaml", "claims.csv", "published") if (folder / name).exists()
    ]
    sources = f"{mine}/sources.yaml"
    return {
        "inputs": [*texts, sources, f"{mine}/runs/{MINIATURE}", *figures],
        "report_deps": [sources, f"{mine}/runs", *[f"{mine}/figures"] * bool(figures)],
    }


def _sets(scenario: Scenario) -> list[str]:
    return [f"data/{part.set}" for part in (scenario.data, scenario.public) if part]


def _extra(scenario: Scenario) -> str:
    """What a cell reads besides its partition's sets."""
    found = [f"data/{scenario.data.set}-corrupted"] if scenario.corruption is not None else []
    found += (
        [f"data/{scenario.data.set}-{scenario.data.features}"] if scenario.data.features != "pixels" else []
    )
    return "".join(f", {name}" for name in found)


def _mini(paper: Paper) -> dict | None:
    mini = paper.miniature
    if mini is None:
        return None
    stages = [(MINIATURE, "methods", "the small protocol that `dvc repro` runs")]
    stages += [(ACROSS, "others", "the same with the other papers' methods")] if mini.others else []
    return {"sets": _sets(mini.scenario), "extra": _extra(mini.scenario), "stages": stages}


def _partitions(paper: Paper) -> Iterator[dict]:
    """One stage for the scenarios without public images and one for those with them."""
    own = {key: scenario for key, scenario in paper.scenarios.items() if key not in MINIATURES}
    for stage, public in (("partition", False), ("partition-public", True)):
        names = [key for key, scenario in own.items() if (scenario.public is not None) == public]
        everything = len(names) == len(own)
        sets = {"data": ".data.set", **({"public": ".public.set"} if public else {})}
        if names:
            of = ", ".join(f"{name}: {{{_sets_of(own[name], sets)}}}" for name in names)
            yield {
                "stage": "partition" if everything else stage,
                "foreach": "${scenarios}" if everything else f"{{{of}}}",
                "deps": [f'"data/${{item{path}}}"' for path in sets.values()],
            }


def _sets_of(scenario: Scenario, parts: Iterable[str]) -> str:
    return ", ".join(f"{part}: {{set: {getattr(scenario, part).set}}}" for part in parts)


def _grid(key: str, name: str, paper: Paper, same: bool) -> dict:
    grid = paper.grids[name]
    deps = {_extra(paper.scenarios[scenario]) for scenario in grid.scenarios}
    if len(deps) > 1:
        raise ParamError(
            f"papers/{key}/paper.yaml: grids.{name}: its scenarios read different sets of corrupted images "
            "or frozen features; give each a grid of its own"
        )
    return {"name": name, "same": same, "deps": deps.pop() if deps else ""}


def _figures(key: str, paper: Paper, root: Path) -> Iterator[dict]:
    """For every computed figure a stage for the miniature's cells and one for the paper's own."""
    cells = set(planned(key, root))
    for name, figure in paper.figures.items():
        if figure.kind == PICTURE:
            for scenario in [MINIATURE] * bool(paper.miniature) + figure.scenarios:
                outs = [f"papers/{key}/figures/{name}-{scenario}.png"]
                yield {
                    "stage": f"{name}-{scenario}",
                    "key": name,
                    "cell": scenario,
                    "matrix": "",
                    "outs": outs,
                    "dep": f"data/{paper.scenarios[scenario].data.set}",
                    "of_mini": outs if scenario == MINIATURE else [],
                }
        elif figure.kind in COMPUTED:
            methods = [method for method in figure.methods if Cell(key, MINIATURE, method) in cells]
            if methods:
                chosen = (
                    f'"${{figures.{name}.methods}}"'
                    if methods == figure.methods
                    else f"[{', '.join(methods)}]"
                )
                yield _computed(key, name, f"{name}-{MINIATURE}", MINIATURE, f"{{method: {chosen}}}", methods)
            if figure.scenarios:
                yield _computed(
                    key,
                    name,
                    name,
                    "${item.scenario}",
                    f'{{scenario: "${{figures.{name}.scenarios}}", method: "${{figures.{name}.methods}}"}}',
                )


def _computed(
    key: str, name: str, stage: str, scenario: str, matrix: str, of_mini: Sequence[str] = ()
) -> dict:
    at = f"papers/{key}/figures/{name}-{scenario}-"
    return {
        "stage": stage,
        "key": name,
        "cell": scenario + "/${item.method}",
        "matrix": matrix,
        "dep": f'"papers/{key}/representations/{scenario}/${{item.method}}.npz"',
        "outs": [f"{at}${{item.method}}{end}" for end in ENDS],
        "of_mini": [at + method + end for method in of_mini for end in ENDS],
    }
