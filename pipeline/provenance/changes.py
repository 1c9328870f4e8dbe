"""Why a result is stale: which definitions, parameters, partitions or data differ from today's.

A result records every parameter and the digest of each definition (`identity.recorded`). Older results have
one digest only; for them, code and parameters are read from git at the commit that trained the result.
"""

import ast
import contextlib
import hashlib
import io
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.data import partition, store
from pipeline.errors import DAMAGED, FedReproError
from pipeline.git import git
from pipeline.provenance import identity
from pipeline.provenance.normal_form import normal_form
from pipeline.provenance.syntax import ON_IMPORT, parsed, pieces
from pipeline.schema import Cell

# Definitions that are named one by one.
NAMED = 12
# What a cell's parameters are read from at an earlier commit; {} is the paper.
SETTINGS = ("params.yaml", "papers/{}/paper.yaml", "papers/{}/params.yaml", "papers/{}/partitions.py")
# Of a paper.yaml, what parameters are made of; its tables and texts may be written otherwise by now.
OF_PARAMETERS = ("scenarios", "methods", "grids", "defaults")
# What a paper.yaml has to have besides, taken from today's.
NEEDED = ("name", "title", "authors", "reference", "idea", "order", "main")
# Names of parameters that say nothing: seeds are compared by themselves.
NOT_COMPARED = frozenset(("seeds",))

# Causes, by which `status` groups stale cells.
CODE = "code"
REFUSAL = "a walk that gave other numbers"
PARAMETERS = "parameters"
PARTITION = "partition"
SEEDS = "seeds"
DAMAGE = "damaged files"
UNKNOWN = "unknown method or scenario"
LABELS = "labels.npy"
# Modules that moved, today's place -> the place in earlier commits and in what earlier results recorded.
MOVED = {
    "pipeline.arithmetic": "pipeline.cells.arithmetic",
    "pipeline.cells.test_sets": "pipeline.cells.evaluation",
    "pipeline.engine.stacked.convolution": "pipeline.engine.stacked_convolution",
    "pipeline.engine.stacked.draws": "pipeline.engine.stacked_draws",
    "pipeline.engine.stacked.executor": "pipeline.engine.stacked",
    "pipeline.engine.stacked.optimisers": "pipeline.engine.stacked_optimisers",
    "pipeline.engine.stacked.stack": "pipeline.engine.stack",
    "pipeline.engine.stacked.values": "pipeline.engine.stacked_values",
    "pipeline.locks": "pipeline.commands.locks",
    "pipeline.provenance.code_digests": "pipeline.cells.code_digests",
    "pipeline.provenance.identity": "pipeline.cells.provenance",
    "pipeline.provenance.modules": "pipeline.cells.modules",
    "pipeline.training.cache": "pipeline.cells.cache",
    "pipeline.training.checkpoint": "pipeline.cells.checkpoint",
    "pipeline.training.evaluation": "pipeline.cells.evaluation",
    "pipeline.training.lockstep": "pipeline.cells.lockstep",
    "pipeline.training.metrics": "pipeline.cells.metrics",
    "pipeline.training.seeds": "pipeline.cells.seeds",
    "pipeline.training.trainer": "pipeline.cells.training",
}
# What was read of partitions in this process, by their places and the times of their files.
_READ: dict[tuple, dict | None] = {}


def cause(result: dict, experiment: Experiment) -> str:
    """The first reason for which a result is stale, in a word, without a look into git."""
    if not result:
        return DAMAGE
    if identity.refused(result, experiment) is not None:
        return REFUSAL
    if set(result["seeds"]) != set(experiment.scenario.seeds):
        return SEEDS
    if identity.redrawn(result, experiment.scenario) or other_inputs(result, experiment):
        return PARTITION
    return PARAMETERS if identity.made_by(result, experiment) is None else CODE


