"""`fedrepro sync`: generate the DVC stages of partitions, training, tuning and figures from paper.yaml.

It writes papers/<paper>/dvc.yaml with the miniature's stages and grids/dvc.yaml below it with those of the
paper's scenarios, which .dvcignore hides until one of them is run (`show_grids`). The root's dvc.yaml knows
no paper: it depends on folders under reports/ into which every paper's `results` stage writes.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pipeline.cells import stamps
from pipeline.cells.checks import check_names
from pipeline.data.registry import of_paper, sets
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
    check_links,
    load_paper,
    papers,
    planned,
    read_yaml,
    shorten,
)

# by a paper's repository
IGNORED = "/partitions/\n/representations/\n/final-models/\n/extra-seeds/\n__pycache__/\n"
# of a paper, which only its page reads
OF_PAGE = ("figures.py", "templates")
# of the files that a computed figure is drawn from
ENDS = (".csv", ".json")
WRITTEN = "# Written by `fedrepro sync` from paper.yaml; what is changed here by hand is lost.\n"
PAPER = f"""{WRITTEN}\
# `dvc repro papers/{{key}}/dvc.yaml` runs the whole paper, and with `:mini@<method>` at its end one cell.
#   sources         digests of the code behind every cell
#   data            the paper's data sets
#   partition-mini  the miniature's data, cut over its clients
#   mini            the small protocol that `dvc repro` runs
#   across          the same with the other papers' methods
#   results         what DVC shows, and by what it knows when to render the reports
#   report          the page of the paper, with whatever was run of its grids
# The others are figures of the miniature. `persist`: outputs stay until a stage replaces them. What is not in
# git (data, partitions) is no dependency of a cell, but the committed file that the same stage writes.
"""
GRIDS = f"{WRITTEN}# Partitions, grids and figures; DVC ignores them until `fedrepro run` runs one.\n"
GRID = f"{WRITTEN}# A large grid, which `dvc repro papers/{{key}}/dvc.yaml` leaves out.\n"
TUNING = f"""{WRITTEN}\
# `fedrepro tune {{key}}` runs it; no stage outside this file needs it.
#   split-*      validation images, of every client's training images
#   tune-*       method -> its algorithm, of whose search space the configurations are
#   tuned-*      with the chosen values, on all training images, scored on test images
#   published-*  the same with the row's values
"""
# from the folder of a grid's or tuning's dvc.yaml to the root
BELOW = "../../.."
Stages = dict[str, dict[str, Any]]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(check: bool = False) -> int:
    """Write what differs, or only name it; returns the exit code."""
    changed = sync(check=check)
    for path in changed:
        print(f"{shorten(path)}: {'not as paper.yaml says; fedrepro sync writes it' if check else 'written'}")
    return 1 if check and changed else 0


def sync(root: Path = ROOT, check: bool = False) -> list[Path]:
    """Write what differs, and return it; with `check` nothing is written. ParamError for a further file of
    DVC's in a paper's folder, whose commands would run as well, and for a link that leads out."""
    check_links(root)
    texts = written(root)
    for path in _others(root, texts):
        raise ParamError(f"{shorten(path)}: no file of DVC's that `fedrepro sync` writes: remove it")
    changed = {
        path: text
        for path, text in texts.items()
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text
    }
    if not check:
        for path, text in changed.items():
            write_text(path, text)
    return list(changed)


def show_grids(root: Path = ROOT) -> None:
    """Let DVC see the stages that .dvcignore hides in this checkout, until these files are deleted."""
    for folder in ("papers", "data"):
        if not (path := root / folder / ".dvcignore").exists():
            write_text(path, "!dvc.yaml\n")


def _others(root: Path, texts: dict[Path, str]) -> Iterator[Path]:
    """What else DVC would read below papers/: another dvc.yaml, or a *.dvc."""
    for folder, inside, names in os.walk(root / "papers"):
        inside[:] = [name for name in inside if name not in (".git", ".dvc")]
        for name in names:
            if (name == "dvc.yaml" or name.endswith(".dvc")) and Path(folder, name) not in texts:
                yield Path(folder, name)


def written(root: Path = ROOT) -> dict[Path, str]:
    """Every dvc.yaml of the papers, as it should be, and the stamps of a paper that has none yet."""
    texts = {}
    for key in papers(root):
        check_names(key, root)
        folder, paper = root / "papers" / key, load_paper(key, root)
        texts[folder / "dvc.yaml"] = _text(PAPER, key, _paper(key, paper, root))
        if stages := _grids(key, paper):
            read = _read(key, root, "scenarios", "grids", "figures", above="../")
            texts[folder / "grids" / "dvc.yaml"] = _text(GRIDS, key, {"vars": read, "stages": stages})
        for name, grid in paper.grids.items():
            if grid.separate_file:
                document = {"vars": ["../paper.yaml"], "stages": {name: _grid(key, name, paper)}}
                texts[folder / name / "dvc.yaml"] = _text(GRID, key, document)
        if (folder / ".git").exists() and not (folder / ".gitignore").exists():
            texts[folder / ".gitignore"] = IGNORED
        if not (folder / stamps.FILE).exists():  # DVC waits for it
            texts[folder / stamps.FILE] = stamps.HEADER
        if paper.tuning:
            texts[folder / "tuning" / "dvc.yaml"] = _text(TUNING, key, {"stages": _tuning(key, paper, root)})
    return texts


def _text(header: str, key: str, document: dict) -> str:
    return header.format(key=key) + yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=160, allow_unicode=True
    )


# -- the parts of a stage ------------------------------------------------------------------------------------


def _stage(command: str, *, wdir: str = "../..", matrix: dict | None = None, **rest: Any) -> dict[str, Any]:
    """A stage; `deps`, `params` and `outs` as DVC takes them, left out where empty."""
    items = {"matrix": matrix} if matrix else {}
    return {"wdir": wdir, **items, "cmd": f"python -m stages.{command}"} | {
        k: v for k, v in rest.items() if v
    }


def _committed(*paths: str) -> list:
    """Outputs that git has instead of DVC's cache."""
    return [{path: {"cache": False, "persist": True}} for path in paths]


