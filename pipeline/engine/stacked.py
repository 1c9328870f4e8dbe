"""The executor for GPUs: all clients of one network stepped together with torch.func.

Tiny models are bound by kernel launches, so one stacked step replaces as many as there are clients. Clients stand in the
order of their sizes; those whose batch is full form a leading slice of the stack, which shrinks as clients finish. Last
incomplete batches are stepped in groups of equal length. Nothing is fetched from the device before a phase has ended.
"""
import math
import sys
from functools import partial

import torch
from torch import Tensor

from pipeline.engine.handle import Batch, Draws, Handle
from pipeline.engine.optimisers import Rows, StackedSteps
from pipeline.engine.phase import Client, Outcome, Phase, batches, generator, loss_first, order, pieces, seen_as, split_loss, trainable_names
from pipeline.engine.state import Clients, Params
from pipeline.models import Network
from pipeline.models.layers import Dropout
from pipeline.params import Model, Training

EXTRA = "extra."                                              # before the names of what a phase trains beside the models


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
                    owns[k] = stack.result(row)
                for found, values in ((logged, stack.means()), (last, stack.last)):
                    for name, rows in values.items():
                        found.setdefault(name, torch.full((n, *rows.shape[1:]), math.nan, dtype=torch.float64))[stack.members] = rows.cpu()
        losses = logged.pop("", torch.full((n,), math.nan)).tolist()
        last.pop("", None)
        own = _rejoin(phase.own if phase.extra is None else phase.extra, owns)
        return Outcome(Clients(models), losses, logged, last, phase.own if phase.step is None and phase.extra is None else own)


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
        if phase.extra is not None:
            extra = {EXTRA + name: value for name, value in _stack_own(phase.extra, members).items()}
            self.tensors |= extra
            self.names += extra
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
            self.generators = [generator("dropout", self.phase, c, epoch) for c in self.clients]
            self.noise = [generator("noise", self.phase, c, epoch) for c in self.clients]
            self.views = [generator("views", self.phase, c, epoch) for c in self.clients]
            for step in range(max(map(len, cuts))):
                for size, chosen in _groups(cuts, step):
                    self._step([(row, cuts[row][step]) for row in chosen], size, orders)

    def _step(self, chosen: list[tuple[int, tuple[int, int]]], size: int, orders: list[Tensor]) -> None:
        index = [orders[row][first:last] for row, (first, last) in chosen]
        batches = [seen_as(self.phase, self.clients[row].images.index_select(0, i), self.clients[row].labels.index_select(0, i), self.views[row])
                   for (row, _), i in zip(chosen, index)]
        batch = Batch(torch.stack([b.images for b in batches]), torch.stack([b.labels for b in batches]),
                      tuple(map(torch.stack, zip(*(b.views for b in batches)))))
        rows = Rows([row for row, _ in chosen], self.device)
        position = torch.arange(len(chosen), device=self.device)          # tells the clients apart inside vmap
        self._let_draw([self.generators[row] for row, _ in chosen])
        draws = _StackedDraws(self, [self.noise[row] for row, _ in chosen])
        tensors = {name: rows.read(value) for name, value in self.tensors.items()}
        own = _read(self.own, rows)
        if self.phase.step is not None:
            moved, new_own, scalars = torch.func.vmap(partial(self._one_rule, draws), randomness="same")(tensors, batch, own, position)
            _write(self.own, new_own, rows)
            for name, value in moved.items():
                rows.write(self.tensors[name], value)
            self._note(scalars, rows, chosen, size)
            return
        moving = {name: tensors.pop(name) for name in self.names}
        gradients, buffers, scalars = torch.func.vmap(partial(self._one_gradient, draws), randomness="same")(moving, tensors, batch, own, position)
        self.optimiser.step(gradients, rows)
        for name, value in buffers.items():
            rows.write(self.tensors[name], value)
        self._note(scalars, rows, chosen, size)

    def _note(self, logged: dict[str, Tensor], rows: Rows, chosen: list, size: int) -> None:
        for name, value in logged.items():
            value = value.to(torch.float64)
            for kept in (self.sums, self.last):
                kept.setdefault(name, torch.zeros(len(self.members), *value.shape[1:], dtype=torch.float64, device=self.device))
            rows.write(self.sums[name], rows.read(self.sums[name]) + value * size)
            rows.write(self.last[name], value)
        for row, _ in chosen:
            self.seen[row] += size

    def _one_gradient(self, draws, moving, rest, batch, own, position):
        """One client's gradients, new buffers and scalars (the loss under the empty name)."""
        def loss(moving):
            buffers = {name: rest[name].clone() for name in self.buffers}
            self.position = position
            model, extra = _apart({**rest, **buffers, **moving})
            handle = Handle(self.network, model, set(self.names), draws)
            with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
                value, logged = split_loss(self.phase.loss(handle, Batch(*batch), self.shared, extra or _wrap(own)))
            return value, (buffers, {"": value, **logged})
        gradients, (buffers, scalars) = torch.func.grad(loss, has_aux=True)(moving)
        return gradients, buffers, scalars

    def _one_rule(self, draws, tensors, batch, own, position):
        self.position = position
        handle = Handle(self.network, tensors, set(self.names), draws)
        moved, own, *logged = self.phase.step(handle, pieces(Batch(*batch), self.phase.together), self.shared, _wrap(own))
        return dict(moved), _plain(own), loss_first(logged)

    def _let_draw(self, generators: list[torch.Generator]) -> None:
        """Dropout takes each client's mask from the client's own generator, in the order and shapes of the plain loop.
        (vmap's randomness "same" lets the draw through; the index by position is what makes it differ by client.)"""
        for layer in self.dropouts:
            layer.given = _StackedDraws(self, generators).uniform

    def model(self, row: int) -> Params:
        return _apart({name: value[row] for name, value in self.tensors.items()})[0]

    def result(self, row: int):
        """The client's `own` after steps, or its extra values after training."""
        return _row(self.own, row) if self.phase.extra is None else _apart({name: value[row] for name, value in self.tensors.items()})[1]

    def means(self) -> dict[str, Tensor]:
        """Sample-weighted means per client, fetched from the device here and nowhere else."""
        seen = torch.tensor(self.seen, dtype=torch.float64)
        return {name: total.cpu() / seen.view(-1, *[1] * (total.ndim - 1)) for name, total in self.sums.items()}


class _StackedDraws(Draws):
    """Every client's numbers from its own generator, as in the plain loop; inside vmap each client sees its own."""

    def __init__(self, stack: _Stack, generators: list[torch.Generator]):
        self.stack, self.generators = stack, generators

    def uniform(self, shape: torch.Size) -> Tensor:
        return self._pick([torch.rand(shape, generator=g) for g in self.generators])

    def normal(self, shape: torch.Size) -> Tensor:
        return self._pick([torch.randn(shape, generator=g) for g in self.generators])

    def _pick(self, drawn: list[Tensor]) -> Tensor:
        return torch.stack(drawn).to(self.stack.device, non_blocking=True).index_select(0, self.stack.position.view(1)).squeeze(0)


def _apart(tensors: dict[str, Tensor]) -> tuple[Params, Params]:
    """(the model's values, what is trained beside it)."""
    extra = Params((name.removeprefix(EXTRA), value) for name, value in tensors.items() if name.startswith(EXTRA))
    return Params((name, value) for name, value in tensors.items() if not name.startswith(EXTRA)), extra


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