def lines(result: dict, experiment: Experiment) -> Iterator[str]:
    """What differs between a stale result and today, a line each."""
    refused = identity.refused(result, experiment)
    if refused is not None:
        yield (
            f"{refused['how']} (verify, {refused['date'][:10]}, {refused['processor']}); "
            f"fedrepro run --force {experiment.cell} trains it anew"
        )
    yield from _seeds(result, experiment)
    yield from other_inputs(result, experiment)
    root, commit = experiment.root, result["git"].get("commit", "")
    today = identity.recorded(experiment, result["executor"], result["precision"])
    now = identity.definitions_in(today)
    record = result.get("digests")
    if record:
        yield from _parameters(record["parameters"], today["parameters"])
        before = _as_today(identity.definitions_in(record), now)
        changed = [place for place in {**now, **before} if now.get(place) != before.get(place)]
    else:
        try:
            git(root, "cat-file", "-e", f"{commit or 'none'}^{{commit}}")
        except FedReproError:
            yield "the commit that trained it is not here, so that nothing can be compared"
            return
        yield from _parameters_since(commit, today["parameters"], experiment, result["precision"])
        before = now
        changed = [place for place in now if _at(root, commit, place) != _at(root, "", place)]
    if changed and commit:
        note = ", where it was trained with changes" if result["git"].get("dirty") else ""
        yield f"its code agrees with today's up to {_last_agreed(changed, commit, root)}{note}"
    own = f"pipeline.methods.{experiment.algorithm}:"
    changed.sort(key=lambda place: (not place.startswith(own), place))
    for place in changed[:NAMED]:
        module, _, name = place.partition(":")
        by = _commit_of(place, commit, root)
        line = f"{name} of {module} {_kind(place, before, now)}"
        yield f"{line} (commit {by})" if by else line
    if len(changed) > NAMED:
        yield f"and {len(changed) - NAMED} further definitions"


def _as_today(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Recorded definitions of modules that moved, under the places that they have today."""
    places = {}
    for place in now:
        module, _, name = place.partition(":")
        if module in MOVED:
            places[f"{MOVED[module]}:{name}"] = place
    return {places.get(place, place): digest for place, digest in before.items()}


def _kind(place: str, before: dict[str, str], now: dict[str, str]) -> str:
    """What has become of a definition."""
    if place not in before:
        return "is new"
    return "changed" if place in now else "is gone"


def _seeds(result: dict, experiment: Experiment) -> Iterator[str]:
    before, now = set(result["seeds"]), set(experiment.scenario.seeds)
    for seeds, how in ((now - before, "are not in it"), (before - now, "are asked for no more")):
        if seeds:
            yield f"seeds {', '.join(map(str, sorted(seeds)))} {how}"


def other_inputs(result: dict, experiment: Experiment) -> list[str]:
    """What is here and is not what a result was trained on, a line each: partitions, by the bytes of their
    arrays, labels and data sets. What is not here is not compared."""
    found: dict[str, None] = {}
    # as pipeline.cells.results has them, which imports pandas
    partitions = result.get("partitions") or [result["partition"]] * len(result["seeds"])
    for seed, digest in zip(result["seeds"], partitions, strict=True):
        today = _today(experiment, seed)
        if today is None:
            continue
        if today["altered"]:
            found[today["altered"]] = None
        elif today["digest"] != digest:
            found[f"partition of seed {seed}"] = None
        for part in ("data", "public"):
            of_result, of_today = result[part], today.get(part)
            if of_result and of_today and of_result["digest"] != of_today["digest"]:
                found[f"data set {of_today['set']}"] = None
    return sorted(found, key=lambda line: line.startswith("data set"))


def _today(experiment: Experiment, seed: int) -> dict | None:
    """`inputs` of a seed, read once in a process unless a file changes; `altered` says which bytes are not
    those of their description. None where a partition is not here."""
    scenario = experiment.scenario
    place = experiment.partition(seed)
    sets = experiment.root / "data" / scenario.data.set
    files = [place / store.META, place / partition.INDICES, sets / store.META, sets / LABELS]
    key = (place, scenario.data.features, scenario.corruption is None, *map(_state, files))
    if key not in _READ:
        try:
            _READ[key] = inputs(experiment, seed) | {"altered": _altered(place, sets, experiment.root)}
        except (*DAMAGED, FedReproError):
            _READ[key] = None
    return _READ[key]


def _state(path: Path) -> tuple[int, int] | None:
    """When a file was changed last, and its size; None where there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _altered(place: Path, sets: Path, root: Path) -> str:
    """The partition, or the labels that it divides, where a file was changed without its description."""
    drawn, labels = (path.relative_to(root).as_posix() for path in (place, sets / LABELS))
    try:
        _, noted = partition.verify(place)
    except FedReproError:
        return f"partition {drawn}: its arrays were altered"
    if not (sets / LABELS).is_file():
        return ""
    try:
        meta = store.read_meta(sets)
        store.array(sets, LABELS, meta["digests"][LABELS])
    except FedReproError:
        return f"labels {labels}: they were altered"
    if noted["data"]["digest"] != meta["digest"]:
        return f"partition {drawn}: it was dealt of other data than are in data/{sets.name}"
    return ""


def _parameters(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *now)):
        if name not in NOT_COMPARED and before.get(name) != now.get(name):
            yield f"{name} {before.get(name)} -> {now.get(name)}"


