"""Train one seed of a cell round by round, and combine the seeds of a cell into a result."""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import methods
from pipeline.cells import evaluation, metrics, provenance
from pipeline.cells.cache import Pretraining, first_rounds
from pipeline.cells.checkpoint import FORCE, SeedFiles, fingerprint
from pipeline.cells.experiment import Experiment
from pipeline.cells.loading import load_newcomers, load_world
from pipeline.cells.outputs import rounded as _rounded
from pipeline.cells.results import STATE
from pipeline.engine.environment import executor_name, precision
from pipeline.engine.handle import Handle
from pipeline.engine.state import Clients, pack, unpack
from pipeline.engine.trained import Trained, Watch
from pipeline.engine.world import World
from pipeline.schema import Scenario, load_paper
from pipeline.sealing import seal

CHECKPOINT_SECONDS = 20.0
BYTES = 4  # of a float32 scalar on the wire


@dataclass(frozen=True)
class Job:
    """One seed of a cell, as a worker process gets it."""

    experiment: Experiment
    seed: int
    digest: str

    @property
    def folder(self) -> Path:
        return self.experiment.root / ".cells" / self.digest

    @property
    def files(self) -> SeedFiles:
        return SeedFiles(self.folder, self.seed)


def train_seed(
    job: Job,
    report: Callable[[dict], None] = lambda row: None,
    share: Callable = lambda executor: executor,
    sharing: int = 1,
) -> dict:
    """Run one seed from its checkpoint, or from the start, to the last round; returns its results.

    job: the seed
    report: called with every round's line of history.csv
    share: may have the executor serve other seeds too
    sharing: how many seeds at once, among which the time that passes is divided
    """
    if (finished := job.files.run()) is not None:
        return finished
    torch.set_num_threads(1)
    training = _Training.of(job, share)
    rounds = job.experiment.scenario.training.rounds
    for number in range(training.rows[-1]["round"] + 1, rounds + 1):
        training.round(number)
        report({"seed": job.seed, **training.rows[-1]})
        training.save()
    results, arrays = training.results(sharing)
    return job.files.finish(results, arrays)


