"""Why a result is stale: which definitions, parameters, partitions or data differ from today's.

A result records every parameter and the digest of each definition (`identity.recorded`). Older results have
one digest only; for them, code and parameters are read from git at the commit that trained the result.
`fedrepro status` prints the `cause` of stale cells, `fedrepro explain` the `lines` on one of them.
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

from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.data import partition, store
from pipeline.errors import DAMAGED, FedReproError
from pipeline.git import git
from pipeline.provenance import identity
from pipeline.provenance.normal_form import normal_form
from pipeline.provenance.syntax import ON_IMPORT, parsed, pieces
from pipeline.schema import Cell

# At most so many changed definitions are named.
NAMED = 12
# Files that a cell's parameters are read from at an earlier commit; {} is the paper.
SETTINGS = ("params.yaml", "papers/{}/paper.yaml", "papers/{}/params.yaml", "papers/{}/partitions.py")
# Keys of paper.yaml that parameters are read from. Only these are taken from an earlier commit, since the
# format of others, such as the tables, may have changed.
OF_PARAMETERS = ("scenarios", "methods", "grids", "defaults")
# Further keys that a paper.yaml has to have; they are taken from today's.
NEEDED = ("name", "title", "authors", "reference", "idea", "order", "main")
# Parameters that are not compared here: seeds have a line of their own.
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
# Modules that moved: today's name -> the name in earlier commits and in what earlier results recorded.
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
# What `_today` has read in this process, by the paths of partitions and the times of their files.
_READ: dict[tuple, dict | None] = {}


def cause(result: Result, experiment: Experiment) -> str:
    """The first reason for which a stale result is stale, in a word: one of the causes above. It is found
    without git, and so within milliseconds.

    result      of the cell; empty: damaged
    experiment  the cell with today's parameters
    """
    if not result:
        return DAMAGE
    if identity.refused(result, experiment) is not None:
        return REFUSAL
    if set(result["seeds"]) != set(experiment.scenario.seeds):
        return SEEDS
    if identity.redrawn(result, experiment.scenario) or other_inputs(result, experiment):
        return PARTITION
    return PARAMETERS if identity.made_by(result, experiment) is None else CODE


def lines(result: Result, experiment: Experiment) -> Iterator[str]:
    """What differs between a stale result and today, one line for each difference.

    result      of the cell
    experiment  the cell with today's parameters
    """
    refused = identity.refused(result, experiment)
    if refused is not None:
        yield (
            f"{refused['how']} (verify, {refused['date'][:10]}, {refused['processor']}); "
            f"fedrepro run --force {experiment.cell} trains it anew"
        )
    yield from _seeds(result, experiment)
    yield from other_inputs(result, experiment)
    root = experiment.root
    commit = result["git"].get("commit", "")
    today = identity.recorded(experiment, result["executor"], result["precision"])
    # "package.module:name" of each definition -> its digest
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
        changed = [place for place in now if _digest_at(root, commit, place) != _digest_at(root, "", place)]
    if changed and commit:
        note = ", where it was trained with changes" if result["git"].get("dirty") else ""
        yield f"its code agrees with today's up to {_last_agreed(changed, commit, root)}{note}"
    # Those of the method come first.
    own = f"pipeline.methods.{experiment.algorithm}:"
    changed.sort(key=lambda place: (not place.startswith(own), place))
    for place in changed[:NAMED]:
        module, _, name = place.partition(":")
        changed_by = _commit_of(place, commit, root)
        line = f"{name} of {module} {_what_happened(place, before, now)}"
        yield f"{line} (commit {changed_by})" if changed_by else line
    if len(changed) > NAMED:
        yield f"and {len(changed) - NAMED} further definitions"


def _as_today(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Recorded definitions under today's names of their modules, also of modules that have moved since.

    before  "package.module:name" -> digest, as recorded
    now     the same of today
    """
    today_of = {}
    for place in now:
        module, _, name = place.partition(":")
        if module in MOVED:
            today_of[f"{MOVED[module]}:{name}"] = place
    return {today_of.get(place, place): digest for place, digest in before.items()}


