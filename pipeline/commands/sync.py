"""`fedrepro sync`: generate the DVC stages of partitions, training, tuning and figures from paper.yaml.

It writes papers/<paper>/dvc.yaml: a stage per partition, grid and computed figure, and the miniature's. DVC
has no way to include a file or to list folders, so the stages are written out, with DVC's templating, and
committed. The root's dvc.yaml knows no paper: it depends on folders under reports/ into which every paper's
`results` stage writes.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pipeline.cells import stamps
from pipeline.cells.checks import check_names
from pipeline.data.registry import of_paper
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
#   sources      digests of the code behind every cell
#   data         the paper's data sets
#   partition*   each scenario's data, cut over its clients
#   mini         the small protocol that `dvc repro` runs
#   across       the same with the other papers' methods
#   results      what DVC shows, and by what it knows when to render the reports
#   report       the page of the paper, with whatever was run of its grids
# The others are grids and figures of paper.yaml. `persist`: outputs stay until a stage replaces them.
"""
GRID = f"{WRITTEN}# A large grid, which `dvc repro papers/{{key}}/dvc.yaml` leaves out.\n"
TUNING = f"""{WRITTEN}\
# `fedrepro tune {{key}}` runs it; no stage outside this file needs it.
#   split-*      validation images, of every client's training images
#   tune-*       method -> its algorithm, of whose search space the configurations are
#   tuned-*      with the chosen values, on all training images, scored on test images
#   published-*  the same with the row's values
"""
Stages = dict[str, dict[str, Any]]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


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
        for name, grid in paper.grids.items():
            if grid.separate_file:
                document = {"vars": ["../paper.yaml"], "stages": {name: _grid(key, name, paper, "../../..")}}
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
    """What training a cell writes; `keep` as of its scenario."""
    at, name = f"papers/{key}", f"{scenario}/{method}"
    return [
        *_committed(f"{at}/{folder}/{name}/result.json", f"{at}/{folder}/{name}/history.csv"),
        *_cached(f"{at}/representations/{name}.npz", *[f"{at}/final-models/{name}"] * bool(keep)),
    ]


def _sets(scenario: Scenario) -> list[str]:
    return [f"data/{part.set}" for part in (scenario.data, scenario.public) if part]


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
    stages |= _partitions(key, paper)
    if miniature:
        stages |= _miniature(key, paper)
    stages |= {name: _grid(key, name, paper) for name, grid in paper.grids.items() if not grid.separate_file}
    drawn, of_miniature = _figures(key, paper, root)
    stages |= drawn
    stages["results"] = _read_by_dvc(key, root, bool(miniature), of_miniature)
    read = [f"{at}/sources.yaml", f"{at}/runs", *[f"{at}/figures"] * bool(of_miniature)]
    read += [f"{at}/{name}" for name in OF_PAGE if (root / at / name).exists()]
    stages["report"] = _stage(f"report {key}", deps=read, params=[{"sources.yaml": ["report"]}])
    plots = {"plots": [_curves(key, paper.name)]} if miniature else {}
    return {
        "vars": [f"paper.yaml:{','.join(_read(key, root))}"],
        **({"params": ["params.yaml"]} if (root / at / "params.yaml").exists() else {}),
        "metrics": [f"../../reports/metrics/{key}.json"],
        **plots,
        "stages": stages,
    }


def _read(key: str, root: Path) -> list[str]:
    """What the stages take from paper.yaml: params.yaml, which DVC reads too, must not have the same keys."""
    document = read_yaml(root / "papers" / key / "paper.yaml")
    return [name for name in ("scenarios", "miniature", "grids", "figures") if name in document]


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


def _partition(key: str, scenario: str, name: str, deps: list[str], params: list) -> dict[str, Any]:
    at = f"papers/{key}"
    table = _committed(f"{at}/runs/{scenario}/clients.csv")
    return _stage(
        f"partition {key}/{scenario}",
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
    stages = {"partition-mini": _partition(key, MINIATURE, MINIATURE, _sets(scenario), params)}
    method = "${item.method}"
    for name, rows in ((MINIATURE, "methods"), *[(ACROSS, "others")] * bool(paper.miniature.others)):
        stages[name] = _stage(
            f"train {key}/{name}/{method}",
            matrix={"method": f"${{miniature.{rows}}}"},
            deps=[f"{at}/partitions/{MINIATURE}", *_extra(scenario)],
            params=[
                {"params.yaml": ["miniature"]},
                {f"{at}/paper.yaml": ["miniature.scenario", f"methods.{method}"]},
                {f"{at}/sources.yaml": [f"cells.{name}.{method}"]},
            ],
            outs=_results(key, "runs", name, method, scenario.keep),
        )
    return stages


def _grid(key: str, name: str, paper: Paper, wdir: str = "../..") -> dict[str, Any]:
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
        wdir=wdir,
        matrix={part: f"${{grids.{name}.{part}s}}" for part in ("scenario", "method")},
        deps=[f"{at}/partitions/{scenario}", *extra],
        params=[
            {f"{at}/paper.yaml": [f"scenarios.{scenario}", f"methods.{method}"]},
            {f"{at}/sources.yaml": [f"cells.{scenario}.{method}"]},
        ],
        outs=_results(key, "runs", scenario, method, keep),
    )


def _figures(key: str, paper: Paper, root: Path) -> tuple[Stages, list[str]]:
    """For every computed figure a stage for the miniature's cells and one for the paper's; and what the
    miniature's write."""
    cells, stages, of_miniature = set(planned(key, root)), {}, []
    params = [{"sources.yaml": ["figures"]}]
    for name, figure in paper.figures.items():
        at = f"papers/{key}/figures/{name}"
        if figure.kind == PICTURE:
            for scenario in [MINIATURE] * bool(paper.miniature) + figure.scenarios:
                picture, data = f"{at}-{scenario}.png", f"data/{paper.scenarios[scenario].data.set}"
                of_miniature += [picture] * (scenario == MINIATURE)
                command = f"figures {key}/{scenario} {name}"
                outs = _committed(picture)
                stages[f"{name}-{scenario}"] = _stage(command, deps=[data], params=params, outs=outs)
        elif figure.kind in COMPUTED:
            methods = [method for method in figure.methods if Cell(key, MINIATURE, method) in cells]
            every = f"${{figures.{name}.methods}}"
            if methods:
                matrix = {"method": every if methods == figure.methods else methods}
                stages[f"{name}-{MINIATURE}"] = _computed(key, name, MINIATURE, matrix)
                of_miniature += [f"{at}-{MINIATURE}-{method}{end}" for method in methods for end in ENDS]
            if figure.scenarios:
                matrix = {"scenario": f"${{figures.{name}.scenarios}}", "method": every}
                stages[name] = _computed(key, name, "${item.scenario}", matrix)
    return stages, of_miniature


def _computed(key: str, name: str, scenario: str, matrix: dict) -> dict[str, Any]:
    cell = f"{scenario}/${{item.method}}"
    at = f"papers/{key}/figures/{name}-{scenario}-${{item.method}}"
    return _stage(
        f"figures {key}/{cell} {name}",
        matrix=matrix,
        deps=[f"papers/{key}/representations/{cell}.npz"],
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
            wdir="../../..",
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
        do = _stage(command, wdir="../../..", deps=deps, params=params, outs=outs)
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