def _cached(*paths: str) -> list:
    return [{path: {"persist": True}} for path in paths]


def _results(key: str, folder: str, scenario: str, method: str, keep: str | None = None) -> list:
    """What training a cell writes; `keep` as of its scenario. A miniature's representations are no output:
    they are not in git, and a fresh clone would train for them."""
    at, name = f"papers/{key}", f"{scenario}/{method}"
    drawn = [f"{at}/representations/{name}.npz"] * (scenario not in MINIATURES)
    return [
        *_committed(f"{at}/{folder}/{name}/result.json", f"{at}/{folder}/{name}/history.csv"),
        *_cached(*drawn, *[f"{at}/final-models/{name}"] * bool(keep)),
    ]


def _set(name: str) -> str:
    """What a miniature's stage depends on: of a bundled set the digests, which are in git."""
    known = sets().get(name.removesuffix("-corrupted"))
    return f"data/{name}.json" if known and known.bundled else f"data/{name}"


def _sets(scenario: Scenario) -> list[str]:
    return [_set(part.set) for part in (scenario.data, scenario.public) if part]


def _extra(scenario: Scenario) -> list[str]:
    """What a cell reads besides its partition's sets."""
    name = scenario.data.set
    corrupted = [f"data/{name}-corrupted"] if scenario.corruption is not None else []
    features = [f"data/{name}-{scenario.data.features}"] if scenario.data.features != "pixels" else []
    return corrupted + features


# -- a paper's stages ----------------------------------------------------------------------------------------


