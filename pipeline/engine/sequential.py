"""Trains a phase's clients one after another, each in a plain loop over its batches. This is fastest on CPUs.

One thread, the channels-last layout and data in memory are fast on a CPU; stacking clients is slower there
(benchmarks/README.md).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pipeline.engine.environment import autocast
from pipeline.engine.handle import Batch, Handle, drawn
from pipeline.engine.optimisers import Steps
from pipeline.engine.phase import (
    LAST_EPOCH,
    LOSS,
    Client,
    Logged,
    Loss,
    Phase,
    Step,
    batches,
    generator,
    has_batchnorm,
    of_client,
    order,
    pieces,
    split_loss,
    trainable_names,
)
from pipeline.engine.state import Params, entries
from pipeline.engine.trained import Result, Trained, outcome, untrained
from pipeline.models import Network
from pipeline.models.layers import set_generator
from pipeline.schema import Model, Training

FEATURE_BATCH = 256


@dataclass
class Sequential:
    """Trains the clients of a phase one after another, in their order."""

    networks: dict[Model, Network]
    training: Training
    precision: torch.dtype | None
    device: torch.device

    def run(self, phase: Phase) -> Trained:
        """Train every client; clients without data keep their model."""
        results = dict(self.each(phase))
        return outcome(
            phase, [results[k] if k in results else untrained(phase, k) for k in range(len(phase.clients))]
        )

    def each(self, phase: Phase) -> Iterator[tuple[int, Result]]:
        """Train the clients with data one after another; yields each one's index and result, and keeps
        none."""
        if phase.loss is not None:
            train = partial(self._descend, phase.loss)
        elif phase.step is not None:
            train = partial(self._step, phase.step)
        for k in phase.present:
            yield k, train(phase, k, phase.clients[k])

    def _descend(self, loss: Loss, phase: Phase, k: int, client: Client) -> Result:
        state = of_client(phase.client_state, k)
        if phase.trains_state:
            state = entries(lambda value: value.detach().clone().requires_grad_(), state)
        network = self.networks[client.model].train()
        network.load_state_dict(phase.models[k])
        named = dict(network.named_parameters())
        parameters = [named[name] for name in trainable_names(network, phase.trainable)]
        parameters += state.values() if phase.trains_state else []
        optimise = Steps(phase.optimiser, parameters)
        names, means = set(trainable_names(network, phase.trainable)), _Means()
        fixed = self._fixed_features(phase, client, network)
        for epoch in range(phase.epochs_of(k)):
            means.new_epoch()
            handle = Handle(network, None, names, partial(drawn, generator("noise", phase, client, epoch)))
            for batch, chosen in self._batches(phase, client, network, epoch):
                if fixed is not None:
                    handle.cache_features(batch.images, fixed.index_select(0, chosen))
                with autocast(self.device, self.precision):
                    value, logged = split_loss(loss(handle, batch, phase.server_state, state))
                optimise.step(torch.autograd.grad(value, parameters, allow_unused=True))
                means.add(len(batch.labels), logged)
        model = entries(lambda value: value.detach().clone(), network.state_dict())
        return model, *means.result(), entries(Tensor.detach, state) if phase.trains_state else state

    def _step(self, step: Step, phase: Phase, k: int, client: Client) -> Result:
        network, state = self.networks[client.model].train(), of_client(phase.client_state, k)
        # BatchNorm updates them in place, and the server's must not change.
        statistics = Params((name, phase.models[k][name].clone()) for name, _ in network.named_buffers())
        model = phase.models[k].joined(statistics)
        names, means = set(trainable_names(network, phase.trainable)), _Means()
        for epoch in range(phase.epochs_of(k)):
            means.new_epoch()
            draws = partial(drawn, generator("noise", phase, client, epoch))
            for batch, _ in self._batches(phase, client, network, epoch):
                handle = Handle(network, model, names, draws)
                with autocast(self.device, self.precision, cached=False):
                    moved, state, *logged = step(
                        handle, pieces(batch, phase.batches_per_step), phase.server_state, state
                    )
                means.add(len(batch.labels), *logged)
                model = model.joined(moved)
        return model, *means.result(), state

    def _batches(self, phase: Phase, client: Client, network: Network, epoch: int):
        """The batches of an epoch: one gather of the shuffled images, then views of it."""
        chosen = order(phase, client, epoch).to(self.device)
        set_generator(network, generator("dropout", phase, client, epoch))
        numbers = generator("views", phase, client, epoch)
        images, labels = client.images.index_select(0, chosen), client.labels.index_select(0, chosen)
        for first, last in batches(len(labels), self.training, network, phase.batches_per_step):
            shown = images[first:last]
            shown, *views = (shown,) if phase.views is None else phase.views(shown, numbers)
            yield Batch(shown, labels[first:last], tuple(views)), chosen[first:last]

    def _fixed_features(self, phase: Phase, client: Client, network: Network) -> Tensor | None:
        """(n, d): while only the head learns, representations are computed once."""
        if phase.trainable != "head" or phase.views is not None or has_batchnorm(network):
            return None
        with torch.no_grad(), autocast(self.device, self.precision):
            return torch.cat([network.features(part) for part in client.images.split(FEATURE_BATCH)])


class _Means:
    """Sample-weighted means of what the batches of a phase logged, the loss among it."""

    def __init__(self):
        self.sums, self.last, self.seen, self.epochs = {}, {}, 0, 0

    def new_epoch(self) -> None:
        """Reset the sums over the last epoch."""
        self.sums = {name: total for name, total in self.sums.items() if not name.startswith(LAST_EPOCH)}
        self.epochs += 1

    def add(self, size: int, logged: Logged | None = None) -> None:
        for name, value in (logged or {}).items():
            self.last[name] = value.detach().double()
            self.sums[name] = self.sums.get(name, 0) + self.last[name] * size
        self.seen += size

    def result(self) -> tuple[float, Logged, Logged]:
        """(mean loss or NaN, means of the logged values, logged values of the last batch)."""
        means = {
            name: total / (self.seen // self.epochs if name.startswith(LAST_EPOCH) else self.seen)
            for name, total in self.sums.items()
        }
        self.last.pop(LOSS, None)
        return float(means.pop(LOSS, math.nan)), means, self.last
