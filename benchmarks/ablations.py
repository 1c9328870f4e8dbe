"""Walk each method and its ablations against a result: the method is to be accepted, an ablation refused.

    export PYTHONPATH=. FEDREPRO_MIRROR=...
    python benchmarks/ablations.py [fedprox ...] [--kind miniature] [--work FOLDER]

An ablation switches off what a method adds: a term of its loss, or its server's step, for which the plain
mean stands in. It is planted in the method's code in a process of its own; no file of the checkout is
touched. The walk is that of `fedrepro verify`. A miniature is walked against its committed result; a real
cell, cut down by CUTS, against a result that is trained first in a copy of the checkout. Every walk is a line
of benchmarks/ablations.csv, of which docs/ablations.md is made. A line that is there is not walked again,
unless its result is another by now: it has the digest of the state that the result had after the last round
that was walked.
"""

import argparse
import contextlib
import csv
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

import yaml

from pipeline import arithmetic

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "benchmarks" / "ablations.csv"
DOCUMENT = ROOT / "docs" / "ablations.md"
# What of a checkout trains a cell.
TRACKED = ("pipeline", "stages", "papers", "data", "params.yaml", "sources.yaml")
SETTINGS = {
    "FEDREPRO_DEVICE": "cpu",
    "FEDREPRO_WORKERS": "1",
    "FEDREPRO_TRACKING": "off",
    "FEDREPRO_EVENTS": "",
}
# What an accepted walk claims; `stamps.LEAST` may ask for no more.
ROUNDS = 3
COPY = "checkout"
MINIATURE, REAL = "miniature", "real"
ACCEPTED, REFUSED = "accepted", "refused"
COMMITTED, SHORT = "committed", "trained here"


@dataclass(frozen=True)
class Ablation:
    """A method without something that it adds.

    what: is left out, or stands in its place
    values: hyper-parameters that the method has instead of those of its row
    code: texts of the method's file, each with what stands there instead
    """

    what: str
    values: dict[str, Any] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)