def _paper(key: str, paper: Paper, root: Path) -> dict[str, Any]:
    at, miniature = f"papers/{key}", paper.miniature
    parts = [
        f"{at}/{part}" for part in ("params.yaml", "methods", "models.py", "partitions.py", "metrics.py")
    ]
    code = ["pipeline", "stages", f"{at}/verified.yaml", "params.yaml", f"{at}/paper.yaml"]
    code += [part for part in parts if (root / part).exists()]
    stages = {"sources": _stage(f"sources {key}", deps=code, outs=_committed(f"{at}/sources.yaml"))}
    if sets := of_paper(key, root):
        stages["data"] = _stage(
            "data ${item.set}",
            matrix={"set": [*sets]},
            deps=[f"{at}/data.py"],
            params=[{"params.yaml": ["data.source"]}, {"sources.yaml": ["data"]}],
            outs=_cached("data/${item.set}"),
        )
    if miniature:
        stages |= _miniature(key, paper)
    drawn, of_miniature = _miniature_figures(key, paper, root)
    stages |= drawn
    stages["results"] = _read_by_dvc(key, root, bool(miniature), of_miniature)
    read = [f"{at}/sources.yaml", f"{at}/runs", *[f"{at}/figures"] * bool(of_miniature)]
    read += [f"{at}/{name}" for name in OF_PAGE if (root / at / name).exists()]
    stages["report"] = _stage(f"report {key}", deps=read, params=[{"sources.yaml": ["report"]}])
    plots = {"plots": [_curves(key, paper.name)]} if miniature else {}
    return {
        "vars": _read(key, root, "miniature", "figures"),
        **({"params": ["params.yaml"]} if (root / at / "params.yaml").exists() else {}),
        "metrics": [f"../../reports/metrics/{key}.json"],
        **plots,
        "stages": stages,
    }


def _grids(key: str, paper: Paper) -> Stages:
    """The stages of papers/<paper>/grids/dvc.yaml."""
    grids = {name: _grid(key, name, paper) for name, grid in paper.grids.items() if not grid.separate_file}
    return _partitions(key, paper) | grids | _grid_figures(key, paper)


def _read(key: str, root: Path, *names: str, above: str = "") -> list[str]:
    """What the stages take from paper.yaml: params.yaml, which DVC reads too, must not have the same keys."""
    document = read_yaml(root / "papers" / key / "paper.yaml")
    there = [name for name in names if name in document]
    return [f"{above}paper.yaml:{','.join(there)}"] if there else []


def _read_by_dvc(key: str, root: Path, miniature: bool, drawings: list[str]) -> dict[str, Any]:
    """The stage that writes curves, metrics and the digests of the page's inputs."""
    at = f"papers/{key}"
    names = ("paper.yaml", "claims.csv", "published", *OF_PAGE)
    texts = [name for name in names if (root / at / name).exists()]
    inputs = [
        f"{at}/{name}" for name in (*texts, "sources.yaml", *[f"runs/{MINIATURE}"] * miniature)
    ] + drawings
    files = (f"reports/curves/{key}.csv", f"reports/inputs/{key}.json", f"reports/metrics/{key}.json")
    params = [{"sources.yaml": ["results"]}]
    return _stage(f"results {key}", deps=inputs, params=params, outs=_committed(*files))


def _curves(key: str, name: str) -> dict[str, dict[str, str]]:
    """Of `dvc plots show`; DVC replaces nothing in the paper's name."""
    title = " ".join(name.split()).replace("${", "\\${")
    return {
        f"../../reports/curves/{key}.csv": {
            "x": "round",
            "y": "accuracy",
            "y_label": "accuracy, %",
            "template": "methods",
            "title": f"{title}, miniature",
        }
    }


def _partition(
    key: str, scenario: str, name: str, deps: list[str], params: list, wdir: str = BELOW
) -> dict[str, Any]:
    at = f"papers/{key}"
    table = _committed(f"{at}/runs/{scenario}/clients.csv")
    return _stage(
        f"partition {key}/{scenario}",
        wdir=wdir,
        deps=deps,
        params=[*params, {f"{at}/sources.yaml": [f"partition.{name}"]}],
        outs=_cached(f"{at}/partitions/{scenario}") + table,
    )


def _partitions(key: str, paper: Paper) -> Stages:
    """One stage for the scenarios without public images and one for those with them."""
    written = {name: scenario for name, scenario in paper.scenarios.items() if name not in MINIATURES}
    stages: Stages = {}
    for stage, parts in (("partition", ["data"]), ("partition-public", ["data", "public"])):
        some = {name: one for name, one in written.items() if (one.public is not None) == ("public" in parts)}
        if not some:
            continue
        items: Any = "${scenarios}"
        if len(some) < len(written):
            items = {
                name: {part: {"set": getattr(one, part).set} for part in parts} for name, one in some.items()
            }
        deps = [f"data/${{item.{part}.set}}" for part in parts]
        params = [{f"papers/{key}/paper.yaml": ["scenarios.${key}"]}]
        name = "partition" if len(some) == len(written) else stage
        stages[name] = {"foreach": items, "do": _partition(key, "${key}", "${key}", deps, params)}
    return stages


