"""What clusters share: what comes back is checked and recorded, or refused. tests/scale has real ones."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from loaded_modules import undigested
from repository import CELL, PARAMETERS, edited, forget, outputs, python, run

from pipeline import files
from pipeline.cells.experiment import Experiment
from pipeline.clusters import cluster, executor, local, node
from pipeline.clusters.cluster import Cluster, Sent
from pipeline.clusters.local import Local
from pipeline.clusters.node import Keeper
from pipeline.clusters.order import Order
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import Cell
from pipeline.sealing import seal
from pipeline.training import trainer
from pipeline.training.checkpoint import SeedFiles


@pytest.fixture(scope="module")
def wanted(project) -> Order:
    """As in a process that starts there, where the cell has no result."""
    forget(project)
    code = (
        "import json; from dataclasses import asdict; from pipeline.schema import Cell; "
        "from pipeline.clusters.order import Order; "
        f"print(json.dumps(asdict(Order.of(Cell.parse({CELL!r}), 'fp32'))))"
    )
    return Order(**json.loads(python(project, code).stdout))


@pytest.fixture(scope="module")
def worked(project, wanted, tmp_path_factory) -> Path:
    """What a worker that trained the cell has left in .cells."""
    work(project, wanted)
    return shutil.copytree(project / ".cells", tmp_path_factory.mktemp("worked") / ".cells")


@pytest.fixture
def handed(project, worked) -> Path:
    """The repository with the cell trained by a worker, and not recorded."""
    forget(project)
    shutil.copytree(worked, project / ".cells")
    return project


def work(project: Path, wanted: Order, expect: int = 0) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pipeline.clusters.worker", json.dumps(asdict(wanted))]
    return run(project, *command, expect=expect, FEDREPRO_TRACKING="off")


def record(project: Path) -> subprocess.CompletedProcess:
    """As the loop does with a trained cell."""
    code = (
        "from pipeline.schema import Cell; from pipeline.errors import guarded; "
        "from pipeline.clusters.order import Order; "
        f"guarded(lambda: Order.of(Cell.parse({CELL!r}), 'fp32').write())"
    )
    return python(project, code)


def test_a_worker_writes_to_cells_alone(handed, wanted, expected):
    """The seeds are those of a local run."""
    assert not (handed / "papers/fedcrl/runs/mini/fedprox").exists()
    assert wanted.trained_with(handed) == "sequential"
    record(handed)
    assert outputs(handed) == expected
    other = replace(wanted, digests={"sequential": dict.fromkeys(wanted.digests["sequential"], "0" * 64)})
    more = replace(wanted, digests={"sequential": wanted.digests["sequential"] | {"7": "0" * 64}})
    assert other.trained_with(handed) is None
    assert more.trained_with(handed) is None


def test_what_a_worker_loads_is_covered_by_the_digest(handed):
    """A worker is what trains at SLURM and Ray."""
    (seed,) = handed.glob(".cells/*/seed-1.json")
    loaded = json.loads(seed.read_text())["modules"]
    assert "pipeline.clusters.worker" in loaded
    assert undigested(Cell.parse(CELL), loaded, "sequential", handed) == []


def test_what_is_altered_or_changes_is_not_recorded(handed, wanted):
    """It is set aside, so that the next call trains it again; nothing else is lost."""
    (seed,) = handed.glob(".cells/*/seed-1.json")
    whole = seed.read_bytes()
    for damaged in (whole[:-20], whole.replace(b"fp32", b"bf16")):
        seed.write_bytes(damaged)
        with pytest.raises(FedReproError, match=f"{CELL}: seed 1 is not finished"):
            Order.of(Cell.parse(CELL), "fp32", handed).write(handed)
        assert wanted.trained_with(handed) is None
        assert len([*handed.glob(".cells/*/seed-0.json")]) == 1
        seed.write_bytes(whole)
    # Nor is a result of which one seed was trained on a CPU and another one on a GPU.
    plan = trainer.plan(Experiment.of(Cell.parse(CELL), handed))
    result = plan.result()
    with edited(handed / PARAMETERS, lambda document: document["methods"]["fedprox"].update(mu=0.5)):
        with pytest.raises(FedReproError, match=f"{CELL}: its parameters or its code"):
            plan.write(result)
    plan.write(result)
    files.write_json(plan.jobs[1].files.finished, seal(plan.runs[1] | {"device": "Some GPU"}))
    with pytest.raises(FedReproError, match=f"{CELL}: .*Some GPU, cpu.*--force"):
        _ = trainer.plan(plan.experiment).runs


def test_a_worker_with_other_versions_or_parameters_trains_nothing(handed, wanted):
    other = replace(wanted, versions=wanted.versions | {"torch": "1.0"})
    assert "(here: 1.0); install requirements/base.lock there\n" in work(handed, other, expect=2).stderr
    other = replace(wanted, digests={"sequential": {"0": "0" * 64}})
    assert "not those that were submitted" in work(handed, other, expect=2).stderr


def test_a_cell_is_trained_by_a_fork_and_recorded_by_the_loop(handed, expected):
    """The numbers are those of `stages.train`, and DVC has nothing to do."""
    (handed / ".dvc/config").write_text("[core]\n    no_scm = True\n")
    forget(handed)
    done = run(handed, sys.executable, "-m", "pipeline", "run", CELL, FEDREPRO_TRACKING="off")
    assert outputs(handed) == expected
    assert re.search(r"mini@fedprox  accuracy \d+\.\d\d %\n", done.stdout)
    assert "Running stage" not in (handed / ".cells/logs/papers_fedcrl_dvc.yaml_mini@fedprox.log").read_text()
    stage = "papers/fedcrl/dvc.yaml:mini@fedprox"
    assert json.loads(run(handed, sys.executable, "-m", "dvc", "status", "--json", stage).stdout) == {}
    result = json.loads((handed / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
    assert "pipeline.clusters.worker" in result["modules"]
    assert undigested(Cell.parse(CELL), result["modules"], result["executor"], handed) == []


@pytest.mark.skipif(not local.FORKS, reason="only Linux forks")
def test_a_ctrl_c_while_the_server_of_forks_starts_reaches_neither_it_nor_later_commands():
    """The process that imports torch for the forks has the signal blocked from its first moment, the command
    itself has it as before."""
    code = (
        "import re, signal; "
        "from pipeline.clusters.local import Local; "
        "server = Local(1).server('portable'); "
        "status = open(f'/proc/{server._forkserver_pid}/status').read(); "
        "blocked = int(re.search(r'SigBlk:\\s*(\\w+)', status)[1], 16); "
        "print(bool(blocked >> signal.SIGINT - 1 & 1), signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    )
    assert python(local.ROOT, code).stdout == "True set()\n"


class Pretended(Cluster):
    """A cluster whose jobs end when the test says so."""

    # whether Ctrl-C comes while a submission has not been answered
    interrupted = False

    def __init__(self, root: Path, title: str = "pretended"):
        super().__init__(1, root)
        self.title, self.batches, self.alive, self.ended, self.room = title, [], {}, [], 100

    def send(self, jobs):
        taken, held = jobs[: self.room], jobs[self.room :]
        self.batches.append(len(taken))
        if self.interrupted:
            self.announce(taken, "batch")
        self.alive |= {(f"1_{number}", "batch"): "on n1" for number in range(len(taken))}
        if self.interrupted:
            raise KeyboardInterrupt
        for number, job in enumerate(taken):
            job.id, job.name = f"1_{number}", "batch"
        return held

    def states(self):
        return self.alive

    def end(self, jobs):
        self.ended += jobs


class Stage:
    """A stage as the scheduler gives it."""

    stage, workers = None, 1

    def __init__(self, root: Path, cell: str | None):
        self.cell, self.name = cell, f"stage@{cell}"
        self.log, self.events = root / ".cells/logs/x.log", root / ".cells/logs/x.jsonl"


def settle(one: Cluster) -> None:
    for _ in range(2):
        one.poll()


@pytest.fixture
def orders(monkeypatch):
    """Digests that a test may change."""
    digests = {"sequential": {"0": "a" * 64}}
    monkeypatch.setattr(Order, "of", lambda cell, kind, root: Order(str(cell), kind, dict(digests), {}))
    return digests


def test_cells_of_one_look_go_in_one_submission_and_a_later_call_attaches(tmp_path, orders):
    first = Pretended(tmp_path)
    tasks = [Stage(tmp_path, f"fedcrl/mini/{name}") for name in ("local", "fedavg", "fedprox")]
    jobs = [first.submit(task, False) for task in tasks]
    first.poll()
    assert not first.batches  # more may come
    first.poll()
    assert first.batches == [3]
    assert first.close().startswith("3 jobs go on at pretended")
    again = Pretended(tmp_path)
    again.alive = first.alive
    attached = again.submit(tasks[0], False)
    settle(again)
    assert not again.batches
    assert attached.id == jobs[0].id
    assert attached.code is None
    assert again.cancel(tasks) == len(again.ended) == 3
    assert not list(tmp_path.glob(".cells/jobs/*.json"))


def test_jobs_of_an_interrupted_submission_are_attached_to_or_cancelled(tmp_path, orders):
    """Ctrl-C between the cluster's acceptance and its answer, which has the ids."""
    names = ("local", "fedavg", "fedprox")
    first, tasks = Pretended(tmp_path), [Stage(tmp_path, f"fedcrl/mini/{name}") for name in names]
    first.interrupted = True
    for task in tasks:
        first.submit(task, False)
    with pytest.raises(KeyboardInterrupt):
        settle(first)
    assert first.close().startswith("3 jobs go on at pretended")
    again = Pretended(tmp_path)
    again.alive = first.alive
    attached = [again.submit(task, False) for task in tasks]
    settle(again)
    assert not again.batches
    assert [job.id for job in attached] == ["1_0", "1_1", "1_2"]
    assert again.cancel(tasks[1:]) == 2
    assert again.ended == [("1_1", "batch"), ("1_2", "batch")]
    other = Pretended(tmp_path)  # where nothing arrived
    other.submit(tasks[0], False)
    settle(other)
    assert other.batches == [1]


