"""Random numbers of stacked clients: each client's from its generator, drawn for many steps at once."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.devices import to_device_of
from pipeline.engine.handle import Draws
from pipeline.engine.stacked_values import pick

# random numbers drawn at once at most, 64 MiB
AHEAD = 2**24
# torch.rand or torch.randn
Draw = Callable[..., Tensor]


class StackedDraws(Draws):
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
        stack, number = self.step.stack, turn.step
        ahead = stack.ahead.get((self.purpose, turn.size))
        if ahead is None or number - ahead[0] >= ahead[1].shape[1]:
            ahead = stack.ahead[self.purpose, turn.size] = number, self._draw_ahead(turn, sizes)
        values = self.step.rows.read(ahead[1][:, number - ahead[0]])
        for (_, _, memory), part in zip(self.drawn, values.split(sizes, 1), strict=True):
            memory.copy_(part.view(memory.shape))

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

    def numbers(self, draw: Draw, shape: torch.Size) -> Tensor:
        if self.next == len(self.drawn):
            device = self.step.stack.device
            self.drawn.append((draw, shape, self._first(draw, shape).to(device)))
        self.next += 1
        return pick(self.drawn[self.next - 1][2], self.step.inside)

    def _first(self, draw: Draw, shape: torch.Size) -> Tensor:
        """(rows, *shape) on the CPU; zeros for rows without a batch, whose generators must not advance."""
        turn, generators = self.step.turn, self.step.stack.generators(self.purpose)
        numbers = torch.zeros(len(turn.rows), *shape)
        for i, row in enumerate(turn.rows[: turn.active]):
            numbers[i] = draw(shape, generator=generators[row])
        return numbers
