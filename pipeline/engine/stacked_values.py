"""Clients' values as stacked tensors: models, the extra values that are trained with them, and `own`, as
nested dicts that torch.func accepts."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from pipeline.engine.stacked_optimisers import Rows
from pipeline.engine.state import Clients, Params

EXTRA = "extra."  # prefix of the extra values that a phase trains with the models
Member = tuple[int, int]  # (phase, client)


def joined(values: Iterable[Tensor]) -> Tensor:
    """(n, ...) in the contiguous layout. Channels-last values would keep their strides; vmap's convolution,
    which treats clients as channels, would then give channels-last results, which cuDNN's BatchNorm refuses
    under vmap."""
    return torch.stack(list(values)).clone(memory_format=torch.contiguous_format)


def apart(tensors: dict[str, Tensor]) -> tuple[Params, Params]:
    """(the model's values, the extra values that are trained with it)."""
    extra = Params(
        (name.removeprefix(EXTRA), value) for name, value in tensors.items() if name.startswith(EXTRA)
    )
    return Params((name, value) for name, value in tensors.items() if not name.startswith(EXTRA)), extra


def plain(value):
    """`own` as torch.func takes it: nested dicts of tensors."""
    if value is None:
        return {}
    return {name: plain(v) for name, v in value.items()} if isinstance(value, dict) else value


def wrap(value):
    """The inverse inside a loss: mappings of tensors become Params again, so that `own.features` works."""
    if not isinstance(value, dict):
        return value
    if not value:
        return None
    wrapped = {name: wrap(v) for name, v in value.items()}
    return Params(wrapped) if all(isinstance(v, Tensor) for v in wrapped.values()) else wrapped


def stack_own(owns: list, members: list[Member]):
    """The members' shares of their phases' `own`, (members, ...)."""
    if owns[0] is None:
        return {}
    if isinstance(owns[0], dict):
        return {name: stack_own([own[name] for own in owns], members) for name in owns[0]}
    if isinstance(owns[0], Clients):
        p, k = members[0]
        return {name: joined(owns[p][k][name] for p, k in members) for name in owns[p][k]}
    return joined(owns[p][k] for p, k in members)


def read(own, rows: Rows):
    """The rows of every tensor in it."""
    return {name: read(v, rows) for name, v in own.items()} if isinstance(own, dict) else rows.read(own)


def write(own, new, rows: Rows) -> None:
    """Put `new`, (rows, ...), into the rows of every tensor in it."""
    if isinstance(own, dict):
        for name in own:
            write(own[name], new[name], rows)
    else:
        rows.write(own, new)


def row_of(own, row: int):
    """One client's part, a copy."""
    return {name: row_of(v, row) for name, v in own.items()} if isinstance(own, dict) else own[row].clone()


def rejoin(template, owns: list):
    """What `stack_own` took apart, for all clients; those without data keep theirs."""
    if template is None:
        return None
    if isinstance(template, dict):
        return type(template)(
            (name, rejoin(value, [None if o is None else o[name] for o in owns]))
            for name, value in template.items()
        )
    if isinstance(template, Clients):
        return Clients(mine if new is None else Params(new) for mine, new in zip(template, owns, strict=True))
    return torch.stack([template[k] if new is None else new for k, new in enumerate(owns)])


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