def _what_happened(place: str, before: dict[str, str], now: dict[str, str]) -> str:
    """Whether a definition is new, changed or gone."""
    if place not in before:
        return "is new"
    return "changed" if place in now else "is gone"


def _seeds(result: Result, experiment: Experiment) -> Iterator[str]:
    """Lines on the seeds that a result lacks, or has too many."""
    before = set(result["seeds"])
    now = set(experiment.scenario.seeds)
    for seeds, how in ((now - before, "are not in it"), (before - now, "are asked for no more")):
        if seeds:
            yield f"seeds {', '.join(map(str, sorted(seeds)))} {how}"


def other_inputs(result: Result, experiment: Experiment) -> list[str]:
    """The partitions, labels and data sets on this machine that are not those that a result was trained on.

    result      of the cell
    experiment  the cell with today's parameters

    Returns a line for each, the data sets last. What is not on this machine is not compared.
    """
    found: dict[str, None] = {}
    # The same as `pipeline.cells.results.partitions`, without the import of pandas.
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
            set_then = result[part]
            set_today = today.get(part)
            if set_then and set_today and set_then["digest"] != set_today["digest"]:
                found[f"data set {set_today['set']}"] = None
    return sorted(found, key=lambda line: line.startswith("data set"))


def _today(experiment: Experiment, seed: int) -> dict | None:
    """The digests of what a seed would be trained on today; None if its partition is not on this machine.

    Returns those of `inputs`, and under `altered` the line of `_altered`. They are read once in a process,
    unless a file changes.
    """
    scenario = experiment.scenario
    folder = experiment.partition(seed)
    set_folder = experiment.root / "data" / scenario.data.set
    files = [
        folder / store.META,
        folder / partition.INDICES,
        set_folder / store.META,
        set_folder / LABELS,
    ]
    key = (folder, scenario.data.features, scenario.corruption is None, *map(_state, files))
    if key not in _READ:
        try:
            altered = _altered(folder, set_folder, experiment.root)
            _READ[key] = inputs(experiment, seed) | {"altered": altered}
        except (*DAMAGED, FedReproError):
            _READ[key] = None
    return _READ[key]


