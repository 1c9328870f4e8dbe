"""Load a paper's own metrics (metrics.py) and compute them from the predictions of each client."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from pipeline.cells.experiment import Experiment
from pipeline.cells.test_sets import BATCH, TestSet
from pipeline.engine.state import Clients
from pipeline.engine.world import World
from pipeline.errors import ParamError, TrainingError, cause, unknown
from pipeline.schema import functions, load_module, shorten
from pipeline.training.evaluation import Scores, client_tests


@dataclass(frozen=True)
class Predictions:
    """A client's model on the client's test images, else on those of its domain, else on the common ones.

    scores: (n, classes), larger is likelier; labels: (n,); both on the CPU, n > 0.
    """

    client: str
    domain: str
    scores: Tensor
    labels: Tensor

    @cached_property
    def right(self) -> Tensor:
        """(n,) bool: the images with their label scored highest."""
        return self.scores.argmax(1) == self.labels

    @cached_property
    def accuracy(self) -> float:
        """Percent."""
        return 100 * self.right.double().mean().item()


Metric = Callable[[list[Predictions]], float]


def load(experiment: Experiment) -> dict[str, Metric]:
    """The metrics that a cell's scenario names; ParamError for an unknown one."""
    names, paper = experiment.scenario.evaluation.metrics or [], experiment.cell.paper
    known = functions(paper, "metrics", experiment.root)
    if lost := [name for name in names if name not in known]:
        raise ParamError(f"{experiment.scenario_key}.evaluation.metrics: {unknown('metric', lost[0], known)}")
    module = load_module(f"papers.{paper}.metrics", _file(experiment)) if names else None
    return {name: getattr(module, name) for name in names}


def _file(experiment: Experiment) -> Path:
    return experiment.root / "papers" / experiment.cell.paper / "metrics.py"


def measured(
    experiment: Experiment,
    models: Clients,
    world: World,
    tests: Sequence[TestSet],
    scores: Scores,
    sample: Sequence[int] | None = None,
) -> dict[str, float]:
    """{`metric.<name>`: percent} of the scenario's metrics, over the clients in `sample` (None: all).
    TrainingError for one that fails, or whose value is neither a number from 0 to 100 nor NaN."""
    metrics = load(experiment)
    clients = list(_predictions(models, world, tests, scores, sample)) if metrics else []
    values = {}
    for name, metric in metrics.items():
        where = f"{shorten(_file(experiment))}: {name}"
        try:
            value = float(metric(clients)) if clients else math.nan
        except (Exception, SystemExit) as error:
            raise TrainingError(f"{where}: {cause(error)}") from error
        if value < 0 or value > 100:
            raise TrainingError(f"{where}: {value:g} is not a percentage")
        values[f"metric.{name}"] = value
    return values


@torch.inference_mode()
def _predictions(
    models: Clients,
    world: World,
    tests: Sequence[TestSet],
    scores: Scores,
    sample: Sequence[int] | None = None,
) -> Iterator[Predictions]:
    """Of the clients that have test images, in their order; of those in `sample` if it is not None."""
    used = client_tests(world, tests)
    for k in range(len(used)) if sample is None else sample:
        test, network = tests[used[k]], world.network(k, models[k])
        if len(test.labels):
            parts = [scores(network, images, k) for images in test.images.split(BATCH)]
            client = world.clients[k]
            yield Predictions(client.name, client.domain, torch.cat(parts).cpu(), test.labels.cpu())
