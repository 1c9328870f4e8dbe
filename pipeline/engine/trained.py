"""The result of local training: models, losses, logged values, class means; and a check that they are
finite."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from pipeline.engine.phase import Logged, Phase, of_all, of_client, sizes_of
from pipeline.engine.state import Clients, Params, flattened, floating_names, on_card
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

    models: one for each client; a client without data keeps the model that it was given. Empty where each
        was dropped after it was added to a mean, see `World.local_mean`
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
    """Raise TrainingError if a loss, or a parameter after a step, is not finite. On a card the host waits
    once for all clients."""
    finite = itertools.repeat(True) if phase.step is None else _finite(trained.models)
    check = FiniteCheck(phase)
    for k, (loss, parameters) in enumerate(zip(trained.losses, finite)):
        check.client(k, loss, parameters)


class FiniteCheck:
    """Raises TrainingError for the first client whose loss or parameters are not finite.

    phase: in which the clients have trained
    """

    def __init__(self, phase: Phase):
        self.phase, self.sizes = phase, sizes_of(phase.clients)
        self.last: tuple[int, float] | None = None

    def client(self, k: int, loss: float, parameters: bool = True) -> None:
        """Check the next client.

        k: its index; clients come in their order
        loss: its mean training loss
        parameters: whether all of them are finite
        """
        problem = None
        if self.phase.loss is not None and self.sizes[k] and not math.isfinite(loss):
            problem = f"the training loss is {loss}"
        elif not parameters:
            problem = "a parameter is no longer finite"
        if problem:
            seed, _, round = self.phase.key
            raise TrainingError(
                f"seed {seed}, round {round}, client {self.phase.clients[k].name}: {problem}; "
                f"last finite loss of this phase: {self._last()}"
            )
        if math.isfinite(loss):
            self.last = k, loss

    def _last(self) -> str:
        if self.last is None:
            return "none yet"
        k, loss = self.last
        return f"{loss:.4g} (client {self.phase.clients[k].name})"


def _finite(models: Clients) -> Iterable[bool]:
    """Whether all values of each model are finite."""
    if not on_card(models[0]):
        return (all(bool(value.isfinite().all()) for value in model.values()) for model in models)

    alike: dict[tuple, list[int]] = {}
    for k, model in enumerate(models):
        form = tuple((name, value.shape, value.dtype) for name, value in model.items())
        alike.setdefault(form, []).append(k)
    order = [k for mates in alike.values() for k in mates]
    answers = torch.cat([_finite_rows([models[k] for k in mates]) for mates in alike.values()])
    found = dict(zip(order, answers.tolist(), strict=True))
    return [found[k] for k in range(len(models))]


def _finite_rows(models: Sequence[Params]) -> Tensor:
    """(models,) bool of models with the same entries; integers always are finite."""
    kinds = [flattened(models, names).isfinite().all(1) for names in floating_names(models[0])]
    return torch.stack(kinds).all(0)


class Executor(Protocol):
    """What trains the clients of a phase: Sequential, Compiled, Stacked, or a wrapper of one of them."""

    def run(self, phase: Phase) -> Trained:
        """Train every client with data; a client without data keeps its model.

        phase: which clients, their models, and how they train
        """


class Streaming(Executor, Protocol):
    """An executor that hands out each client's result when it has it, and keeps none."""

    def each(self, phase: Phase) -> Iterator[tuple[int, Result]]:
        """Train the clients with data; yields each one's index and result.

        phase: as in `run`
        """


class Joining(Executor, Protocol):
    """An executor that trains the clients of several seeds together."""

    def run_all(self, phases: Sequence[Phase]) -> list[Trained]:
        """Train a phase of each seed; returns their results in the same order.

        phases: one of each seed
        """


class Watch:
    """Wraps an executor and records for the trainer what the local training of a round returns.

    executor: it trains
    keep: whether the trainer reads the single models; False: a phase may drop each after it was averaged

    `trained` is the result of the last phase, with the losses of the last phase that had any; None before the
    first.
    """

    def __init__(self, executor: Executor, keep: bool = True):
        self.executor = executor
        self.streams = not keep and streams(executor)
        self.trained: Trained | None = None

    def run(self, phase: Phase) -> Trained:
        trained = self.executor.run(phase)
        has_loss = phase.loss is not None or any(map(math.isfinite, trained.losses))
        losses = trained.losses if has_loss or not self.trained else self.trained.losses
        self.trained = replace(trained, losses=losses)
        return trained

    def each(self, phase: Phase) -> Iterator[tuple[int, Result]]:
        """As the executor's; only the losses are recorded."""
        assert hasattr(self.executor, "each")
        losses = [math.nan] * len(phase.clients)
        for k, result in self.executor.each(phase):
            losses[k] = result[1]
            yield k, result
        self.trained = Trained(Clients(), losses)


def streams(executor: Executor) -> TypeGuard[Streaming]:
    """Can the executor hand out each client's result when it has it, by `each`, and keep none?"""
    return getattr(executor, "streams", hasattr(executor, "each"))
