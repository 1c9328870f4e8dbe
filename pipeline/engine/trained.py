"""The result of local training: models, losses, logged numbers, class means; a check that it is finite."""

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
    """Mean representation of every class at every client.

    means: (clients, classes, d), zero where a client has no sample of the class
    counts: (clients, classes) int64, its samples of the class
    """

    means: Tensor
    counts: Tensor

    @property
    def present(self) -> Tensor:
        """(clients, classes) bool: does the client hold the class?"""
        return self.counts > 0


@dataclass(frozen=True)
class Trained:
    """What a local phase leaves.

    models: every client's; that of a client without data is the one that it was given
    losses: mean training losses; NaN without data, or where a step logs no `loss`
    logged: name -> (clients, ...) in float64 on the CPU, the mean over the phase of what was logged
    last: the same of each client's last batch
    client_state: the new one after steps or where it was trained, else as it was given
    """

    models: Clients
    losses: list[float]
    logged: dict[str, Tensor] = field(default_factory=dict)
    last: dict[str, Tensor] = field(default_factory=dict)
    client_state: Any = None

    def mean_loss(self, sizes: Sequence[int]) -> float:
        """The mean of the losses weighted by the clients' numbers of samples; NaN where there is none."""
        pairs = [(n, value) for n, value in zip(sizes, self.losses) if n and math.isfinite(value)]
        total = sum(n for n, _ in pairs)
        return sum(n * value for n, value in pairs) / total if total else math.nan


# a client's model, loss, means of what it logged, the last batch's, client state
Result = tuple[Params, float, Logged, Logged, Any]


def untrained(phase: Phase, k: int) -> Result:
    """Of a client without data."""
    return phase.models[k], math.nan, {}, {}, of_client(phase.client_state, k)


def outcome(phase: Phase, results: Sequence[Result]) -> Trained:
    """What the phase leaves, from the results of all clients."""
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
    """TrainingError for a loss that is not finite, or a parameter after a step."""
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
    """Wraps an executor and records for the trainer what a round's local phases return.

    `trained` is the last phase, with the losses of the last one that had any; None before the first.
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