LOCAL_MEAN = "world.local_mean(state.model, self.loss, server_state=state)"
LOCAL_MODELS = "world.local_epochs(world.everyone(state.model), self.loss, server_state=state).models"
ABLATIONS: dict[str, tuple[Ablation, ...]] = {
    "aughfl": (
        Ablation("no consistency of views", {"mu": 0.0}),
        Ablation(
            "the mean of the answers",
            code={
                'firmness_weights(torch.stack([output["kappa"] for output in outputs]))': (
                    'torch.full_like(torch.stack([output["kappa"] for output in outputs]), 1 / len(outputs))'
                )
            },
        ),
    ),
    "centralised": (
        Ablation(
            "one client's images alone",
            code={
                "return replace(first, images=images, labels="
                "torch.cat([client.labels for client in clients]))": "return first"
            },
        ),
    ),
    "ditto": (Ablation("no pull to the global model", {"lam": 0.0}),),
    "fccl": (
        Ablation("no term off the diagonal", {"lam": 0.0}),
        Ablation(
            "no learning from the others",
            code={"return correlation_distance(": "return 0.0 * correlation_distance("},
        ),
        Ablation(
            "no teachers at home",
            code={"(logits, batch.labels) + sum(": "(logits, batch.labels) + 0.0 * sum("},
        ),
    ),
    "fcclplus": (
        Ablation("no cross-correlation", {"fccm": False}),
        Ablation("no instance similarity", {"omega": 0.0}),
        Ablation("no non-target distillation", {"local": "ce"}),
    ),
    "fedadam": (
        Ablation(
            "the mean instead of the server's step",
            code={".joined(combine([x, step], [1, self.server_lr * corrected]))": ""},
        ),
    ),
    "fedala": (Ablation("the mean instead of learnt weights", {"eta": 0.0}),),
    "fedamp": (
        Ablation("no pull to the message", {"lam": 0.0}),
        Ablation(
            "the mean as everyone's message",
            code={
                "weights=weights if self.raw else without_overshoot(weights)": (
                    "weights=torch.full_like(weights, 1 / len(weights))"
                )
            },
        ),
    ),
    "fedavg": (
        Ablation(
            "every client counts alike",
            code={LOCAL_MEAN: f"world.average({LOCAL_MODELS}, uniform=True)"},
        ),
        Ablation(
            "one client's model instead of the mean",
            code={LOCAL_MEAN: f"{LOCAL_MODELS}[world.participants[0]]"},
        ),
    ),
    "fedavg_plus": (Ablation("no attacked images", {"eps": 0.0}),),
    "fedavgm": (Ablation("the mean instead of the server's momentum", {"beta": 0.0}),),
    "fedbn": (
        Ablation(
            "the mean of BatchNorm's entries too",
            code={
                "norms=Clients(part(model, state.norms[0]) for model in models)": (
                    "norms=world.everyone(world.average(part(model, state.norms[0]) for model in models))"
                )
            },
        ),
    ),
    "fedccl": (
        Ablation("no local contrast", {"local_contrast": False}),
        Ablation("no global contrast", {"global_contrast": False}),
        Ablation("means instead of clusters", {"local_signals": "mean", "global_signals": "mean"}),
    ),
    "fedccl_plus": (
        Ablation("no attacked images", {"eps": 0.0}),
        Ablation("no local contrast", {"local_contrast": False}),
        Ablation("no global contrast", {"global_contrast": False}),
    ),
    "fedcrl": (
        Ablation("no contrast", {"alpha": 0.0}),
        Ablation("no share of the global features", {"gamma": 0.0}),
        Ablation(
            "the mean instead of the mix",
            code={
                "mixed = interpolate(models.features, world.average(models.features), share)": (
                    "mixed = world.everyone(world.average(models.features))"
                )
            },
        ),
    ),
    "feddf": (
        Ablation(
            "no distillation",
            code={
                'return knowledge_distillation(output["logits"]': (
                    'return 0.0 * knowledge_distillation(output["logits"]'
                )
            },
        ),
    ),
    "feddyn": (
        Ablation("no pull at home", {"alpha": 1e-12}),
        Ablation(
            "the mean instead of the server's step",
            code={"model=mean.joined(moved), mean": "model=mean, mean"},
        ),
    ),
    "fedga": (Ablation("the mean instead of moving weights", {"step": 0.0}),),
    "fedgh": (
        Ablation("a head that the server does not train", {"server_lr": 0.0}),
        Ablation("the mean of the heads", code={"head=head)": "head=world.average(models.heads))"}),
    ),
    "fedlsa": (
        Ablation("no compactness", {"lam": 0.0}),
        Ablation("no separation", {"separation": False}),
        Ablation("anchors that the server does not train", {"server_epochs": 0}),
    ),
    "fedmatch": (
        Ablation("no consistency between clients", {"lam_i": 0.0}),
        Ablation("no pseudo-labels", {"pseudo_labels": False}),
        Ablation("weights in one part", {"decomposed": False}),
    ),
    "fedmd": (Ablation("no distillation", code={"return (F.l1_loss if": "return 0.0 * (F.l1_loss if"}),),
    "fednova": (
        Ablation("the mean instead of the normalised one", code={").joined(moved), change=": "), change="}),
    ),
    "fedpac": (
        Ablation("no pull to the means", {"lam": 0.0}),
        Ablation(
            "the mean of the heads",
            code={
                "heads=mix(models.heads, combine_heads(h, spread))": (
                    "heads=world.everyone(world.average(models.heads))"
                )
            },
        ),
    ),
    "fedpcl": (
        Ablation("no global contrast", {"global_weight": 0.0}),
        Ablation("no local contrast", {"local_weight": 0.0}),
    ),
    "fedper": (
        Ablation(
            "the mean of the heads",
            code={
                "(models.features), heads=models.heads)": (
                    "(models.features), heads=world.everyone(world.average(models.heads)))"
                )
            },
        ),
    ),
    "fedproc": (Ablation("no contrast", {"alpha": 1.0}),),
    "fedproto": (Ablation("no pull to the prototypes", {"lam": 0.0}),),
    "fedproto_hetero": (Ablation("no pull to the prototypes", {"lam": 0.0}),),
    "fedprox": (Ablation("no proximal term", {"mu": 0.0}),),
    "fedrep": (
        Ablation("no epochs of the head alone", {"head_epochs": 0}),
        Ablation(
            "the mean of the heads",
            code={
                "self.uniform), heads=models.heads)": (
                    "self.uniform), heads=world.everyone(world.average(models.heads)))"
                )
            },
        ),
    ),
    "fedrs": (Ablation("no scale of absent classes", {"alpha": 1.0}),),
    "fedsr": (
        Ablation("no conditional information", {"cmi": 0.0}),
        Ablation("no length of the representation", {"l2r": 0.0}),
    ),
    "fedtgp": (
        Ablation("no pull to the prototypes", {"lam": 0.0}),
        Ablation(
            "the mean instead of the generator",
            code={
                "vectors = class_vectors(generator)": (
                    "vectors = self.aggregate(seen, state.prototypes).vectors"
                )
            },
        ),
    ),
    "fpl": (
        Ablation(
            "no contrast",
            code={"value = value + prototype_contrast(": "value = value + 0.0 * prototype_contrast("},
        ),
        Ablation("no fit to the mean", code={"value + dimensions *": "value + 0.0 *"}),
        Ablation(
            "means instead of clusters",
            code={"classes, self.clusters)": 'classes, "mean")'},
        ),
    ),
    "ktpfl": (
        Ablation("the mean instead of learnt coefficients", {"lam": 0.0, "rho": 0.0}),
        Ablation("no distillation", code={"value = F.kl_div(": "value = 0.0 * F.kl_div("}),
    ),
    "lgfedavg": (
        Ablation("every client counts alike", {"uniform": True}),
        Ablation(
            "the mean of the features too",
            code={
                "State(features=models.features, head=world": (
                    "State(features=world.everyone(world.average(models.features)), head=world"
                )
            },
        ),
    ),
    "local": (
        Ablation(
            "the mean where everyone is alone",
            code={
                "State(models=world.local_epochs(state.models, self.loss).models)": (
                    "State(models=world.everyone("
                    "world.average(world.local_epochs(state.models, self.loss).models)))"
                )
            },
        ),
    ),
    "moon": (Ablation("no contrast of models", {"mu": 0.0}),),
    "perfedavg": (Ablation("no step of adaptation", {"alpha": 0.0}),),
    "pfedme": (Ablation("no pull between both levels", {"lam": 0.0}),),
    "rahfl": (
        Ablation("everyone learns from all others", {"asymmetric": False}),
        Ablation("no contrast of views", {"contrast": "none"}),
        Ablation("no distillation of views", {"gamma": 0.0}),
        Ablation("no consistency of views", {"mu": 0.0}),
    ),
    "rhfl": (
        Ablation("no reverse cross-entropy", {"beta": 0.0}),
        Ablation("the mean instead of weights by confidence", {"reweighted": False}),
    ),
    "scaffold": (
        Ablation(
            "no controls",
            code={"combine([state.control, mine], [1, -1])": "combine([state.control, mine], [0, 0])"},
        ),
    ),
}
# Where a method is walked besides its row of the same name: (miniature, real cell).
CELLS = {
    "aughfl": ("rahfl/mini/aughfl", "rahfl/corrupted-05-short/aughfl"),
    "centralised": ("fedlsa/mini/centralised", "fedlsa/office-caltech/centralised"),
    "ditto": ("fedcrl/mini/ditto", "fedcrl/cifar10-pat-2-short/ditto"),
    "fccl": ("fcclplus/mini/fccl", "fcclplus/office-caltech-short/fccl"),
    "fcclplus": ("fcclplus/mini/fcclplus", "fcclplus/office-caltech-short/fcclplus"),
    "fedadam": ("fedlsa/across/fedadam", "fedlsa/office-caltech/fedadam"),
    "fedala": ("fedcrl/mini/fedala", "fedcrl/cifar10-pat-2-short/fedala"),
    "fedamp": ("fedcrl/mini/fedamp", "fedcrl/cifar10-pat-2-short/fedamp"),
    "fedavg": ("fedlsa/mini/fedavg", "fedlsa/office-caltech/fedavg"),
    "fedavg_plus": ("fedccl/mini/fedavg-plus", "fedccl/mnist-adversarial/fedavg-plus"),
    "fedavgm": ("fedlsa/across/fedavgm", "fedlsa/office-caltech/fedavgm"),
    "fedbn": ("fedlsa/across/fedbn", "fedlsa/office-caltech/fedbn"),
    "fedccl": ("fedccl/mini/fedccl", "fedccl/mnist-dir-005/fedccl"),
    "fedccl_plus": ("fedccl/mini/fedccl-plus", "fedccl/mnist-adversarial/fedccl-plus"),
    "fedcrl": ("fedcrl/mini/fedcrl", "fedcrl/cifar10-pat-2-short/fedcrl"),
    "feddf": ("fcclplus/mini/feddf", "fcclplus/office-caltech-short/feddf"),
    "feddyn": ("fedlsa/across/feddyn", "fedlsa/office-caltech/feddyn"),
    "fedga": ("fedlsa/mini/fedga", "fedlsa/office-caltech/fedga"),
    "fedgh": ("fedcrl/mini/fedgh", "fedcrl/cifar10-pat-2-short/fedgh"),
    "fedlsa": ("fedlsa/mini/fedlsa", "fedlsa/office-caltech/fedlsa"),
    "fedmatch": ("fcclplus/mini/fedmatch", "fcclplus/office-caltech-short/fedmatch"),
    "fedmd": ("fcclplus/mini/fedmd", "fcclplus/office-caltech-short/fedmd"),
    "fednova": ("fedlsa/across/fednova", "fedlsa/office-caltech/fednova"),
    "fedpac": ("fedcrl/mini/fedpac", "fedcrl/cifar10-pat-2-short/fedpac"),
    "fedpcl": ("fedccl/mini/fedpcl", "fedccl/mnist-dir-005/fedpcl"),
    "fedper": ("fedcrl/mini/fedper", "fedcrl/cifar10-pat-2-short/fedper"),
    "fedproc": ("fedccl/mini/fedproc", "fedccl/mnist-dir-005/fedproc"),
    "fedproto": ("fedlsa/mini/fedproto", "fedlsa/office-caltech/fedproto"),
    "fedproto_hetero": ("rahfl/mini/fedproto", "rahfl/corrupted-05-short/fedproto"),
    "fedprox": ("fedlsa/mini/fedprox", "fedlsa/office-caltech/fedprox"),
    "fedrep": ("fedcrl/mini/fedrep", "fedcrl/cifar10-pat-2-short/fedrep"),
    "fedrs": ("fedcrl/across/fedrs", "fedcrl/cifar10-pat-2-short/fedrs"),
    "fedsr": ("fedlsa/mini/fedsr", "fedlsa/office-caltech/fedsr"),
    "fedtgp": ("fedlsa/mini/fedtgp", "fedlsa/office-caltech/fedtgp"),
    "fpl": ("fedlsa/mini/fpl", "fedlsa/office-caltech/fpl"),
    "ktpfl": ("rahfl/mini/ktpfl", "rahfl/corrupted-05-short/ktpfl"),
    "lgfedavg": ("fedcrl/mini/lgfedavg", "fedcrl/cifar10-pat-2-short/lgfedavg"),
    "local": ("fedlsa/mini/local", "fedlsa/office-caltech/local"),
    "moon": ("fedlsa/mini/moon", "fedlsa/office-caltech/moon"),
    "perfedavg": ("fedcrl/mini/perfedavg", "fedcrl/cifar10-pat-2-short/perfedavg"),
    "pfedme": ("fedcrl/mini/pfedme", "fedcrl/cifar10-pat-2-short/pfedme"),
    "rahfl": ("rahfl/mini/rahfl", "rahfl/corrupted-05-short/rahfl"),
    "rhfl": ("rahfl/mini/rhfl", "rahfl/corrupted-05-short/rhfl"),
    "scaffold": ("fedcrl/across/scaffold", "fedcrl/cifar10-pat-2-short/scaffold"),
}
# Of the real scenarios, what is cut down to minutes of one core; each has one seed and ROUNDS rounds besides.
# FedMatch's terms are over answers that are confident to kappa, 0.75: in such first rounds there are none, so
# that its ablations are the same computation.
SMALL = {"batch_size": 32, "local_epochs": 1}
CUTS: dict[str, dict[str, Any]] = {
    "fedlsa/office-caltech": {},
    "fedcrl/cifar10-pat-2-short": {"partition": {"samples": 1600}},
    "fedccl/mnist-dir-005": {"partition": {"samples": 2000}},
    "fedccl/mnist-adversarial": {"partition": {"samples": 500}},
    "fcclplus/office-caltech-short": {
        "partition": {"sizes": {"AM": 48, "CA": 48, "D": 32, "W": 32}},
        "public": {"size": 64, "batch_size": 32},
        "methods": {"fedmatch": {"kappa": 0.2}},
        "training": SMALL,
        "models": {
            "AM": {"name": "simple_cnn"},
            "CA": {"name": "cnn4"},
            "D": {"name": "cnn5"},
            "W": {"name": "lenet"},
        },
    },
    "rahfl/corrupted-05-short": {
        "partition": {
            "sizes": {"theta0": 64, "theta1": 64, "theta2": 64, "theta3": 64},
            "heldout": 50,
            "test_per_class": 5,
        },
        "public": {"size": 64, "batch_size": 32},
        "training": SMALL | {"pretraining": 1},
        "models": {
            "theta0": {"name": "simple_cnn"},
            "theta1": {"name": "cnn4"},
            "theta2": {"name": "cnn5"},
            "theta3": {"name": "lenet"},
        },
    },
}


