"""Decide whether a result is current, from digests of its code, parameters and data.

DVC tracks files, not imports. `digest_of` hashes the definitions that a cell really runs
(`pipeline/provenance/definitions.py`), so that a new method, a network that the cell does not use or a
reworded docstring leaves its result valid. `current` compares this digest and that of the parameters with
what made the result. If the code has changed since, it asks the stamps (`pipeline/cells/stamps.py`) whether
today's code has reproduced the result (`fedrepro verify`).

This module also says what is recorded with a result: the environment, the commit, and what `fedrepro explain`
compares.
"""

import dataclasses
import hashlib
import json
import platform
import re
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import arithmetic
from pipeline.cells import stamps
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.errors import DAMAGED, FedReproError
from pipeline.git import git
from pipeline.provenance.code_digests import RememberedCode
from pipeline.provenance.definitions import DIGITS, Code
from pipeline.schema import ROOT, Cell, Scenario, check, read_yaml
from pipeline.schema.cell import Published, Seeded
from pipeline.schema.discovery import method_module

# Modules that pass values on, show them or write them, but compute no result; for each,
# tests/provenance/test_provenance.py names what would notice. Values that `schema` reads are part of a cell's
# digest themselves, and the methods of a scenario that training calls count (SCHEMA).
NEUTRAL = {
    "pipeline.errors",
    "pipeline.files",
    "pipeline.sealing",
    "pipeline.schema.cell",
    "pipeline.schema.discovery",
    "pipeline.schema.documents",
    "pipeline.schema.loader",
    "pipeline.schema.paper",
    "pipeline.cells.plausible",
    "pipeline.cells.quick_check",
    "pipeline.cells.results",
    "pipeline.cells.stamps",
    "pipeline.provenance.code_digests",
    "pipeline.provenance.definitions",
    "pipeline.provenance.identity",
    "pipeline.provenance.modules",
    "pipeline.provenance.normal_form",
    "pipeline.provenance.private_methods",
    "pipeline.provenance.syntax",
    "pipeline.tracking.mlflow_runs",
    "pipeline.training.cache",
    "pipeline.training.checkpoint",
    "pipeline.training.progress",
    "pipeline.source_code",
}
# Modules that a training loads and whose functions make no number: what acts in them on import counts like
# anywhere.
BESIDE = {
    "pipeline.cells",
    "pipeline.cells.choices",
    "pipeline.clusters",
    "pipeline.clusters.order",
    "pipeline.commands",
    "pipeline.data",
    "pipeline.data.registry",
    "pipeline.engine",
    "pipeline.git",
    "pipeline.locks",
    "pipeline.provenance",
    "pipeline.schema",
    "pipeline.tracking",
    "pipeline.tracking.mlflow_bulk",
    "pipeline.tracking.mlflow_database",
    "pipeline.tracking.mlflow_registry",
    "pipeline.tracking.system_metrics",
    "pipeline.training",
    "pipeline.training.checks",
    "pipeline.training.lockstep",
    # Registries' modules, which count for the cells that name an entry.
    "pipeline.data.augmentations",
    "pipeline.data.image_operations",
    "pipeline.models.googlenet",
    "pipeline.models.mobile",
    "pipeline.models.resnet",
    # What divides images: the digest of the partition, which it made before, is in a result.
    "pipeline.data.domain_skew",
    "pipeline.data.label_skew",
    "pipeline.data.listed",
}
# Of these modules, what carries out training or keeps its numbers.
COUNTED = {"pipeline.training.cache:Pretraining", "pipeline.training.checkpoint:SeedFiles"}
SCHEMA = {"pipeline.schema.partitions", "pipeline.schema.scenario"}
# As NEUTRAL, for the stages that train nothing.
ASIDE = {
    *(NEUTRAL | SCHEMA),
    "pipeline.arithmetic",
    "pipeline.devices",
    "pipeline.methods",
    "pipeline.schema",
    "pipeline.schema.checker",
    "stages._stage",
}
# Constants that change no result, each with a test that they do not (tests/provenance/test_provenance.py).
CONSTANTS = {"CHECKPOINT_SECONDS", "EXECUTORS"}
# Dictionaries of which a scenario names the entries that it uses.
REGISTRIES = {
    "pipeline.models:DEEP",
    "pipeline.models:DROPOUT",
    "pipeline.models.resnet:BLOCKS",
    "pipeline.models.small:STACKS",
    "pipeline.engine.federation:AUGMENTATIONS",
    "pipeline.engine.public:AUGMENTATIONS",
    "pipeline.training.evaluation:MEASURES",
    "pipeline.data.partition:CUTS",
    "pipeline.data.partition:DEALS",
}
# Functions that import a module by a computed name: a cell's method and executor, which are entries of their
# own.
DYNAMIC = {
    "pipeline.engine.environment:new_executor",
    "pipeline.methods:find",
}
# What trains a cell and makes the numbers of its result.
TRAINING = (
    "pipeline.arithmetic:adopt",
    "pipeline.devices:keep_memory",
    "pipeline.training.seeds:train_seed",
    "pipeline.training.seeds:summarise",
)
# What leads to the training, on this machine or a cluster's. The statements of these functions count, but not
# what they call to show progress or to lock files.
AROUND = (
    "pipeline.place:begin",
    "stages._stage:stage",
    "pipeline.clusters.worker:train_here",
    "pipeline.clusters.worker:work",
    "stages.train:train",
    "pipeline.training.trainer:train_cell",
    "pipeline.training.trainer:train_seeds",
    "pipeline.training.trainer:_in_processes",
    "pipeline.training.trainer:_worker",
)
# Packages whose versions are recorded with every result.
PACKAGES = ("torch", "torchvision", "numpy", "pandas")
# Scenarios of which a process remembers what they hold; `fedrepro status` asks several times for each.
REMEMBERED = 4096


