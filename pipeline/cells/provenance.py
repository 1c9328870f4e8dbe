"""What a result depends on: the code that it ran, the parameters, the data; and where it was made.

DVC tracks files, not imports. `code_digest` hashes the definitions that a cell really runs
(`pipeline/cells/definitions.py`), so that a new method, a network that the cell does not use or a reworded
docstring leaves its result valid, and `code_of` asks the ledger of equal code (`pipeline/cells/ledger.py`)
whether the result was made by code that gives the same bits.
"""
import dataclasses
import hashlib
import json
import platform
import subprocess
import sys
import typing
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from pipeline.cells import arithmetic, ledger
from pipeline.cells.definitions import Code
from pipeline.errors import FedReproError
from pipeline.schema import ROOT, Cell, Scenario, load_paper, method_module, planned, read_yaml

# Modules that pass values on, show them or write them, but compute no result. Default values that `schema`
# holds enter through `_defaults`.
NEUTRAL = {
    "pipeline.errors",
    "pipeline.methods",
    "pipeline.devices",
    "pipeline.files",
    "pipeline.sealing",
    "stages._stage",
    *(
        f"pipeline.schema{part}"
        for part in ("", ".cell", ".checker", ".loader", ".methods", ".paper", ".scenario")
    ),
    *(
        f"pipeline.cells.{name}"
        for name in (
            "arithmetic", "beginnings", "definitions", "kept", "ledger", "progress", "provenance", "results",
            "tracking",
        )
    ),
}
# Constants that change no result, each with a test that they do not (tests/test_provenance.py).
CONSTANTS = {"CHECKPOINT_SECONDS"}
# Dictionaries of which a scenario names the entries that it uses.
REGISTRIES = {
    "pipeline.models:DEEP",
    "pipeline.models:DROPOUT",
    "pipeline.models.resnet:BLOCKS",
    "pipeline.models.small:STACKS",
    "pipeline.engine.world:AUGMENTATIONS",
    "pipeline.engine.public:AUGMENTATIONS",
    "pipeline.cells.evaluation:MEASURES",
    "pipeline.data.partition:CUTS",
}
# What trains a cell and makes the numbers of its result.
TRAINING = (
    "pipeline.cells.seeds:train_seed",
    "pipeline.cells.seeds:summarise",
    "pipeline.cells.seeds:metrics",
)
# What of tuning decides which configurations are tried and which is chosen; their training is that of cells.
TUNING = (
    "pipeline.cells.spaces:Axis",
    "pipeline.cells.spaces:shares",
    "pipeline.cells.choices:means",
    "pipeline.cells.choices:best",
)
PACKAGES = ("torch", "torchvision", "numpy", "pandas")         # whose versions are recorded with every result
STAGES = ("data", "features", "corrupt", "contact_sheet", "figures", "report", "results", "split")


def code_digest(*entries: str, named: frozenset[str] = frozenset(), root: Path = ROOT) -> str:
    """sha256 over the definitions that the entries reach, and over the schema's default values."""
    return _sha256([_code(root).digest(entries, named), _defaults()])


@cache
def _code(root: Path) -> Code:
    return Code(root, NEUTRAL, CONSTANTS, REGISTRIES)


def digest_of(cell: Cell, root: Path = ROOT, executor: str = "sequential") -> str:
    """Digest of the code that trains and evaluates a cell: its method, the executor, and what its scenario
    names."""
    scenario, algorithm, hyper = cell.resolve(root)
    method = method_module(algorithm, cell.paper, root) or f"pipeline.methods.{algorithm}"
    return _digest_of(method, executor, named(scenario, hyper, root), root)


def named(scenario: Scenario, hyper: dict, root: Path = ROOT) -> frozenset[str]:
    """The entries of registries that a scenario and its method's hyper-parameters name."""
    values = [dataclasses.asdict(scenario), scenario.partition.kind, hyper]
    return _code(root).keys & frozenset(_words(values))


@cache
def _digest_of(method: str, executor: str, named: frozenset[str], root: Path) -> str:
    return code_digest(*TRAINING, f"pipeline.engine.{executor}", method, named=named, root=root)


