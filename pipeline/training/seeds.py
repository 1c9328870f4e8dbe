"""Train one seed of a cell round by round, and combine the seeds of a cell into a result."""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from pipeline import methods
from pipeline.cells.documents import Result, Round, Run
from pipeline.cells.experiment import Experiment
from pipeline.cells.loading import load, load_newcomers, load_world
from pipeline.cells.results import STATE
from pipeline.cells.test_sets import sampled
from pipeline.engine.environment import executor_name, precision
from pipeline.engine.handle import Handle
from pipeline.engine.phase import Client, Present
from pipeline.engine.state import Clients, State, pack, unpack
from pipeline.engine.trained import Executor, Trained, Watch
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.provenance import identity
from pipeline.schema import Scenario, load_paper
from pipeline.sealing import seal
from pipeline.training import evaluation, metrics
from pipeline.training.cache import Pretraining, first_rounds
from pipeline.training.checkpoint import FORCE, SeedFiles, fingerprint
from pipeline.training.evaluation import rounded as _rounded

CHECKPOINT_SECONDS = 20.0
BYTES = 4  # of a float32 scalar on the wire
# What a result has of every seed: a list, or lists by name. A seed that was taken over may lack the last two.
OF_SEEDS = ("clients", "seconds", "memory", "holdings", "by_class")
# executor of a seed -> the one that it uses, which may also train other seeds
Share = Callable[[Executor], Executor]


@dataclass(frozen=True)
class Job:
    """One seed of a cell, for a worker process.

    inputs: the digest of the data on which it trains, if known
    """

    experiment: Experiment
    seed: int
    digest: str
    inputs: str = ""

    @property
    def folder(self) -> Path:
        return self.experiment.root / ".cells" / self.digest

    @property
    def files(self) -> SeedFiles:
        return SeedFiles(self.folder, self.seed)


def train_seed(
    job: Job,
    report: Callable[[Round], None] = lambda row: None,
    share: Share = lambda executor: executor,
    sharing: int = 1,
) -> Run:
    """Train one seed from its checkpoint, or from the beginning, to the last round; returns its results.

    job: the seed
    report: called with each round's line of history.csv
    share: may let the executor train other seeds together with this one
    sharing: number of seeds trained at once, over which the elapsed time is divided
    """
    if (finished := job.files.run()) is not None:
        return finished
    return job.files.finish(*trained(job, report, share).results(sharing))


def trained(
    job: Job, report: Callable[[Round], None] = lambda row: None, share: Share = lambda executor: executor
) -> "SeedTraining":
    """The seed after its last round, from its checkpoint if there is one; see `train_seed`."""
    torch.set_num_threads(1)
    training = SeedTraining.of(job, share)
    rounds = job.experiment.scenario.training.rounds
    for number in range(training.rows[-1]["round"] + 1, rounds + 1):
        training.round(number)
        report({"seed": job.seed, **training.rows[-1]})
        training.save()
    return training


