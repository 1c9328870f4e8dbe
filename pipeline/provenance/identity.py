"""Digests of a result's code, parameters and data, to tell whether it is current; commit and machine.

DVC tracks files, not imports. `code_digest` hashes the definitions that a cell really runs
(`pipeline/provenance/definitions.py`), so that a new method, a network that the cell does not use or a
reworded docstring leaves its result valid, and `code_of` asks the stamps (`pipeline/cells/stamps.py`)
whether today's code has reproduced the result (`fedrepro verify`).
"""

import dataclasses
import hashlib
import json
import platform
import re
import sys
import typing
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import arithmetic
from pipeline.cells import stamps
from pipeline.cells.experiment import Experiment
from pipeline.errors import DAMAGED, FedReproError
from pipeline.git import git
from pipeline.provenance.code_digests import RememberedCode
from pipeline.provenance.definitions import Code
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
# Of stages that train nothing.
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
CONSTANTS = {"CHECKPOINT_SECONDS"}
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
# What imports a module by its name, where a cell's method and executor are separate entries.
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
# What leads there, on this machine or a cluster's: its statements count, not the showing and locking that it
# calls.
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
PACKAGES = ("torch", "torchvision", "numpy", "pandas")  # whose versions are recorded with every result
# Scenarios of which a process remembers what they hold; `fedrepro status` asks several times for each.
REMEMBERED = 4096


def code_digest(*entries: str, root: Path = ROOT) -> str:
    """sha256 over what the entries of a stage that trains nothing reach, and over the schema's defaults."""
    return sha256_of([_aside(root).digest(entries), _defaults(_schema())])


@cache
def _aside(root: Path) -> Code:
    return RememberedCode(root, ASIDE, constants=CONSTANTS, registries=REGISTRIES)


@cache
def _code(root: Path) -> Code:
    return RememberedCode(root, NEUTRAL, COUNTED, CONSTANTS, REGISTRIES, SCHEMA, DYNAMIC, strict=True)


class Chosen(NamedTuple):
    """What of the code counts for a scenario; see `Code.digest`. kinds: classes of its schema's values."""

    entries: tuple[str, ...]
    named: frozenset[str]
    around: tuple[str, ...]
    names: frozenset[str]
    kinds: frozenset[type]

    @property
    def of_code(self) -> tuple:
        return self.entries, self.named, self.around, self.names


def digest_of(experiment: Experiment, executor: str = "sequential") -> str:
    """Digest of the code that trains and evaluates a cell: its method, the executor, and what its scenario
    names. FedReproError for code that cannot be followed."""
    return _digest(_chosen_for(experiment, executor), experiment.root)


def parts_of(experiment: Experiment, executor: str = "sequential") -> dict[str, str]:
    """ "package.module:Class.method" -> the first digits of its digest, of every definition that `digest_of`
    covers; of the schema's defaults that count "defaults:Training.batch_size"."""
    chosen = _chosen_for(experiment, executor)
    defaults = {f"defaults:{name}": sha256_of(value)[:10] for name, value in _defaults(chosen.kinds).items()}
    return _code(experiment.root).parts(*chosen.of_code) | defaults


def modules_of(experiment: Experiment, executor: str = "sequential") -> set[str]:
    """The modules whose code `digest_of` covers, in whole or in part."""
    return _code(experiment.root).modules(*_chosen_for(experiment, executor).of_code)


def _chosen_for(experiment: Experiment, executor: str) -> Chosen:
    algorithm, root = experiment.algorithm, experiment.root
    method = method_module(algorithm, experiment.cell.paper, root) or f"pipeline.methods.{algorithm}"
    metrics = experiment.scenario.evaluation.metrics or ()
    measured = (f"papers.{experiment.cell.paper}.metrics:{name}" for name in metrics)
    together = ("pipeline.training.lockstep:together",) if executor == "stacked" else ()
    entries = (*TRAINING, f"pipeline.engine.{executor}", *together, method, *measured)
    return _chosen(entries, experiment.scenario, experiment.hyper, AROUND, root)


