"""One seed of a cell, round by round, and the numbers that a result takes from all of its seeds."""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from pipeline import methods
from pipeline.cells import evaluation, provenance
from pipeline.cells.beginnings import Pretraining, first_rounds
from pipeline.cells.experiment import Experiment
from pipeline.cells.kept import FORCE, Kept, fingerprint
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
    def kept(self) -> Kept:
        return Kept(self.folder, self.seed)


def train_seed(
    job: Job,
    report: Callable[[dict], None] = lambda row: None,
    share: Callable = lambda executor: executor,
    sharing: int = 1,
) -> dict:
    """Run one seed from its checkpoint, or from the start, to the last round. `share` may have its executor
    serve other seeds too: `sharing` of them at once, among which the time that passes is divided."""
    if (run := job.kept.run()) is not None:
        return run
    torch.set_num_threads(1)
    experiment, scenario = job.experiment, job.experiment.scenario
    method = methods.load(
        experiment.algorithm, experiment.hyper, experiment.where, experiment.cell.paper, experiment.root
    )
    world, tests = load_world(experiment, job.seed)
    executor = share(world.executor)
    begun, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    beginnings = first_rounds(experiment, job.seed)
    others = [] if os.environ.get(FORCE) else reversed(beginnings.values())
    state, rows, own, spent = _resume([job.kept, *others], world.device)
    if state is None:
        start = Pretraining(executor, experiment, job.seed)
        world = world.at(0, watch := Watch(start))
        state = method.init(world)
        rows = [_row(world, method, state, tests, scenario, watch.trained)[0] | {STATE: _digest(state)}]
        spent = start.seconds
    saved = time.monotonic()
    every = float(os.environ.get("FEDREPRO_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS))
    for number in range(rows[-1]["round"] + 1, scenario.training.rounds + 1):
        world = world.at(number, watch := Watch(executor))
        state = method.round(state, world)
        row, own = _row(world, method, state, tests, scenario, watch.trained)
        if number == scenario.training.rounds:
            row |= _newcomers(job, method, state)
        row[STATE] = _digest(state)
        rows.append(row)
        report({"seed": job.seed, **row})
        now = time.monotonic()
        content = {"state": pack(state), "rows": rows, "own": own, "seconds": spent + now - begun}
        # No checkpoint after the last round: what follows needs the models that its training leaves, so a run
        # that is killed there trains the round again.
        if number < scenario.training.rounds and now - saved >= every:
            saved = now
            job.kept.save(content)
        if number in beginnings:
            beginnings[number].save(content)
    trained = method.after_training(state, None if watch.trained is None else watch.trained.models)
    prototypes = {} if trained is None else evaluation.local_prototypes(trained, world)
    world = world.whole
    finished = {
        "seed": job.seed,
        "rows": rows,
        "clients": own,
        "holdings": holdings(world),
        "traffic": method.traffic(world, state),
        "hook": headline_hook(scenario, method),
        "seconds": round((spent + time.monotonic() - begun) / sharing, 1),
        "device": _device_name(world.device),
        "precision": precision(),
        "executor": executor_name(world.device),
        "memory": _peak_memory(world.device),
        "versions": provenance.machine(),
        "started": started,
    }
    models, vectors = _models(finished["hook"], method, state, world, watch.trained), method.vectors(state)
    arrays = prototypes
    if models is not None:
        found = evaluation.by_class(models, world, tests, scenario.evaluation.top, _scores(method, state))
        finished["by_class"] = [_rounded(value) for value in found]
        arrays = arrays | evaluation.representations(models, world, tests)
    return job.kept.finish(
        finished, arrays if vectors is None else {**arrays, "vectors": vectors.half().cpu().numpy()}
    )


def _digest(state) -> str:
    """16 hex digits that identify the state of server and clients after a round, bit for bit."""
    return fingerprint(pack(state))[:16]


def _resume(places: Iterable[Kept], device: torch.device) -> tuple:
    """(state, rows, clients' accuracies, seconds) of the first checkpoint there is, or (None, None, [],
    0.0)."""
    for kept in places:
        if (saved := kept.resume(device)) is not None:
            return unpack(saved["state"]), saved["rows"], saved["own"], saved["seconds"]
    return None, None, [], 0.0


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
    world: World, method, state, tests, scenario: Scenario, trained: Trained | None
) -> tuple[dict, list[float | None]]:
    """A line of history.csv, and every client's accuracy under the headline hook.

    The headline hook carries plain names, the other one its own prefix. Where each model must face large
    common test sets, the other hook is measured only in the rounds that are reported.
    """
    row = {
        "round": world.round,
        "loss": None if trained is None else _rounded(trained.mean_loss(world.sizes)),
    }
    if scenario.training.participation is not None:
        row["participants"] = len(world.participants) if world.round else 0
    row |= {f"method.{name}": _rounded(value) for name, value in method.diagnostics(state).items()}
    world = world.whole  # absent clients are scored, too
    protocol, left = scenario.evaluation, scenario.training.rounds - world.round
    if left >= protocol.last and world.round % protocol.every:
        return row, []
    own: list[float | None] = []
    for hook in ("pre", "post"):
        headline = hook == headline_hook(scenario, method)
        if not headline and protocol.tests != "clients" and left >= protocol.last:
            continue
        models = _models(hook, method, state, world, trained)
        if models is None:
            continue  # nothing was trained yet: before the first round
        measures, accuracies = evaluation.measure(
            models, world, tests, protocol.tests, protocol.top, _scores(method, state)
        )
        if headline and protocol.attack and left < protocol.last:
            measures |= evaluation.under_attack(
                models, world, tests, protocol.tests, protocol.attack, _scores(method, state)
            )
        row |= {name if headline else f"{hook}.{name}": _rounded(value) for name, value in measures.items()}
        own = [_rounded(a) for a in accuracies] if headline else own
    return row, own


def _newcomers(job: Job, method, state) -> dict[str, float | None]:
    """`unseen.*`: the measures of the clients that come after the last round, as they adapt; none where the
    scenario has none."""
    found = load_newcomers(job.experiment, job.seed)
    if found is None:
        return {}
    (world, tests), protocol = found, job.experiment.scenario.evaluation
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


def headline_hook(scenario: Scenario, method) -> str:
    """`pre` or `post`: the scenario's choice where it makes one, else the method's own."""
    return scenario.evaluation.hook or method.headline


def holdings(world: World) -> dict[str, list[int]]:
    """What each client trains on, in the order of the clients: the number of its `images` and of the
    `classes` that these have."""
    return {"images": list(world.sizes), "classes": [len(client.labels.unique()) for client in world.clients]}


# -- a result ------------------------------------------------------------------------------------------------


def summarise(
    experiment: Experiment, resolved: dict, runs: list[dict], metas: list[dict], digest: str
) -> dict:
    """result.json: the reported numbers of every seed and where they come from. `resolved`: the
    hyper-parameters with the defaults; `partition` and `digest` are the first seed's, `partitions` those of
    every seed where each has its own.

    Of every seed, and absent from results recorded before these were: `holdings`, {images, classes} of
    (seeds, clients), see `holdings`; `by_class`, (seeds, classes), see `evaluation.by_class`, of the models
    that the headline hook scores after the last round. `pipeline.cells.measures` reads them.
    """
    cell, scenario, root = experiment.cell, experiment.scenario, experiment.root
    last = scenario.evaluation.last
    names = [
        n
        for n in dict.fromkeys(n for run in runs for row in run["rows"] for n in row)
        if n not in ("round", "participants", STATE)
    ]

    def means(k: int) -> dict[str, list]:
        values = {n: [_rounded(evaluation.last_mean(run["rows"], n, k)) for run in runs] for n in names}
        return {n: v for n, v in values.items() if None not in v}

    return seal(
        {
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
            **(
                {"participants": int(runs[0]["rows"][-1]["participants"])}
                if scenario.training.participation is not None
                else {}
            ),
            "hook": runs[0]["hook"],
            "last": last,
            "headline": evaluation.HEADLINE[scenario.evaluation.tests],
            "measures": means(last),
            "final": means(1),
            "last3": means(3),
            "last5": means(5),
            "clients": [run["clients"] for run in runs],
            **_where_recorded(runs),
            **traffic([run["traffic"] for run in runs]),
            "data": metas[0]["data"],
            "public": metas[0]["public"],
            "partition": metas[0]["digest"],
            **({"partitions": [meta["digest"] for meta in metas]} if scenario.draws > 1 else {}),
            "warnings": list(dict.fromkeys(warning for meta in metas for warning in meta["warnings"])),
            "device": runs[0]["device"],
            "precision": runs[0]["precision"],
            "executor": runs[0]["executor"],
            "versions": runs[0]["versions"],
            "memory": {name: [run["memory"][name] for run in runs] for name in runs[0]["memory"]},
            "started": min(run["started"] for run in runs),
            **(
                {"machines": [run["versions"] for run in runs]}
                if any(run["versions"] != runs[0]["versions"] for run in runs)
                else {}
            ),
            "seconds": [run["seconds"] for run in runs],
            "git": provenance.git_state(root),
            "digest": digest,
        }
    )


def traffic(sent: list[tuple[float, float]]) -> dict[str, dict]:
    """`traffic`, the mean over the seeds, each of which has a partition of its own, and `traffic_of_seeds`;
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
    found: dict = {}
    if all("holdings" in run for run in runs):
        found["holdings"] = {name: [run["holdings"][name] for run in runs] for name in ("images", "classes")}
    if all("by_class" in run for run in runs):
        found["by_class"] = [run["by_class"] for run in runs]
    return found
