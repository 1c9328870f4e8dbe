"""The result of local training: models, losses, logged values, class means; and a check that they are
finite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.engine.phase import Logged, Phase, of_all, of_client
from pipeline.engine.state import Clients, Params
from pipeline.errors import TrainingError


@dataclass(frozen=True)
class ClassMeans:
    """Each client's mean representation of every class.

    means: (clients, classes, d); zero if a client has no sample of the class
    counts: (clients, classes) int64, the client's number of samples of the class
    """

    means: Tensor
    counts: Tensor

    @property
    def present(self) -> Tensor:
        """(clients, classes) bool: whether the client has samples of the class."""
        return self.counts > 0


@dataclass(frozen=True)
class Trained:
    """What local training returns.

    models: one for each client; a client without data keeps the model that it was given
    losses: mean training losses; NaN without data, or if a step logs no `loss`
    logged: name -> (clients, ...) in float64 on the CPU, means of the logged values over the phase
    last: the same for each client's last batch
    client_state: the new state if steps return one or if it was trained; otherwise the given one
    """

    models: Clients
    losses: list[float]
    logged: dict[str, Tensor] = field(default_factory=dict)
    last: dict[str, Tensor] = field(default_factory=dict)
    client_state: Any = None

    def mean_loss(self, sizes: Sequence[int]) -> float:
        """Mean of the losses, weighted by the clients' numbers of samples; NaN if there is none."""
        pairs = [(n, value) for n, value in zip(sizes, self.losses) if n and math.isfinite(value)]
        total = sum(n for n, _ in pairs)
        return sum(n * value for n, value in pairs) / total if total else math.nan


# a client's model, loss, means of what it logged, the last batch's, client state
Result = tuple[Params, float, Logged, Logged, Any]


def untrained(phase: Phase, k: int) -> Result:
    """The result of a client without data."""
    return phase.models[k], math.nan, {}, {}, of_client(phase.client_state, k)


def outcome(phase: Phase, results: Sequence[Result]) -> Trained:
    """The result of a phase, from the results of its clients."""
    models, losses, means, last, states = zip(*results)
    changed = phase.step is not None or phase.trains_state
    state = of_all(states) if changed else phase.client_state
    return Trained(Clients(models), list(losses), _by_client(means), _by_client(last), state)


def _by_client(logged: Sequence[Logged]) -> Logged:
    """name -> (clients, ...) on the CPU, NaN for clients that did not train."""
    first = next((values for values in logged if values), {})
    return {
        name: torch.stack(
            [(values[name] if values else torch.full_like(value, math.nan)).cpu() for values in logged]
        )
        for name, value in first.items()
    }


def check_finite(phase: Phase, trained: Trained) -> None:
    """Raise TrainingError if a loss, or a parameter after a step, is not finite."""
    seed, _, round = phase.key
    last = "none yet"
    for client, model, value in zip(phase.clients, trained.models, trained.losses):
        problem = None
        if phase.loss is not None and len(client.labels) and not math.isfinite(value):
            problem = f"the training loss is {value}"
        elif phase.step is not None and not all(tensor.isfinite().all() for tensor in model.values()):
            problem = "a parameter is no longer finite"
        if problem:
            raise TrainingError(
                f"seed {seed}, round {round}, client {client.name}: {problem}; "
                f"last finite loss of this phase: {last}"
            )
        last = f"{value:.4g} (client {client.name})" if math.isfinite(value) else last


class Watch:
    """Wraps an executor and records for the trainer what the local training of a round returns.

    `trained` is the result of the last phase, with the losses of the last phase that had any; None before the
    first.
    """

    def __init__(self, executor):
        self.executor = executor
        self.trained: Trained | None = None

    def run(self, phase) -> Trained:
        trained = self.executor.run(phase)
        has_loss = phase.loss is not None or any(map(math.isfinite, trained.losses))
        losses = trained.losses if has_loss or not self.trained else self.trained.losses
        self.trained = replace(trained, losses=losses)
        return trained