# -- in git --------------------------------------------------------------------------------------------------


def _parameters_since(
    commit: str, now: dict[str, Any], experiment: Experiment, precision: str
) -> Iterator[str]:
    """What differs from the parameters of a commit."""
    cell = experiment.cell
    with tempfile.TemporaryDirectory(prefix="fedrepro-then-") as folder:
        for name in (one.format(cell.paper) for one in SETTINGS):
            try:
                text = git(experiment.root, "show", f"{commit}:{name}")
            except FedReproError:
                continue
            if name.endswith("paper.yaml"):
                text = _with_todays_tables(text, experiment.root / name)
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text + "\n", encoding="utf-8")
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # of keys that have other names by now
                then = Experiment.of(Cell(cell.paper, cell.scenario, cell.method), Path(folder))
                before = identity.flat(identity.parameters(then, precision))
        except (*DAMAGED, FedReproError) as problem:
            words = str(problem).replace(f"{folder}/", "")
            yield f"its parameters of then cannot be read today: {words}"
            return
    yield from _parameters(before, now)


def _with_todays_tables(then: str, today: Path) -> str:
    """An earlier paper.yaml with today's keys but for those that parameters are made of."""
    with contextlib.suppress(yaml.YAMLError, OSError):
        before, now = yaml.safe_load(then), yaml.safe_load(today.read_text(encoding="utf-8"))
        if isinstance(before, dict) and isinstance(now, dict):
            kept = {key: before[key] for key in OF_PARAMETERS if key in before}
            others = {key: now[key] for key in NEEDED if key in now}
            return yaml.safe_dump({"tables": {}} | others | kept, sort_keys=False)
    return then


def _at(root: Path, commit: str, place: str) -> str:
    """Digest of a definition in a commit, or as it is now without one."""
    module, _, name = place.partition(":")
    for file in _files(module, root):
        found = _pieces(root, commit, file).get(name)
        if found:
            return found
    return ""


def _commit_of(place: str, commit: str, root: Path) -> str:
    """The commit that changed a definition last since another, and its day; empty where none is found."""
    files = _files(place.partition(":")[0], root)
    if not commit or not files:
        return ""
    try:
        since = git(root, "rev-list", "--first-parent", f"{commit}..HEAD", "--", *files).split()
        for one in since:
            if _at(root, f"{one}~1", place) != _at(root, one, place):
                return git(root, "show", "-s", "--format=%h, %as", one)
    except FedReproError:
        pass
    return ""


def _last_agreed(changed: list[str], commit: str, root: Path) -> str:
    """The last commit, from the one that trained the result on, before any of the definitions changed."""
    modules = {place.partition(":")[0] for place in changed}
    files = sorted(set().union(*(_files(module, root) for module in modules)))
    try:
        since = git(root, "rev-list", "--first-parent", "--reverse", f"{commit}..HEAD", "--", *files).split()
        for one in since:
            if any(_at(root, f"{one}~1", place) != _at(root, one, place) for place in changed):
                return git(root, "show", "-s", "--format=%h, %as", f"{one}~1")
        return git(root, "show", "-s", "--format=%h, %as", commit if not since else "HEAD")
    except FedReproError:
        return commit[:8]


def _files(module: str, root: Path) -> list[str]:
    """The file of a module, then the one that it had before it moved; empty where there is no such module."""
    base = Path(*module.split("."))
    today = [file for file in (base.with_suffix(".py"), base / "__init__.py") if (root / file).is_file()]
    if not today:
        return []
    files = [today[0].as_posix()]
    if module in MOVED:
        files.append(f"{MOVED[module].replace('.', '/')}.py")
    return files


@cache
def _pieces(root: Path, commit: str, file: str) -> dict[str, str]:
    """Name -> digest of each definition of a file, "Class.method" or "function", by itself; empty where the
    commit has no such file. Without a commit as it is now."""
    try:
        text = git(root, "show", f"{commit}:{file}") if commit else (root / file).read_text("utf-8")
        module = parsed(text.encode(), "", file)
    except (FedReproError, SyntaxError, ValueError):
        return {}
    found: dict[str, list[ast.AST]] = {ON_IMPORT: [*module.effects, *module.calls]}
    for name, node in module.nodes.items():
        found |= pieces(name, [node])
    return {name: _digest(nodes) for name, nodes in found.items()}


def _digest(nodes: Sequence[ast.AST]) -> str:
    """Of statements in their normal form."""
    return hashlib.sha256(repr([normal_form(node) for node in nodes]).encode()).hexdigest()
