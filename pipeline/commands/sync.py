"""`fedrepro sync`: write the DVC stages of partitions, training, tuning and figures from paper.yaml.

It writes papers/<paper>/dvc.yaml with the stages of the miniature, and grids/dvc.yaml below it with those of
the paper's scenarios. .dvcignore hides the latter until one of them is run (`show_grids`). The root's
dvc.yaml names no paper: it depends on folders in reports/, to which the stage `results` of each paper writes.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.cells import stamps
from pipeline.data.registry import of_paper, sets
from pipeline.errors import ParamError
from pipeline.files import write_text
from pipeline.schema import (
    ACROSS,
    COMPUTED,
    MINIATURE,
    MINIATURES,
    ROOT,
    Cell,
    Paper,
    Scenario,
    load_paper,
    papers,
    planned,
    read_yaml,
    shorten,
)
from pipeline.schema.discovery import SPACES, spaces_file
from pipeline.schema.documents import check_links
from pipeline.schema.paper import PICTURE, scenario_key
from pipeline.training.checks import check_names

# by a paper's repository
IGNORED = (
    "/.dvcignore\n/partitions/\n/representations/\n/final-models/\n/extra-seeds/\n/sweeps/\n__pycache__/\n"
)
# of a paper, which only its page reads
OF_PAGE = ("figures.py", "templates", "experiments")
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
Stages = dict[str, dict[str, Any]]


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
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
    for path in (path for name in ("dvc.yaml", "*.dvc") for path in (root / "papers").rglob(name)):
        hidden = {".git", ".dvc"} & {*path.relative_to(root).parts[:-1]}
        if path.is_file() and path not in texts and not hidden:
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


def show_grids(root: Path = ROOT, targets: Iterable[str] | None = None) -> None:
    """Let DVC see stages that .dvcignore hides in this checkout, until the files written here are deleted.

    targets: show the papers of these stages alone, with the data sets where one of them needs some; None:
        all. What DVC sees it also lists and compares, which takes a minute for all papers.
    """
    for folder in ("papers", "data") if targets is None else sorted(_shown(targets, root)):
        path = root / folder / ".dvcignore"
        if not path.exists():
            write_text(path, "!dvc.yaml\n")


def _shown(targets: Iterable[str], root: Path) -> set[str]:
    """The folders whose hidden stages these targets need, from the root."""
    folders = set()
    for target in targets:
        place = os.path.relpath(root / target.partition(":")[0], root)
        top, _, rest = Path(place).as_posix().partition("/")
        key = rest.partition("/")[0]
        folders.add(f"papers/{key}" if top == "papers" else "data")
        if top == "papers" and _needs_data(key, root):
            folders.add("data")
    return folders


def _needs_data(key: str, root: Path) -> bool:
    """Whether a scenario of a paper reads a set that data/dvc.yaml makes: neither bundled nor of a paper."""
    own = {name for other in papers(root) for name in of_paper(other, root)}
    own |= {name for name, entry in sets(root).items() if entry.bundled}
    for name, scenario in load_paper(key, root).scenarios.items():
        if name in MINIATURES:
            continue
        names = [part.set for part in (scenario.data, scenario.public) if part]
        if not own.issuperset(names) or scenario.data.features != "pixels":
            return True
    return False


def written(root: Path = ROOT) -> dict[Path, str]:
    """Every dvc.yaml of the papers, as it should be, and the stamps of a paper that has none yet."""
    texts = {}
    for key in papers(root):
        check_names(key, root)
        folder, paper = root / "papers" / key, load_paper(key, root)
        for file, (header, document) in _documents(key, paper, root).items():
            texts[folder / file] = _text(header, key, document)
        if (folder / ".git").exists() and not (folder / ".gitignore").exists():
            texts[folder / ".gitignore"] = IGNORED
        if not (folder / stamps.FILE).exists():  # DVC waits for it
            texts[folder / stamps.FILE] = stamps.HEADER
    return texts


def _documents(key: str, paper: Paper, root: Path) -> dict[str, tuple[str, dict]]:
    """{file in the paper's folder: (header, content)}."""
    above, below = (_File(key, paper, root, wdir) for wdir in ("../..", "../../.."))
    documents = {"dvc.yaml": (PAPER, above.of_paper())}
    if stages := below.grids():
        read = below.read("scenarios", "grids", "figures", above="../")
        documents["grids/dvc.yaml"] = GRIDS, {"vars": read, "stages": stages}
    for name, grid in paper.grids.items():
        if grid.separate_file:
            stages = {name: below.grid(name)}
            documents[f"{name}/dvc.yaml"] = GRID, {"vars": ["../paper.yaml"], "stages": stages}
    if paper.tuning:
        documents["tuning/dvc.yaml"] = TUNING, {"stages": below.tuning()}
    for cell in planned(key, root):
        if paper.scenarios[cell.scenario].keep:
            file = cell.stage(paper).partition(":")[0].removeprefix(f"papers/{key}/")
            models = "../" * file.count("/") + f"final-models/{cell.scenario}/{cell.method}"
            artifacts = documents[file][1].setdefault("artifacts", {})
            artifacts[f"{cell.scenario}-{cell.method}"] = {"path": models, "type": "model"}
    return documents


def _text(header: str, key: str, document: dict) -> str:
    return header.format(key=key) + yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=160, allow_unicode=True
    )