def variant(algorithm: str, ablation: Ablation) -> ModuleType:
    """The method's module with the ablation planted; ValueError for one that fits its code no more."""
    name = f"pipeline.methods.{algorithm}"
    original = import_module(name)
    text = Path(original.__file__ or "").read_text(encoding="utf-8")
    for before, after in ablation.code.items():
        if text.count(before) != 1:
            raise ValueError(f"{name}: {before!r} stands there {text.count(before)} times, not once")
        text = text.replace(before, after)
    changed = ModuleType(name)
    changed.__file__, changed.__package__ = original.__file__, original.__package__
    exec(compile(text, str(original.__file__), "exec"), vars(changed))
    if ablation.values:
        _preset(_class_of(changed), ablation.values)
    return changed


def _class_of(module: ModuleType) -> type:
    """The method in its module."""
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and dataclasses.is_dataclass(value)
    )


def _preset(kind: type, values: dict[str, Any]) -> None:
    """Let every method of this class have these hyper-parameters, whatever it is given."""
    if unknown := values.keys() - {one.name for one in dataclasses.fields(kind)}:
        raise ValueError(f"{kind.__name__} has no {min(unknown)}")
    given = kind.__init__

    def __init__(self: Any, *positional: Any, **named: Any) -> None:
        given(self, *positional, **named)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    kind.__init__ = __init__  # type: ignore[misc]


