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

# The .gitignore of a paper whose folder is a repository of its own.
IGNORED = (
    "/.dvcignore\n/partitions/\n/representations/\n/final-models/\n/extra-seeds/\n/sweeps/\n__pycache__/\n"
)
# Files of a paper that only its page reads.
OF_PAGE = ("figures.py", "templates", "experiments")
# Endings of the files that a computed figure is drawn from.
ENDS = (".csv", ".json")
# First line of every file that is written here.
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
# name of a stage -> its content
Stages = dict[str, dict[str, Any]]


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Writes a value that occurs twice twice, instead of an anchor and an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def main(check: bool = False) -> int:
    """Write the files that differ from paper.yaml; returns the exit code.

    check  only name these files, and return 1 if there is one
    """
    changed = sync(check=check)
    what = "not as paper.yaml says; fedrepro sync writes it" if check else "written"
    for path in changed:
        print(f"{shorten(path)}: {what}")
    return 1 if check and changed else 0


def sync(root: Path = ROOT, check: bool = False) -> list[Path]:
    """Write the files that differ from what paper.yaml says; returns their paths.

    root   folder of the repository
    check  write nothing

    Raises ParamError for a file of DVC's in a paper's folder that is not written here, since its commands
    would run as well, and for a link that leads out of the folder.
    """
    check_links(root)
    texts = written(root)
    for name in ("dvc.yaml", "*.dvc"):
        for path in (root / "papers").rglob(name):
            hidden = {".git", ".dvc"} & {*path.relative_to(root).parts[:-1]}
            if path.is_file() and path not in texts and not hidden:
                raise ParamError(f"{shorten(path)}: no file of DVC's that `fedrepro sync` writes: remove it")
    changed = []
    for path, text in texts.items():
        if not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text:
            changed.append(path)
    if not check:
        for path in changed:
            write_text(path, texts[path])
    return changed


def show_grids(root: Path = ROOT, targets: Iterable[str] | None = None) -> None:
    """Let DVC see stages that .dvcignore hides in this checkout, until the files written here are deleted.

    root     folder of the repository
    targets  show only the papers of these stages, and the data sets if one of them needs any; None: all. DVC
             lists and compares everything that it sees, which takes a minute for all papers
    """
    folders = ["papers", "data"] if targets is None else sorted(_shown(targets, root))
    for folder in folders:
        path = root / folder / ".dvcignore"
        if not path.exists():
            write_text(path, "!dvc.yaml\n")


def _shown(targets: Iterable[str], root: Path) -> set[str]:
    """The folders whose hidden stages these targets need, relative to the root."""
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
    """Whether a scenario of a paper reads a data set that a stage of data/dvc.yaml makes.

    Such a set is neither bundled nor defined by a paper, or has frozen features.
    """
    made_elsewhere = {name for name, entry in sets(root).items() if entry.bundled}
    for other in papers(root):
        made_elsewhere.update(of_paper(other, root))
    for name, scenario in load_paper(key, root).scenarios.items():
        if name in MINIATURES:
            continue
        names = [part.set for part in (scenario.data, scenario.public) if part]
        if not made_elsewhere.issuperset(names) or scenario.data.features != "pixels":
            return True
    return False


def written(root: Path = ROOT) -> dict[Path, str]:
    """The files of all papers as they should be: path -> text.

    These are every dvc.yaml, verified.yaml of a paper that has none yet, and .gitignore of a paper that is a
    repository of its own and has none yet.
    """
    texts = {}
    for key in papers(root):
        check_names(key, root)
        folder = root / "papers" / key
        for file, (header, document) in _documents(key, load_paper(key, root), root).items():
            texts[folder / file] = _text(header, key, document)
        if (folder / ".git").exists() and not (folder / ".gitignore").exists():
            texts[folder / ".gitignore"] = IGNORED
        if not (folder / stamps.FILE).exists():  # DVC waits for it
            texts[folder / stamps.FILE] = stamps.HEADER
    return texts