@dataclass
class _Training:
    """A seed between two rounds: the state of server and clients, and what was measured until there.

    world: the federation in the last round that was trained, on `executor`
    trained: what that round's local training left; None before the first round
    rows: lines of history.csv
    clients: accuracy of every client by the headline hook after the last evaluated round
    spent: seconds before `begun`, by earlier processes
    saved: when the last checkpoint was written
    beginnings: round -> where its checkpoint is left for other runs
    """

    job: Job
    method: methods.Method
    world: World
    tests: tuple[evaluation.TestSet, ...]
    executor: Any
    begun: float
    started: str
    beginnings: dict[int, SeedFiles]
    state: Any = None
    trained: Trained | None = None
    rows: list[dict] = field(default_factory=list)
    clients: list[float | None] = field(default_factory=list)
    spent: float = 0.0
    saved: float = 0.0

    @classmethod
    def of(cls, job: Job, share: Callable) -> "_Training":
        """From the checkpoint where there is one, else before the first round."""
        it = job.experiment
        method = methods.load(it.algorithm, it.hyper, it.where, it.cell.paper, it.root)
        world, tests = load_world(it, job.seed)
        executor = share(world.executor)
        begun, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        training = cls(job, method, world, tests, executor, begun, started, first_rounds(it, job.seed))
        others = [] if os.environ.get(FORCE) else reversed(training.beginnings.values())
        if not training._resume([job.files, *others]):
            training._init()
        training.saved = time.monotonic()
        return training

    def _resume(self, places: Iterable[SeedFiles]) -> bool:
        """Take over the first checkpoint there is."""
        for place in places:
            if (saved := place.resume(self.world.device)) is not None:
                self.state, self.rows = unpack(saved["state"]), saved["rows"]
                self.clients, self.spent = saved["own"], saved["seconds"]
                return True
        return False

    def _init(self) -> None:
        start = Pretraining(self.executor, self.job.experiment, self.job.seed)
        self.world = self.world.at(0, watch := Watch(start))
        self.state = self.method.init(self.world)
        self.trained, self.spent = watch.trained, start.seconds
        self.rows = [self._row() | {STATE: _digest(self.state)}]

    def round(self, number: int) -> None:
        """Train and measure a round; the last one with the clients that come after it."""
        self.world = self.world.at(number, watch := Watch(self.executor))
        self.state = self.method.round(self.state, self.world)
        self.trained = watch.trained
        row = self._row()
        if number == self.job.experiment.scenario.training.rounds:
            row |= _newcomers(self.job, self.method, self.state)
        self.rows.append(row | {STATE: _digest(self.state)})

    def _row(self) -> dict:
        row, self.clients = _row(
            self.job.experiment, self.world, self.method, self.state, self.tests, self.trained
        )
        return row

    def save(self) -> None:
        """Write checkpoints that are due.

        None for this run after the last round: what follows needs the models that its training leaves, so a
        run that is killed there trains the round again.
        """
        now, number = time.monotonic(), self.world.round
        every = float(os.environ.get("FEDREPRO_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS))
        due = now - self.saved >= every and number < self.job.experiment.scenario.training.rounds
        if not due and number not in self.beginnings:
            return
        content = {
            "state": pack(self.state),
            "rows": self.rows,
            "own": self.clients,
            "seconds": self.spent + now - self.begun,
        }
        if due:
            self.saved = now
            self.job.files.save(content)
        if number in self.beginnings:
            self.beginnings[number].save(content)

    def results(self, sharing: int) -> tuple[dict, dict[str, np.ndarray]]:
        """What is recorded of the finished seed, and its representations."""
        scenario, method, state, world = self.job.experiment.scenario, self.method, self.state, self.world
        trained = method.after_training(state, None if self.trained is None else self.trained.models)
        arrays = {} if trained is None else evaluation.local_prototypes(trained, world)
        world = world.whole
        results = {
            "seed": self.job.seed,
            "rows": self.rows,
            "clients": self.clients,
            "holdings": holdings(world),
            "traffic": method.traffic(world, state),
            "hook": headline_hook(scenario, method),
            "seconds": round((self.spent + time.monotonic() - self.begun) / sharing, 1),
            "device": _device_name(world.device),
            "precision": precision(),
            "executor": executor_name(world.device),
            "memory": _peak_memory(world.device),
            "versions": provenance.machine(),
            "started": self.started,
        }
        hook, vectors = headline_hook(scenario, method), method.vectors(state)
        models = _models(hook, method, state, world, self.trained)
        if models is not None:
            scores, top = _scores(method, state), scenario.evaluation.top
            by_class = evaluation.by_class(models, world, self.tests, top, scores)
            results["by_class"] = [_rounded(value) for value in by_class]
            arrays = arrays | evaluation.representations(models, world, self.tests)
        return results, arrays if vectors is None else {**arrays, "vectors": vectors.half().cpu().numpy()}


def _digest(state) -> str:
    """16 hex digits that identify the state of server and clients after a round, bit for bit."""
    return fingerprint(pack(state))[:16]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _peak_memory(device: torch.device) -> dict[str, int | None]:
    """The most memory so far in MB (2**20 bytes): of this process, and on a GPU of what torch holds there."""
    scale = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss: bytes there, kibibytes on Linux
    return {
        "process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // scale,
        "device_mb": torch.cuda.max_memory_allocated(device) // 2**20 if device.type == "cuda" else None,
    }


# -- one round's measures ------------------------------------------------------------------------------------


def _row(
    experiment: Experiment, world: World, method, state, tests, trained: Trained | None
) -> tuple[dict, list[float | None]]:
    """A line of history.csv, and every client's accuracy under the headline hook.

    The headline hook carries plain names, the other one a prefix. Where each model must face large
    common test sets, the other hook is measured only in the rounds that are reported.
    """
    scenario = experiment.scenario
    row = {
        "round": world.round,
        "loss": None if trained is None else _rounded(trained.mean_loss(world.sizes)),
    }
    if _some_absent(scenario):
        row["participants"] = len(world.participants) if world.round else 0
    row |= {f"method.{name}": _rounded(value) for name, value in method.diagnostics(state).items()}
    world = world.whole  # absent clients are scored, too
    protocol, left = scenario.evaluation, scenario.training.rounds - world.round
    if left >= protocol.last and world.round % protocol.every:
        return row, []
    clients: list[float | None] = []
    for hook in ("pre", "post"):
        headline = hook == headline_hook(scenario, method)
        if not headline and protocol.tests != "clients" and left >= protocol.last:
            continue
        models = _models(hook, method, state, world, trained)
        if models is None:
            continue  # nothing was trained yet: before the first round
        scores = _scores(method, state)
        measures, accuracies = evaluation.measure(models, world, tests, protocol.tests, protocol.top, scores)
        measures |= metrics.measured(experiment, models, world, tests, scores)
        if headline and protocol.attack and left < protocol.last:
            measures |= evaluation.under_attack(models, world, tests, protocol.tests, protocol.attack, scores)
        row |= {name if headline else f"{hook}.{name}": _rounded(value) for name, value in measures.items()}
        clients = [_rounded(a) for a in accuracies] if headline else clients
    return row, clients


def _newcomers(job: Job, method, state) -> dict[str, float | None]:
    """`unseen.*`: the measures of the clients that come after the last round, as they adapt; none where the
    scenario has none."""
    newcomers = load_newcomers(job.experiment, job.seed)
    if newcomers is None:
        return {}
    (world, tests), protocol = newcomers, job.experiment.scenario.evaluation
    models = method.adapted(state, world)
    measures, _ = evaluation.measure(
        models, world, tests, protocol.tests, protocol.top, _scores(method, state)
    )
    return {f"unseen.{name}": _rounded(value) for name, value in measures.items()}


def _scores(method, state) -> evaluation.Scores:
    return lambda network, images, client: method.scores(Handle(network, client=client), images, state)


def _models(hook: str, method, state, world: World, trained: Trained | None) -> Clients | None:
    """The models that a hook scores; None for `post` before anything was trained."""
    if hook == "pre":
        return method.deployed(state, world)
    return method.after_training(state, None if trained is None else trained.models)


def _some_absent(scenario: Scenario) -> bool:
    return scenario.training.participation is not None or scenario.training.failing is not None


def headline_hook(scenario: Scenario, method) -> str:
    """`pre` or `post`: the scenario's choice where it makes one, else the method's."""
    return scenario.evaluation.hook or method.headline


def holdings(world: World) -> dict[str, list[int]]:
    """What each client trains on, in the order of the clients: the number of its `images` and of the
    `classes` that these have."""
    return {"images": list(world.sizes), "classes": [len(client.labels.unique()) for client in world.clients]}


# -- a result ------------------------------------------------------------------------------------------------


def summarise(
    experiment: Experiment, resolved: dict, runs: list[dict], metas: list[dict], digest: str
) -> dict:
    """result.json: the reported numbers of every seed and where they come from.

    experiment: with the hyper-parameters as written
    resolved: hyper-parameters, defaults included
    runs: `train_seed`'s results, in the order of the seeds
    metas: `inputs.inputs` of every seed
    digest: of the cell with the first seed's partition

    `partition` is the first seed's, `partitions` those of every seed where they differ. Absent from
    results recorded before these were: `holdings`, {images, classes} of (seeds, clients), see `holdings`;
    `by_class`, (seeds, classes), see `evaluation.by_class`, of the models that the headline hook scores after
    the last round. `pipeline.cells.measures` reads them.
    """
    cell, scenario, root = experiment.cell, experiment.scenario, experiment.root
    result = {
        "cell": str(cell),
        "paper": cell.paper,
        "scenario": cell.scenario,
        "method": cell.method,
        "label": load_paper(cell.paper, root).label(cell.method),
        "algorithm": experiment.algorithm,
        "hyper": experiment.hyper,
        "resolved": resolved,
        "seeds": scenario.seeds,
        "rounds": scenario.training.rounds,
        "last": scenario.evaluation.last,
        "headline": evaluation.HEADLINE[scenario.evaluation.tests],
        "digest": digest,
        "git": provenance.git_state(root, cell.paper),
        **_numbers(runs, scenario.evaluation.last),
        **_data(metas, several=scenario.draws > 1),
        **_machines(runs),
    }
    if _some_absent(scenario):
        result["participants"] = int(runs[0]["rows"][-1]["participants"])
    return seal(result)


def _numbers(runs: list[dict], last: int) -> dict:
    """What was measured: means over the last rounds, and what is counted once for a seed."""
    names = [
        n
        for n in dict.fromkeys(n for run in runs for row in run["rows"] for n in row)
        if n not in ("round", "participants", STATE)
    ]

    def means(k: int) -> dict[str, list]:
        values = {n: [_rounded(evaluation.last_mean(run["rows"], n, k)) for run in runs] for n in names}
        return {n: v for n, v in values.items() if None not in v}

    return {
        "hook": runs[0]["hook"],
        "measures": means(last),
        "final": means(1),
        "last3": means(3),
        "last5": means(5),
        "clients": [run["clients"] for run in runs],
        **_where_recorded(runs),
        **traffic([run["traffic"] for run in runs]),
    }


def _data(metas: list[dict], several: bool) -> dict:
    """What the seeds were trained on."""
    return {
        "data": metas[0]["data"],
        "public": metas[0]["public"],
        "partition": metas[0]["digest"],
        **({"partitions": [meta["digest"] for meta in metas]} if several else {}),
        "warnings": list(dict.fromkeys(warning for meta in metas for warning in meta["warnings"])),
    }


def _machines(runs: list[dict]) -> dict:
    """Where the seeds were trained, and what that took."""
    versions = [run["versions"] for run in runs]
    return {
        **{key: runs[0][key] for key in ("device", "precision", "executor", "versions")},
        "memory": {name: [run["memory"][name] for run in runs] for name in runs[0]["memory"]},
        "started": min(run["started"] for run in runs),
        **({"machines": versions} if any(one != versions[0] for one in versions) else {}),
        "seconds": [run["seconds"] for run in runs],
    }


def traffic(sent: list[tuple[float, float]]) -> dict[str, dict]:
    """`traffic`, the mean over the seeds, each of which has another partition, and `traffic_of_seeds`;
    `sent` is what a client of each seed sends and receives in a round, in scalars."""
    each: dict[str, list[float]] = {
        "up": [up for up, _ in sent],
        "down": [down for _, down in sent],
        "bytes": [round((up + down) * BYTES) for up, down in sent],
    }
    # The exact mean of equal numbers is that number.
    means = {name: statistics.mean(values) for name, values in each.items()}
    return {"traffic": means | {"bytes": round(means["bytes"])}, "traffic_of_seeds": each}


def _where_recorded(runs: list[dict]) -> dict:
    """`holdings` and `by_class` of a result, each where every seed has it: a seed taken over from an older
    result does not."""
    recorded: dict = {}
    if all("holdings" in run for run in runs):
        recorded["holdings"] = {
            name: [run["holdings"][name] for run in runs] for name in ("images", "classes")
        }
    if all("by_class" in run for run in runs):
        recorded["by_class"] = [run["by_class"] for run in runs]
    return recorded
