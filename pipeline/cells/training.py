"""Trains a cell: every seed in its own process, with checkpoints, from parameters and partition to result
files."""
import dataclasses
import errno
import fcntl
import math
import multiprocessing
import os
import resource
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from multiprocessing import connection, get_context
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pipeline import files, methods
from pipeline.cells import evaluation, provenance, tracking
from pipeline.cells.adoption import adopt
from pipeline.cells.beginnings import Pretraining, first_rounds
from pipeline.cells.checks import runnable
from pipeline.cells.inputs import inputs, partition_folder, verify
from pipeline.cells.kept import FORCE, Kept
from pipeline.cells.loading import load, load_newcomers, load_world
from pipeline.cells.progress import Progress
from pipeline.devices import keep_memory
from pipeline.engine.handle import Handle
from pipeline.engine.state import Clients, pack, unpack
from pipeline.engine.trained import Trained, Watch
from pipeline.engine.world import World, default_device, executor_module, executor_name, precision
from pipeline.errors import FedReproError, TrainingError, WorkerError
from pipeline.schema import ROOT, Cell, Scenario, load_paper, load_params
from pipeline.sealing import seal

CHECKPOINT_SECONDS = 20.0
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)     # of some shared file systems
BYTES = 4                                                     # of a float32 scalar on the wire


@dataclass(frozen=True)
class Job:
    """One seed of a cell, as a worker process gets it."""
    cell: Cell
    seed: int
    digest: str
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / ".cells" / self.digest

    @property
    def kept(self) -> Kept:
        return Kept(self.folder, self.seed)


@dataclass(frozen=True)
class Plan:
    """What training a cell comes down to: its parameters, what each seed trains on, and a job for each."""
    cell: Cell
    scenario: Scenario
    algorithm: str
    hyper: dict
    method: Any
    metas: list[dict]
    jobs: list[Job]
    root: Path
    asked: dict                                   # parameters, as paper.yaml and params.yaml have them

    def result(self) -> dict:
        """result.json of the finished seeds."""
        resolved = dataclasses.asdict(self.method)
        return summarise(self.cell, self.scenario, self.algorithm, self.hyper, resolved, self.runs,
                         self.metas, self.jobs[0].digest, self.root)

    def write(self, result: dict) -> None:
        """The files of a result, where DVC and the reports look for them. TrainingError where the parameters
        have changed since: DVC would note those of now beside it."""
        if _asked(self.cell, self.root) != self.asked:
            raise TrainingError(f"{self.cell}: its parameters or its code in sources.yaml changed while it "
                                "trained; run it again: seeds of the earlier ones are kept in .cells")
        _write(self.cell, result, self.runs, self.jobs[0].kept.pictures, self.root)

    @cached_property
    def runs(self) -> list[dict]:
        """What every seed found. TrainingError for one that is not finished, or was damaged since."""
        found = [job.kept.run() for job in self.jobs]
        if None in found:
            raise TrainingError(f"{self.cell}: seed {self.jobs[found.index(None)].seed} is not finished")
        devices = {run["device"] for run in found if run is not None}
        if "cpu" in devices and len(devices) > 1:
            raise TrainingError(f"{self.cell}: some of its seeds were trained on cpu, others on "
                                f"{', '.join(sorted(devices - {'cpu'}))}; train all on one: --force")
        return [run for run in found if run is not None]


def plan(cell: Cell, root: Path = ROOT, precise: str | None = None, executor: str | None = None) -> Plan:
    """How the cell is to be trained, or was, with this precision and executor; by default those of this
    process."""
    scenario, algorithm, hyper, method = runnable(cell, root)
    verify(cell, root)
    metas = [inputs(cell, seed, root) for seed in scenario.seeds]
    chosen = precise or precision(), executor or executor_name(default_device())
    jobs = [
        Job(cell, seed, provenance.cell_digest(cell, meta["digest"], chosen[0], root, chosen[1]), root)
        for seed, meta in zip(scenario.seeds, metas)
    ]
    return Plan(cell, scenario, algorithm, hyper, method, metas, jobs, root, _asked(cell, root))


def _asked(cell: Cell, root: Path) -> dict:
    """What the files have now that DVC notes as the parameters of the cell's stage."""
    for read in (load_paper, load_params, provenance.noted):
        read.cache_clear()
    scenario, algorithm, hyper = cell.resolve(root)
    code = provenance.noted(cell.paper, root).get(cell.scenario, {}).get(cell.method)
    return {"scenario": dataclasses.asdict(scenario), "method": algorithm, "hyper": hyper, "code": code}


