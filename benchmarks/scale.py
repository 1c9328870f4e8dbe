"""What a cluster costs besides training, measured on a SLURM cluster of two nodes on this machine, and what
that means for 770 cells on many workers, simulated.

`PYTHONPATH=.:tests:tests/scale python benchmarks/scale.py` writes results/scale.json and docs/scale.svg;
with `--simulate` it reads the measurements from results/scale.json. Needs what `make test-scale` installs.
"""

import argparse
import heapq
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.commands.schedule import AT_ONCE
from pipeline.provenance.identity import machine

RESULTS = Path(__file__).parent / "results"
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CELLS = 770
HOURS_BETWEEN_DEATHS = 500.0  # of one worker: a node dies, a task is preempted
CHECKPOINT = 20.0  # seconds between checkpoints: half of them are lost on average


def measure() -> dict:
    """Seconds, on a cluster that this call starts and ends."""
    from checkouts import CELLS as cells
    from checkouts import prepare, surroundings
    from clusters import Slurm, wait_for

    with tempfile.TemporaryDirectory() as folder:
        project = prepare(Path(folder, "checkout"))
        cluster = Slurm(Path(folder))
        try:
            cluster.start()
            measured = json.loads(_inside(project, SUBMIT, cluster.variables))
            options = ["--on", "slurm", "--slurm", "mem=1500M,time=20"]
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline", "run", *cells, *options],
                cwd=project,
                env=surroundings(**cluster.variables),
                stdout=subprocess.DEVNULL,
            )
            events = project / ".cells/logs"
            wait_for(lambda: list(project.glob(".cells/jobs/*.json")), 200)
            sent = time.monotonic()
            wait_for(lambda: list(events.glob("*mini@*.jsonl")), 200)
            measured["first_step"] = round(time.monotonic() - sent, 1)
            wait_for(lambda: len(list(project.glob(".cells/*/seed-*.pt"))) == 2, 200)
            job = next(name for name, node in cluster.running().items() if node == "n2")
            cluster.kill("n2")
            killed = time.monotonic()
            cluster.add("n2")
            wait_for(lambda: job not in cluster.running(), 200)
            wait_for(lambda: job in cluster.running(), 300)
            measured["again_after_death"] = round(time.monotonic() - killed, 1)
            process.wait()
            measured |= json.loads(_inside(project, RECORD, cluster.variables))
        finally:
            cluster.stop()
    return measured | {"load": round(os.getloadavg()[0], 1)}


# 770 cells in one array, which is cancelled at once.
SUBMIT = """
import json, sys, time; from pathlib import Path
from pipeline.clusters.slurm import Slurm; from pipeline.clusters.order import Order
from pipeline.clusters.cluster import Sent
from pipeline.schema import Cell
class Task: log = events = Path("/dev/null"); name = "x"
engine = Slurm(1, 770, "mem=1500M")
order = Order.of(Cell.parse("fedcrl/mini/local"), "fp32")
jobs = [Sent(Task, order=order, mark=Path("/dev/null")) for _ in range(770)]
begun = time.monotonic(); engine.send(jobs); took = time.monotonic() - begun
engine.end([(jobs[0].id.split("_")[0], "")])
print(json.dumps({"submit_770": round(took, 2)}))
"""
# Cells that are there already, recorded once more, and with a lock file of 770 stages.
RECORD = """
import json, time; from pathlib import Path
from dvc.repo import Repo
from pipeline.training import trainer
from pipeline.clusters.job import Job
from pipeline.clusters.order import Order; from pipeline.commands.schedule import record
from pipeline.schema import ROOT, Cell
repo, arrived = Repo(str(ROOT)), []
class Task: cell = ""
for method in ("local", "fedavg", "fedprox"):
    task, order = Task(), Order.of(Cell.parse(f"fedcrl/mini/{method}"), "fp32")
    task.stage = repo.stage.collect(f"papers/fedcrl/dvc.yaml:mini@{method}")[0]
    arrived.append(Job(task, write=order.write))
def spent(cells):
    wall, cpu = time.monotonic(), time.process_time()
    assert not any(record(cells, repo).values())
    return time.monotonic() - wall, time.process_time() - cpu
three = spent(arrived)
lock = Path("papers/fedcrl/dvc.lock")
head, _, stages = lock.read_text().partition("stages:\\n")
one = stages[stages.index("  mini@local:"):].split("\\n  mini@")[0].rstrip() + "\\n"
more = "".join(one.replace("mini@local", f"x@{k}") for k in range(770))
lock.write_text(head + "stages:\\n" + stages + more)
large = spent(arrived)
many = []
for _ in range(17):
    many += [Job(job.task, write=job.write) for job in arrived]
bulk = spent(many)
measured = {"record_cell": three[0] / 3, "record_cell_cpu": three[1] / 3,
         "record_51_of_770_a_cell": bulk[0] / 51,
         "record_51_of_770_a_cell_cpu": bulk[1] / 51, "lock_of_770": large[0] - three[0]}
print(json.dumps({name: round(value, 2) for name, value in measured.items()}))
"""


