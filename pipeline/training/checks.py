"""Checks before training: names in paper.yaml, whether a method can run, environment variables."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cells.experiment import Experiment
from pipeline.data.registry import sets
from pipeline.errors import ParamError, unknown
from pipeline.git import check_owner
from pipeline.place import check_driver, check_memory
from pipeline.schema import (
    COMPUTED,
    MINIATURES,
    ROOT,
    Count,
    Data,
    Domains,
    NonNegative,
    check,
    folders,
    functions,
    load_paper,
    method_names,
    planned,
)
from pipeline.schema.paper import PICTURE, scenario_key
from pipeline.schema.scenario import REQUIREMENTS

if TYPE_CHECKING:
    from pipeline.methods import Method

# Columns of history.csv and measures, next to which are the accuracies of domains and clients.
COLUMNS = (
    "seed round loss state participants average weighted clients_std fgsm pgd traffic memory seconds".split()
)
MEAN = "AVG"
NUMBERS: dict[str, tuple[type, Any]] = {
    "FEDREPRO_WORKERS": (int, Count),
    "FEDREPRO_CHECKPOINT_SECONDS": (float, NonNegative),
}
# What every paper's dvc.yaml and folder may hold besides its grids and figures.
STAGES = (
    *"sources partition partition-public partition-mini results report".split(),
    *MINIATURES,
)
# Sections of its page besides its tables and figures.
SECTIONS = frozenset(
    "beside claims communication corruptions curves deviations figures more provenance "
    "readings tables values verdicts waiting".split()
)
FOLDERS = frozenset(
    "figures final-models grids methods extra-seeds partitions published representations runs splits sweeps "
    "templates tests tuning".split()
)


def check_names(paper: str, root: Path = ROOT) -> None:
    """ParamError for a data set, a domain or an algorithm that the paper names and that no one has, with the
    nearest; and for a name that something else has already."""
    for at, kind, name, known in _names(paper, root):
        if name not in known:
            raise ParamError(f"papers/{paper}/paper.yaml: {at}: {unknown(kind, name, known)}")
    for at, why in (*_clashes(paper, root), *_measures(paper, root), *_samples(paper, root)):
        raise ParamError(f"papers/{paper}/paper.yaml: {at}: {why}")


def _names(key: str, root: Path) -> Iterator[tuple[str, str, str, Collection[str]]]:
    """(place, kind, name, what there is) of every name; of a set before its domains."""
    paper, algorithms = load_paper(key, root), method_names(key, root)
    for method in dict.fromkeys(cell.method for cell in planned(key, root)):
        yield f"methods.{method}", "method", paper.algorithm(method), algorithms
    for name, figure in paper.figures.items():
        if figure.function:
            yield f"figures.{name}.function", "function", figure.function, functions(key, "figures", root)
    for name, scenario in paper.scenarios.items():
        at = scenario_key(name)
        for part in ("data", "public"):
            if named := getattr(scenario, part):
                yield f"{at}.{part}.set", "data set", named.set, sets(root)
        for metric in scenario.evaluation.metrics or ():
            yield f"{at}.evaluation.metrics", "metric", metric, functions(key, "metrics", root)
        domains = sets(root)[scenario.data.set].domains
        printed = scenario.data.domains or dict(zip(domains, domains))
        yield from ((f"{at}.data.domains", "domain", domain, domains) for domain in printed.values())
        if isinstance(scenario.partition, Domains):
            yield from (
                (f"{at}.partition.clients", "domain", domain, printed)
                for domain in scenario.partition.clients
            )


def _clashes(key: str, root: Path) -> Iterator[tuple[str, str]]:
    """(place, what has its name already): of stages in one dvc.yaml, of folders, and of pages."""
    paper = load_paper(key, root)
    computed = [name for name, figure in paper.figures.items() if figure.kind in COMPUTED]
    separate = {name for name, grid in paper.grids.items() if grid.separate_file}
    tunings = [f"{name}-{end}" for name in paper.tuning for end in ("trial", "tuned", "published")]
    taken: tuple[tuple[str, Collection[str], Collection[str], str], ...] = (
        ("grids", separate, FOLDERS, "a folder of the paper"),
        ("grids", {*paper.grids} - separate, {*STAGES, *computed}, "a stage of the paper"),
        ("figures", computed, STAGES, "a stage of the paper"),
        ("scenarios", paper.scenarios, ("miniature", *tunings), "the miniature or a tuning"),
        ("tables", paper.tables, SECTIONS, "a section of the paper's page"),
        ("figures", paper.figures, {*SECTIONS, *paper.tables}, "a section of the paper's page"),
    )
    for kind, names, others, what in taken:
        for name in names:
            if name.casefold() in map(str.casefold, others):
                yield f"{kind}.{name}", f"{what} has this name"
    alike = "on some file systems this is the same name as"
    for kind in ("methods", "scenarios", "grids", "figures", "tables"):
        for name, other, _ in _twice({name: name.casefold() for name in getattr(paper, kind)}):
            yield f"{kind}.{other}", f"{alike} {name!r}"
    for folder in folders(root):
        if folder < key and folder.casefold() == key.casefold():
            yield "the folder", f"{alike} {folder!r}"
    for one, two, label in _twice({method: paper.label(method) for method in paper.methods}):
        yield f"methods.{two}.label", f"{one} has {label!r} already"
    for one, two, number in _twice({name: table.number for name, table in paper.tables.items()}):
        yield f"tables.{two}.number", f"{one} has {number!r} already"
    for cell, same, stage in _twice({cell: cell.stage(paper) for cell in planned(key, root)}):
        yield "grids", f"{cell} and {same} would both be the stage {stage.partition(':')[2]}; rename one"


def _measures(key: str, root: Path) -> Iterator[tuple[str, str]]:
    """(place, why) of domains and clients whose accuracy would stand under a measure's name."""
    for scenario_name, scenario in load_paper(key, root).scenarios.items():
        at = scenario_key(scenario_name)
        for domain in scenario.data.domains or sets(root)[scenario.data.set].domains:
            if domain in COLUMNS or "." in domain:  # inter.average
                why = f"a measure is called {domain!r:.80}, or could be: give the domain another name"
                yield f"{at}.data.domains", why
        for name in (*scenario.data.domains, *scenario.partition.names):
            if name != " ".join(name.split()) or not name:
                yield at, f"{name!r:.80} is no name of a domain or client: it is blank or ends with a blank"
        if MEAN in scenario.partition.names:
            yield f"{at}.partition", f"the mean over clients is called {MEAN!r}: rename the client"