def train_cell(cell: Cell, root: Path = ROOT, write: bool = True) -> dict:
    """Train the missing seeds of the cell and write its metrics, history.csv and result.json; returns the
    result. Without `write` the seeds stay in .cells/<digest>, and `Plan.write` makes the files of them.

    FEDREPRO_WORKERS (default: the cores) seeds run at once. A run that was killed goes on from its
    checkpoints.
    """
    planned = plan(cell, root)
    jobs, scenario = planned.jobs, planned.scenario
    keep_memory()
    with _only_one(jobs[0].folder, cell), _marked(jobs[0].folder / "error.json", cell):
        progress = Progress(cell, scenario)
        values = {"hyper": planned.hyper, "scenario": dataclasses.asdict(scenario)}
        follower = tracking.Follower(cell, values, root)

        def report(row: dict) -> None:
            progress.report(row)
            follower.report(row)

        if os.environ.get(FORCE):
            for job in jobs:
                job.kept.forget()
        else:
            for seed in adopt([job.kept for job in jobs], cell, planned.metas, root):
                progress.say(f"seed {seed} is in git and stays as it is")
        for finished in _train_seeds(jobs, report):
            progress.seed_done(finished)
        result = planned.result()
        if write:
            planned.write(result)
            follower.finish(result)
        progress.cell_done(result)
    return result


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
    scenario, algorithm, hyper = job.cell.resolve(job.root)
    method = methods.load(
        algorithm,
        hyper,
        f"papers/{job.cell.paper}/paper.yaml: methods.{job.cell.method}",
        job.cell.paper,
        job.root,
    )
    world, tests = load_world(job.cell, scenario, job.seed, job.root)
    executor = share(world.executor)
    begun, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    beginnings = first_rounds(job.cell, job.seed, job.root)
    others = [] if os.environ.get(FORCE) else reversed(beginnings.values())
    state, rows, own, spent = _resume([job.kept, *others], world.device)
    if state is None:
        start = Pretraining(executor, job.cell, job.seed, job.root)
        world = world.at(0, watch := Watch(start))
        state = method.init(world)
        rows = [_row(world, method, state, tests, scenario, watch.trained)[0]]
        spent = start.seconds
    saved = time.monotonic()
    every = float(os.environ.get("FEDREPRO_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS))
    for number in range(rows[-1]["round"] + 1, scenario.training.rounds + 1):
        world = world.at(number, watch := Watch(executor))
        state = method.round(state, world)
        row, own = _row(world, method, state, tests, scenario, watch.trained)
        if number == scenario.training.rounds:
            row |= _newcomers(job, scenario, method, state)
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
    world = world.whole
    finished = {
        "seed": job.seed,
        "rows": rows,
        "clients": own,
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
    arrays = {} if models is None else evaluation.representations(models, world, tests)
    return job.kept.finish(
        finished, arrays if vectors is None else {**arrays, "vectors": vectors.half().cpu().numpy()}
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _peak_memory(device: torch.device) -> dict[str, int | None]:
    """The most memory so far in MB (2**20 bytes): of this process, and on a GPU of what torch holds there."""
    scale = 2**20 if sys.platform == "darwin" else 2**10      # of ru_maxrss: bytes there, kibibytes on Linux
    return {"process_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // scale,
            "device_mb": torch.cuda.max_memory_allocated(device) // 2**20 if device.type == "cuda" else None}


# -- one round's measures ------------------------------------------------------------------------------------

def _row(world: World, method, state, tests, scenario: Scenario,
         trained: Trained | None) -> tuple[dict, list[float | None]]:
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
    world = world.whole                                       # absent clients are scored, too
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


def _newcomers(job: Job, scenario: Scenario, method, state) -> dict[str, float | None]:
    """`unseen.*`: the measures of the clients that come after the last round, as they adapt; none where the
    scenario has none."""
    found = load_newcomers(job.cell, scenario, job.seed, job.root)
    if found is None:
        return {}
    (world, tests), protocol = found, scenario.evaluation
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


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)


# -- seeds in parallel, checkpoints --------------------------------------------------------------------------

def _train_seeds(jobs: list[Job], report: Callable[[dict], None]) -> Iterator[dict]:
    """Train the jobs, FEDREPRO_WORKERS at once, each in a process of its own, or stacked together in this
    one; yields them as they finish."""
    name = executor_name(default_device())
    left = [job for job in jobs if not job.kept.finished.exists()]
    if name == "stacked" and len(jobs) > 1:
        train = partial(train_seed, sharing=max(len(left), 1))
        for kind, value in executor_module(name).together(train, jobs):
            if kind == "row":
                report(value)
            else:
                yield value
        return
    workers = min(len(jobs), int(os.environ.get("FEDREPRO_WORKERS", os.cpu_count() or 1)))
    # A forked worker has torch imported already; CUDA and macOS need a fresh interpreter.
    forks = sys.platform == "linux" and not torch.cuda.is_available()
    # Seeds one after the other have processes of their own where that costs nothing: the memory that the
    # first took at most would stay with a common one.
    if len(left) <= 1 or workers <= 1 and not forks:
        yield from (train_seed(job, report) for job in jobs)
        return
    if forks and len({partition_folder(job.cell, job.seed, job.root) for job in left}) == 1:
        load(left[0].cell, left[0].seed, left[0].root)        # forked workers inherit the loaded data
    context: ForkContext | SpawnContext = get_context("fork") if forks else get_context("spawn")
    waiting = list(jobs)
    running: dict[Any, tuple[BaseProcess, Job]] = {}      # by the receiving end of each worker's pipe
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_worker, args=(waiting[0], sender), daemon=True)
                process.start()
                sender.close()
                running[receiver] = (process, waiting.pop(0))
            for ready in connection.wait(list(running)):
                worker, job = running[ready]
                kind, value = _receive(ready, worker, job)
                if kind == "row":
                    report(value)
                    continue
                worker.join()
                del running[ready]
                if kind == "error":
                    raise value
                yield value
    finally:
        for worker, _ in running.values():
            worker.terminate()


def _worker(job: Job, sender) -> None:
    """Train one seed and send ("row", ...) after every round, then ("done", ...) or ("error", ...)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)              # Ctrl-C is for the parent, which stops us

    parent = multiprocessing.parent_process()

    def tell(row: dict) -> None:
        if parent is not None and not parent.is_alive():      # the parent was killed: end too
            os._exit(1)
        sender.send(("row", row))

    try:
        sender.send(("done", train_seed(job, tell)))
    except FedReproError as error:
        sender.send(("error", error))


def _receive(receiver, process, job: Job) -> tuple:
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return "error", WorkerError(
            f"{job.cell}, seed {job.seed}: the worker ended with exit code {process.exitcode} "
            "(-9 is often the system running out of memory); finished rounds are kept"
        )


def _resume(places: Iterable[Kept], device: torch.device) -> tuple:
    """(state, rows, clients' accuracies, seconds) of the first checkpoint there is, or (None, None, [],
    0.0)."""
    for kept in places:
        if (saved := kept.resume(device)) is not None:
            return unpack(saved["state"]), saved["rows"], saved["own"], saved["seconds"]
    return None, None, [], 0.0


@contextmanager
def _only_one(folder: Path, cell: Cell):
    """Wait while another process trains this cell: when a stage is killed, its training process can survive
    it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(
                f"{cell}: another process is training this cell; waiting for it", file=sys.stderr, flush=True
            )
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            print(
                f"warning: {folder}: this file system has no locks; see that nothing else trains {cell}",
                file=sys.stderr,
                flush=True,
            )
        yield


@contextmanager
def _marked(path: Path, cell: Cell):
    """Leave the error of a failed cell beside its checkpoints, for `pipeline.commands.status`; a run that
    succeeds removes it."""
    try:
        yield
    except FedReproError as error:
        files.write_json(
            path,
            {
                "cell": str(cell),
                "error": str(error),
                "precision": precision(),
                "executor": executor_name(default_device()),
            },
        )
        raise
    path.unlink(missing_ok=True)


# -- result files --------------------------------------------------------------------------------------------

def summarise(cell, scenario, algorithm, hyper, resolved, runs, metas, digest, root) -> dict:
    """result.json: the reported numbers of every seed and where they come from. `hyper` as written,
    `resolved` with the defaults; `partition` and `digest` are the first seed's, `partitions` those of every
    seed where each has its own."""
    last = scenario.evaluation.last
    names = [n for n in dict.fromkeys(n for run in runs for row in run["rows"] for n in row)
             if n not in ("round", "participants")]

    def means(k: int) -> dict[str, list]:
        values = {n: [_rounded(evaluation.last_mean(run["rows"], n, k)) for run in runs] for n in names}
        return {n: v for n, v in values.items() if None not in v}

    up, down = runs[0]["traffic"]
    return seal(
        {
            "cell": str(cell),
            "paper": cell.paper,
            "scenario": cell.scenario,
            "method": cell.method,
            "label": load_paper(cell.paper, root).label(cell.method),
            "algorithm": algorithm,
            "hyper": hyper,
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
            "traffic": {"up": up, "down": down, "bytes": round((up + down) * BYTES)},
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


def metrics(result: dict) -> dict:
    """papers/<paper>/metrics/<scenario>/<method>.json: the few numbers that `dvc metrics show` lists,
    percent."""
    headline = result["headline"]
    seeds = result["measures"][headline]
    spread = result["measures"].get("clients_std") or [
        statistics.pstdev(a for a in run if a is not None) for run in result["clients"]
    ]
    return {
        "accuracy": _rounded(statistics.fmean(seeds)),
        "accuracy_std": _rounded(statistics.stdev(seeds)) if len(seeds) > 1 else None,
        "clients_std": _rounded(statistics.fmean(spread)),
        **{k: _rounded(statistics.fmean(result[k][headline])) for k in ("last3", "last5", "final")},
        "loss": _rounded(statistics.fmean(result["final"].get("loss", [math.nan]))),
        "up": result["traffic"]["up"],
        "down": result["traffic"]["down"],
        "seeds": len(seeds),
        "rounds": result["rounds"],
    }


def _write(cell: Cell, result: dict, runs: list[dict], pictures: Path, root: Path) -> None:
    folder = cell.folder(root)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_with(cell.representations(root), lambda temporary: shutil.copyfile(pictures, temporary))
    history = pd.DataFrame([{"seed": run["seed"], **row} for run in runs for row in run["rows"]])
    files.write_text(folder / "history.csv", history.to_csv(index=False, lineterminator="\n"))
    files.write_json(folder / "result.json", result)
    files.write_json(cell.metrics(root), metrics(result))