def _inside(project: Path, code: str, variables: dict[str, str]) -> str:
    """What code prints that runs in the checkout."""
    from checkouts import surroundings

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        capture_output=True,
        text=True,
        env=surroundings(**variables) | {"PYTHONPATH": str(project)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def seconds_of_cells() -> dict[str, list[float]]:
    """Of one process, as `fedrepro status` estimates them: the miniatures as measured, and FedCRL's grids."""
    from pipeline.commands import status
    from pipeline.schema import MINIATURE

    board = status.Board()
    measured = board.overview("fedcrl").cells.values()
    short = [
        sum(result["seconds"])
        for cell, result in board.results.items()
        if cell.scenario == MINIATURE and result
    ]
    return {"miniatures": short, "FedCRL's grids": [one.hours * 3600 for one in measured if one.hours]}


def simulate(seconds: list[float], workers: int, measured: dict, seed: int = 0) -> dict[str, float]:
    """770 cells, drawn from these, on so many workers: seconds to the last recorded one, and the share of the
    time in which the one recorder works. A death costs what was not saved and the time to run again."""
    draw = random.Random(seed)
    free, ends, deaths = [0.0] * workers, [], 0
    for cell in sorted(draw.choices(seconds, k=CELLS), reverse=True):  # as the scheduler has them
        left, now = cell + measured["first_step"], heapq.heappop(free)
        while (until := draw.expovariate(1 / (HOURS_BETWEEN_DEATHS * 3600))) < left:
            deaths += 1
            now += until + measured["again_after_death"]
            left -= until - CHECKPOINT / 2
        heapq.heappush(free, now + left)
        ends.append(now + left)
    recorded, busy, waiting = 0.0, 0.0, sorted(ends)
    while waiting:
        begun = max(recorded, waiting[0])
        batch = [end for end in waiting[:AT_ONCE] if end <= begun]
        cost = measured["lock_of_770"] + len(batch) * measured["record_cell"]
        recorded, busy, waiting = begun + cost, busy + cost, waiting[len(batch) :]
    return {"seconds": round(recorded), "recorder": round(busy / recorded, 3), "deaths": deaths}


def draw(simulated: dict[str, dict[str, dict]], path: Path) -> None:
    """Speed-up over one worker against the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "fedrepro"
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(WORKERS, WORKERS, color="grey", linestyle=":", label="without any cost")
    for name, points in simulated.items():
        alone = points["1"]["seconds"]
        axes.plot(WORKERS, [alone / points[str(n)]["seconds"] for n in WORKERS], marker="o", label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="workers",
        ylabel="times as fast as one worker",
        title="770 cells, simulated",
    )
    axes.set_xticks(WORKERS, list(map(str, WORKERS)))
    axes.set_yticks(WORKERS, list(map(str, WORKERS)))
    axes.minorticks_off()
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="measure nothing")
    path = RESULTS / "scale.json"
    if parser.parse_args().simulate:
        document = json.loads(path.read_text())
    else:
        document = {"machine": machine(), "measured": measure()}
    cells = seconds_of_cells()
    document["mean_seconds"] = {name: round(statistics.fmean(hours)) for name, hours in cells.items()}
    document["simulated"] = {
        name: {str(n): simulate(hours, n, document["measured"]) for n in WORKERS}
        for name, hours in cells.items()
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    draw(document["simulated"], RESULTS.parents[1] / "docs/scale.svg")
    print(json.dumps(document["measured"]))


if __name__ == "__main__":
    main()