def _samples(key: str, root: Path) -> Iterator[tuple[str, str]]:
    """(place, why) of sets whose samples a scenario does not take, and of pictures of what is no image."""
    paper = load_paper(key, root)
    for name, scenario in paper.scenarios.items():
        at, data = scenario_key(name), scenario.data
        entry = sets(root)[data.set]
        if data.of_images and not entry.images:
            of_what = f"{data.normalise!r} is of images, and {data.set} holds {entry.sample}"
            yield f"{at}.data.normalise", f"{of_what}: set it to standard or raw"
        if not data.of_images and (data.size, data.channels) != (Data.size, Data.channels):
            yield f"{at}.data", "'size' and 'channels' are of images: leave them out"
        if scenario.public is not None:
            public = sets(root)[scenario.public.set]
            fits = public.images if data.of_images else public.sample == entry.sample
            if not fits:
                wanted = "images" if data.of_images else entry.sample
                yield f"{at}.public.set", f"{scenario.public.set} holds {public.sample}, expected {wanted}"
    for name, figure in paper.figures.items():
        shown = [paper.scenarios[one] for one in figure.scenarios if one in paper.scenarios]
        if figure.kind == PICTURE and not all(sets(root)[one.data.set].images for one in shown):
            yield f"figures.{name}.kind", "images can be drawn of a set of images alone"


def _twice(values: Mapping[Any, str]) -> Iterator[tuple[Any, Any, str]]:
    """(first, second, value) of two keys that have one value."""
    first: dict[str, Any] = {}
    for key, value in values.items():
        if first.setdefault(value, key) != key:
            yield first[value], key, value


