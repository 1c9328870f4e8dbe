"""Random numbers of stacked clients, each drawn from the client's own generator.

Numbers for several steps are drawn at once, and the augmented views of all clients' batches are made in one
call.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from pipeline.devices import to_device_of
from pipeline.engine.phase import Views
from pipeline.engine.stacked.values import pick

# random numbers drawn at once at most, 64 MiB
AHEAD = 2**24
CLOSE = 1e-4  # of a network input: a sum over another number of images may round differently
# torch.rand or torch.randn
Draw = Callable[..., Tensor]


class StackedDraws:
    """Every client's numbers from its generator, as in the plain loop; inside vmap each client sees its
    numbers.

    The numbers of a step have fixed memory, which is filled again before the step is repeated. Those of
    several coming steps are drawn at once: a call for every client and step takes longer than the step.
    """

    def __init__(self, step: Any, purpose: str):
        self.step, self.purpose = weakref.proxy(step), purpose
        self.drawn: list[tuple[Draw, torch.Size, Tensor]] = []
        self.next = 0

    def begin(self) -> None:
        self.next = 0

    def refill(self, turn: Any) -> None:
        """Draw what the step takes in this turn, into the memory that it reads."""
        sizes = [shape.numel() for _, shape, _ in self.drawn]
        if not sizes:
            return
        values = self._coming(turn)
        if values is None:
            self.step.stack.ahead[self.purpose, turn.size] = turn.step, self._draw_ahead(turn, sizes)
            values = self._coming(turn)
        for (_, _, memory), part in zip(self.drawn, values.split(sizes, 1), strict=True):
            memory.copy_(part.view(memory.shape))

    def _coming(self, turn: Any) -> Any:
        """(rows, numbers) of this turn; None where they are not drawn yet."""
        begin, numbers = self.step.stack.ahead.get((self.purpose, turn.size), (0, None))
        if numbers is None or turn.step - begin >= numbers.shape[1]:
            return None
        return self.step.rows.read(numbers[:, turn.step - begin])

    def _draw_ahead(self, turn: Any, sizes: list[int]) -> Tensor:
        """(members, steps, numbers) on the device, of the clients that take this turn, from its step on."""
        stack, total = self.step.stack, sum(sizes)
        left = [sum(last - first == turn.size for first, last in cuts[turn.step :]) for cuts in stack.cuts]
        kinds = {draw for draw, _, _ in self.drawn}
        # Normal numbers come in blocks of 16: other counts would not be those of separate calls.
        joined = len(kinds) == 1 and (torch.rand in kinds or all(size % 16 == 0 for size in sizes))
        steps = min(max(left), max(1, AHEAD // (total * len(left)))) if joined else 1
        numbers = torch.zeros(len(left), steps, total)
        for row in turn.rows[: turn.active]:
            mine = numbers[row, : left[row]]
            parts = [mine] if joined else mine.split(sizes, 1)
            for (draw, _, _), part in zip(self.drawn, parts):
                part.copy_(draw(part.shape, generator=stack.generators(self.purpose)[row]))
        return to_device_of(numbers, stack.clients[0].images)

    def __call__(self, draw: Draw, shape: torch.Size) -> Tensor:
        if self.next == len(self.drawn):
            device = self.step.stack.device
            self.drawn.append((draw, shape, self._first(draw, shape).to(device)))
        self.next += 1
        return pick(self.drawn[self.next - 1][2], self.step.inside)

    def _first(self, draw: Draw, shape: torch.Size) -> Tensor:
        """(rows, *shape) of a step's first turn, whose numbers another step may have drawn ahead; zeros for
        rows without a batch, whose generators must not advance."""
        turn, generators = self.step.turn, self.step.stack.generators(self.purpose)
        if (coming := self._coming(turn)) is not None:
            begin = sum(before.numel() for _, before, _ in self.drawn)
            return coming[:, begin : begin + shape.numel()].reshape(len(turn.rows), *shape).clone()
        numbers = torch.zeros(len(turn.rows), *shape)
        for i, row in enumerate(turn.rows[: turn.active]):
            numbers[i] = draw(shape, generator=generators[row])
        return numbers


class CannotJoin(Exception):
    """A draw that is not one for each image."""


class _Joined(TorchFunctionMode):
    """Draws from `placeholder` for the images of all clients become draws from each client's generator."""

    def __init__(self, generators: Sequence[Generator], size: int):
        super().__init__()
        self.generators, self.size, self.placeholder = generators, size, Generator()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("generator") is not self.placeholder:
            return func(*args, **kwargs)
        del kwargs["generator"]
        if func is Tensor.exponential_:
            parts = args[0].split(self.size, self._dimension(args[0].shape))
            for part, generator in zip(parts, self.generators, strict=True):
                part.exponential_(*args[1:], generator=generator, **kwargs)
            return args[0]
        if func not in (torch.rand, torch.randint):
            raise CannotJoin
        plain = func is torch.rand and isinstance(args[0], int)  # sizes as separate arguments
        limits, shape = ((), args) if plain else (args[:-1], args[-1])
        shape = [shape] if isinstance(shape, int) else list(shape)
        dim = self._dimension(shape)
        shape[dim] = self.size
        return torch.cat(
            [func(*limits, shape, generator=generator, **kwargs) for generator in self.generators], dim
        )

    def _dimension(self, shape: Sequence[int]) -> int:
        """The one that goes through the images."""
        places = [dim for dim, n in enumerate(shape) if n == self.size * len(self.generators)]
        if len(places) != 1:
            raise CannotJoin
        return places[0]


def joint(views: Views, images: Tensor, generators: Sequence[Generator]) -> tuple[Tensor, ...] | None:
    """The views of the batches (clients, size, C, H, W), each (clients, size, ...). None for views that draw
    in another way than once for each image, or where a shape does not tell; the generators stay then."""
    before = [generator.get_state() for generator in generators]
    mode = _Joined(generators, images.shape[1])
    try:
        with mode:
            made = views(images.flatten(0, 1), mode.placeholder)
    except CannotJoin:
        for generator, state in zip(generators, before):
            generator.set_state(state)
        return None
    return tuple(view.unflatten(0, images.shape[:2]) for view in made)


def separately(views: Sequence[Views], images: Tensor, generators: Sequence[Generator]) -> tuple[Tensor, ...]:
    """The same by a call for each client, of its phase's views."""
    made = [view(mine, numbers) for view, mine, numbers in zip(views, images, generators, strict=True)]
    return tuple(map(torch.stack, zip(*made)))


def can_join(views: Sequence[Views], images: Tensor, generators: Sequence[Generator]) -> bool:
    """Does one call of the first client's views give those of all? The generators are not moved."""
    first, second = ([generator.clone_state() for generator in generators] for _ in range(2))
    together = joint(views[0], images, first)
    return together is not None and all(
        torch.allclose(a.float(), b.float(), rtol=0, atol=CLOSE)
        for a, b in zip(together, separately(views, images, second), strict=True)
    )