def code_digest(*entries: str, root: Path = ROOT) -> str:
    """SHA-256 over the code of a stage that trains nothing, and over the schema's defaults.

    entries  the definitions that the stage starts from: "package.module:name", or "package.module"
    root     folder of the repository
    """
    return sha256_of([_aside(root).digest(entries), _defaults(_schema())])


@cache
def _aside(root: Path) -> Code:
    return RememberedCode(root, ASIDE, constants=CONSTANTS, registries=REGISTRIES)


@cache
def _code(root: Path) -> Code:
    return RememberedCode(root, NEUTRAL, COUNTED, CONSTANTS, REGISTRIES, SCHEMA, DYNAMIC, strict=True)


class Chosen(NamedTuple):
    """Which code counts for a scenario.

    entries  as of `Code.digest`
    named    keys that count in registries
    around   as `shallow` of `Code.digest`
    names    those of `kinds`
    kinds    classes of the schema that the scenario has values of
    """

    entries: tuple[str, ...]
    named: frozenset[str]
    around: tuple[str, ...]
    names: frozenset[str]
    kinds: frozenset[type]

    @property
    def of_code(self) -> tuple:
        """The arguments of `Code.digest`, by position."""
        return self.entries, self.named, self.around, self.names


def digest_of(experiment: Experiment, executor: str = "sequential") -> str:
    """Digest of the code that trains and evaluates a cell: its method, the executor, and what its scenario
    names.

    experiment  the cell with its parameters
    executor    that trains it: one of `engine.environment.EXECUTORS`

    Raises FedReproError for code that cannot be followed.
    """
    return _digest(_chosen_for(experiment, executor), experiment.root)


def parts_of(experiment: Experiment, executor: str = "sequential") -> dict[str, str]:
    """Digests of the single definitions and default values that `digest_of` covers; arguments as there.

    Returns "package.module:Class.method" -> the first hex digits, and for a default value of the schema
    "defaults:Training.batch_size" -> the same.
    """
    chosen = _chosen_for(experiment, executor)
    parts = _code(experiment.root).parts(*chosen.of_code)
    for name, value in _defaults(chosen.kinds).items():
        parts[f"defaults:{name}"] = sha256_of(value)[:DIGITS]
    return parts


def modules_of(experiment: Experiment, executor: str = "sequential") -> set[str]:
    """The modules whose code `digest_of` covers, in whole or in part."""
    return _code(experiment.root).modules(*_chosen_for(experiment, executor).of_code)


