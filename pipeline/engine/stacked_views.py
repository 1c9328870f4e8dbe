"""Augment the batches of several clients in one call, with random numbers from each client's generator."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from pipeline.engine.phase import Views

CLOSE = 1e-4  # of a network input: a sum over another number of images may round differently


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
