"""Order: what a cluster needs to train a cell: its name, package versions, and digests that identify its
seeds.

The file of a seed in `.cells` is sealed and lies in a folder named by the digest of everything on which it
depends. Therefore only undamaged files made with today's parameters and code are accepted.
"""

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.errors import ParamError
from pipeline.provenance import identity
from pipeline.schema import ROOT, Cell

EXECUTORS = ("sequential", "stacked", "compiled")


@dataclass(frozen=True)
class Order:
    """A cell with its digests here, executor -> seed -> digest, and this machine's versions."""

    cell: str
    precision: str
    digests: dict[str, dict[str, str]]
    versions: dict[str, str]

    @classmethod
    def of(cls, cell: Cell, precision: str, root: Path = ROOT) -> "Order":
        """Today's, computed without torch. ParamError for `keep: models`, which clusters do not support."""
        experiment = Experiment.of(cell, root)
        if experiment.scenario.keep:
            raise ParamError(f"{cell}: `keep: models` needs `--on local`")
        dealt = {seed: inputs(experiment, seed)["digest"] for seed in experiment.scenario.seeds}
        known = {
            (executor, partition): identity.cell_digest(experiment, partition, precision, executor)
            for executor in EXECUTORS
            for partition in set(dealt.values())
        }
        digests = {name: {str(seed): known[name, dealt[seed]] for seed in dealt} for name in EXECUTORS}
        return cls(str(cell), precision, digests, versions())

    def trained_with(self, root: Path = ROOT) -> str | None:
        """The executor with which every seed is trained; None where one is missing."""
        for executor, by_seed in self.digests.items():
            files = [root / ".cells" / digest / f"seed-{seed}.json" for seed, digest in by_seed.items()]
            if files and all(file.exists() for file in files):
                return executor
        return None

    def write(self, root: Path = ROOT) -> None:
        """Make the result of the seeds; FedReproError for one that is damaged, which is set aside."""
        from pipeline.training import trainer  # with torch: seconds, once

        experiment = Experiment.of(Cell.parse(self.cell), root)
        plan = trainer.plan(experiment, self.precision, self.trained_with(root))
        plan.write(plan.result())


def versions() -> dict[str, str]:
    """Of the packages that make numbers, without a build's suffix: `2.9.1+cpu` computes as `2.9.1`."""
    return {name: metadata.version(name).partition("+")[0] for name in identity.PACKAGES}
