"""SGD, Adam and AdamW for stacked client models, where a step may update only some of the clients.

All values that a step trains lie in one tensor with a row per client, followed by their moments. A step of
Adam over eight tensors is then about ten kernels instead of two hundred.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from pipeline.engine.optimisers import BETA1, BETA2, EPS, clipping
from pipeline.schema import Optimiser

# Bytes to which rows are padded: CUDA's fused kernels read four floats at once where rows begin there.
ALIGNMENT = 16


class StackedSteps:
    """As `optimisers.Steps`, for tensors with a leading client dimension, of which a step moves some rows.

    settings: momentum, weight decay, clipping and kind of the steps, and their rate until `restart`.
    parameters: name -> (clients, ...), all of one dtype. They are copied; `views` has them as they move.
    Steps are counted per client. The rate lies on the device: a recorded step takes the one of its replay.
    """

    def __init__(self, settings: Optimiser, parameters: dict[str, Tensor]):
        self.settings = settings
        # The weight decay that joins the gradient.
        self.in_gradient = 0.0 if settings.name == "adamw" else settings.weight_decay
        moments = int(settings.momentum > 0) if settings.name == "sgd" else 2
        first = next(iter(parameters.values()))
        ends = list(itertools.accumulate(p[0].numel() for p in parameters.values()))
        self.columns = dict(zip(parameters, itertools.pairwise([0, *ends])))
        padding = -ends[-1] % (ALIGNMENT // first.element_size())
        self.state = torch.zeros(
            1 + moments, len(first), ends[-1] + padding, dtype=first.dtype, device=first.device
        )
        self.views = {
            name: self.state[0, :, slice(*self.columns[name])].view(p.shape).copy_(p)
            for name, p in parameters.items()
        }
        self.count = torch.zeros(len(first), dtype=torch.float32, device=first.device)
        # CUDA's fused Adam reads a rate of single precision, whatever it moves.
        kind = torch.float32 if first.device.type == "cuda" and settings.name != "sgd" else first.dtype
        self.rate = torch.zeros((), dtype=kind, device=first.device)
        # of a value, what AdamW's decay leaves
        self.kept = torch.zeros((), dtype=first.dtype, device=first.device)
        self._take_rate(settings.lr)

    def restart(self, rate: float) -> None:
        """Reset counts and moments to those of a new optimiser of this rate, in the same memory."""
        self.count.zero_()
        self.state[1:].zero_()
        self._take_rate(rate)

    def _take_rate(self, rate: float) -> None:
        self.rate.fill_(-rate if self.settings.name == "sgd" else rate)
        if self.settings.name == "adamw":
            self.kept.fill_(1 - rate * self.settings.weight_decay)

    @torch.no_grad()
    def step(self, gradients: dict[str, Tensor], rows: "Rows") -> None:
        """Move the rows. gradients: name -> (rows, ...). Tensors without one, and their moments, stay."""
        moved = [(self.state, 1), *([] if self.settings.name == "sgd" else [(self.count, 0)])]
        state, *counts = current = [rows.read(tensor, dim) for tensor, dim in moved]
        before = [rows.uncertain(tensor, dim).clone() for tensor, (_, dim) in zip(current, moved)]
        for count in counts:
            count += 1
        for first, last, slopes in self._clipped(list(self._runs(gradients))):
            value, *moments = state[:, :, first:last]
            if self.settings.name == "adamw":
                value.mul_(self.kept)
            if not counts:
                self._sgd(value, slopes, moments)
            else:
                self._adam(value, slopes, moments, counts[0])
        for (stack, dim), new, old in zip(moved, current, before, strict=True):
            rows.restore(stack, new, old, dim)

    def _clipped(self, runs: list[tuple[int, int, Tensor]]) -> list[tuple[int, int, Tensor]]:
        if self.settings.clip is not None and runs:
            norms = torch.stack([torch.linalg.vector_norm(slopes, dim=1) for *_, slopes in runs])
            scale = clipping(torch.linalg.vector_norm(norms, dim=0), self.settings.clip)
            for *_, slopes in runs:
                slopes.mul_(scale[:, None])
        return runs

    def _runs(self, gradients: dict[str, Tensor]) -> Iterator[tuple[int, int, Tensor]]:
        """(first column, last column, gradients (rows, columns)) of neighbours that all have gradients."""
        present = [name for name in self.columns if name in gradients]
        while present:
            run = [present.pop(0)]
            while present and self.columns[present[0]][0] == self.columns[run[-1]][1]:
                run.append(present.pop(0))
            parts = [gradients[name].reshape(len(gradients[name]), -1) for name in run]
            yield self.columns[run[0]][0], self.columns[run[-1]][1], torch.cat(parts, 1)

    def _sgd(self, value: Tensor, slopes: Tensor, moments: list[Tensor]) -> None:
        if self.in_gradient:
            slopes.add_(value, alpha=self.in_gradient)
        for moment in moments:
            slopes = moment.mul_(self.settings.momentum).add_(slopes)
        value.addcmul_(slopes, self.rate)

    def _adam(self, value: Tensor, slopes: Tensor, moments: list[Tensor], count: Tensor) -> None:
        """A kernel for every few dozen rows: each row is a tensor with its count."""
        torch._fused_adam_(
            value.unbind(),
            slopes.unbind(),
            moments[0].unbind(),
            moments[1].unbind(),
            [],
            count.unbind(),
            lr=self.rate,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=self.in_gradient,
            eps=EPS,
            amsgrad=False,
            maximize=False,
        )


class Rows:
    """Some rows of a stack: a leading slice, or an index. Reads and writes stay on the device, and which rows
    move is read there: a recorded step takes those of its replay.

    count: how many rows.
    active: on the device, of these: only so many first ones are written, the others keep their values.
    certain: the least that `active` can be.
    index: (count,), the rows, all different; None: the first ones.
    """

    def __init__(self, count: int, active: Tensor, certain: int = 0, index: Tensor | None = None):
        self.count, self.active, self.certain, self.index = count, active, certain, index
        self.place = torch.arange(count, device=active.device)
        self.begin()

    def begin(self) -> None:
        """Take notice of `active`, which changes from step to step."""
        self.moves = self.place < self.active

    def read(self, stack: Tensor, dim: int = 0) -> Tensor:
        """The rows of `stack`, which lie along dimension `dim`."""
        if self.index is None:
            return stack.narrow(dim, 0, self.count)
        return stack.index_select(dim, self.index)

    def write(self, stack: Tensor, values: Tensor) -> None:
        """Put `values` (rows, ...) into `stack`, but for rows that are not active."""
        old = self.read(stack)
        torch.where(self._moves(stack.ndim), values, old, out=old)
        if self.index is not None:
            stack.index_copy_(0, self.index, old)

    def uncertain(self, values: Tensor, dim: int) -> Tensor:
        """Of `values`, as read, the rows that may not be active."""
        return values.narrow(dim, self.certain, self.count - self.certain)

    def restore(self, stack: Tensor, new: Tensor, old: Tensor, dim: int) -> None:
        """Finish what was read from `stack` and changed in place: rows that are not active get back `old`,
        which is what `uncertain` gave before; an index is written back."""
        after, moves = self.uncertain(new, dim), self._moves(new.ndim - dim)[self.certain :]
        torch.where(moves, after, old, out=after)
        if self.index is not None:
            stack.index_copy_(dim, self.index, new)

    def _moves(self, dimensions: int) -> Tensor:
        """(rows, 1, ...): is the row active?"""
        return self.moves.view(-1, *[1] * (dimensions - 1))