# -- the copy of the checkout --------------------------------------------------------------------------------


def project(folder: Path) -> None:
    """A copy of what trains, with the real scenarios cut down; one that is there stays."""
    if (folder / "params.yaml").exists():
        return
    words = ["git", "ls-files", *TRACKED]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for place, changes in CUTS.items():
        cut(folder, place, changes)


def cut(folder: Path, place: str, changes: dict[str, Any]) -> None:
    """Cut a real scenario down, in the paper.yaml of a copy."""
    paper, _, scenario = place.partition("/")
    file = folder / "papers" / paper / "paper.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    whole = deepcopy(document["scenarios"][scenario])
    whole |= {"seeds": [0], "arithmetic": "portable"}
    for part, values in changes.items():
        if part == "methods":
            for method, hyper in values.items():
                document["methods"][method]["scenarios"] = {scenario: hyper}
        else:
            whole[part] |= values
    whole["training"]["rounds"] = ROUNDS
    whole["evaluation"] |= {"every": 1, "last": 1}
    document["scenarios"][scenario] = whole
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def prepare(cell: Any, root: Path) -> None:
    """The data and the partition that a cell trains on, where they are not there yet."""
    from pipeline.cells.experiment import Experiment

    scenario = Experiment.of(cell, root).scenario
    sets = [scenario.data.set, *([scenario.public.set] if scenario.public else [])]
    steps = {f"data/{name}": ("data", name) for name in sets}
    if scenario.corruption is not None:
        steps[f"data/{scenario.data.set}-corrupted"] = ("corrupt", scenario.data.set)
    steps[f"papers/{cell.paper}/partitions/{cell.partition}"] = (
        "partition",
        f"{cell.paper}/{cell.partition}",
    )
    for made, (stage, argument) in steps.items():
        if not (root / made).is_dir():
            words = [sys.executable, "-m", f"stages.{stage}", argument]
            subprocess.run(words, cwd=root, check=True, env=os.environ | {"PYTHONPATH": str(root)})


