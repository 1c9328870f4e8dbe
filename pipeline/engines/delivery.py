"""What a worker hands over when it has trained a cell: `.cells/<digest>/delivered.json`, sealed, with the
hash of every seed's files. Nothing is recorded that is not sealed, whole and of today's parameters."""

import contextlib
import json
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from pipeline import files
from pipeline.cells import provenance
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs
from pipeline.errors import FedReproError, TrainingError
from pipeline.schema import ROOT, Cell, NonNegative, Whole
from pipeline.schema import check as check_shape
from pipeline.sealing import is_sealed, seal

NAME = "delivered.json"
EXECUTORS = ("sequential", "stacked")
AHEAD = 60.0  # seconds that another machine's clock may be ahead


@dataclass(frozen=True)
class Order:
    """A cell to be trained elsewhere: the digests that it has here, with each executor, and this machine's
    versions of what makes numbers."""

    cell: str
    precision: str
    digests: dict[str, str]
    versions: dict[str, str]
    seeds: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, cell: Cell, precision: str, root: Path = ROOT) -> "Order":
        """Today's, computed without torch."""
        experiment = Experiment.of(cell, root)
        seeds = experiment.scenario.seeds
        partition = inputs(experiment, seeds[0])["digest"]
        digests = {name: provenance.cell_digest(experiment, partition, precision, name) for name in EXECUTORS}
        return cls(str(cell), precision, digests, versions(), seeds)


def versions() -> dict[str, str]:
    """Of the packages that make numbers, without a build's suffix: `2.9.1+cpu` computes as `2.9.1`."""
    found = dict.fromkeys(provenance.PACKAGES, "none")
    for name in provenance.PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).partition("+")[0]
    return found


@dataclass(frozen=True)
class Delivery:
    """What a worker hands over: `files` are those of the seeds, with their SHA-256; `ended` is its time."""

    cell: str
    digest: str
    precision: str
    executor: str
    seeds: list[Whole]
    files: dict[str, str]
    ended: NonNegative
    self: str


def deliver(plan, result: dict) -> None:
    """Seal what a worker has trained: `plan` and `result` are those of `pipeline.cells.training`."""
    cells = plan.root / ".cells"
    written = [path for job in plan.jobs for path in (job.files.finished, job.files.representations)]
    files.write_json(
        plan.jobs[0].folder / NAME,
        seal(
            {
                "cell": str(plan.cell),
                "digest": result["digest"],
                "precision": result["precision"],
                "executor": result["executor"],
                "seeds": result["seeds"],
                "files": {path.relative_to(cells).as_posix(): files.sha256(path) for path in written},
                "ended": time.time(),
            }
        ),
    )


def delivered(order: Order, root: Path = ROOT) -> Path | None:
    """Where a worker has handed the cell over, with today's parameters and all of today's seeds."""
    paths = [root / ".cells" / digest / NAME for digest in order.digests.values()]
    return next((path for path in paths if path.exists() and not _lacks_seeds(path, order)), None)


def _lacks_seeds(path: Path, order: Order) -> bool:
    """Was it handed over before a seed was added? `check` judges a file that cannot be read."""
    try:
        return bool(set(order.seeds) - set(json.loads(path.read_text(encoding="utf-8"))["seeds"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check(path: Path, order: Order, root: Path = ROOT) -> dict:
    """The delivery, if it is whole, unaltered and of the order. Else TrainingError, and what is damaged steps
    aside (`.refused`), so that the next call trains it again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        sealed = is_sealed(found)
        check_shape(Delivery, found if sealed else {}, "")
    except (ValueError, KeyError, TypeError, RecursionError, FedReproError):
        raise refused(path, order, "is cut short or was altered") from None
    if found["cell"] != order.cell or found["digest"] != order.digests.get(found["executor"]):
        raise refused(path, order, f"is of {found['cell']} with other parameters than today's")
    for name, digest in found["files"].items():
        if files.leads_out(name):
            raise refused(path, order, f"names {name!r}, which is outside .cells")
        part = root / ".cells" / name
        if not part.exists() or files.sha256(part) != digest:
            _aside(part)
            raise refused(path, order, f"names {name}, which is missing, cut short or was altered")
    return found


def clock_ahead(path: Path) -> float:
    """Seconds that the clock of a delivery's worker is ahead of ours; 0 where that is little."""
    ahead = json.loads(path.read_text(encoding="utf-8"))["ended"] - time.time()
    return ahead if ahead > AHEAD else 0.0


def refused(path: Path, order: Order, why: str) -> FedReproError:
    """The error of a delivery that cannot be used, which steps aside."""
    _aside(path)
    return TrainingError(
        f"{order.cell}: refused: {path.parent.name[:12]}/{path.name} {why}; the next call "
        "trains what is missing"
    )


def _aside(path: Path) -> None:
    if path.exists():
        path.replace(path.with_name(path.name + ".refused"))