def _miniature(key: str, paper: Paper) -> Stages:
    assert paper.miniature is not None
    scenario, at = paper.miniature.scenario, f"papers/{key}"
    params = [{"params.yaml": ["miniature"]}, {f"{at}/paper.yaml": ["miniature.scenario"]}]
    corrupted_or_frozen = [_set(path.removeprefix("data/")) for path in _extra(scenario)]
    cut = _partition(key, MINIATURE, MINIATURE, _sets(scenario), params, wdir="../..")
    stages, method = {"partition-mini": cut}, "${item.method}"
    for name, rows in ((MINIATURE, "methods"), *[(ACROSS, "others")] * bool(paper.miniature.others)):
        stages[name] = _stage(
            f"train {key}/{name}/{method}",
            matrix={"method": f"${{miniature.{rows}}}"},
            deps=[f"{at}/runs/{MINIATURE}/clients.csv", *corrupted_or_frozen],
            params=[
                {"params.yaml": ["miniature"]},
                {f"{at}/paper.yaml": ["miniature.scenario", f"methods.{method}"]},
                {f"{at}/sources.yaml": [f"cells.{name}.{method}"]},
            ],
            outs=_results(key, "runs", name, method, scenario.keep),
        )
    return stages


def _grid(key: str, name: str, paper: Paper) -> dict[str, Any]:
    scenarios = [paper.scenarios[scenario] for scenario in paper.grids[name].scenarios]
    alike = {(tuple(_extra(scenario)), scenario.keep) for scenario in scenarios}
    if len(alike) > 1:
        raise ParamError(
            f"papers/{key}/paper.yaml: grids.{name}: its scenarios read different sets of corrupted images "
            "or frozen features, or `keep` differs; give each another grid"
        )
    extra, keep = next(iter(alike), ((), None))
    at, scenario, method = f"papers/{key}", "${item.scenario}", "${item.method}"
    return _stage(
        f"train {key}/{scenario}/{method}",
        wdir=BELOW,
        matrix={part: f"${{grids.{name}.{part}s}}" for part in ("scenario", "method")},
        deps=[f"{at}/partitions/{scenario}", *extra],
        params=[
            {f"{at}/paper.yaml": [f"scenarios.{scenario}", f"methods.{method}"]},
            {f"{at}/sources.yaml": [f"cells.{scenario}.{method}"]},
        ],
        outs=_results(key, "runs", scenario, method, keep),
    )


def _miniature_figures(key: str, paper: Paper, root: Path) -> tuple[Stages, list[str]]:
    """A stage for every computed figure of the miniature, and what they write."""
    cells, at, stages, written = set(planned(key, root)), f"papers/{key}/figures", Stages(), []
    for name, figure in paper.figures.items():
        if figure.kind == PICTURE and paper.miniature:
            stages[f"{name}-{MINIATURE}"] = _picture(key, name, MINIATURE, paper, "../..")
            written += [f"{at}/{name}-{MINIATURE}.png"]
        methods = [method for method in figure.methods if Cell(key, MINIATURE, method) in cells]
        if figure.kind in COMPUTED and methods:
            matrix = {"method": f"${{figures.{name}.methods}}" if methods == figure.methods else methods}
            needs = f"papers/{key}/runs/{MINIATURE}/${{item.method}}/result.json"
            stages[f"{name}-{MINIATURE}"] = _computed(key, name, MINIATURE, matrix, needs, "../..")
            written += [f"{at}/{name}-{MINIATURE}-{method}{end}" for method in methods for end in ENDS]
    return stages, written


def _grid_figures(key: str, paper: Paper) -> Stages:
    """The same for the paper's scenarios."""
    stages: Stages = {}
    for name, figure in paper.figures.items():
        if figure.kind == PICTURE:
            stages |= {f"{name}-{one}": _picture(key, name, one, paper, BELOW) for one in figure.scenarios}
        elif figure.kind in COMPUTED and figure.scenarios:
            matrix = {part: f"${{figures.{name}.{part}s}}" for part in ("scenario", "method")}
            needs = f"papers/{key}/representations/${{item.scenario}}/${{item.method}}.npz"
            stages[name] = _computed(key, name, "${item.scenario}", matrix, needs, BELOW)
    return stages