@dataclass
class SeedTraining:
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
    rows: list[Round] = field(default_factory=list)
    clients: list[float | None] = field(default_factory=list)
    spent: float = 0.0
    saved: float = 0.0

    @classmethod
    def of(cls, job: Job, share: Share) -> "SeedTraining":
        """From the checkpoint if there is one, otherwise before the first round."""
        it = job.experiment
        method = methods.load(it.algorithm, it.hyper, it.where, it.cell.paper, it.root)
        if job.inputs and load(it, job.seed).digest != job.inputs:
            raise TrainingError(f"{it.cell}: its partition or data changed while it trained; run it again")
        world, tests = load_world(it, job.seed)
        executor = share(world.executor)
        begun, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        training = cls(job, method, world, tests, executor, begun, started, first_rounds(it, job.seed))
        others = [] if os.environ.get(FORCE) else reversed(training.beginnings.values())
        checkpoints = (place.resume(world.device) for place in (job.files, *others))
        if (saved := next((one for one in checkpoints if one is not None), None)) is None:
            training._init()
        else:
            training.state, training.rows = unpack(saved["state"]), saved["rows"]
            training.clients, training.spent = saved["own"], saved["seconds"]
        training.saved = time.monotonic()
        return training

    def _init(self) -> None:
        start = Pretraining(self.executor, self.job.experiment, self.job.seed)
        self.world = self.world.at(0, watch := Watch(start))
        self.state = self.method.init(self.world)
        self.trained, self.spent = watch.trained, start.seconds
        self.rows = [self._row() | {STATE: _digest(self.state)}]

    def round(self, number: int) -> None:
        """Train and score one round; the last one also with clients that join after it."""
        watch = Watch(self.executor, keep=self._reads_trained(number))
        self.world = self.world.at(number, watch)
        self.state = self.method.round(self.state, self.world)
        self.trained = watch.trained
        row = self._row()
        if number == self.job.experiment.scenario.training.rounds:
            row |= _newcomers(self.job, self.method, self.state)
        self.rows.append(row | {STATE: _digest(self.state)})

    def _reads_trained(self, number: int) -> bool:
        """Whether the scoring of a round reads the models that each client has trained."""
        if not self._is_scored(number):
            return False
        return self.hook == "post" or self._scores_other_hook(number)

    def _is_scored(self, number: int) -> bool:
        """Whether a round is scored: every one of `every` rounds, and those that are reported."""
        protocol = self.job.experiment.scenario.evaluation
        return self._is_reported(number) or number % protocol.every == 0

    def _scores_other_hook(self, number: int) -> bool:
        """Whether a scored round also scores the models before, or after, local training that no table shows.

        Where each model must face large common test sets, only the rounds that are reported do.
        """
        protocol = self.job.experiment.scenario.evaluation
        return protocol.tests == "clients" or self._is_reported(number)

    def _is_reported(self, number: int) -> bool:
        """Whether a round is among the last ones, whose mean is reported."""
        scenario = self.job.experiment.scenario
        return scenario.training.rounds - number < scenario.evaluation.last

    @property
    def hook(self) -> str:
        """`pre` or `post`: the scenario's choice if it makes one, otherwise the method's."""
        return self.job.experiment.scenario.evaluation.hook or self.method.headline

    @cached_property
    def sample(self) -> tuple[int, ...] | None:
        """The clients that are scored if the scenario has `evaluation.sample`; None: all."""
        wanted = self.job.experiment.scenario.evaluation.sample
        if wanted is None:
            return None
        return sampled(wanted, [len(test.labels) for test in self.tests], self.job.seed)

    @cached_property
    def _scored_clients(self) -> Sequence[Client]:
        """All clients; those that are not scored have no data."""
        clients = self.world.whole.clients
        return clients if self.sample is None else Present(clients, self.sample)

    def models(self, hook: str, scored: bool = False) -> Clients | None:
        """The models that a hook scores; None for `post` before anything was trained.

        scored: whether only those of the scored clients are needed, so that no other client adapts one
        """
        if hook == "pre":
            world = self.world.whole
            if scored:
                world = replace(world, clients=self._scored_clients)
            return self.method.deployed(self.state, world)
        return self.method.after_training(self.state, None if self.trained is None else self.trained.models)

    def _row(self) -> dict:
        """A line of history.csv; `clients` become every client's accuracy under the headline hook.

        The headline hook carries plain names, the other one a prefix.
        """
        experiment, world = self.job.experiment, self.world
        scenario = experiment.scenario
        loss = None if self.trained is None else _rounded(self.trained.mean_loss(world.sizes))
        row: dict = {"round": world.round, "loss": loss}
        if _some_absent(scenario):
            row["participants"] = len(world.participants) if world.round else 0
        diagnostics = self.method.diagnostics(self.state)
        row |= {f"method.{name}": _rounded(value) for name, value in diagnostics.items()}
        protocol = scenario.evaluation
        self.clients = []
        if not self._is_scored(world.round):
            return row
        # absent clients are scored, too
        of = world.whole, self.tests
        scores = _scores(self.method, self.state)
        for hook in ("pre", "post"):
            headline = hook == self.hook
            if not headline and not self._scores_other_hook(world.round):
                continue
            if (models := self.models(hook, scored=True)) is None:
                continue
            measures, accuracies = evaluation.measure(
                models, *of, protocol.tests, scores, protocol.top, sample=self.sample
            )
            measures |= metrics.measured(experiment, models, *of, scores, self.sample)
            if headline:
                self.clients = [_rounded(accuracy) for accuracy in accuracies]
                if protocol.attack and self._is_reported(world.round):
                    measures |= evaluation.under_attack(
                        models, *of, protocol, scores, protocol.attack, self.sample
                    )
            prefix = "" if headline else f"{hook}."
            row |= {prefix + name: _rounded(value) for name, value in measures.items()}
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
        """What is recorded about the finished seed, and its representations."""
        method, state, device = self.method, self.state, self.world.device
        trained, vectors = self.models("post"), method.vectors(state)
        arrays = {} if trained is None else evaluation.local_prototypes(trained, self.world)
        world = self.world.whole
        results = {
            "seed": self.job.seed,
            "rows": self.rows,
            "clients": self.clients,
            "holdings": {
                "images": list(world.sizes),
                "classes": [len(client.labels.unique()) for client in world.clients],
            },
            "traffic": method.traffic(world, state),
            "hook": self.hook,
            "seconds": round((self.spent + time.monotonic() - self.begun) / sharing, 1),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "precision": precision(),
            "executor": executor_name(device),
            "memory": _peak_memory(device),
            "versions": identity.machine(),
            "started": self.started,
        }
        if (models := self.models(self.hook)) is not None:
            scores, top = _scores(method, state), self.job.experiment.scenario.evaluation.top
            by_class = evaluation.by_class(models, world, self.tests, scores, top, self.sample)
            results["by_class"] = [_rounded(value) for value in by_class]
            arrays |= evaluation.representations(models, world, self.tests)
        return results, arrays if vectors is None else {**arrays, "vectors": vectors.half().cpu().numpy()}