def _chosen_for(experiment: Experiment, executor: str) -> Chosen:
    """Which code counts for a cell."""
    entries = [*TRAINING, f"pipeline.engine.{executor}"]
    if executor == "stacked":
        entries.append("pipeline.training.lockstep:together")
    entries.append(_module_of_method(experiment))
    for metric in experiment.scenario.evaluation.metrics or ():
        entries.append(f"papers.{experiment.cell.paper}.metrics:{metric}")
    return _chosen(tuple(entries), experiment.scenario, experiment.hyper, AROUND, experiment.root)


def _module_of_method(experiment: Experiment) -> str:
    """The module of a cell's method: of its paper, or of pipeline.methods."""
    of_paper = method_module(experiment.algorithm, experiment.cell.paper, experiment.root)
    return of_paper or f"pipeline.methods.{experiment.algorithm}"


def method_attributes(experiment: Experiment) -> frozenset[str]:
    """The names of all attributes in a cell's method and in the code that it calls."""
    return _code(experiment.root).attributes(_module_of_method(experiment))


def scenario_digest(
    entries: tuple[str, ...],
    scenario: Scenario,
    hyper: dict | None = None,
    around: tuple[str, ...] = (),
    root: Path = ROOT,
) -> str:
    """SHA-256 over the code that a scenario uses, and over the default values of its schema.

    entries   the definitions to start from: "package.module:name"
    scenario  of registries only the entries count that it names
    hyper     parameters of a method, which may name entries as well
    around    further entries of which only their own statements count
    root      folder of the repository
    """
    return _digest(_chosen(entries, scenario, hyper, around, root), root)


def _chosen(
    entries: tuple[str, ...], scenario: Scenario, hyper: dict | None, around: tuple[str, ...], root: Path
) -> Chosen:
    """Which code counts for a scenario; arguments as of `scenario_digest`."""
    kinds, texts = _held(_Same(scenario))
    if hyper:
        more_kinds, more_texts = _kinds_and_texts(hyper)
        kinds |= more_kinds
        texts |= more_texts
    names = frozenset(kind.__name__ for kind in kinds)
    return Chosen((*entries, *_of_papers(scenario)), texts & _code(root).keys, around, names, kinds)