# -- processes of their own ----------------------------------------------------------------------------------


class Forked(NamedTuple):
    """A process of its own: the lines that its task prints, and the file of its errors."""

    lines: Iterator[str]
    errors: IO[bytes]

    def failure(self, what: str) -> SystemExit:
        """`fedcrl/mini/fedprox: its training fails: TrainingError: ...`: with the last line of its errors."""
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
        return SystemExit(f"{what}: its training fails: {last}")


@contextlib.contextmanager
def forked(task: Callable[[], Any]) -> Iterator[Forked]:
    """A task in a process of its own, which has torch and ends with the block."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            failed = 1
            try:
                os.close(reading)
                sys.stdout = os.fdopen(writing, "w")
                os.dup2(errors.fileno(), 2)
                sys.stderr = os.fdopen(2, "w", closefd=False)
                os.environ.update(SETTINGS)
                task()
                sys.stdout.flush()
                failed = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(failed)
        os.close(writing)
        try:
            with os.fdopen(reading) as lines:
                yield Forked(lines, errors)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def train(cell: Any, root: Path) -> None:
    """Train a cell in a project. Raises SystemExit where that fails."""

    def task() -> None:
        from pipeline.training.trainer import train_cell

        train_cell(cell, root)
        print("done")

    with forked(task) as child:
        if "done\n" not in child.lines:
            raise child.failure(str(cell))


def walked(one: Any, algorithm: str, ablation: Ablation | None, root: Path, folder: Path) -> dict[str, str]:
    """What the walk of a verification finds, with an ablation in the place of the method.

    one: a `pipeline.commands.verify.Verification` of a single seed. folder: to train in. `bits`, `numbers`:
    the round in which the walk is refused, by all that it compares, and by all but the digests of the states;
    empty where it is accepted. `value`: the first that differs.
    """
    from pipeline.cells.results import STATE
    from pipeline.commands.verify import Differs
    from pipeline.training import walk

    (seed,) = one.seeds
    shutil.rmtree(folder / ".cells", ignore_errors=True)

    def task() -> None:
        if ablation is not None:
            sys.modules[f"pipeline.methods.{algorithm}"] = variant(algorithm, ablation)
        walk.walk(one.cell, seed, folder, root, walk.writer(sys.stdout))

    bits, numbers = one.walk(seed), one.walk(seed)
    numbers.rows = {number: {**row, STATE: None} for number, row in numbers.rows.items()}
    kinds, found = {"bits": bits, "numbers": numbers}, {"value": ""}
    wanted = min(ROUNDS, one.result["rounds"])
    with forked(task) as child:
        for line in map(json.loads, child.lines):
            for kind, its in kinds.items():
                try:
                    if kind not in found:
                        its.take(line)
                except Differs as difference:
                    found[kind] = str(line["round"])
                    found["value"] = found["value"] or str(difference).partition(": ")[2].partition(" is")[0]
            if len(found) == 1 + len(kinds) or line.get("round") == wanted:
                break
        else:
            raise child.failure(f"{one.cell}: {ablation.what if ablation else 'the method'}")
    return {kind: found.get(kind, "") for kind in (*kinds, "value")}


# -- the campaign --------------------------------------------------------------------------------------------

COLUMNS = [
    "algorithm",
    "kind",
    "cell",
    "result",
    "ablation",
    "rounds",
    "state",
    "verdict",
    "bits",
    "numbers",
    "value",
]


def rows(path: Path = LIST) -> list[dict[str, str]]:
    """The lines of the list."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def state_of(cell: Any, number: int) -> str:
    """The digest of the first seed's state after a round, of a cell's committed history."""
    with (cell.folder(ROOT) / "history.csv").open(encoding="utf-8", newline="") as file:
        of_seed = list(csv.DictReader(file))
    return next(row["state"] for row in of_seed if row["round"] == str(number))