def _words(value: Any) -> Iterator[str]:
    """Every text in nested mappings and lists that is a value, not a key."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _words(item)
    elif isinstance(value, str):
        yield value


def code_of(cell: Cell, root: Path = ROOT, executor: str = "sequential") -> str:
    """The digest under which DVC and `.cells` know the code of a cell: the one that made its result, if
    today's code is certified to give the same bits; else the one in sources.yaml, if that is certified as
    equal; else the oldest of the equal digests."""
    equal = ledger.equal(digest_of(cell, root, executor), root)
    listed = noted(cell.paper, root).get(cell.scenario, {}).get(cell.method)
    return trained_by(cell, equal, root) or (listed if listed in equal else equal[0])


@cache
def noted(paper: str, root: Path) -> dict:
    """The cells of the paper's sources.yaml as it stands. While a stage runs, DVC has deleted the result, and
    this is the digest that it will record."""
    try:
        return read_yaml(root / "papers" / paper / "sources.yaml").get("cells", {})
    except FedReproError:
        return {}


def trained_by(cell: Cell, candidates: list[str], root: Path = ROOT) -> str | None:
    """Which of the digests made the cell's result, with today's parameters; None for none of them, or without
    a result."""
    try:
        return made_by(
            json.loads((cell.folder(root) / "result.json").read_text(encoding="utf-8")),
            cell,
            candidates,
            root,
        )
    except (OSError, ValueError):
        return None


def made_by(result: dict, cell: Cell, candidates: list[str], root: Path = ROOT) -> str | None:
    """As `trained_by`, for a given result."""
    try:
        if result["device"] != "cpu":             # only computation on CPUs was certified
            candidates = [digest_of(cell, root, result["executor"])]
        return next(
            (
                code
                for code in candidates
                if cell_digest(cell, result["partition"], result["precision"], root, code=code)
                == result["digest"]
            ),
            None,
        )
    except (KeyError, TypeError):
        return None


def current(result: dict, cell: Cell, root: Path = ROOT) -> bool:
    """Whether a result was made by today's parameters and by today's code, or by code that is certified
    equal; also where the root has no code to compare with."""
    codes = _codes(result, cell, root)
    return codes is None or codes[1] is not None


def redrawn(result: dict, scenario: Scenario) -> bool:
    """Whether all seeds of a result share one draw of the partition where each is to have its own by now, or
    the reverse. One seed alone does not show it."""
    return len(result["seeds"]) > 1 and ("partitions" in result) == scenario.partition.fixed


def certificate(result: dict, cell: Cell, root: Path = ROOT) -> dict | None:
    """The ledger's entry by which a result counts although the code has changed since; None where it has not,
    or where it does not count."""
    codes = _codes(result, cell, root)
    return ledger.certified(codes[0], root) if codes and codes[1] not in (codes[0], None) else None


def _codes(result: dict, cell: Cell, root: Path) -> tuple[str, str | None] | None:
    """The digest of the code that trains a cell today, and which of the equal ones made the result, None for
    none of them; None where the root has papers but no code."""
    executor = result["executor"]
    try:
        code = digest_of(cell, root, executor)
    except KeyError:
        return None
    return code, made_by(result, cell, ledger.equal(code, root), root)


def cell_digest(
    cell: Cell,
    partition_digest: str,
    precision: str = "fp32",
    root: Path = ROOT,
    executor: str = "sequential",
    code: str | None = None,
) -> str:
    """What a seed of this cell depends on; the list of seeds is left out, so that one more seed trains one
    more.

    code: the digest to take for the cell's code instead of `code_of`.
    """
    scenario, algorithm, hyper = cell.resolve(root)
    values = dataclasses.asdict(dataclasses.replace(scenario, seeds=[0]))
    # The partition's digest already identifies the draw.
    values["partition"] |= {"kind": scenario.partition.kind, "fixed": False}
    return _sha256({"scenario": _without_neutral(values), "algorithm": algorithm, "hyper": hyper,
                    "partition": partition_digest, "code": code or code_of(cell, root, executor),
                    **({} if precision == "fp32" else {"precision": precision})})


def stage_digests(root: Path = ROOT) -> dict[str, str]:
    """The content of sources.yaml: a digest for each kind of stage that is no cell's and no partition's."""
    return {stage: code_digest(f"stages.{stage}", root=root) for stage in STAGES} | {
        "tune": code_digest(*TUNING, root=root)
    }


def paper_digests(name: str, root: Path = ROOT) -> dict[str, dict]:
    """The content of papers/<name>/sources.yaml: `partition` {scenario: digest} and `cells` {scenario:
    {method: digest}}."""
    paper = load_paper(name, root)
    cells: dict[str, dict] = {}
    for cell in planned(name, root):
        cells.setdefault(cell.scenario, {})[cell.method] = code_of(cell, root)
    return {
        "partition": {
            key: code_digest("stages.partition", named=frozenset({scenario.partition.kind}), root=root)
            for key, scenario in paper.scenarios.items()
        },
        "cells": cells,
    }


def machine() -> dict:
    """Versions and platform, recorded with every result."""
    return {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "processor": _processor(),
        **({"arithmetic": found} if (found := arithmetic.in_use()) else {}),
        **{name: metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    """Name and vector instructions of the processor, as Linux reports them: another one rounds sums
    differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    known = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))
    }
    return " ".join(
        [
            known.get("model name", ""),
            *sorted({"avx2", "avx512f", "amx_tile"} & set(known.get("flags", "").split())),
        ]
    )


def git_state(root: Path = ROOT) -> dict:
    """Commit of the work tree and whether code or parameters differ from it; empty outside a repository."""
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()
    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(
                git("status", "--porcelain", "--", "pipeline", "stages", "params.yaml", "papers/*/paper.yaml",
                    "papers/*/methods/*")
            ),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}


def _defaults() -> dict:
    """Default values of the scenario's schema. Neutral ones (None, False, 0, "") are left out, so that a new
    optional key leaves old results valid; changing a default that means something does not."""
    found: dict[str, str] = {}
    waiting: list[Any] = [Scenario]
    while waiting:
        kind = waiting.pop()
        for f in dataclasses.fields(kind):
            if f.default is not dataclasses.MISSING and f.default:
                found[f"{kind.__name__}.{f.name}"] = repr(f.default)
        for hint in typing.get_type_hints(kind).values():
            candidates = [hint, *typing.get_args(hint)]
            waiting += [k for k in candidates if dataclasses.is_dataclass(k)]
    return found


def _without_neutral(value):
    """Nested mappings without None and False: an optional key that is not used must not change a digest."""
    if not isinstance(value, dict):
        return value
    return {k: _without_neutral(v) for k, v in value.items() if v is not None and v is not False}


def _sha256(document) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