class _Same:
    """A scenario as the key of what is remembered of it: equal to itself alone. To hash what it holds would
    take longer than to find it out again; it is never changed in place."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.scenario is other.scenario

    def __hash__(self) -> int:
        return id(self.scenario)


@lru_cache(REMEMBERED)
def _held(same: _Same) -> tuple[frozenset[type], frozenset[str]]:
    return _kinds_and_texts([same.scenario, same.scenario.partition.kind])


def _kinds_and_texts(value: Any) -> tuple[frozenset[type], frozenset[str]]:
    """Of all that a value holds: the classes of dataclasses, and the texts."""
    values = list(_nested(value))
    kinds = frozenset(type(one) for one in values if dataclasses.is_dataclass(one))
    return kinds, frozenset(one for one in values if isinstance(one, str))


def _digest(chosen: Chosen, root: Path) -> str:
    """SHA-256 over this code and over the default values of its schema."""
    code = _code(root).digest(*chosen.of_code)
    return sha256_of([code, _defaults_text(chosen.kinds)])


@cache
def _defaults_text(kinds: frozenset[type]) -> str:
    """`_defaults` as canonical JSON."""
    return json.dumps(_defaults(kinds), sort_keys=True)


def _of_papers(scenario: Scenario) -> Iterator[str]:
    """Entries of what a scenario uses from the folders of papers: networks and the kind of partition."""
    for model in scenario.networks:
        if model.paper:
            yield f"papers.{model.paper}.models:{model.name}"
    kind = type(scenario.partition)
    if not kind.__module__.startswith("pipeline."):
        yield f"{kind.__module__}:{kind.__name__}"


def _nested(value: Any) -> Iterator[Any]:
    """A value and all that its dataclasses, mappings and lists hold; keys of mappings are left out."""
    yield value
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _nested(item)


def code_of(experiment: Experiment, executor: str = "sequential", result: Result | None = None) -> str:
    """The digest under which DVC and `.cells` know the code of a cell.

    This is the digest of the code that made the cell's result, if that counts as today's. Without a result it
    is the digest in sources.yaml, if a stamp says that today's code reproduces its result. Otherwise it is
    the digest of today's code.

    experiment  the cell with its parameters
    executor    that would train it
    result      of the cell, if it was read already

    Raises FedReproError for code that cannot be followed.
    """
    cell = experiment.cell
    root = experiment.root
    code = digest_of(experiment, executor)
    if isinstance(cell, Seeded):  # other seeds of a cell are trained by its code
        cell = Cell(cell.paper, cell.scenario, cell.method)
        experiment = Experiment.of(cell, root)
        result = None
    try:
        result = result or json.loads((cell.folder(root) / "result.json").read_text(encoding="utf-8"))
    except DAMAGED:
        stamp = stamps.of(cell, root)
        listed = noted(cell.paper, root).get(str(cell))
        if listed and stamp and listed == stamp["made"] and stamp["code"] == code:
            return listed
        return code
    made = made_by(result, experiment)
    return made if made and _walks(result, made, code, experiment) else code


@cache
def noted(paper: str, root: Path) -> dict[str, str]:
    """The digests of cells in a paper's sources.yaml as it is: "paper/scenario/method" -> digest.

    While a stage runs, DVC has deleted the result, and this is the digest that it will record. Empty if the
    file is missing or damaged.
    """
    try:
        cells = read_yaml(root / "papers" / paper / "sources.yaml").get("cells", {})
        checked = check(dict[str, dict[str, str]], cells, "cells")
    except FedReproError:
        return {}
    digests = {}
    for scenario, by_method in checked.items():
        for method, digest in by_method.items():
            digests[f"{paper}/{scenario}/{method}"] = digest
    return digests


def made_by(result: Result, experiment: Experiment) -> str | None:
    """The digest of the code that made a result from today's parameters.

    A result's own digest covers its code and its parameters. So this tries every digest of code that is
    known for the cell: of the result, of stamps, of today's code and of sources.yaml. None if none of them
    fits: the parameters have changed, or the digest of the code is not known any more.
    """
    root = experiment.root
    cells = alike(experiment.cell)
    try:
        known = [
            result.get("code"),
            *((stamps.former(cell, root) or {}).get("made") for cell in cells),
            digest_of(experiment, result["executor"]),
            *(noted(cell.paper, root).get(str(cell)) for cell in cells),
        ]
        for code in dict.fromkeys(filter(None, known)):
            digest = cell_digest(experiment, result["partition"], result["precision"], code=code)
            if digest == result["digest"]:
                return code
    except DAMAGED:
        pass
    return None


def alike(cell: Cell) -> list[Cell]:
    """The cells that are trained by the same code with the same values, itself first."""
    return [cell, cell.base] if isinstance(cell, Published) else [cell]


def current(result: Result, experiment: Experiment) -> bool:
    """Whether a result has today's parameters and is what today's code gives.

    That is known if today's code made it, or if a stamp says that today's code reproduced it, and if no
    verification by today's code gave other numbers. True also if the root has no code to compare with.
    """
    code = _today(result, experiment)
    if code is None:
        return True
    if refused(result, experiment, code) is not None:
        return False
    made = made_by(result, experiment)
    return made is not None and _walks(result, made, code, experiment)


def refused(result: Result, experiment: Experiment, code: str | None = None) -> dict | None:
    """The entry of verified.yaml that says that a verification of this result gave another number.

    result      of the cell
    experiment  the cell with its parameters
    code        digest of the code that the entry must be of; None: of today's code

    None if there is no such entry.
    """
    entry = stamps.refusal(experiment.cell, experiment.root)
    if entry is None or entry["result"] != result.get("self"):
        return None
    return entry if entry["code"] == (code or _today(result, experiment)) else None


def _today(result: Result, experiment: Experiment) -> str | None:
    """The digest of today's code for a result; None where the root has no code."""
    try:
        return digest_of(experiment, result["executor"])
    except KeyError:
        return None


def _walks(result: Result, made: str, code: str, experiment: Experiment) -> bool:
    """Whether code of the digest `code` is known to give a result that code of the digest `made` gave."""
    # A cell that is trained again under a stamp keeps the digest that DVC has of it.
    return code in (made, result.get("code")) or verified(result, experiment, code) is not None