def is_of_today(row: dict[str, str]) -> bool:
    """Whether the result that a line was walked against is still the committed one; real cells have none."""
    from pipeline.schema import Cell

    return row["kind"] == REAL or row["state"] == state_of(Cell.parse(row["cell"]), int(row["rounds"]))


def campaign(algorithm: str, kind: str, work: Path, fresh: bool, path: Path) -> None:
    """Walk a method and its ablations on one cell and add what is not in the list yet.

    work: with the copy. fresh: train the result first, also where one is committed
    """
    from pipeline.cells import results
    from pipeline.cells.experiment import Experiment, link
    from pipeline.commands.verify import Verification
    from pipeline.provenance.identity import digest_of
    from pipeline.schema import Cell

    root, folder = work / COPY, work / "walk"
    cell = Cell.parse(CELLS[algorithm][kind == REAL])
    known = {(row["algorithm"], row["kind"], row["ablation"]) for row in rows(path) if is_of_today(row)}
    every: list[Ablation | None] = [None, *ABLATIONS[algorithm]]
    left = [one for one in every if (algorithm, kind, one.what if one else "") not in known]
    if not left:
        return
    prepare(cell, root)
    link(root, folder)
    for place in (root, folder):  # the digests of code, once, before processes fork
        digest_of(Experiment.of(cell, place))
    file, origin = cell.folder(root) / "result.json", COMMITTED
    if kind == REAL or fresh:
        origin = SHORT
        shutil.rmtree(root / ".cells", ignore_errors=True)
        shutil.rmtree(file.parent, ignore_errors=True)
        train(cell, root)
    result = results.read(file)
    one = Verification.of(cell, result, root, result["seeds"][0])
    for ablation in left:
        found = walked(one, algorithm, ablation, root, folder)
        row = {"algorithm": algorithm, "kind": kind, "cell": str(cell), "result": origin}
        row |= {"ablation": ablation.what if ablation else "", "rounds": str(min(ROUNDS, result["rounds"]))}
        row["state"] = one.walk(result["seeds"][0]).rows[int(row["rounds"])][results.STATE]
        row |= {"verdict": REFUSED if found["bits"] else ACCEPTED, **found}
        with path.open("a", encoding="utf-8", newline="") as listed:
            csv.DictWriter(listed, COLUMNS, lineterminator="\n").writerow(row)
        print(*row.values(), sep="  ", flush=True)


