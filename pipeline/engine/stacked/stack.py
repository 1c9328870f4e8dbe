"""The models of clients with one architecture as stacked tensors, and their training step, on GPUs a CUDA
graph."""

import itertools
import math
import operator
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pipeline.devices import to_device_of
from pipeline.engine.environment import autocast
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import (
    LAST_EPOCH,
    LOSS,
    Client,
    Logged,
    Phase,
    batches,
    generator,
    of_client,
    order,
    pieces,
    split_loss,
    trainable_names,
)
from pipeline.engine.stacked import convolution
from pipeline.engine.stacked.convolution import Convolutions
from pipeline.engine.stacked.draws import StackedDraws, can_join, joint, separately
from pipeline.engine.stacked.graphs import recorded
from pipeline.engine.stacked.optimisers import Rows, StackedSteps
from pipeline.engine.stacked.values import (
    STATE,
    Lazily,
    Member,
    each,
    joined,
    pick,
    put,
    rows_of,
    same_form,
    same_steps,
    separate,
)
from pipeline.engine.state import State, tensors_of, with_tensors
from pipeline.engine.trained import Result
from pipeline.errors import warn
from pipeline.models.layers import Dropout

if TYPE_CHECKING:
    from pipeline.engine.stacked.executor import Stacked

BUCKETS = 8  # shapes that a shrinking stack goes through at most
# Texts of the plain RuntimeErrors by which cuDNN and cuBLAS report that memory is short. "Unable to find an
# engine" is none: cuDNN has none for the kind and shape, in a stack of any size.
NO_ROOM = ("valid cuDNN algorithm", "ALLOC_FAILED")


class Turn(NamedTuple):
    """A step of an epoch: the first `active` rows have a batch of `size` images, the others fill up."""

    rows: tuple[int, ...]
    active: int
    size: int
    step: int  # which batch of these clients it is; -1: the last, incomplete one

    @property
    def leading(self) -> bool:
        """Are these the first rows of the stack, which need no index? Last batches get one always, so that
        their shape is one."""
        return self.step >= 0 and self.rows == tuple(range(len(self.rows)))


