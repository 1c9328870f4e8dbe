"""The process that trains one cell for an executor, on a node of a cluster or on this machine.

On a node it is `python -m pipeline.clusters.worker ORDER`, where ORDER is an `Order` as JSON. There it never
calls DVC and writes only to `.cells`: checkpoints and finished seeds. On this machine it is a fork of a
process that has already imported torch.
"""

import json
import os
import sys

from pipeline import arithmetic
from pipeline.cells.experiment import Experiment
from pipeline.clusters.order import Order, versions
from pipeline.errors import TrainingError, guarded
from pipeline.place import begin
from pipeline.schema import ROOT, Cell
from pipeline.training.checks import check_environment


def train_here(cell: str, root: str, log: str, group: int, environment: dict[str, str]) -> None:
    """Train the cell and write its result, as `stages.train` does; what is printed goes to `log`.

    group: the process group to join.
    """
    os.setpgid(0, group)
    os.chdir(root)
    sys.path.insert(0, root)  # for the methods of a paper's folder
    os.environ.update(environment)
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

    def train() -> None:
        check_environment()
        from pipeline.training.trainer import train_cell

        train_cell(Cell.parse(cell))

    guarded(train)


def work(text: str) -> None:
    order = Order(**json.loads(text))
    begin()
    check_environment()
    cell, node = Cell.parse(order.cell), os.uname().nodename
    wrong = [
        f"{name} {version} (here: {order.versions[name]})"
        for name, version in versions().items()
        if version != order.versions[name]
    ]
    if wrong:
        raise TrainingError(f"{cell}: {node} has {', '.join(wrong)}; install requirements/base.lock there")
    experiment = Experiment.of(cell)
    arithmetic.adopt(experiment.scenario.arithmetic)
    from pipeline.training import trainer

    if {str(job.seed): job.digest for job in trainer.plan(experiment).jobs} not in order.digests.values():
        here = f"code, parameters or data at {ROOT} on {node}"
        raise TrainingError(f"{cell}: {here} are not those that were submitted; submit it again")
    trainer.train_cell(cell, write=False)


if __name__ == "__main__":
    guarded(lambda: work(sys.argv[1]))
