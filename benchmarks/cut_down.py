"""A scenario of a paper made smaller and trained by the pipeline's own code; for the benchmarks on real
images.

Partition, loading, training and evaluation are those of `stages/partition.py` and `stages/train.py`, in a
temporary folder that sees the repository's data, so that nothing of the repository changes.
"""

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from pipeline.cells.experiment import Experiment
from pipeline.cells.seeds import Job, train_seed
from pipeline.data import partition, store
from pipeline.data.parts import PUBLIC, Pool, generator
from pipeline.schema import Cell, Scenario

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


@dataclasses.dataclass(frozen=True)
class Smaller(Cell):
    """A cell whose scenario passes through `cut`, a function of a module; `tests`: only so many images of
    each test set. All seeds train on one draw of the partition."""

    cut: Callable[[Scenario], Scenario]
    tests: int | None = None

    def resolve(self, root: Path = ROOT) -> tuple[Scenario, str, dict]:
        scenario, algorithm, hyper = Cell(self.paper, self.scenario, self.method).resolve()
        scenario = self.cut(scenario)
        return (
            dataclasses.replace(scenario, partition=dataclasses.replace(scenario.partition, fixed=True)),
            algorithm,
            hyper,
        )


@contextlib.contextmanager
def workplace(cell: Smaller) -> Iterator[Path]:
    """A root for training with the smaller scenario's partition and the repository's data."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "data").symlink_to(ROOT / "data")
        divide(cell, root)
        yield root


def divide(cell: Smaller, root: Path) -> None:
    """The partition of the smaller scenario, drawn as stages/partition.py does; then the test sets are
    thinned out."""
    scenario = cell.resolve()[0]
    stored, public = store.verify(ROOT / "data" / scenario.data.set), None
    pool = Pool.of(scenario.data, stored, str(cell))
    parts = partition.partition(scenario.partition, pool, str(cell))
    if cell.tests is not None:
        rng = np.random.default_rng([scenario.partition.seed, cell.tests])
        parts.domain_test = {
            name: np.sort(rng.permutation(test)[: cell.tests]) for name, test in parts.domain_test.items()
        }
    if scenario.public is not None:
        public = store.verify(ROOT / "data" / scenario.public.set)
        candidates = np.flatnonzero(public.split == store.TRAIN)
        shuffled = generator(scenario.partition, PUBLIC, 0).permutation(candidates)
        parts.public = np.sort(shuffled[: scenario.public.size])
    folder = root / "papers" / cell.paper / "partitions" / cell.scenario
    folder.mkdir(parents=True)
    np.savez(folder / "indices.npz", **partition.to_arrays(parts))
    sources = {
        kind: None
        if source is None
        else {key: source.meta[key] for key in ("set", "source", "digest", "deviation")}
        for kind, source in (("data", stored), ("public", public))
    }
    meta = {"clients": parts.clients, "tests": list(parts.domain_test), "warnings": parts.warnings, **sources}
    (folder / "meta.json").write_text(json.dumps(meta))


def compare(cells: dict[str, Smaller], out: str, shown: Sequence[str], seed: int = 0) -> dict:
    """Train every cell, one after the other, and keep benchmarks/results/<out>.json up to date; returns what
    it holds.

    cells: printed label -> a cell; all of one partition. shown: measures printed after every round. Round 0
    is the state before the first round, pretraining included.
    """
    from machine import machine

    torch.set_num_threads(1)
    first, results = next(iter(cells.values())), []
    with workplace(first) as root:
        meta = partition.read(root / "papers" / first.paper / "partitions" / first.scenario)[1]
        document = {
            "machine": machine(),
            "scenario": f"{first.paper}/{first.scenario}",
            "cut": dataclasses.asdict(first.resolve()[0]),
            "tests": first.tests,
            "seed": seed,
            "data": meta["data"],
            "public": meta["public"],
            "results": results,
        }
        for i, (label, cell) in enumerate(cells.items()):
            begun = time.process_time()

            def report(row: dict, label: str = label, begun: float = begun) -> None:
                numbers = "  ".join(f"{name} {row[name]:.2f}" for name in shown if row.get(name) is not None)
                print(
                    f"{label:24} round {row['round']:3}  {numbers}  ({time.process_time() - begun:.0f} CPU "
                    "s)",
                    flush=True,
                )

            finished = train_seed(Job(Experiment.of(cell, root), seed, str(i)), report)
            results.append(
                {
                    "label": label,
                    "method": cell.method,
                    "network": networks(cell),
                    "hook": finished["hook"],
                    "cpu_seconds": round(time.process_time() - begun, 1),
                    "traffic": finished["traffic"],
                    "rounds": finished["rows"],
                }
            )
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{out}.json").write_text(json.dumps(document, indent=1) + "\n")
    return document


def networks(cell: Smaller) -> str | dict[str, str]:
    """The network's name, or client -> name."""
    scenario = cell.resolve()[0]
    return (
        scenario.model.name
        if scenario.models is None
        else {client: model.name for client, model in scenario.models.items()}
    )


def draw(document: dict, panels: dict[str, str], path: Path) -> None:
    """Curves over rounds: a panel per measure, a line per method. panels: measure -> title."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "fedrepro"}):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(2.5 * len(panels) + 1.8, 3), layout="constrained", squeeze=False
        )
        for panel, (measure, title) in zip(axes[0], panels.items()):
            for result in document["results"]:
                rows = [row for row in result["rounds"] if row.get(measure) is not None]
                panel.plot(
                    [row["round"] for row in rows],
                    [row[measure] for row in rows],
                    marker="o",
                    ms=3,
                    label=result["label"],
                )
            panel.set(title=title, xlabel="round")
            panel.xaxis.get_major_locator().set_params(integer=True)
        axes[0, 0].set_ylabel("accuracy (%)")
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(),
            loc="outside right upper",
            frameon=False,
            fontsize="small",
        )
        figure.savefig(path, metadata={"Date": None})