def method_attributes(experiment: Experiment) -> frozenset[str]:
    """Names of the attributes that a cell's method, and the code that it calls, reads of anything."""
    module = method_module(experiment.algorithm, experiment.cell.paper, experiment.root)
    return _code(experiment.root).attributes(module or f"pipeline.methods.{experiment.algorithm}")


def scenario_digest(
    entries: tuple[str, ...],
    scenario: Scenario,
    hyper: dict | None = None,
    around: tuple[str, ...] = (),
    root: Path = ROOT,
) -> str:
    """sha256 over the definitions that entries reach for one scenario, of registries what it names alone, and
    over the default values of its schema."""
    return _digest(_chosen(entries, scenario, hyper, around, root), root)


def _chosen(
    entries: tuple[str, ...], scenario: Scenario, hyper: dict | None, around: tuple[str, ...], root: Path
) -> Chosen:
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
    code = _code(root).digest(*chosen.of_code)
    return sha256_of([code, _defaults_text(chosen.kinds)])


@cache
def _defaults_text(kinds: frozenset[type]) -> str:
    """`_defaults` as canonical JSON."""
    return json.dumps(_defaults(kinds), sort_keys=True)


def _of_papers(scenario: Scenario) -> Iterator[str]:
    """Entries of what papers' folders define of a scenario: networks and the kind of partition."""
    yield from (f"papers.{model.paper}.models:{model.name}" for model in scenario.networks if model.paper)
    kind = type(scenario.partition)
    if not kind.__module__.startswith("pipeline."):
        yield f"{kind.__module__}:{kind.__name__}"


def _nested(value: Any) -> Iterator[Any]:
    """A value and all that its dataclasses, mappings and lists hold, keys of mappings left out."""
    yield value
    if dataclasses.is_dataclass(value):
        value = vars(value)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nested(item)


def code_of(experiment: Experiment, executor: str = "sequential", result: dict | None = None) -> str:
    """The digest under which DVC and `.cells` know the code of a cell: the one that made its result, where
    that counts as today's; without a result the one in sources.yaml, where a stamp says that today's code
    walks it; else today's. result: the cell's, where it was read already."""
    cell, root, code = experiment.cell, experiment.root, digest_of(experiment, executor)
    if isinstance(cell, Seeded):  # other seeds of a cell are trained by its code
        cell = Cell(cell.paper, cell.scenario, cell.method)
        experiment = Experiment.of(cell, root)
        result = None
    try:
        result = result or json.loads((cell.folder(root) / "result.json").read_text(encoding="utf-8"))
    except DAMAGED:
        stamp, listed = stamps.of(cell, root), noted(cell.paper, root).get(str(cell))
        return listed if listed and stamp and listed == stamp["made"] and stamp["code"] == code else code
    made = made_by(result, experiment)
    return made if made and _walks(result, made, code, experiment) else code


@cache
def noted(paper: str, root: Path) -> dict[str, str]:
    """Cell -> digest of the paper's sources.yaml as it is. While a stage runs, DVC has deleted the result,
    and this is the digest that it will record."""
    try:
        cells = read_yaml(root / "papers" / paper / "sources.yaml").get("cells", {})
        checked = check(dict[str, dict[str, str]], cells, "cells")
    except FedReproError:
        return {}
    return {f"{paper}/{at}/{method}": digest for at in checked for method, digest in checked[at].items()}