# -- the parts of a stage ------------------------------------------------------------------------------------


def _uncached(*paths: str) -> list:
    """Outputs that DVC's cache and remotes need not hold: git has them, or every checkout makes them anew."""
    return [{path: {"cache": False, "persist": True}} for path in paths]


def _cached(*paths: str) -> list:
    return [{path: {"persist": True}} for path in paths]


def _set(name: str) -> str:
    """What a miniature's stage depends on: of a bundled set the digests, which are in git."""
    known = sets().get(name.removesuffix("-corrupted"))
    return f"data/{name}.json" if known and known.bundled else f"data/{name}"


def _extra(scenario: Scenario) -> list[str]:
    """The sets that a cell reads besides those of its partition."""
    name = scenario.data.set
    corrupted = [f"{name}-corrupted"] if scenario.corruption is not None else []
    return corrupted + [f"{name}-{scenario.data.features}"] * (scenario.data.features != "pixels")


def _code(kind: str) -> dict[str, list[str]]:
    """The digest of the code behind a kind of stage."""
    return {"sources.yaml": [kind]}


@dataclass(frozen=True)
class _File:
    """A dvc.yaml of a paper, from whose folder `wdir` leads to the root."""

    key: str
    paper: Paper
    root: Path
    wdir: str

    @property
    def at(self) -> str:
        return f"papers/{self.key}"

    def there(self, *names: str) -> list[str]:
        """Those that the paper's folder has."""
        return [f"{self.at}/{name}" for name in names if (self.root / self.at / name).exists()]

    def read(self, *names: str, above: str = "") -> list[str]:
        """What the stages take from paper.yaml: params.yaml, which DVC reads too, must not have the same
        keys."""
        document = read_yaml(self.root / self.at / "paper.yaml")
        there = [name for name in names if name in document]
        return [f"{above}paper.yaml:{','.join(there)}"] if there else []

    def stage(
        self, command: str, deps: list[str], params: list, outs: list, matrix: dict | None = None
    ) -> dict[str, Any]:
        """A stage as DVC takes it, without what is empty."""
        items: dict[str, Any] = {"wdir": self.wdir, "matrix": matrix, "cmd": f"python -m stages.{command}"}
        items |= {"deps": deps, "params": params, "outs": outs}
        return {name: value for name, value in items.items() if value}

    def results(self, folder: str, scenario: str, method: str, keep: str | None = None) -> list:
        """What training a cell writes; `keep` as of its scenario. A miniature's representations are no
        output: they are not in git, and a fresh clone would train for them."""
        name = f"{scenario}/{method}"
        drawn = [f"{self.at}/representations/{name}.npz"] * (scenario not in MINIATURES)
        written = (f"{self.at}/{folder}/{name}/{file}" for file in ("result.json", "history.csv"))
        return _uncached(*written) + _cached(*drawn, *[f"{self.at}/final-models/{name}"] * bool(keep))

    def train(
        self, scenario: str, matrix: dict, deps: list[str], settings: str, keep: str | None
    ) -> dict[str, Any]:
        """The cells of a matrix, whose scenario has its `settings` under this key of paper.yaml."""
        method = "${item.method}"
        params = [{"params.yaml": ["miniature"]}] * (scenario in MINIATURES)
        params += [{f"{self.at}/paper.yaml": [settings, f"methods.{method}"]}]
        params += [{f"{self.at}/sources.yaml": [f"cells.{scenario}.{method}"]}]
        outs = self.results("runs", scenario, method, keep)
        return self.stage(f"train {self.key}/{scenario}/{method}", deps, params, outs, matrix)

    def partition(self, scenario: str, deps: list[str], params: list) -> dict[str, Any]:
        """The clients of a scenario; the miniature's come from data that every checkout has."""
        params = [*params, {f"{self.at}/sources.yaml": [f"partition.{scenario}"]}]
        kept = _uncached if scenario == MINIATURE else _cached
        outs = kept(f"{self.at}/partitions/{scenario}")
        outs += _uncached(f"{self.at}/runs/{scenario}/clients.csv")
        return self.stage(f"partition {self.key}/{scenario}", deps, params, outs)

    def figure(
        self, name: str, cells: str, dep: str, ends: tuple[str, ...] = ENDS, matrix: dict | None = None
    ) -> dict[str, Any]:
        """What a figure draws of a scenario, or of its cells."""
        outs = [f"{self.at}/figures/{name}-{cells.replace('/', '-')}{end}" for end in ends]
        command = f"figures {self.key}/{cells} {name}"
        return self.stage(command, [dep], [_code("figures")], _uncached(*outs), matrix)

    def picture(self, name: str, scenario: str) -> dict[str, Any]:
        return self.figure(name, scenario, _set(self.paper.scenarios[scenario].data.set), (".png",))

    # -- of the paper ----------------------------------------------------------------------------------------

    def of_paper(self) -> dict[str, Any]:
        """papers/<paper>/dvc.yaml."""
        key, at, miniature = self.key, self.at, bool(self.paper.miniature)
        code = ["pipeline", "stages", f"{at}/verified.yaml", "params.yaml", f"{at}/paper.yaml"]
        code += self.there("params.yaml", "methods", "models.py", "partitions.py", "metrics.py")
        stages = {"sources": self.stage(f"sources {key}", code, [], _uncached(f"{at}/sources.yaml"))}
        if of_the_paper := of_paper(key, self.root):
            params, matrix = [{"params.yaml": ["data.source"]}, _code("data")], {"set": [*of_the_paper]}
            outs = _cached("data/${item.set}")
            stages["data"] = self.stage("data ${item.set}", [f"{at}/data.py"], params, outs, matrix)
        drawn, drawings = self.miniature_figures()
        stages |= (self.miniature() if miniature else {}) | drawn
        inputs = self.there("paper.yaml", "claims.csv", "published", *OF_PAGE)
        inputs += [f"{at}/sources.yaml", *[f"{at}/runs/{MINIATURE}"] * miniature, *drawings]
        files = (f"reports/curves/{key}.csv", f"reports/inputs/{key}.json", f"reports/metrics/{key}.json")
        stages["results"] = self.stage(f"results {key}", inputs, [_code("results")], _uncached(*files))
        read = [f"{at}/sources.yaml", f"{at}/runs", *[f"{at}/figures"] * bool(drawings)]
        stages["report"] = self.stage(f"report {key}", read + self.there(*OF_PAGE), [_code("report")], [])
        # DVC replaces nothing in the paper's name.
        title = " ".join(self.paper.name.split()).replace("${", "\\${")
        axes = {"x": "round", "y": "accuracy", "y_label": "accuracy, %", "template": "methods"}
        curves = {f"../../reports/curves/{key}.csv": {**axes, "title": f"{title}, miniature"}}
        return {
            "vars": self.read("miniature", "figures"),
            **({"params": ["params.yaml"]} if self.there("params.yaml") else {}),
            "metrics": [f"../../reports/metrics/{key}.json"],
            **({"plots": [curves]} if miniature else {}),
            "stages": stages,
        }

    def miniature(self) -> Stages:
        """Its partition, and the training of its cells."""
        assert self.paper.miniature is not None
        scenario, at = self.paper.miniature.scenario, self.at
        params = [{"params.yaml": ["miniature"]}, {f"{at}/paper.yaml": ["miniature.scenario"]}]
        cut = [_set(part.set) for part in (scenario.data, scenario.public) if part]
        stages = {"partition-mini": self.partition(MINIATURE, cut, params)}
        across = [(ACROSS, "others")] * bool(self.paper.miniature.others)
        deps = [f"{at}/runs/{MINIATURE}/clients.csv", *map(_set, _extra(scenario))]
        for name, rows in ((MINIATURE, "methods"), *across):
            matrix = {"method": f"${{miniature.{rows}}}"}
            stages[name] = self.train(name, matrix, deps, "miniature.scenario", scenario.keep)
        return stages

    def miniature_figures(self) -> tuple[Stages, list[str]]:
        """A stage for every computed figure of the miniature, and what they write."""
        cells, at, stages, written = set(planned(self.key, self.root)), f"{self.at}/figures", Stages(), []
        for name, figure in self.paper.figures.items():
            if figure.kind == PICTURE and self.paper.miniature:
                stages[f"{name}-{MINIATURE}"] = self.picture(name, MINIATURE)
                written += [f"{at}/{name}-{MINIATURE}.png"]
            methods = [method for method in figure.methods if Cell(self.key, MINIATURE, method) in cells]
            if figure.kind in COMPUTED and methods:
                matrix = {"method": f"${{figures.{name}.methods}}" if methods == figure.methods else methods}
                some = f"{MINIATURE}/${{item.method}}"
                needs = f"{self.at}/runs/{some}/result.json"
                stages[f"{name}-{MINIATURE}"] = self.figure(name, some, needs, matrix=matrix)
                written += [f"{at}/{name}-{MINIATURE}-{method}{end}" for method in methods for end in ENDS]
        return stages, written

    # -- of its grids ----------------------------------------------------------------------------------------

    def grids(self) -> Stages:
        """papers/<paper>/grids/dvc.yaml: partitions, cells, figures."""
        stages = self.partitions()
        stages |= {name: self.grid(name) for name, one in self.paper.grids.items() if not one.separate_file}
        for name, figure in self.paper.figures.items():
            if figure.kind == PICTURE:
                stages |= {f"{name}-{one}": self.picture(name, one) for one in figure.scenarios}
            elif figure.kind in COMPUTED and figure.scenarios:
                matrix = {part: f"${{figures.{name}.{part}s}}" for part in ("scenario", "method")}
                cells = "${item.scenario}/${item.method}"
                stages[name] = self.figure(
                    name, cells, f"{self.at}/representations/{cells}.npz", matrix=matrix
                )
        return stages

    def partitions(self) -> Stages:
        """One stage for the scenarios without public images and one for those with them."""
        written = {name: one for name, one in self.paper.scenarios.items() if name not in MINIATURES}
        stages: Stages = {}
        for stage, parts in (("partition", ["data"]), ("partition-public", ["data", "public"])):
            some = {k: one for k, one in written.items() if (one.public is not None) == ("public" in parts)}
            if not some:
                continue
            whole, items = len(some) == len(written), {}
            for name, one in some.items():
                items[name] = {part: {"set": getattr(one, part).set} for part in parts}
            deps = [f"data/${{item.{part}.set}}" for part in parts]
            stages["partition" if whole else stage] = {
                "foreach": "${scenarios}" if whole else items,
                "do": self.partition("${key}", deps, [{f"{self.at}/paper.yaml": ["scenarios.${key}"]}]),
            }
        return stages

    def grid(self, name: str) -> dict[str, Any]:
        """The cells of a grid; ParamError where they read different sets."""
        scenarios = [self.paper.scenarios[scenario] for scenario in self.paper.grids[name].scenarios]
        alike = {(tuple(_extra(scenario)), scenario.keep) for scenario in scenarios}
        if len(alike) > 1:
            what = "its scenarios differ in corrupted images, frozen features or `keep`"
            raise ParamError(f"{self.at}/paper.yaml: grids.{name}: {what}; give each another grid")
        (extra, keep), scenario = next(iter(alike), ((), None)), "${item.scenario}"
        matrix = {part: f"${{grids.{name}.{part}s}}" for part in ("scenario", "method")}
        deps = [f"{self.at}/partitions/{scenario}", *(f"data/{one}" for one in extra)]
        return self.train(scenario, matrix, deps, f"scenarios.{scenario}", keep)

    # -- of tuning -------------------------------------------------------------------------------------------

    def tuning(self) -> Stages:
        """papers/<paper>/tuning/dvc.yaml."""
        stages: Stages = {}
        for partition in dict.fromkeys(Cell(self.key, name, "").partition for name in self.paper.tuning):
            at, command = f"{self.at}/partitions/{partition}", f"split {self.key}/{partition}"
            stages[f"split-{partition}"] = self.stage(command, [at], [_code("split")], _cached(f"{at}-trial"))
        for name in self.paper.tuning:
            stages |= self.tuned(name)
        return stages

    def tuned(self, name: str) -> Stages:
        """Of a scenario: choosing for each method, then training with the chosen and the row's values."""
        settings, at, place = read_yaml(self.root / self.at / "paper.yaml"), self.at, scenario_key(name)
        for part in place.split("."):
            settings = settings[part]
        tuning = self.paper.tuning[name]
        partition = f"{at}/partitions/{Cell(self.key, name, '').partition}"
        extra = [f"data/{one}" for one in _extra(self.paper.scenarios[name])]
        chosen = f"{at}/tuning/{name}/${{key}}.json"
        shared = [{"params.yaml": ["miniature"]}] * (name in MINIATURES)
        shared += [{f"{at}/sources.yaml": [f"cells.{name}.${{key}}"]}]

        algorithms = {method: self.paper.algorithm(method) for method in tuning.methods}
        files = {name: spaces_file(name, self.key, self.root) for name in algorithms.values()}
        items: dict[str, Any] = dict(algorithms)
        spaces = [{SPACES: ["learning_rate", "${item}"]}]
        if {*files.values()} != {SPACES}:  # some of the paper's folder
            items = {
                method: {"algorithm": name, "spaces": files[name]} for method, name in algorithms.items()
            }
            spaces = [{SPACES: ["learning_rate"]}, {"${item.spaces}": ["${item.algorithm}"]}]

        def stage(word: str, deps: list[str], params: list, outs: list) -> dict[str, Any]:
            do = self.stage(f"tune {self.key}/{name}/${{key}} {word}".rstrip(), deps, params, outs)
            return {"foreach": items, "do": do}

        # A configuration trains with the tuning's seeds: more of the scenario's change no choice.
        of_choice = [f"{place}.{setting}" for setting in settings if setting != "seeds"]
        of_choice += ["methods.${key}", f"tuning.{name}.configurations", f"tuning.{name}.seeds"]
        params = [{f"{at}/paper.yaml": of_choice}, *shared]
        params += [_code("tune"), *spaces]
        stages = {f"tune-{name}": stage("", [f"{partition}-trial", *extra], params, _uncached(chosen))}
        of_final = [place, "methods.${key}", *[f"tuning.{name}.test_seeds"] * bool(tuning.test_seeds)]
        for kind, word in (("tuned", "chosen"), ("published", "published"))[: 2 if tuning.test_seeds else 1]:
            stages[f"{kind}-{name}"] = stage(
                word,
                [partition, *extra, *[chosen] * (kind == "tuned")],
                [{f"{at}/paper.yaml": of_final}, *shared],
                self.results("tuning", f"{name}-{kind}", "${key}"),
            )
        return stages