def _digest(state: State) -> str:
    """16 hex digits that identify the state of server and clients after a round, bit for bit."""
    return fingerprint(pack(state))[:16]


def _some_absent(scenario: Scenario) -> bool:
    return scenario.training.participation is not None or scenario.training.failing is not None


def _scores(method: methods.Method, state: State) -> evaluation.Scores:
    return lambda network, images, client: method.scores(Handle(network, client=client), images, state)


def _peak_memory(device: torch.device) -> dict[str, int | None]:
    """The most memory so far in MB (2**20 bytes): of this process, and on a GPU of what torch holds there."""
    scale = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss: bytes there, kibibytes on Linux
    return {
        "process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // scale,
        "device_mb": torch.cuda.max_memory_allocated(device) // 2**20 if device.type == "cuda" else None,
    }


def _newcomers(job: Job, method: methods.Method, state: State) -> dict[str, float | None]:
    """`unseen.*`: the measures of clients that come after the last round; empty without any."""
    newcomers = load_newcomers(job.experiment, job.seed)
    if newcomers is None:
        return {}
    (world, tests), protocol = newcomers, job.experiment.scenario.evaluation
    of = method.adapted(state, world), world, tests, protocol.tests
    measures, _ = evaluation.measure(*of, _scores(method, state), protocol.top)
    return {f"unseen.{name}": _rounded(value) for name, value in measures.items()}


