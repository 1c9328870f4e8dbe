"""Convert clients' models and states to stacked tensors in nested dicts for torch.func, and back."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pipeline.engine.state import Params

# prefix of a client state that is trained with the models
STATE = "client_state."
# (phase, client)
Member = tuple[int, int]


def joined(*values: Tensor) -> Tensor:
    """(n, ...) in the contiguous layout. Channels-last values would keep their strides; vmap's convolution,
    which treats clients as channels, would then give channels-last results, which cuDNN's BatchNorm refuses
    under vmap."""
    return torch.stack(values).clone(memory_format=torch.contiguous_format)


def separate(tensors: dict[str, Tensor]) -> tuple[Params, Params]:
    """(the model's values, the client state that is trained with it)."""
    state = Params(
        (name.removeprefix(STATE), value) for name, value in tensors.items() if name.startswith(STATE)
    )
    return Params((name, value) for name, value in tensors.items() if not name.startswith(STATE)), state


def each(function: Callable, value: Any, *others: Any) -> Any:
    """`function` of every tensor in nested dicts, with the others' tensors of the same names."""
    if not isinstance(value, dict):
        return function(value, *others)
    return type(value)(
        (name, each(function, inner, *(other[name] for other in others))) for name, inner in value.items()
    )


class Lazily(Mapping):
    """Like a State, but a part is gathered only when it is read: a loss may not use all parts, and a part may
    be a model per client."""

    def __init__(self, parts: dict[str, Callable]):
        self._parts = parts

    def __getitem__(self, name: str):
        return self._parts[name]()

    def __getattr__(self, name: str):
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def pick(values: Tensor, place: Tensor) -> Tensor:
    """values[place], where `place` is a scalar that differs by client inside vmap."""
    return values.index_select(0, place.view(1)).squeeze(0)