def _state(path: Path) -> tuple[int, int] | None:
    """When a file was changed last, in nanoseconds, and its size; None where there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _altered(folder: Path, set_folder: Path, root: Path) -> str:
    """A line that names the partition, or the labels that it divides, if a file was changed without its
    description; else empty.

    folder      of the partition
    set_folder  of the data set
    root        folder of the repository
    """
    drawn = folder.relative_to(root).as_posix()
    labels = (set_folder / LABELS).relative_to(root).as_posix()
    try:
        _, noted = partition.verify(folder)
    except FedReproError:
        return f"partition {drawn}: its arrays were altered"
    if not (set_folder / LABELS).is_file():
        return ""
    try:
        meta = store.read_meta(set_folder)
        store.array(set_folder, LABELS, meta["digests"][LABELS])
    except FedReproError:
        return f"labels {labels}: they were altered"
    if noted["data"]["digest"] != meta["digest"]:
        return f"partition {drawn}: it was dealt of other data than are in data/{set_folder.name}"
    return ""


def _parameters(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """A line for each parameter that differs: `training.optimiser.lr 0.1 -> 0.01`."""
    for name in dict.fromkeys((*before, *now)):
        if name not in NOT_COMPARED and before.get(name) != now.get(name):
            yield f"{name} {before.get(name)} -> {now.get(name)}"


# -- in git --------------------------------------------------------------------------------------------------


def _parameters_since(
    commit: str, now: dict[str, Any], experiment: Experiment, precision: str
) -> Iterator[str]:
    """A line for each parameter that differs from that of a commit.

    commit      that trained the result
    now         today's parameters
    experiment  the cell with these
    precision   of the training
    """
    cell = experiment.cell
    with tempfile.TemporaryDirectory(prefix="fedrepro-then-") as folder:
        for pattern in SETTINGS:
            name = pattern.format(cell.paper)
            try:
                text = git(experiment.root, "show", f"{commit}:{name}")
            except FedReproError:
                continue
            if name.endswith("paper.yaml"):
                text = _with_todays_tables(text, experiment.root / name)
            file = Path(folder) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n", encoding="utf-8")
        try:
            # Reading the parameters warns of keys that have other names by now.
            with contextlib.redirect_stderr(io.StringIO()):
                then = Experiment.of(Cell(cell.paper, cell.scenario, cell.method), Path(folder))
                before = identity.flat(identity.parameters(then, precision))
        except (*DAMAGED, FedReproError) as problem:
            words = str(problem).replace(f"{folder}/", "")
            yield f"its parameters of then cannot be read today: {words}"
            return
    yield from _parameters(before, now)


def _with_todays_tables(then: str, today: Path) -> str:
    """An earlier paper.yaml with nothing but its parameters and the NEEDED keys of today's.

    then   the text of the earlier one
    today  the file of today's

    If one of them cannot be read, the earlier text as it is.
    """
    with contextlib.suppress(yaml.YAMLError, OSError):
        before = yaml.safe_load(then)
        now = yaml.safe_load(today.read_text(encoding="utf-8"))
        if isinstance(before, dict) and isinstance(now, dict):
            kept = {key: before[key] for key in OF_PARAMETERS if key in before}
            others = {key: now[key] for key in NEEDED if key in now}
            return yaml.safe_dump({"tables": {}} | others | kept, sort_keys=False)
    return then


def _digest_at(root: Path, commit: str, place: str) -> str:
    """The digest of a definition in a commit; empty if it has none.

    root    folder of the repository
    commit  empty: the files as they are now
    place   "package.module:name"
    """
    module, _, name = place.partition(":")
    for file in _files(module, root):
        found = _pieces(root, commit, file).get(name)
        if found:
            return found
    return ""


def _commit_of(place: str, commit: str, root: Path) -> str:
    """The last commit since `commit` that changed a definition, and its day; empty if there is none.

    place   "package.module:name"
    commit  that trained the result; may be empty
    root    folder of the repository
    """
    files = _files(place.partition(":")[0], root)
    if not commit or not files:
        return ""
    try:
        since = git(root, "rev-list", "--first-parent", f"{commit}..HEAD", "--", *files).split()
        for later in since:
            if _digest_at(root, f"{later}~1", place) != _digest_at(root, later, place):
                return git(root, "show", "-s", "--format=%h, %as", later)
    except FedReproError:
        pass
    return ""


def _last_agreed(changed: list[str], commit: str, root: Path) -> str:
    """The last commit before any of the definitions changed, and its day, beginning with the commit that
    trained the result.

    changed  "package.module:name" of the definitions
    commit   that trained the result
    root     folder of the repository
    """
    modules = {place.partition(":")[0] for place in changed}
    files = sorted(set().union(*(_files(module, root) for module in modules)))
    try:
        since = git(root, "rev-list", "--first-parent", "--reverse", f"{commit}..HEAD", "--", *files).split()
        for later in since:
            before = f"{later}~1"
            if any(_digest_at(root, before, place) != _digest_at(root, later, place) for place in changed):
                return git(root, "show", "-s", "--format=%h, %as", before)
        return git(root, "show", "-s", "--format=%h, %as", "HEAD" if since else commit)
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
    """The digest of each definition of a file, "Class.method" or "function" -> digest.

    root    folder of the repository
    commit  empty: the file as it is now
    file    its path from the root

    Empty if the commit has no such file, or if it cannot be parsed.
    """
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
    """SHA-256 of the normal forms of statements."""
    return hashlib.sha256(repr([normal_form(node) for node in nodes]).encode()).hexdigest()