def _picture(key: str, name: str, scenario: str, paper: Paper, wdir: str) -> dict[str, Any]:
    return _stage(
        f"figures {key}/{scenario} {name}",
        wdir=wdir,
        deps=[_set(paper.scenarios[scenario].data.set)],
        params=[{"sources.yaml": ["figures"]}],
        outs=_committed(f"papers/{key}/figures/{name}-{scenario}.png"),
    )


def _computed(key: str, name: str, scenario: str, matrix: dict, needs: str, wdir: str) -> dict[str, Any]:
    cell = f"{scenario}/${{item.method}}"
    at = f"papers/{key}/figures/{name}-{scenario}-${{item.method}}"
    return _stage(
        f"figures {key}/{cell} {name}",
        wdir=wdir,
        matrix=matrix,
        deps=[needs],
        params=[{"sources.yaml": ["figures"]}],
        outs=_committed(*(at + end for end in ENDS)),
    )


# -- tuning --------------------------------------------------------------------------------------------------


def _tuning(key: str, paper: Paper, root: Path) -> Stages:
    stages: Stages = {}
    for partition in dict.fromkeys(Cell(key, name, "").partition for name in paper.tuning):
        at = f"papers/{key}/partitions/{partition}"
        stages[f"split-{partition}"] = _stage(
            f"split {key}/{partition}",
            wdir=BELOW,
            deps=[at],
            params=[{"sources.yaml": ["split"]}],
            outs=_cached(f"{at}-trial"),
        )
    for name in paper.tuning:
        stages |= _tuned(key, name, paper, root)
    return stages


def _tuned(key: str, name: str, paper: Paper, root: Path) -> Stages:
    """Of a scenario: choosing for each method, then training with the chosen and with the row's values."""
    document, tuning, miniature = (
        read_yaml(root / "papers" / key / "paper.yaml"),
        paper.tuning[name],
        name in MINIATURES,
    )
    place = "miniature.scenario" if miniature else f"scenarios.{name}"
    settings = document["miniature"]["scenario"] if miniature else document["scenarios"][name]
    at, partition = f"papers/{key}", f"papers/{key}/partitions/{Cell(key, name, '').partition}"
    extra, chosen = _extra(paper.scenarios[name]), f"{at}/tuning/{name}/${{key}}.json"
    shared = [{"params.yaml": ["miniature"]}] * miniature
    shared += [{f"{at}/sources.yaml": [f"cells.{name}.${{key}}"]}]

    def stage(word: str, deps: list[str], params: list, outs: list) -> dict[str, Any]:
        command = f"tune {key}/{name}/${{key}} {word}".rstrip()
        do = _stage(command, wdir=BELOW, deps=deps, params=params, outs=outs)
        return {"foreach": {method: paper.algorithm(method) for method in tuning.methods}, "do": do}

    # A configuration trains with the tuning's seeds: more of the scenario's change no choice.
    of_choice = [f"{place}.{setting}" for setting in settings if setting != "seeds"]
    of_choice += ["methods.${key}", f"tuning.{name}.configurations", f"tuning.{name}.seeds"]
    params = [{f"{at}/paper.yaml": of_choice}, *shared]
    params += [{"sources.yaml": ["tune"]}, {SPACES: ["learning_rate", "${item}"]}]
    stages = {f"tune-{name}": stage("", [f"{partition}-trial", *extra], params, _committed(chosen))}
    of_final = [place, "methods.${key}", *[f"tuning.{name}.test_seeds"] * bool(tuning.test_seeds)]
    for kind, word in (("tuned", "chosen"), ("published", "published"))[: 2 if tuning.test_seeds else 1]:
        stages[f"{kind}-{name}"] = stage(
            word,
            [partition, *extra, *[chosen] * (kind == "tuned")],
            [{f"{at}/paper.yaml": of_final}, *shared],
            _results(key, "tuning", f"{name}-{kind}", "${key}"),
        )
    return stages