def runnable(experiment: Experiment) -> "Method":
    """The method of a cell. ParamError for one without a file, for its hyper-parameters, and for a scenario
    that lacks what it needs or asks for what it cannot."""
    from pipeline import methods, models  # a second, for torch
    from pipeline.training import metrics

    cell, scenario, algorithm = experiment.cell, experiment.scenario, experiment.algorithm
    where = experiment.where
    method = methods.load(algorithm, experiment.hyper, where, cell.paper, experiment.root)
    if lacking := sorted(method.requires - scenario.provides):
        needs = f"needs {lacking[0]}, which the scenario {cell.scenario!r} does not offer"
        raise ParamError(f"{where}: {algorithm} {needs}; it comes with {REQUIREMENTS[lacking[0]]}")
    if refused := sorted(scenario.demands.keys() - method.supports):
        asks = f"which the scenario {cell.scenario!r} asks for by `{scenario.demands[refused[0]]}`"
        raise ParamError(f"{where}: {algorithm} does not support {refused[0]}, {asks}")
    for network in scenario.networks:
        if not network.paper and not scenario.data.of_images:
            at = f"papers/{cell.paper}/paper.yaml: scenario {cell.scenario!r} with {cell.method}"
            own = f"define one in papers/{cell.paper}/models.py"
            raise ParamError(f"{at}: the network {network.name!r} is of images: {own}")
        known = functions(network.paper, "models", experiment.root) if network.paper else models.NAMES
        if network.name not in known:
            at = f"papers/{cell.paper}/paper.yaml: scenario {cell.scenario!r} with {cell.method}"
            raise ParamError(f"{at}: {unknown('model', network.name, known)}")
    metrics.load(experiment)
    return method


def check_environment(here: bool = True) -> None:
    """FedReproError where git refuses the repository, or naming the first variable whose value is wrong.
    torch is imported only where one of those is set that it must judge, and where the training is `here`:
    another machine has another device."""
    check_owner(ROOT)
    for name, (kind, bounds) in NUMBERS.items():
        if not (text := os.environ.get(name)):
            os.environ.pop(name, None)  # an empty variable is none
        else:
            try:
                number = kind(text)
            except ValueError:
                what = "a whole number" if kind is int else "a number"
                raise ParamError(f"{name}: expected {what}, not {text!r:.80}") from None
            check(bounds, number, name)
    tracking = os.environ.get("FEDREPRO_TRACKING") or "on"
    if tracking not in ("on", "off"):
        raise ParamError(f"FEDREPRO_TRACKING: {unknown('value', tracking, ('on', 'off'))}")
    keep = os.environ.get("FEDREPRO_KEEP") or "state"
    if keep != "state":
        raise ParamError(f"FEDREPRO_KEEP: {unknown('value', keep, ('state',))}")
    mirror = os.environ.get("FEDREPRO_MIRROR")
    if mirror and not Path(mirror).expanduser().is_dir():
        raise ParamError(f"FEDREPRO_MIRROR: {mirror} is not a folder")
    if here:
        check_memory("pipeline.training.trainer")
    if here and any(os.environ.get(f"FEDREPRO_{name}") for name in ("DEVICE", "EXECUTOR", "PRECISION")):
        _check_device()
    if here:
        check_driver()


def _check_device() -> None:
    import torch

    from pipeline.engine.environment import default_device, executor_name, precision

    known = ["cpu"]
    if gpu := torch.accelerator.current_accelerator(check_available=True):
        known += [gpu.type, *(f"{gpu.type}:{at}" for at in range(torch.accelerator.device_count()))]
    wanted = os.environ.get("FEDREPRO_DEVICE")
    if wanted and wanted not in known:
        raise ParamError(f"FEDREPRO_DEVICE: torch has no device {wanted!r} here; it has {', '.join(known)}")
    if executor_name(default_device()) == "compiled":
        from pipeline.models.compiled import unavailable

        why = unavailable()
        if why:
            raise ParamError(f"FEDREPRO_EXECUTOR: {why}")
    precision()