HEAD = """# Ablations

`fedrepro verify` must accept a method as it is, and must refuse it if one part is switched off: a term of
its loss, or its server's step, which the plain mean then replaces. Such a changed method is an *ablation*.
For each, the code that trains was changed, and `fedrepro verify` compared it with a result of the unchanged
method ([how](reliability.md)). The table gives the round in which the ablation was refused, on a miniature
and on a real cell. If the numbers of `history.csv` alone, without the digests of the states, show the
difference in another round, that round is in brackets.

`python benchmarks/ablations.py --document` writes this page from [its list](../benchmarks/ablations.csv),
which also names the first value that differed. A test requires that every method and every ablation is
listed.
"""
METHODS = """
Of {walked} verifications of unchanged methods, {accepted} were accepted. Of {planted} verifications of
ablations, {refused} were refused, each within {bits} rounds. With numbers alone it takes {numbers} rounds,
because a different state may show in the numbers only in the next round. A verification counts only if it
has at least as many rounds.

| method | without | miniature | real cell |
|---|---|--:|--:|
"""
REALS = """
## The cells

Miniatures were compared with the results in git, for three rounds of the first seed. Real cells have too
many images to train them this often. They were reduced to one seed, three rounds and portable arithmetic,
and further as listed here. Their results were first trained by the same code.

| scenario | reduced to | methods |
|---|---|---|
"""