def made_by(result: dict, experiment: Experiment) -> str | None:
    """The digest of code by which a result's digest is that of today's parameters; None where these have
    changed, or where the digest is not known any more."""
    cell, root = experiment.cell, experiment.root
    try:
        known = [
            result.get("code"),
            *((stamps.former(one, root) or {}).get("made") for one in alike(cell)),
            digest_of(experiment, result["executor"]),
            *(noted(one.paper, root).get(str(one)) for one in alike(cell)),
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


def current(result: dict, experiment: Experiment) -> bool:
    """Whether a result was made by today's parameters and by today's code, or by code whose trajectory
    today's walks, and whether no walk of today's code gave other numbers; also where the root has no code to
    compare with."""
    if (code := _today(result, experiment)) is None:
        return True
    if refused(result, experiment, code) is not None:
        return False
    made = made_by(result, experiment)
    return made is not None and _walks(result, made, code, experiment)


def refused(result: dict, experiment: Experiment, code: str | None = None) -> dict | None:
    """The entry of verified.yaml that says which other number today's code (or that of the digest `code`)
    gave when this result was walked; None where there is none."""
    entry = stamps.refusal(experiment.cell, experiment.root)
    if entry is None or entry["result"] != result.get("self"):
        return None
    return entry if entry["code"] == (code or _today(result, experiment)) else None


def _today(result: dict, experiment: Experiment) -> str | None:
    """The digest of today's code for a result; None where the root has no code."""
    try:
        return digest_of(experiment, result["executor"])
    except KeyError:
        return None


def _walks(result: dict, made: str, code: str, experiment: Experiment) -> bool:
    """Whether code of the digest `code` is known to give the result, which `made` is the digest of."""
    # A cell that is trained again under a stamp keeps the digest that DVC has of it.
    return code in (made, result.get("code")) or verified(result, experiment, code) is not None


def verified(result: dict, experiment: Experiment, code: str | None = None) -> dict | None:
    """The stamp by which a result counts although the code has changed since; None where there is none for
    this result and today's code (or that of the digest `code`)."""
    stamp = stamps.of(experiment.cell, experiment.root)
    if stamp is None or stamp["result"] != result.get("self"):
        return None
    return stamp if stamp["code"] == (code or _today(result, experiment)) else None


def unverified_since(result: dict, experiment: Experiment) -> str:
    """The commit that trained a stale result for which a former entry of verified.yaml counts no more, since
    it accepted the rounding of another processor or walked nothing; else nothing."""
    former = stamps.former(experiment.cell, experiment.root)
    if former is None or former["result"] != result.get("self") or current(result, experiment):
        return ""
    if stamps.of(experiment.cell, experiment.root) is not None:
        return ""
    state = result["git"]
    return str(state.get("paper_commit") or state.get("commit") or "an unknown commit")


def redrawn(result: dict, scenario: Scenario) -> bool:
    """Whether all seeds of a result share one draw of the partition where each should have one by now, or
    the reverse. One seed alone does not show it."""
    return len(result["seeds"]) > 1 and ("partitions" in result) == scenario.partition.fixed


def cell_digest(
    experiment: Experiment,
    partition_digest: str,
    precision: str = "fp32",
    executor: str = "sequential",
    code: str | None = None,
) -> str:
    """What a seed of this cell depends on; the list of seeds is left out, so that one more seed trains one
    more.

    code: the digest to take for the cell's code instead of `code_of`.
    """
    values = parameters(experiment, precision)
    return sha256_of(values | {"partition": partition_digest, "code": code or code_of(experiment, executor)})


def parameters(experiment: Experiment, precision: str) -> dict:
    """The values that a cell's digest covers."""
    return {
        "scenario": _values_of(_Same(experiment.scenario)),
        "algorithm": experiment.algorithm,
        "hyper": experiment.hyper,
        **({} if precision == "fp32" else {"precision": precision}),
    }


@lru_cache(REMEMBERED)
def _values_of(same: _Same) -> dict:
    """The values of a scenario that a digest covers; not to be changed."""
    values = dataclasses.asdict(dataclasses.replace(same.scenario, seeds=[0]))
    # The partition's digest already identifies the draw.
    values["partition"] |= {"kind": same.scenario.partition.kind, "fixed": False}
    return _without_neutral(values)


def recorded(experiment: Experiment, executor: str, precision: str) -> dict[str, dict]:
    """What a result keeps of today's code and parameters, by which `explain` says what has changed.

    `definitions`: module -> "name digest, name digest"; `parameters`: "training.optimiser.lr" -> value. The
    partitions and data sets of the seeds are in the result already.
    """
    of_modules: dict[str, list[str]] = {}
    # In a fixed order: the same code is the same record.
    for place, digest in sorted(parts_of(experiment, executor).items()):
        module, _, name = place.rpartition(":")
        of_modules.setdefault(module, []).append(f"{name} {digest}")
    definitions = {module: ", ".join(parts) for module, parts in of_modules.items()}
    return {"definitions": definitions, "parameters": flat(parameters(experiment, precision))}


def definitions_in(record: dict[str, dict]) -> dict[str, str]:
    """`parts_of` as a result has recorded it."""
    return {
        f"{module}:{name}": digest
        for module, parts in record["definitions"].items()
        for name, _, digest in (part.rpartition(" ") for part in parts.split(", "))
    }


def flat(values: dict, at: str = "") -> dict[str, Any]:
    """Nested values by their place: "training.optimiser.lr"; those of the scenario without its name."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        place = at if not at and name == "scenario" else f"{at}{name}"
        if isinstance(value, dict):
            found |= flat(value, f"{place}." if place else "")
        else:
            found[place] = value
    return json.loads(json.dumps(found, default=str))


def machine() -> dict[str, str]:
    """Versions and platform, recorded with every result."""
    return {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "processor": _processor(),
        **({"arithmetic": setting} if (setting := arithmetic.in_use()) else {}),
        **({"convolutions": ways} if (ways := _convolutions()) else {}),
        **{name: metadata.version(name) for name in PACKAGES},
    }


def _convolutions() -> str:
    """Of this process's stacked convolutions: what a trial on its GPU chose for each shape."""
    module = sys.modules.get("pipeline.engine.stacked.convolution")  # importing it would import torch
    chosen = sorted(module.used.items()) if module else ()
    return "; ".join(f"{shape} {'im2col' if won else 'grouped'}" for shape, won in chosen)


def _processor() -> str:
    """Name and vector instructions of the processor, as Linux reports them: others round differently."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    lines = (re.search(rf"^{key}\s*:(.*)", text, re.M) for key in ("model name", "flags"))
    name, flags = (line[1].strip() if line else "" for line in lines)
    return " ".join([name, *sorted({"avx2", "avx512f", "amx_tile"} & set(flags.split()))])


def git_state(root: Path, paper: str) -> dict:
    """Commit of the work tree and whether code or parameters differ from it, as `paper_commit` and
    `paper_dirty` also of a paper's folder that is another repository; empty outside a repository."""
    folder, of_paper = f"papers/{paper}", ("paper.yaml", "params.yaml", "*.py", "methods/*.py")
    code = "pipeline", "stages", "params.yaml", *(f":(glob)papers/*/{name}" for name in of_paper)
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
    """Default values of classes of the schema. Neutral ones (None, False, 0, "") are left out, so that a new
    optional key leaves old results valid; changing a default that means something does not."""
    return {
        f"{kind.__name__}.{f.name}": repr(f.default)
        for kind in kinds
        for f in dataclasses.fields(kind)
        if f.default is not dataclasses.MISSING and f.default
    }


def _schema() -> set[type]:
    """The classes that a scenario may have values of."""
    kinds: set[type] = set()
    waiting: list[Any] = [Scenario]
    while waiting:
        kinds.add(kind := waiting.pop())
        for hint in typing.get_type_hints(kind).values():
            waiting += [k for k in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(k)]
    return kinds


def _without_neutral(value):
    """Nested mappings without None and False: an optional key that is not used must not change a digest."""
    if not isinstance(value, dict):
        return value
    return {k: _without_neutral(v) for k, v in value.items() if v is not None and v is not False}


def sha256_of(document) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
