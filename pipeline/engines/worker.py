"""The process that trains a cell on a cluster's node: `python -m pipeline.engines.worker ORDER`.

It never calls DVC and writes only to `.cells`: checkpoints and seeds as every training does, and a sealed
delivery at the end. ORDER is an `Order` as JSON.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from pipeline.cells import arithmetic
from pipeline.cells.checks import check_environment
from pipeline.cells.experiment import Experiment
from pipeline.engines.delivery import Order, deliver, versions
from pipeline.errors import TrainingError, guarded
from pipeline.place import begin
from pipeline.schema import ROOT, Cell


def run(order: dict, root: Path, log: Path, events: Path, environment: dict[str, str]) -> int:
    """Train in a process of its own; returns its exit code. The signal that announces a time limit is for the
    caller, which has the job requeued; this process goes on to the end and is resumed from its checkpoint."""
    log.parent.mkdir(parents=True, exist_ok=True)
    values = {
        **os.environ,
        "FEDREPRO_EVENTS": str(events),
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(root),
        **environment,
    }
    command = [sys.executable, "-m", "pipeline.engines.worker", json.dumps(order)]
    with open(log, "ab") as said:
        return subprocess.Popen(
            command,
            cwd=root,
            env=values,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        ).wait()


def work(order: str) -> None:
    """Train the cell of an order and seal what was made."""
    wanted = Order(**json.loads(order))
    begin()
    check_environment()
    cell = Cell.parse(wanted.cell)
    node = os.uname().nodename
    wrong = [
        f"{name} {found} (asked for: {wanted.versions[name]})"
        for name, found in versions().items()
        if found != wanted.versions[name]
    ]
    if wrong:
        raise TrainingError(f"{cell}: {node} has {', '.join(wrong)}; install requirements/base.lock there")
    experiment = Experiment.of(cell)
    arithmetic.adopt(experiment.scenario.arithmetic)
    from pipeline.cells import training

    plan = training.plan(experiment)
    if plan.jobs[0].digest not in wanted.digests.values():
        raise TrainingError(
            f"{cell}: code, parameters or data at {ROOT} on {node} are not those that were "
            "submitted; cancel the job and submit it again"
        )
    deliver(plan, training.train_cell(cell, write=False))


if __name__ == "__main__":
    guarded(lambda: work(sys.argv[1]))