class Stack:
    """Clients of one network as stacked tensors, largest client first, for a `stacked.Stacked`. `fill` gives
    it other clients, values and rates; the recorded steps stay."""

    def __init__(
        self, executor: "Stacked", phases: list[Phase], members: list[Member], clients: list[Client]
    ):
        # A proxy avoids a reference cycle, so that a dropped stack frees its memory at once.
        self.executor = weakref.proxy(executor)
        self.device, self.precision = executor.device, executor.precision
        self.network = executor.networks[clients[0].model]
        self.names = trainable_names(self.network, phases[0].trainable)
        self.buffers = [name for name, _ in self.network.named_buffers()]
        self.dropouts = [
            layer for layer in self.network.modules() if isinstance(layer, Dropout) and layer.p > 0
        ]
        # Few shapes: rows come in multiples of this many.
        self.bucket = -(-len(members) // BUCKETS)
        self.steps: dict[tuple, Step] = {}
        # (purpose, batch size) -> (step, numbers from that step of the epoch on, (clients, steps, numbers))
        self.ahead: dict[tuple[str, int], tuple[int, Tensor]] = {}
        self.joins: bool | None = None  # one call makes the views of all clients; None: not tried
        self.sums: dict[str, Tensor] = {}
        self.last: dict[str, Tensor] = {}
        self._take_over(phases, members, clients)
        stacks = self._values(joined)
        self.tensors, self.client_states, server_states = stacks
        self.server_states = [value.to(self.device) for value in server_states]
        self.names += [name for name in self.tensors if name.startswith(STATE)]
        trained = {name: self.tensors[name] for name in self.names}
        self.optimiser = StackedSteps(self.phase.optimiser, trained)
        self.tensors |= self.optimiser.views
        # the phase of every row's client
        self.whose = torch.tensor([p for p, _ in members], device=self.device)

    def fits(self, phases: list[Phase], members: list[Member], clients: list[Client]) -> bool:
        """May these clients take over the memory, and the steps that read and write it?"""
        (mine, k), (theirs, j) = self.members[0], members[0]
        return (
            self.clients[0].model == clients[0].model
            and len(self.members) == len(members)
            and len(self.phases) == len(phases)
            and all(map(same_steps, self.phases, phases))
            and same_form(
                of_client(self.phases[mine].client_state, k), of_client(phases[theirs].client_state, j)
            )
        )

    def fill(self, phases: list[Phase], members: list[Member], clients: list[Client]) -> None:
        """Copy the values of phases into the memory that recorded steps read and write."""
        self._take_over(phases, members, clients)
        tensors, client_states, server_states = self._values(lambda *values: values)
        # By name: a method may have put its tensors in another order.
        each(put, self.tensors, tensors)
        each(put, self.client_states, client_states)
        for mine, new in zip(self.server_states, server_states, strict=True):
            put(mine, new)
        if len(phases) > 1:
            self.whose.copy_(to_device_of(torch.tensor([p for p, _ in members]), self.whose))
        self.optimiser.restart(self.phase.optimiser.lr)
        for tensor in (*self.sums.values(), *self.last.values()):
            tensor.zero_()

    def _take_over(self, phases: list[Phase], members: list[Member], clients: list[Client]) -> None:
        """These clients' data and epochs; values are not copied yet."""
        self.phases, self.members, self.clients = phases, members, clients
        self.phase = phases[0]  # represents all of them: they share code and settings
        self.starts = [self.executor.pool.starts[client] for client in clients]
        self.cuts = [
            batches(len(c.labels), self.executor.training, self.network, self.phase.batches_per_step)
            for c in clients
        ]
        self.turns, self.places = self._plan(range(len(members)))
        self.seen = [0] * len(members)
        self.epochs = [phases[p].epochs_of(k) for p, k in members]

    def _values(self, join: Callable) -> tuple[dict, Any, list]:
        """(models and trained client states, other client states, server states), each of all rows joined."""
        phases = self.phases
        tensors = each(join, *(phases[p].models[k] for p, k in self.members))
        shares = [of_client(phases[p].client_state, k) for p, k in self.members]
        states = {} if shares[0] is None else each(join, *shares)
        if self.phase.trains_state:
            tensors |= {STATE + name: value for name, value in states.items()}
            states = {}
        server_states = [
            join(*values) for values in zip(*(tensors_of(phase.server_state) for phase in phases))
        ]
        return tensors, states, server_states

    def _plan(self, rows: Collection[int]) -> tuple[list[Turn], Tensor]:
        """(an epoch's turns of these rows, where their images are among all shuffled images)."""
        turns = list(self._turns([cuts if row in rows else [] for row, cuts in enumerate(self.cuts)]))
        return turns, torch.cat([torch.zeros(0, dtype=torch.int64), *map(self._places, turns)])

    def _filled_up(self, rows: list[int]) -> tuple[int, ...]:
        """The rows, then idle ones up to a multiple of the bucket."""
        count = min(len(self.members), -(-len(rows) // self.bucket) * self.bucket)
        taken = set(rows)
        idle = (row for row in range(len(self.members)) if row not in taken)
        return (*rows, *itertools.islice(idle, count - len(rows)))

    def _turns(self, cuts: list[list[tuple[int, int]]]) -> Iterator[Turn]:
        """Steps of full batches, then one for each length of the last, incomplete ones."""
        full = self.executor.training.batch_size * self.phase.batches_per_step
        counts = [sum(last - first == full for first, last in mine) for mine in cuts]
        for step in range(max(counts)):
            rows = [row for row, count in enumerate(counts) if count > step]
            yield Turn(self._filled_up(rows), len(rows), full, step)
        groups: dict[int, list[int]] = {}
        for row, (mine, count) in enumerate(zip(cuts, counts)):
            if len(mine) > count:
                groups.setdefault(mine[-1][1] - mine[-1][0], []).append(row)
        for size, some in sorted(groups.items(), reverse=True):
            yield Turn(self._filled_up(some), len(some), size, -1)

    def _places(self, turn: Turn) -> Tensor:
        """Of the turn's images, (rows * size,); rows without a batch take their first image."""
        sizes = [len(client.labels) for client in self.clients]
        begin = torch.tensor([0, *itertools.accumulate(sizes)])[list(turn.rows)]
        first = [self.cuts[row][turn.step][0] for row in turn.rows[: turn.active]]
        begin[: turn.active] += torch.tensor(first)
        span = torch.arange(turn.size).repeat(len(turn.rows), 1)
        span[turn.active :] = 0
        return (begin[:, None] + span).view(-1)

    def train(self) -> None:
        """Run all epochs of the phase; afterwards the network's dropout draws from its generator again."""
        self.network.train()
        try:
            for epoch in range(max(self.epochs)):
                self._epoch(epoch)
        finally:
            for layer in self.dropouts:
                layer.given = None

    def _epoch(self, epoch: int) -> None:
        mine = [(self.phases[p], client) for (p, _), client in zip(self.members, self.clients)]
        orders = [order(*one, epoch) + start for one, start in zip(mine, self.starts)]
        # of a purpose, made when they are first used: a method draws for few
        self.generators = cache(lambda purpose: [generator(purpose, *one, epoch) for one in mine])
        self.ahead.clear()
        rows = [row for row, epochs in enumerate(self.epochs) if epoch < epochs]
        all_rows = len(rows) == len(self.members)
        turns, places = (self.turns, self.places) if all_rows else self._plan(rows)
        told = [number for turn in turns for number in (*turn.rows, turn.active)]
        index = torch.cat([torch.cat(orders)[places], torch.tensor(told, dtype=torch.int64)])
        index = to_device_of(index, self.clients[0].images)  # one copy per epoch
        index, told = index.split([len(places), len(told)])
        for name, total in self.sums.items():
            if name.startswith(LAST_EPOCH):
                total.index_fill_(0, to_device_of(torch.tensor(rows), total), 0)
        sizes = [len(turn.rows) * turn.size for turn in turns]
        ends = [len(turn.rows) + 1 for turn in turns]
        for turn, chosen, rows_and_active in zip(turns, index.split(sizes), told.split(ends)):
            self._step(turn).take(turn, chosen, rows_and_active)
            for row in turn.rows[: turn.active]:
                self.seen[row] += turn.size

    def _step(self, turn: Turn) -> "Step":
        key = turn.leading, len(turn.rows), turn.size
        if key not in self.steps:
            self.steps[key] = Step(self, turn)
        return self.steps[key]

    def viewed(self, images: Tensor, rows: tuple[int, ...]) -> tuple[Tensor, ...]:
        """The views of these rows' images (rows, size, ...): by one call where a trial gave the same."""
        views: list = [self.phases[self.members[row][0]].views for row in rows]
        generators = [self.generators("views")[row] for row in rows]
        if self.joins is None:
            self.joins = can_join(views, images, generators)
        if self.joins and (made := joint(views[0], images, generators)) is not None:
            return made
        return separately(views, images, generators)

    def results(self) -> Iterator[Result]:
        """Of every client, what is logged fetched from the device here and nowhere else."""
        means, last = self._logged()
        losses = means.pop(LOSS, torch.full((len(self.members),), math.nan)).tolist()
        last.pop(LOSS, None)
        models, states = rows_of(self.tensors), self._new_states()
        for row, value in enumerate(losses):
            mine = operator.itemgetter(row)
            model, trained = separate(models[row])
            averages, newest = ({name: mine(of_all) for name, of_all in d.items()} for d in (means, last))
            yield model, value, averages, newest, trained or states[row]

    def _new_states(self) -> list:
        """Every client's state after steps; None where steps leave it."""
        if self.phase.step is None or self.phase.client_state is None:
            return [None] * len(self.members)
        rows = rows_of(dict(enumerate(tensors_of(self.client_states))))
        return [with_tensors(self.client_states, iter(row.values())) for row in rows]

    def _logged(self) -> tuple[Logged, Logged]:
        """Sample-weighted means per client, and the last batch's."""
        seen = torch.tensor(self.seen, dtype=torch.float64)
        in_last = seen / torch.tensor(self.epochs)
        sums, last = self._fetched()
        shaped = {
            name: (in_last if name.startswith(LAST_EPOCH) else seen).view(-1, *[1] * (total.ndim - 1))
            for name, total in sums.items()
        }
        return (
            {name: total / shaped[name] for name, total in sums.items()},
            {name: torch.where(shaped[name] > 0, value, math.nan) for name, value in last.items()},
        )

    def _fetched(self) -> tuple[Logged, Logged]:
        """`sums` and `last` on the CPU, for which the host waits once."""
        values = [*self.sums.values(), *self.last.values()]
        if not values:
            return {}, {}
        flat = torch.cat([value.flatten() for value in values]).cpu()
        parts = flat.split([value.numel() for value in values])
        shaped = iter([part.view(value.shape) for part, value in zip(parts, values, strict=True)])
        return dict(zip(self.sums, shaped)), dict(zip(self.last, shaped))


class Step:
    """One step of a stack in one shape, reading fixed memory, so that it can be recorded and replayed."""

    def __init__(self, stack: Stack, turn: Turn):
        self.stack, self.size = weakref.proxy(stack), turn.size
        device = stack.device
        # the turn's rows and how many of them are active
        self.told = torch.zeros(len(turn.rows) + 1, dtype=torch.int64, device=device)
        certain = (len(turn.rows) - 1) // stack.bucket * stack.bucket
        index = None if turn.leading else self.told[:-1]
        self.rows = Rows(len(turn.rows), self.told[-1], certain, index)
        self.place = torch.arange(len(turn.rows), device=device)  # by which vmap's function finds its client
        tried = device.type in convolution.DEVICES
        self.convolutions = Convolutions(len(turn.rows), device) if tried else nullcontext()
        self.dropout, self.noise = (StackedDraws(self, purpose) for purpose in ("dropout", "noise"))
        self.batch: Batch | None = None
        self.turn = turn
        self.graph: torch.cuda.CUDAGraph | None = None
        self.taken = 0
        self.used: set[str] = set()  # the tensors that the loss depends on

    def take(self, turn: Turn, chosen: Tensor, told: Tensor) -> None:
        """Move the turn's active rows by one batch each, the images at places `chosen`. told: `self.told`"""
        batch = self._seen(turn, *self.stack.executor.pool.take(chosen, (len(turn.rows), turn.size)))
        self.turn = turn
        self.told.copy_(told)
        if self.batch is None:
            self.batch = batch
        else:
            for mine, new in zip(tensors_of(self.batch), tensors_of(batch), strict=True):
                mine.copy_(new)
            self.dropout.refill(turn)
            self.noise.refill(turn)
        if self.graph is None and self.taken and self.stack.executor.records:
            self._record()
        if self.graph is None:
            self._move()
        else:
            self.graph.replay()
        self.taken += 1

    def _record(self) -> None:
        """Record the step's kernels as a CUDA graph, without running them; the first, unrecorded run has
        allocated all memory that persists. A step that cannot be recorded keeps running without a graph."""
        try:
            self.graph = recorded(self._move, self.stack.device, self.stack.executor.memory)
        except RuntimeError as error:
            if no_room(error):
                raise
            self.stack.executor.records = False
            cause = str(error).splitlines()[0]
            warn(f"steps cannot be recorded as CUDA graphs, they are launched one by one: {cause}")

    def _seen(self, turn: Turn, images: Tensor, labels: Tensor) -> Batch:
        """The batches as the losses get them, (rows, size, ...), each client's views from its draws."""
        if self.stack.phase.views is None:
            return Batch(images, labels)
        views = self.stack.viewed(images[: turn.active], turn.rows[: turn.active])
        if idle := len(turn.rows) - turn.active:  # padding, never read
            views = tuple(torch.cat([v, v[:1].expand(idle, *v.shape[1:])]) for v in views)
        return Batch(views[0], labels, views[1:])

    def _move(self) -> None:
        stack, rows = self.stack, self.rows
        rows.begin()
        if len(stack.phases) > 1:
            self.whose = rows.read(stack.whose)
        self.dropout.begin()
        self.noise.begin()
        for layer in stack.dropouts:
            layer.given = partial(self.dropout, torch.rand)
        tensors = {name: rows.read(value) for name, value in stack.tensors.items()}
        states = each(rows.read, stack.client_states)
        if stack.phase.step is not None:
            with self.convolutions:
                moved, new_states, logged = torch.func.vmap(self._one_rule, randomness="same")(
                    tensors, self.batch, states, self.place
                )
            each(rows.write, stack.client_states, new_states)
        else:
            moving = {name: tensors.pop(name) for name in stack.names}
            self.used.clear()
            with self.convolutions:
                gradients, moved, logged = torch.func.vmap(self._one_gradient, randomness="same")(
                    moving, tensors, self.batch, states, self.place
                )
            stack.optimiser.step({name: gradients[name] for name in stack.names if name in self.used}, rows)
        for name, value in moved.items():
            rows.write(stack.tensors[name], value)
        self._note(logged)

    def _note(self, logged: dict[str, Tensor]) -> None:
        stack = self.stack
        for name, value in logged.items():
            value = value.to(torch.float64)
            for numbers in (stack.sums, stack.last):
                if name not in numbers:
                    numbers[name] = torch.zeros(
                        len(stack.members), *value.shape[1:], dtype=torch.float64, device=stack.device
                    )
            self.rows.write(stack.sums[name], self.rows.read(stack.sums[name]) + value * self.size)
            self.rows.write(stack.last[name], value)

    def _one_gradient(self, moving, rest, batch, state, place):
        """One client's gradients, new buffers and logged numbers."""
        stack = self.stack

        def loss(moving):
            for name, value in moving.items():  # a gradient of zeros says nothing of use
                value.register_hook(lambda gradient, name=name: self.used.add(name))
            buffers = {name: rest[name].clone() for name in stack.buffers}
            self.inside = place
            model, trained = separate({**rest, **buffers, **moving})
            handle = Handle(stack.network, model, set(stack.names), self.noise)
            mine = trained or (None if stack.phase.client_state is None else state)
            with autocast(stack.device, stack.precision, cached=False):
                value = stack.phase.loss(handle, batch, self._server_state(), mine)
            value, logged = split_loss(value)
            return value, (buffers, logged)

        gradients, (buffers, logged) = torch.func.grad(loss, has_aux=True)(moving)
        return gradients, buffers, logged

    def _one_rule(self, tensors, batch, state, place):
        self.inside = place
        stack = self.stack
        handle = Handle(stack.network, tensors, set(stack.names), self.noise, stacked=True)
        batches = pieces(batch, stack.phase.batches_per_step)
        mine = None if stack.phase.client_state is None else state
        with autocast(stack.device, stack.precision, cached=False):
            moved, new, *logged = stack.phase.step(handle, batches, self._server_state(), mine)
        return moved, state if new is None else new, logged[0] if logged else {}

    def _server_state(self) -> object:
        """The server state of the phase whose client is inside."""
        stack, state, alone = self.stack, self.stack.phase.server_state, len(self.stack.phases) == 1

        def mine(value, leaves: list[Tensor]):
            if alone:
                return with_tensors(value, (leaf[0] for leaf in leaves))
            whose = pick(self.whose, self.inside)
            return with_tensors(value, (pick(leaf, whose) for leaf in leaves))

        if type(state) is not State:
            return mine(state, stack.server_states)
        leaves = iter(stack.server_states)
        return Lazily(
            {
                name: partial(mine, value, [next(leaves) for _ in tensors_of(value)])
                for name, value in state.items()
            }
        )


def no_room(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in NO_ROOM)