def summarise(
    experiment: Experiment, resolved: dict, runs: list[Run], metas: list[dict], digest: str
) -> Result:
    """result.json: the reported numbers of every seed and where they come from.

    experiment: with the hyper-parameters as written
    resolved: hyper-parameters, defaults included
    runs: `train_seed`'s results, in the order of the seeds
    metas: `inputs.inputs` of every seed
    digest: of the cell with the first seed's partition

    `partition` is the first seed's, `partitions` those of every seed where they differ. `sample` is how many
    clients are scored, if not all are; the accuracies of the others in `clients` are None. Absent from older
    results: `holdings`, the number of images and of classes that each client trains on, (seeds, clients);
    `by_class`, (seeds, classes), see `evaluation.by_class`, of the headline hook's models after the last
    round.
    """
    cell, scenario, root = experiment.cell, experiment.scenario, experiment.root
    documents: Sequence[Mapping[str, Any]] = runs
    warnings = [warning for meta in metas for warning in meta["warnings"]]
    sample = scenario.evaluation.sample
    if sample is not None:
        of_all = len(runs[0]["clients"])
        warnings.append(f"Accuracies are over {sample} clients of {of_all}, drawn once for every seed.")
    result = {
        "cell": str(cell),
        **{key: getattr(cell, key) for key in ("paper", "scenario", "method")},
        "label": load_paper(cell.paper, root).label(cell.method),
        "algorithm": experiment.algorithm,
        "hyper": experiment.hyper,
        "resolved": resolved,
        "seeds": scenario.seeds,
        "rounds": scenario.training.rounds,
        "last": scenario.evaluation.last,
        "headline": scenario.evaluation.measure,
        **({} if sample is None else {"sample": sample}),
        "digest": digest,
        "git": identity.git_state(root, cell.paper),
        **{key: documents[0][key] for key in ("hook", "device", "precision", "executor", "versions")},
        **{key: _of_seeds(documents, key) for key in OF_SEEDS if all(key in run for run in runs)},
        **_means(runs, scenario.evaluation.last),
        **traffic([run["traffic"] for run in runs]),
        "started": min(run["started"] for run in runs),
        **{key: metas[0][key] for key in ("data", "public")},
        "partition": metas[0]["digest"],
        **({"partitions": [meta["digest"] for meta in metas]} if scenario.draws > 1 else {}),
        "warnings": list(dict.fromkeys(warnings)),
    }
    machines = [run["versions"] for run in runs]
    if any(one != machines[0] for one in machines):
        result["machines"] = machines
    if _some_absent(scenario):
        result["participants"] = int(runs[0]["rows"][-1]["participants"])
    return cast(Result, seal(result))


def _of_seeds(runs: Sequence[Mapping[str, Any]], key: str) -> list | dict[str, list]:
    values = [run[key] for run in runs]
    if isinstance(values[0], dict):
        return {name: [one[name] for one in values] for name in values[0]}
    return values


def _means(runs: list[Run], last: int) -> dict[str, dict[str, list]]:
    """What is reported of every seed: means over the last rounds."""
    every = dict.fromkeys(name for run in runs for row in run["rows"] for name in row)
    names = [name for name in every if name not in ("round", "participants", STATE)]

    def means(k: int) -> dict[str, list]:
        values = {n: [_rounded(evaluation.last_mean(run["rows"], n, k)) for run in runs] for n in names}
        return {n: v for n, v in values.items() if None not in v}

    return {"measures": means(last), "final": means(1), "last3": means(3), "last5": means(5)}


def traffic(sent: Sequence[Sequence[float]]) -> dict[str, dict]:
    """`traffic`, the mean over the seeds, and `traffic_of_seeds`, one value for each, since partitions
    differ.

    `sent` is what a client of each seed sends and receives in a round, in scalars.
    """
    each: dict[str, list[float]] = {
        "up": [up for up, _ in sent],
        "down": [down for _, down in sent],
        "bytes": [round((up + down) * BYTES) for up, down in sent],
    }
    # The exact mean of equal numbers is that number.
    means = {name: statistics.mean(values) for name, values in each.items()}
    return {"traffic": means | {"bytes": round(means["bytes"])}, "traffic_of_seeds": each}