def verified(result: Result, experiment: Experiment, code: str | None = None) -> dict | None:
    """The stamp that says that a result was reproduced by code that has changed since it was made.

    result      of the cell
    experiment  the cell with its parameters
    code        digest of the code that reproduced it; None: of today's code

    None if there is no such stamp.
    """
    stamp = stamps.of(experiment.cell, experiment.root)
    if stamp is None or stamp["result"] != result.get("self"):
        return None
    return stamp if stamp["code"] == (code or _today(result, experiment)) else None


def unverified_since(result: Result, experiment: Experiment) -> str:
    """The commit that trained a stale result whose earlier stamp no longer counts; empty for another result.

    A stamp no longer counts if it accepted the rounding of another processor, or compared nothing.
    """
    former = stamps.former(experiment.cell, experiment.root)
    if former is None or former["result"] != result.get("self") or current(result, experiment):
        return ""
    if stamps.of(experiment.cell, experiment.root) is not None:
        return ""
    state = result["git"]
    return str(state.get("paper_commit") or state.get("commit") or "an unknown commit")


def redrawn(result: Result, scenario: Scenario) -> bool:
    """Whether all seeds of a result share one draw of the partition although by now each should have its own,
    or the reverse. One seed alone does not show it."""
    return len(result["seeds"]) > 1 and ("partitions" in result) == scenario.partition.fixed


def cell_digest(
    experiment: Experiment,
    partition_digest: str,
    precision: str = "fp32",
    executor: str = "sequential",
    code: str | None = None,
) -> str:
    """SHA-256 over all that a seed of a cell depends on.

    The list of seeds is left out: a further seed leaves the others valid.

    experiment        the cell with its parameters
    partition_digest  digest of the partition that the seed trains on
    precision         "fp32", or the lower precision of the training
    executor          that trains it
    code              digest of the cell's code; None: `code_of`
    """
    values = parameters(experiment, precision)
    return sha256_of(values | {"partition": partition_digest, "code": code or code_of(experiment, executor)})


def parameters(experiment: Experiment, precision: str) -> dict:
    """The values that a cell's digest covers: scenario, algorithm, hyper-parameters, a lower precision."""
    covered = {
        "scenario": _values_of(_Same(experiment.scenario)),
        "algorithm": experiment.algorithm,
        "hyper": experiment.hyper,
    }
    if precision != "fp32":
        covered["precision"] = precision
    return covered


@lru_cache(REMEMBERED)
def _values_of(same: _Same) -> dict:
    """The values of a scenario that a digest covers; not to be changed."""
    values = dataclasses.asdict(dataclasses.replace(same.scenario, seeds=[0]))
    # The partition's digest already identifies the draw.
    values["partition"] |= {"kind": same.scenario.partition.kind, "fixed": False}
    return _without_neutral(values)


def recorded(experiment: Experiment, executor: str, precision: str) -> dict[str, dict]:
    """What a result records of today's code and parameters, so that `fedrepro explain` can say what changed.

    experiment  the cell with its parameters
    executor    that trains it
    precision   of the training

    Returns `definitions`: module -> "name digest, name digest", and `parameters`: "training.optimiser.lr" ->
    value. The partitions and data sets of the seeds are in the result already.
    """
    of_modules: dict[str, list[str]] = {}
    # In a fixed order: the same code is the same record.
    for place, digest in sorted(parts_of(experiment, executor).items()):
        module, _, name = place.rpartition(":")
        of_modules.setdefault(module, []).append(f"{name} {digest}")
    definitions = {module: ", ".join(parts) for module, parts in of_modules.items()}
    return {"definitions": definitions, "parameters": flat(parameters(experiment, precision))}


def definitions_in(record: Mapping[str, Any]) -> dict[str, str]:
    """The digests of single definitions that `recorded` has given: `parts_of` at that time."""
    digests = {}
    for module, parts in record["definitions"].items():
        for part in parts.split(", "):
            name, _, digest = part.rpartition(" ")
            digests[f"{module}:{name}"] = digest
    return digests