def _documents(key: str, paper: Paper, root: Path) -> dict[str, tuple[str, dict]]:
    """The dvc.yaml files of a paper: path in its folder -> (header, content)."""
    paper_file = _File(key, paper, root, wdir="../..")
    documents = {"dvc.yaml": (PAPER, paper_file.of_paper())}
    # The other files are one folder further down.
    subfolder_file = _File(key, paper, root, wdir="../../..")
    stages = subfolder_file.grids()
    if stages:
        read = subfolder_file.read("scenarios", "grids", "figures", above="../")
        documents["grids/dvc.yaml"] = (GRIDS, {"vars": read, "stages": stages})
    for name, grid in paper.grids.items():
        if grid.separate_file:
            stages = {name: subfolder_file.grid(name)}
            documents[f"{name}/dvc.yaml"] = (GRID, {"vars": ["../paper.yaml"], "stages": stages})
    if paper.tuning:
        documents["tuning/dvc.yaml"] = (TUNING, {"stages": subfolder_file.tuning()})
    for cell in planned(key, root):
        if paper.scenarios[cell.scenario].keep:
            file = cell.stage(paper).partition(":")[0].removeprefix(f"papers/{key}/")
            up = "../" * file.count("/")
            _, document = documents[file]
            artifacts = document.setdefault("artifacts", {})
            artifacts[f"{cell.scenario}-{cell.method}"] = {
                "path": f"{up}final-models/{cell.scenario}/{cell.method}",
                "type": "model",
            }
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
    """Outputs that DVC's cache and remotes hold."""
    return [{path: {"persist": True}} for path in paths]


def _set(name: str) -> str:
    """What a miniature's stage depends on: for a bundled set the file of its digests, which is in git."""
    known = sets().get(name.removesuffix("-corrupted"))
    return f"data/{name}.json" if known and known.bundled else f"data/{name}"


def _extra(scenario: Scenario) -> list[str]:
    """The data sets that a cell reads besides those of its partition."""
    name = scenario.data.set
    extra = []
    if scenario.corruption is not None:
        extra.append(f"{name}-corrupted")
    if scenario.data.features != "pixels":
        extra.append(f"{name}-{scenario.data.features}")
    return extra


def _code(kind: str) -> dict[str, list[str]]:
    """The parameter by which a stage depends on the code of its kind."""
    return {"sources.yaml": [kind]}