def test_what_has_no_room_waits_for_a_job_to_end(tmp_path, orders, monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS_BETWEEN_POLLS", 0)
    one = Pretended(tmp_path)
    one.room = 2
    jobs = [
        one.submit(Stage(tmp_path, f"fedcrl/mini/{name}"), False) for name in ("local", "fedavg", "fedprox")
    ]
    settle(one)
    settle(one)
    assert one.batches == [2]
    assert "room" in jobs[2].where  # asked once alone
    jobs[0].code = 2
    one.room = 1
    settle(one)
    assert one.batches == [2, 1]
    assert jobs[2].code is None
    assert jobs[2].id


def test_cells_that_run_elsewhere_or_with_other_parameters_are_not_submitted_twice(tmp_path, orders):
    task, first = Stage(tmp_path, CELL), Pretended(tmp_path)
    first.submit(task, False)
    settle(first)
    other = Pretended(tmp_path, "another")
    assert other.submit(task, False).code == 2
    assert f"error: {CELL} is at pretended as job 1_0" in task.log.read_text()
    orders["sequential"] = {"0": "b" * 64}
    again = Pretended(tmp_path)
    again.alive = first.alive
    assert again.submit(task, False).code == 2
    assert not again.batches
    assert "job 1_0 trains it with other" in task.log.read_text()
    again = Pretended(tmp_path)  # a re-created cluster: the job is not there
    again.submit(task, False)
    settle(again)
    assert again.batches == [1]


def test_a_job_that_the_queue_forgot_has_failed(tmp_path, orders, monkeypatch):
    monkeypatch.setattr(cluster, "GRACE", 0)
    monkeypatch.setattr(cluster, "SECONDS_BETWEEN_POLLS", 0)
    one, task = Pretended(tmp_path), Stage(tmp_path, CELL)
    job = one.submit(task, False)
    settle(one)
    assert isinstance(job, Sent)
    assert job.code is None
    assert job.where == "on n1"
    one.alive.clear()
    one.poll()
    assert job.code == 2
    assert "job 1_0 of pretended ended" in task.log.read_text()


def test_a_missing_package_is_one_line_and_nothing_of_it_is_imported_otherwise(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    monkeypatch.delitem(sys.modules, "pipeline.clusters.slurm", raising=False)
    with pytest.raises(FedReproError, match="needs the package submitit, .* -r requirements/slurm.lock"):
        executor("slurm", 1, 1, {"slurm": ""})
    code = "import sys, pipeline.commands.run; print({'submitit', 'ray', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_what_comes_twice_stays_as_it_came_first(tmp_path):
    """A lost machine had finished all the same: the first seed stays, its checkpoint goes."""
    keeper = Keeper(str(tmp_path))
    for name, data in (
        ("pt", b"half"),
        ("npz", b"pictures"),
        ("json", b"first"),
        ("npz", b"others"),
        ("json", b"second"),
        ("pt", b"late"),
    ):
        keeper.save(f"digest/seed-0.{name}", data)
    assert keeper.begin("cell", "n2", ["digest"]) == {
        "digest/seed-0.json": b"first",
        "digest/seed-0.npz": b"pictures",
    }


def test_what_others_name_is_sent_before_them(tmp_path):
    """A node that dies between two files has not told of a seed whose pictures are lost."""
    names = ["error.json", "seed-0.json", "seed-0.npz", "seed-1.json", "seed-1.npz", "seed-2.pt"]
    (tmp_path / ".cells/digest").mkdir(parents=True)
    for name in names:
        (tmp_path / ".cells/digest" / name).touch()
    sent = [path.name for path in node._stamps(tmp_path)]
    assert sorted(sent) == names
    assert all(sent.index(f"seed-{k}.npz") < sent.index(f"seed-{k}.json") for k in (0, 1))


def test_jobs_that_end_with_the_call_leave_no_mark(tmp_path, orders):
    """Another cluster may take the cell, although this call was killed."""
    task, first = Stage(tmp_path, CELL), Pretended(tmp_path)
    first.outlives = False
    first.submit(task, False)
    settle(first)
    other = Pretended(tmp_path, "another")
    other.submit(task, False)
    settle(other)
    assert other.batches == [1]


def test_cells_on_a_machine_share_what_they_begin_with(tmp_path, monkeypatch):
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    first, second = tmp_path / "first", tmp_path / "second"
    for root in (first, second):
        root.mkdir()
        node._share_beginnings(root)
    content = {"models": {"kind": "clients", "value": []}, "losses": [1.0], "seconds": 1.0}
    SeedFiles(first / ".cells/beginnings/digest", 0).save(content)
    assert SeedFiles(second / ".cells/beginnings/digest", 0).resume(torch.device("cpu")) == content
    assert not node._stamps(first)  # it stays on the machine


def test_a_folder_that_another_user_made_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(node.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"fedrepro-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="not this user's folder"):
        node._place()
    ours = os.getuid()
    monkeypatch.setattr(node.os, "getuid", lambda: ours + 1)
    (tmp_path / f"fedrepro-{ours + 1}").mkdir()
    with pytest.raises(PermissionError, match="not this user's folder"):
        node._place()


def test_arrays_stay_below_the_largest_that_the_cluster_takes(tmp_path, monkeypatch):
    """Five cells where arrays hold two, each array with a separate folder and its share of --jobs."""
    slurm = pytest.importorskip("pipeline.clusters.slurm", reason="submitit is not installed")
    arrays = []

    class Executor:
        def __init__(self, folder, **options):
            self.folder = folder

        def update_parameters(self, **options):
            self.options = options

        def map_array(self, function, *lists):
            arrays.append((self.folder, len(lists[0]), self.options["slurm_array_parallelism"]))
            return [SimpleNamespace(job_id=f"{len(arrays)}_{k}") for k in range(len(lists[0]))]

    configuration = "ClusterName = mini\nMaxArraySize            = 2\n"
    monkeypatch.setattr(slurm, "_ask", lambda *command: configuration)
    monkeypatch.setattr(slurm.submitit, "AutoExecutor", Executor)
    one = slurm.Slurm(5, 5, "mem=1G", tmp_path)
    jobs = [Sent(Stage(tmp_path, CELL), mark=tmp_path / f"{number}.json") for number in range(5)]
    one.send(jobs)
    assert [array[1:] for array in arrays] == [(2, 2), (2, 2), (1, 1)]
    assert len({folder for folder, *_ in arrays}) == 3
    assert [job.id for job in jobs][-1] == "3_0"


def test_options_of_sbatch():
    slurm = pytest.importorskip("pipeline.clusters.slurm", reason="submitit is not installed")
    options = {"partition": "gpu", "nodelist": "n1,n2", "cpus-per-task": "2"}
    assert slurm.parse("partition=gpu,nodelist=n1,n2,cpus_per_task=2") == options
    for text, line in (
        ("partitoin=x", "unknown option 'partitoin' .nearest: 'partition'"),
        ("gpu", "'gpu': expected option=value"),
    ):
        with pytest.raises(ParamError, match=f"--slurm: {line}"):
            slurm.parse(text)


def test_each_cell_has_a_card(monkeypatch, tmp_path):
    """The one with the fewest cells; a stage that trains nothing has none, nor a cell on a named device."""
    given: list = []

    def start(task, environment, force):
        given.append(environment.get("CUDA_VISIBLE_DEVICES"))
        return lambda: 0 if task.name == "second" else None

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,")
    here, stage = Local(8), SimpleNamespace(cmd="")
    monkeypatch.setattr(here, "_repro", start)

    def submit(name, cell="a/b/c"):
        log, events = tmp_path / f"{name}.log", tmp_path / f"{name}.jsonl"
        task = SimpleNamespace(name=name, cell=cell, stage=stage, workers=1, log=log, events=events)
        return here.submit(task, False)

    for name in ("first", "second", "third"):
        submit(name)
    submit("report", cell=None)
    here.poll()
    submit("fourth")
    assert given == ["4", "7", "4", None, "7"]
    monkeypatch.setenv("FEDREPRO_DEVICE", "cuda:1")
    assert Local(8).cards == []


def test_a_report_may_use_all_cores_unless_the_user_wants_fewer(monkeypatch, tmp_path):
    """Although it counts as one of the stages that run at once."""

    def workers(command: str) -> str:
        task = SimpleNamespace(stage=SimpleNamespace(cmd=command), workers=1, events=tmp_path / "events")
        return Local(8)._environment(task, False)["FEDREPRO_WORKERS"]

    monkeypatch.delenv("FEDREPRO_WORKERS", raising=False)
    assert workers("python -m stages.report") == "8"
    assert workers("python -m stages.track") == "1"
    monkeypatch.setenv("FEDREPRO_WORKERS", "2")
    assert workers("python -m stages.report fedlsa") == "2"


def test_a_python_that_cannot_unpack_safely_is_named_before_anything_starts(monkeypatch):
    monkeypatch.delattr(tarfile, "data_filter", raising=False)  # older ones have none
    with pytest.raises(FedReproError, match="3.11.4"):
        executor("ray", 1, 1, {"address": "localhost:1", "gpus": 0.0})