def flat(values: dict, prefix: str = "") -> dict[str, Any]:
    """Nested values as "training.optimiser.lr" -> value, as JSON would give them.

    values  with "scenario" at the top, which is left out of the names
    prefix  of the names
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        place = prefix if not prefix and name == "scenario" else f"{prefix}{name}"
        if isinstance(value, dict):
            found |= flat(value, f"{place}." if place else "")
        else:
            found[place] = value
    return json.loads(json.dumps(found, default=str))


def machine() -> dict[str, str]:
    """What may make a result differ on another machine, recorded with every result: versions of Python and of
    PACKAGES, platform, processor, and the settings of its arithmetic if there are any."""
    facts = {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "processor": _processor(),
    }
    setting = arithmetic.in_use()
    if setting:
        facts["arithmetic"] = setting
    convolutions = _convolutions()
    if convolutions:
        facts["convolutions"] = convolutions
    for name in PACKAGES:
        facts[name] = metadata.version(name)
    return facts


def _convolutions() -> str:
    """How this process has computed stacked convolutions: for each shape what a trial on its GPU chose."""
    module = sys.modules.get("pipeline.engine.stacked.convolution")  # importing it would import torch
    if module is None:
        return ""
    ways = {True: "im2col", False: "grouped"}
    return "; ".join(f"{shape} {ways[bool(im2col)]}" for shape, im2col in sorted(module.used.items()))


def _processor() -> str:
    """Name and vector instructions of the processor, as Linux reports them: others round differently."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    name = _cpu_field(text, "model name")
    instructions = set(_cpu_field(text, "flags").split())
    return " ".join([name, *sorted({"avx2", "avx512f", "amx_tile"} & instructions)])


def _cpu_field(text: str, key: str) -> str:
    """The first value of a field of /proc/cpuinfo; empty if there is none."""
    line = re.search(rf"^{key}\s*:(.*)", text, re.M)
    return line[1].strip() if line else ""


def git_state(root: Path, paper: str) -> dict:
    """The commit of the work tree, and whether code or parameters differ from it.

    root   folder of the repository
    paper  its folder may be another repository

    Returns `commit` and `dirty`, and for a paper that is another repository `paper_commit` and
    `paper_dirty`; empty outside of a repository.
    """
    folder = f"papers/{paper}"
    of_paper = ("paper.yaml", "params.yaml", "*.py", "methods/*.py")
    code = ["pipeline", "stages", "params.yaml", *(f":(glob)papers/*/{name}" for name in of_paper)]
    try:
        if git(root / folder, "rev-parse", "--show-prefix"):
            return _state(root, *code)
        inner = _state(root / folder, *(f":(glob){name}" for name in of_paper))
        outer = _state(root, *code, f":(exclude){folder}")
        return outer | {f"paper_{key}": value for key, value in inner.items()}
    except FedReproError:
        return {}


def _state(folder: Path, *paths: str) -> dict:
    """Commit of a repository, empty before the first, and whether any of the paths differs from it."""
    lines = git(folder, "status", "--porcelain=v2", "--branch", "--", *paths).splitlines()
    commit = next(line for line in lines if line.startswith("# branch.oid ")).split()[-1]
    changed = any(not line.startswith("#") for line in lines)
    return {"commit": "" if commit == "(initial)" else commit, "dirty": changed}


def _defaults(kinds: Iterable[type]) -> dict[str, str]:
    """The default values of classes of the schema: "Training.batch_size" -> its text.

    Neutral ones (None, False, 0, "") are left out. So a new optional key leaves old results valid, but a
    change of another default does not.
    """
    defaults = {}
    for kind in kinds:
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING and field.default:
                defaults[f"{kind.__name__}.{field.name}"] = repr(field.default)
    return defaults


def _schema() -> set[type]:
    """The classes that a scenario may have values of."""
    kinds: set[type] = set()
    waiting: list[Any] = [Scenario]
    while waiting:
        kind = waiting.pop()
        kinds.add(kind)
        for hint in typing.get_type_hints(kind).values():
            waiting += [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)]
    return kinds


def _without_neutral(value: Any) -> Any:
    """Nested mappings without None and False: an optional key that is not used must not change a digest."""
    if not isinstance(value, dict):
        return value
    return {
        key: _without_neutral(item) for key, item in value.items() if item is not None and item is not False
    }


def sha256_of(document: Any) -> str:
    """SHA-256 of a document, which is written as JSON with sorted keys, in hex digits."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