def document(listed: list[dict[str, str]]) -> str:
    """docs/ablations.md of the lines of the list."""
    of = {(row["algorithm"], row["kind"], row["ablation"]): row for row in listed}
    itself = [row for row in listed if not row["ablation"]]
    planted = [row for row in listed if row["ablation"]]
    counts = {
        "walked": len(itself),
        "accepted": sum(row["verdict"] == ACCEPTED for row in itself),
        "planted": len(planted),
        "refused": sum(row["verdict"] == REFUSED for row in planted),
        "bits": latest(planted, "bits"),
        "numbers": latest(planted, "numbers"),
    }
    lines = []
    for algorithm, ablations in ABLATIONS.items():
        for ablation in ablations:
            found = (of.get((algorithm, kind, ablation.what)) for kind in (MINIATURE, REAL))
            lines.append(f"| `{algorithm}` | {ablation.what} | {' | '.join(map(_refusal, found))} |\n")
    cells = []
    for place, changes in CUTS.items():
        methods = [name for name, (_, real) in CELLS.items() if real.rpartition("/")[0] == place]
        smaller = "; ".join(_flat(changes)) or "nothing further"
        cells.append(f"| `{place}` | {smaller} | {', '.join(f'`{name}`' for name in methods)} |\n")
    return HEAD + METHODS.format(**counts) + "".join(lines) + REALS + "".join(cells)


def _place(row: dict[str, str]) -> tuple[int, bool, int]:
    """Of a line in the list: by method, miniatures first, the method before its ablations."""
    words = ["", *(one.what for one in ABLATIONS[row["algorithm"]])]
    return [*ABLATIONS].index(row["algorithm"]), row["kind"] == REAL, words.index(row["ablation"])


def _write(listed: list[dict[str, str]]) -> None:
    with LIST.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(listed)


def latest(listed: list[dict[str, str]], kind: str) -> int:
    """The last round in which one of these walks was refused; of one that was not, the first after it: there
    its numbers could differ."""
    return max((int(row[kind] or ROUNDS + 1) for row in listed), default=0)


def _refusal(row: dict[str, str] | None) -> str:
    if row is None:
        return "not walked"
    if not row["bits"]:
        return "**accepted**"
    if row["numbers"] == row["bits"]:
        return row["bits"]
    return f"{row['bits']} ({row['numbers'] or 'none'})"


def _flat(values: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{at}{name}.")
        else:
            yield f"`{at}{name}` {value}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithms", nargs="*", default=[*ABLATIONS])
    parser.add_argument("--kind", choices=(MINIATURE, REAL), help="by default both")
    parser.add_argument("--work", type=Path, help="a copy of the checkout that is kept")
    parser.add_argument("--fresh", action="store_true", help="train the miniatures' results too")
    parser.add_argument("--list", type=Path, default=LIST, dest="path", help="the list to add to")
    parser.add_argument("--document", action="store_true", help="sort the list, write docs/ablations.md")
    given = parser.parse_args()
    if given.document:
        listed = sorted(filter(is_of_today, rows()), key=_place)
        _write(listed)
        DOCUMENT.write_text(document(listed), encoding="utf-8")
        return
    # Both before torch is loaded.
    arithmetic.adopt("portable")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for large in (
        "torch",
        "pandas",
        "pipeline.training.trainer",
        "pipeline.training.walk",
        "pipeline.methods",
    ):
        import_module(large)
    if not given.path.exists():
        given.path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    with contextlib.ExitStack() as stack:
        work = given.work or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="fedrepro-ablations-"))
        )
        project(work / COPY)
        for kind in [given.kind] if given.kind else [MINIATURE, REAL]:
            for algorithm in given.algorithms:
                campaign(algorithm, kind, work, given.fresh, given.path)


if __name__ == "__main__":
    main()