@dataclass(frozen=True)
class _File:
    """A dvc.yaml of a paper.

    key    of the paper
    paper  its paper.yaml
    root   folder of the repository
    wdir   the path from the folder of the dvc.yaml to the root, where its commands run
    """

    key: str
    paper: Paper
    root: Path
    wdir: str

    @property
    def folder(self) -> str:
        """Of the paper, from the root."""
        return f"papers/{self.key}"

    def existing(self, *names: str) -> list[str]:
        """The paths of those files or folders that the paper has."""
        return [f"{self.folder}/{name}" for name in names if (self.root / self.folder / name).exists()]

    def read(self, *names: str, above: str = "") -> list[str]:
        """The `vars` of a dvc.yaml: the keys of paper.yaml that its stages use, if it has any of them.

        names  of the keys. Keys of params.yaml must not be among them, since DVC reads that too
        above  the path from the dvc.yaml to the paper's folder
        """
        document = read_yaml(self.root / self.folder / "paper.yaml")
        existing = [name for name in names if name in document]
        return [f"{above}paper.yaml:{','.join(existing)}"] if existing else []

    def stage(
        self, command: str, deps: list[str], params: list, outs: list, matrix: dict | None = None
    ) -> dict[str, Any]:
        """A stage as DVC takes it, without what is empty."""
        items: dict[str, Any] = {"wdir": self.wdir, "matrix": matrix, "cmd": f"python -m stages.{command}"}
        items |= {"deps": deps, "params": params, "outs": outs}
        return {name: value for name, value in items.items() if value}

    def results(self, folder: str, scenario: str, method: str, keep: str | None = None) -> list:
        """The outputs of training a cell.

        folder    of the paper, in which results lie: "runs" or "tuning"
        scenario  of the cell, and `method`
        keep      as in the scenario: which models are kept

        A miniature's representations are no output: they are not in git, and in a fresh clone DVC would train
        to make them.
        """
        name = f"{scenario}/{method}"
        written = [f"{self.folder}/{folder}/{name}/{file}" for file in ("result.json", "history.csv")]
        large = []
        if scenario not in MINIATURES:
            large.append(f"{self.folder}/representations/{name}.npz")
        if keep:
            large.append(f"{self.folder}/final-models/{name}")
        return _uncached(*written) + _cached(*large)

    def train(
        self, scenario: str, matrix: dict, deps: list[str], settings: str, keep: str | None
    ) -> dict[str, Any]:
        """The stage that trains the cells of a matrix.

        scenario  of the cells
        matrix    of DVC, whose item has a `method`
        deps      what the cells depend on
        settings  the key of paper.yaml that has the scenario's settings
        keep      as in the scenario: which models are kept
        """
        method = "${item.method}"
        params = []
        if scenario in MINIATURES:
            params.append({"params.yaml": ["miniature"]})
        params.append({f"{self.folder}/paper.yaml": [settings, f"methods.{method}"]})
        params.append({f"{self.folder}/sources.yaml": [f"cells.{scenario}.{method}"]})
        outs = self.results("runs", scenario, method, keep)
        return self.stage(f"train {self.key}/{scenario}/{method}", deps, params, outs, matrix)

    def partition(self, scenario: str, deps: list[str], params: list) -> dict[str, Any]:
        """The stage that divides a scenario's data over its clients.

        The miniature's data are in every checkout, so that DVC need not keep its partition.
        """
        params = [*params, {f"{self.folder}/sources.yaml": [f"partition.{scenario}"]}]
        partition = f"{self.folder}/partitions/{scenario}"
        outs = _uncached(partition) if scenario == MINIATURE else _cached(partition)
        outs += _uncached(f"{self.folder}/runs/{scenario}/clients.csv")
        return self.stage(f"partition {self.key}/{scenario}", deps, params, outs)

    def figure(
        self, name: str, cells: str, dep: str, ends: tuple[str, ...] = ENDS, matrix: dict | None = None
    ) -> dict[str, Any]:
        """The stage that computes what a figure draws.

        name    of the figure
        cells   a scenario, or scenario/method
        dep     what the figure is computed from
        ends    of the files that it writes
        matrix  of DVC, if there is a figure for each of several cells
        """
        outs = [f"{self.folder}/figures/{name}-{cells.replace('/', '-')}{end}" for end in ends]
        command = f"figures {self.key}/{cells} {name}"
        return self.stage(command, [dep], [_code("figures")], _uncached(*outs), matrix)

    def picture(self, name: str, scenario: str) -> dict[str, Any]:
        """The stage of a figure that shows images of a scenario's data."""
        return self.figure(name, scenario, _set(self.paper.scenarios[scenario].data.set), (".png",))

    # -- papers/<paper>/dvc.yaml -----------------------------------------------------------------------------

    def of_paper(self) -> dict[str, Any]:
        """papers/<paper>/dvc.yaml."""
        key = self.key
        folder = self.folder
        has_miniature = bool(self.paper.miniature)

        code = ["pipeline", "stages", f"{folder}/verified.yaml", "params.yaml", f"{folder}/paper.yaml"]
        code += self.existing("params.yaml", "methods", "models.py", "partitions.py", "metrics.py")
        stages = {"sources": self.stage(f"sources {key}", code, [], _uncached(f"{folder}/sources.yaml"))}

        own_sets = of_paper(key, self.root)
        if own_sets:
            stages["data"] = self.stage(
                "data ${item.set}",
                deps=[f"{folder}/data.py"],
                params=[{"params.yaml": ["data.source"]}, _code("data")],
                outs=_cached("data/${item.set}"),
                matrix={"set": [*own_sets]},
            )
        if has_miniature:
            stages |= self.miniature()
        figures, drawings = self.miniature_figures()
        stages |= figures

        inputs = self.existing("paper.yaml", "claims.csv", "published", *OF_PAGE)
        inputs.append(f"{folder}/sources.yaml")
        if has_miniature:
            inputs.append(f"{folder}/runs/{MINIATURE}")
        inputs += drawings
        files = (f"reports/curves/{key}.csv", f"reports/inputs/{key}.json", f"reports/metrics/{key}.json")
        stages["results"] = self.stage(f"results {key}", inputs, [_code("results")], _uncached(*files))

        read = [f"{folder}/sources.yaml", f"{folder}/runs"]
        if drawings:
            read.append(f"{folder}/figures")
        stages["report"] = self.stage(f"report {key}", read + self.existing(*OF_PAGE), [_code("report")], [])

        document: dict[str, Any] = {"vars": self.read("miniature", "figures")}
        if self.existing("params.yaml"):
            document["params"] = ["params.yaml"]
        document["metrics"] = [f"../../reports/metrics/{key}.json"]
        if has_miniature:
            # Escaped, so that DVC takes `${` in the paper's name for no variable.
            title = " ".join(self.paper.name.split()).replace("${", "\\${")
            axes = {"x": "round", "y": "accuracy", "y_label": "accuracy, %", "template": "methods"}
            curves = {f"../../reports/curves/{key}.csv": {**axes, "title": f"{title}, miniature"}}
            document["plots"] = [curves]
        return document | {"stages": stages}

    def miniature(self) -> Stages:
        """The stages of the miniature's partition and of the training of its cells."""
        miniature = self.paper.miniature
        assert miniature is not None
        scenario = miniature.scenario
        params = [{"params.yaml": ["miniature"]}, {f"{self.folder}/paper.yaml": ["miniature.scenario"]}]
        data = [_set(part.set) for part in (scenario.data, scenario.public) if part]
        stages = {"partition-mini": self.partition(MINIATURE, data, params)}
        deps = [f"{self.folder}/runs/{MINIATURE}/clients.csv", *map(_set, _extra(scenario))]
        # name of the stage -> key of `miniature` in paper.yaml that lists its methods
        rows = {MINIATURE: "methods"}
        if miniature.others:
            rows[ACROSS] = "others"
        for name, listed in rows.items():
            matrix = {"method": f"${{miniature.{listed}}}"}
            stages[name] = self.train(name, matrix, deps, "miniature.scenario", scenario.keep)
        return stages

    def miniature_figures(self) -> tuple[Stages, list[str]]:
        """The stages of the miniature's computed figures, and the files that these write."""
        cells = set(planned(self.key, self.root))
        folder = f"{self.folder}/figures"
        stages: Stages = {}
        written: list[str] = []
        for name, figure in self.paper.figures.items():
            if figure.kind == PICTURE and self.paper.miniature:
                stages[f"{name}-{MINIATURE}"] = self.picture(name, MINIATURE)
                written.append(f"{folder}/{name}-{MINIATURE}.png")
            methods = [method for method in figure.methods if Cell(self.key, MINIATURE, method) in cells]
            if figure.kind in COMPUTED and methods:
                all_methods = methods == figure.methods
                matrix = {"method": f"${{figures.{name}.methods}}" if all_methods else methods}
                each_cell = f"{MINIATURE}/${{item.method}}"
                result = f"{self.folder}/runs/{each_cell}/result.json"
                stages[f"{name}-{MINIATURE}"] = self.figure(name, each_cell, result, matrix=matrix)
                for method in methods:
                    written += [f"{folder}/{name}-{MINIATURE}-{method}{end}" for end in ENDS]
        return stages, written

    # -- papers/<paper>/grids/dvc.yaml, and the files of separate grids --------------------------------------

    def grids(self) -> Stages:
        """The stages of papers/<paper>/grids/dvc.yaml: partitions, cells, figures."""
        stages = self.partitions()
        for name, grid in self.paper.grids.items():
            if not grid.separate_file:
                stages[name] = self.grid(name)
        for name, figure in self.paper.figures.items():
            if figure.kind == PICTURE:
                for scenario in figure.scenarios:
                    stages[f"{name}-{scenario}"] = self.picture(name, scenario)
            elif figure.kind in COMPUTED and figure.scenarios:
                matrix = {part: f"${{figures.{name}.{part}s}}" for part in ("scenario", "method")}
                each_cell = "${item.scenario}/${item.method}"
                representations = f"{self.folder}/representations/{each_cell}.npz"
                stages[name] = self.figure(name, each_cell, representations, matrix=matrix)
        return stages

    def partitions(self) -> Stages:
        """One stage for the scenarios without public images and one for those with them.

        If there are only scenarios of one kind, their stage is called `partition`.
        """
        scenarios = {name: one for name, one in self.paper.scenarios.items() if name not in MINIATURES}
        stages: Stages = {}
        for stage, parts in (("partition", ["data"]), ("partition-public", ["data", "public"])):
            items: dict[str, dict] = {}
            for name, scenario in scenarios.items():
                if (scenario.public is not None) == ("public" in parts):
                    items[name] = {part: {"set": getattr(scenario, part).set} for part in parts}
            if not items:
                continue
            is_all = len(items) == len(scenarios)
            deps = [f"data/${{item.{part}.set}}" for part in parts]
            params = [{f"{self.folder}/paper.yaml": ["scenarios.${key}"]}]
            stages["partition" if is_all else stage] = {
                "foreach": "${scenarios}" if is_all else items,
                "do": self.partition("${key}", deps, params),
            }
        return stages

    def grid(self, name: str) -> dict[str, Any]:
        """The stage that trains the cells of a grid; ParamError if its scenarios read different data sets."""
        scenarios = [self.paper.scenarios[scenario] for scenario in self.paper.grids[name].scenarios]
        kinds = {(tuple(_extra(scenario)), scenario.keep) for scenario in scenarios}
        if len(kinds) > 1:
            what = "its scenarios differ in corrupted images, frozen features or `keep`"
            raise ParamError(f"{self.folder}/paper.yaml: grids.{name}: {what}; give each another grid")
        extra, keep = next(iter(kinds), ((), None))
        scenario = "${item.scenario}"
        matrix = {part: f"${{grids.{name}.{part}s}}" for part in ("scenario", "method")}
        deps = [f"{self.folder}/partitions/{scenario}", *(f"data/{data_set}" for data_set in extra)]
        return self.train(scenario, matrix, deps, f"scenarios.{scenario}", keep)

    # -- papers/<paper>/tuning/dvc.yaml ----------------------------------------------------------------------

    def tuning(self) -> Stages:
        """The stages of papers/<paper>/tuning/dvc.yaml."""
        stages: Stages = {}
        for partition in dict.fromkeys(Cell(self.key, name, "").partition for name in self.paper.tuning):
            folder = f"{self.folder}/partitions/{partition}"
            command = f"split {self.key}/{partition}"
            outs = _cached(f"{folder}-trial")
            stages[f"split-{partition}"] = self.stage(command, [folder], [_code("split")], outs)
        for name in self.paper.tuning:
            stages |= self.tuned(name)
        return stages

    def tuned(self, name: str) -> Stages:
        """The stages of tuning for a scenario: choosing values for each method, then training with these and
        with the values of the method's row."""
        place = scenario_key(name)
        settings = read_yaml(self.root / self.folder / "paper.yaml")
        for part in place.split("."):
            settings = settings[part]
        tuning = self.paper.tuning[name]
        partition = f"{self.folder}/partitions/{Cell(self.key, name, '').partition}"
        extra = [f"data/{data_set}" for data_set in _extra(self.paper.scenarios[name])]
        chosen = f"{self.folder}/tuning/{name}/${{key}}.json"
        shared = []
        if name in MINIATURES:
            shared.append({"params.yaml": ["miniature"]})
        shared.append({f"{self.folder}/sources.yaml": [f"cells.{name}.${{key}}"]})

        algorithms = {method: self.paper.algorithm(method) for method in tuning.methods}
        files = {algorithm: spaces_file(algorithm, self.key, self.root) for algorithm in algorithms.values()}
        items: dict[str, Any] = dict(algorithms)
        spaces = [{SPACES: ["learning_rate", "${item}"]}]
        if {*files.values()} != {SPACES}:  # search spaces of some methods are in the paper's folder
            for method, algorithm in algorithms.items():
                items[method] = {"algorithm": algorithm, "spaces": files[algorithm]}
            spaces = [{SPACES: ["learning_rate"]}, {"${item.spaces}": ["${item.algorithm}"]}]

        def stage(word: str, deps: list[str], params: list, outs: list) -> dict[str, Any]:
            do = self.stage(f"tune {self.key}/{name}/${{key}} {word}".rstrip(), deps, params, outs)
            return {"foreach": items, "do": do}

        # Configurations are trained with the seeds of the tuning: further seeds of the scenario change no
        # choice.
        keys_of_choice = [f"{place}.{setting}" for setting in settings if setting != "seeds"]
        keys_of_choice += ["methods.${key}", f"tuning.{name}.configurations", f"tuning.{name}.seeds"]
        params = [{f"{self.folder}/paper.yaml": keys_of_choice}, *shared, _code("tune"), *spaces]
        stages = {f"tune-{name}": stage("", [f"{partition}-trial", *extra], params, _uncached(chosen))}

        keys_of_training = [place, "methods.${key}"]
        if tuning.test_seeds:
            keys_of_training.append(f"tuning.{name}.test_seeds")
        params = [{f"{self.folder}/paper.yaml": keys_of_training}, *shared]
        outs = self.results("tuning", f"{name}-tuned", "${key}")
        stages[f"tuned-{name}"] = stage("chosen", [partition, *extra, chosen], params, outs)
        if tuning.test_seeds:
            outs = self.results("tuning", f"{name}-published", "${key}")
            stages[f"published-{name}"] = stage("published", [partition, *extra], params, outs)
        return stages
