"""The executor for GPUs: all clients of one network stepped together with torch.func.

Tiny models are bound by kernel launches, so one stacked step replaces as many as there are clients. Clients stand in the
order of their sizes; those whose batch is full form a leading slice of the stack, which shrinks as clients finish. Last
incomplete batches are stepped in groups of equal length. Nothing is fetched from the device before a phase has ended.
"""
import math
import sys

import torch
from torch import Tensor

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.optimisers import Rows, StackedSteps
from pipeline.engine.phase import Client, Outcome, Phase, batches, dropout_generator, order, pieces, split_loss, trainable_names
from pipeline.engine.state import Clients, Params
from pipeline.models import Network
from pipeline.models.layers import Dropout
from pipeline.params import Model, Training


class Stacked:
    """Steps the clients of each network together, at most `most` of them at once."""

    def __init__(self, clients: list[Client], networks: dict[Model, Network], training: Training, autocast: torch.dtype | None = None):
        self.clients, self.networks, self.training, self.autocast = clients, networks, training, autocast
        self.most = len(clients)

    def run(self, phase: Phase) -> Outcome:
        """As Sequential.run: the same batches, the same masks, the same arithmetic up to the order of sums."""
        while True:
            try:
                return self._run(phase)
            except torch.OutOfMemoryError:
                if self.most == 1:
                    raise
                self.most = max(1, self.most // 2)
                torch.cuda.empty_cache()
                print(f"warning: not enough memory on the device, stacks of {self.most} clients from now on", file=sys.stderr, flush=True)

    def _run(self, phase: Phase) -> Outcome:
        n = len(self.clients)
        models, owns, logged, last = list(phase.models), [None] * n, {}, {}
        for model in self.networks:
            members = [k for k in range(n) if self.clients[k].model == model and len(self.clients[k].labels)]
            members.sort(key=lambda k: -len(self.clients[k].labels))
            for first in range(0, len(members), self.most):
                stack = _Stack(self, phase, members[first:first + self.most])
                stack.train()
                for row, k in enumerate(stack.members):
                    models[k] = stack.model(row)
                    owns[k] = _row(stack.own, row)
                for found, values in ((logged, stack.means()), (last, stack.last)):
                    for name, rows in values.items():
                        found.setdefault(name, torch.full((n,), math.nan, dtype=torch.float64))[stack.members] = rows.cpu()
        losses = logged.pop("", torch.full((n,), math.nan)).tolist()
        last.pop("", None)
        return Outcome(Clients(models), losses, logged, last,
                       phase.own if phase.step is None else _rejoin(phase.own, owns))


class _Stack:
    """Clients of one network as tensors with a leading dimension, largest client first."""

    def __init__(self, executor: Stacked, phase: Phase, members: list[int]):
        self.phase, self.members, self.autocast = phase, members, executor.autocast
        self.clients = [executor.clients[k] for k in members]
        self.network = executor.networks[self.clients[0].model].train()
        self.training = executor.training
        self.device = self.clients[0].images.device
        self.names = trainable_names(self.network, phase.trainable)
        self.tensors = {name: torch.stack([phase.models[k][name] for k in members]) for name in phase.models[members[0]]}
        self.buffers = [name for name, _ in self.network.named_buffers()]
        self.own = _stack_own(phase.own, members)
        self.shared = phase.shared
        self.optimiser = StackedSteps(phase.optimiser, {name: self.tensors[name] for name in self.names}, len(members))
        self.sums: dict[str, Tensor] = {}
        self.last: dict[str, Tensor] = {}
        self.seen = [0] * len(members)
        self.dropouts = [layer for layer in self.network.modules() if isinstance(layer, Dropout) and layer.p > 0]

    def train(self) -> None:
        """All epochs of the phase; the network's dropout is given back to its generator afterwards."""
        try:
            self._epochs()
        finally:
            for layer in self.dropouts:
                layer.given = None

    def _epochs(self) -> None:
        cuts = [batches(len(c.labels), self.training, self.network, self.phase.together) for c in self.clients]
        for epoch in range(self.phase.epochs):
            orders = [order(self.phase, c, epoch).to(self.device, non_blocking=True) for c in self.clients]
            self.generators = [dropout_generator(self.phase, c, epoch) for c in self.clients]
            for step in range(max(map(len, cuts))):
                for size, chosen in _groups(cuts, step):
                    self._step([(row, cuts[row][step]) for row in chosen], size, orders)

    def _step(self, chosen: list[tuple[int, tuple[int, int]]], size: int, orders: list[Tensor]) -> None:
        index = [orders[row][first:last] for row, (first, last) in chosen]
        images = torch.stack([self.clients[row].images.index_select(0, i) for (row, _), i in zip(chosen, index)])
        labels = torch.stack([self.clients[row].labels.index_select(0, i) for (row, _), i in zip(chosen, index)])
        rows = Rows([row for row, _ in chosen], self.device)
        position = torch.arange(len(chosen), device=self.device)          # tells the clients apart inside vmap
        self._let_draw([self.generators[row] for row, _ in chosen])
        tensors = {name: rows.read(value) for name, value in self.tensors.items()}
        own = _read(self.own, rows)
        if self.phase.step is not None:
            moved, new_own = torch.func.vmap(self._one_rule, randomness="same")(tensors, images, labels, own, position)
            _write(self.own, new_own, rows)
            for name, value in moved.items():
                rows.write(self.tensors[name], value)
            return
        moving = {name: tensors.pop(name) for name in self.names}
        gradients, buffers, scalars = torch.func.vmap(self._one_gradient, randomness="same")(moving, tensors, images, labels, own, position)
        self.optimiser.step(gradients, rows)
        for name, value in buffers.items():
            rows.write(self.tensors[name], value)
        for name, value in scalars.items():
            value = value.to(torch.float64)
            for kept in (self.sums, self.last):
                kept.setdefault(name, torch.zeros(len(self.members), dtype=torch.float64, device=self.device))
            rows.write(self.sums[name], rows.read(self.sums[name]) + value * size)
            rows.write(self.last[name], value)
        for row, _ in chosen:
            self.seen[row] += size

    def _one_gradient(self, moving, rest, images, labels, own, position):
        """One client's gradients, new buffers and scalars (the loss under the empty name)."""
        def loss(moving):
            buffers = {name: rest[name].clone() for name in self.buffers}
            self.position = position
            handle = Handle(self.network, {**rest, **buffers, **moving}, set(self.names))
            with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
                value, logged = split_loss(self.phase.loss(handle, Batch(images, labels), self.shared, _wrap(own)))
            return value, (buffers, {"": value, **logged})
        gradients, (buffers, scalars) = torch.func.grad(loss, has_aux=True)(moving)
        return gradients, buffers, scalars

    def _one_rule(self, tensors, images, labels, own, position):
        self.position = position
        handle = Handle(self.network, tensors, set(self.names))
        moved, own = self.phase.step(handle, pieces(images, labels, self.phase.together), self.shared, _wrap(own))
        return dict(moved), _plain(own)

    def _let_draw(self, generators: list[torch.Generator]) -> None:
        """Dropout takes each client's mask from the client's own generator, in the order and shapes of the plain loop.
        (vmap's randomness "same" lets the draw through; the index by position is what makes it differ by client.)"""
        def uniform(shape: torch.Size) -> Tensor:
            drawn = torch.stack([torch.rand(shape, generator=g) for g in generators]).to(self.device, non_blocking=True)
            return drawn.index_select(0, self.position.view(1)).squeeze(0)
        for layer in self.dropouts:
            layer.given = uniform

    def model(self, row: int) -> Params:
        return Params((name, value[row]) for name, value in self.tensors.items())

    def means(self) -> dict[str, Tensor]:
        """Sample-weighted means per client, fetched from the device here and nowhere else."""
        seen = torch.tensor(self.seen, dtype=torch.float64)
        return {name: total.cpu() / seen for name, total in self.sums.items()}


def _groups(cuts: list[list[tuple[int, int]]], step: int) -> list[tuple[int, list[int]]]:
    """(batch size, rows) of the clients that have a batch in this step, grouped by its size."""
    groups: dict[int, list[int]] = {}
    for row, found in enumerate(cuts):
        if step < len(found):
            groups.setdefault(found[step][1] - found[step][0], []).append(row)
    return sorted(groups.items(), reverse=True)


# -- `own` and `shared` as the nested dicts of tensors that torch.func takes -----------------------------------

def _plain(value):
    if value is None:
        return {}
    return {name: _plain(v) for name, v in value.items()} if isinstance(value, dict) else value


def _wrap(value):
    """The inverse inside a loss: mappings of tensors become Params again, so that `own.features` works."""
    if not isinstance(value, dict):
        return value
    if not value:
        return None
    wrapped = {name: _wrap(v) for name, v in value.items()}
    return Params(wrapped) if all(isinstance(v, Tensor) for v in wrapped.values()) else wrapped


def _stack_own(own, members: list[int]):
    if own is None:
        return {}
    if isinstance(own, dict):
        return {name: _stack_own(value, members) for name, value in own.items()}
    if isinstance(own, Clients):
        return {name: torch.stack([own[k][name] for k in members]) for name in own[members[0]]}
    return own[torch.tensor(members, device=own.device)]


def _read(own, rows: Rows):
    return {name: _read(v, rows) for name, v in own.items()} if isinstance(own, dict) else rows.read(own)


def _write(own, new, rows: Rows) -> None:
    if isinstance(own, dict):
        for name in own:
            _write(own[name], new[name], rows)
    else:
        rows.write(own, new)


def _row(own, row: int):
    return {name: _row(v, row) for name, v in own.items()} if isinstance(own, dict) else own[row]


def _rejoin(template, owns: list):
    """What `_stack_own` took apart, for all clients; those without data keep theirs."""
    if template is None:
        return None
    if isinstance(template, dict):
        return type(template)((name, _rejoin(value, [None if o is None else o[name] for o in owns])) for name, value in template.items())
    if isinstance(template, Clients):
        return Clients(mine if new is None else Params(new) for mine, new in zip(template, owns, strict=True))
    return torch.stack([template[k] if new is None else new for k, new in enumerate(owns)])
