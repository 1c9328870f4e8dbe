"""Convert clients' models and states to stacked tensors in nested dicts for torch.func, and back."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from pipeline.engine.stacked_optimisers import Rows
from pipeline.engine.state import Clients, Params

# prefix of a client state that is trained with the models
STATE = "client_state."
# (phase, client)
Member = tuple[int, int]


def joined(values: Iterable[Tensor]) -> Tensor:
    """(n, ...) in the contiguous layout. Channels-last values would keep their strides; vmap's convolution,
    which treats clients as channels, would then give channels-last results, which cuDNN's BatchNorm refuses
    under vmap."""
    return torch.stack(list(values)).clone(memory_format=torch.contiguous_format)


def separate(tensors: dict[str, Tensor]) -> tuple[Params, Params]:
    """(the model's values, the client state that is trained with it)."""
    state = Params(
        (name.removeprefix(STATE), value) for name, value in tensors.items() if name.startswith(STATE)
    )
    return Params((name, value) for name, value in tensors.items() if not name.startswith(STATE)), state


def plain(value):
    """A client state as torch.func takes it: nested dicts of tensors."""
    if value is None:
        return {}
    return {name: plain(v) for name, v in value.items()} if isinstance(value, dict) else value


def wrap(value):
    """The inverse inside a loss: mappings of tensors become Params again, with their `features` and
    `head`."""
    if not isinstance(value, dict):
        return value
    if not value:
        return None
    wrapped = {name: wrap(v) for name, v in value.items()}
    return Params(wrapped) if all(isinstance(v, Tensor) for v in wrapped.values()) else wrapped


def stack_states(states: list, members: list[Member]):
    """The members' shares of their phases' client states, (members, ...)."""
    if states[0] is None:
        return {}
    if isinstance(states[0], dict):
        return {name: stack_states([state[name] for state in states], members) for name in states[0]}
    if isinstance(states[0], Clients):
        p, k = members[0]
        return {name: joined(states[p][k][name] for p, k in members) for name in states[p][k]}
    return joined(states[p][k] for p, k in members)


def read(state, rows: Rows):
    """The rows of every tensor in it."""
    return {name: read(v, rows) for name, v in state.items()} if isinstance(state, dict) else rows.read(state)


def write(state, new, rows: Rows) -> None:
    """Put `new`, (rows, ...), into the rows of every tensor in it."""
    if isinstance(state, dict):
        for name in state:
            write(state[name], new[name], rows)
    else:
        rows.write(state, new)


def row_of(state, row: int):
    """One client's part, a copy."""
    if isinstance(state, dict):
        return {name: row_of(value, row) for name, value in state.items()}
    return state[row].clone()


def rejoin(template, states: list):
    """The inverse of `stack_states` for all clients; those without data keep theirs."""
    if template is None:
        return None
    if isinstance(template, dict):
        return type(template)(
            (name, rejoin(value, [None if s is None else s[name] for s in states]))
            for name, value in template.items()
        )
    if isinstance(template, Clients):
        return Clients(
            mine if new is None else Params(new) for mine, new in zip(template, states, strict=True)
        )
    return torch.stack([template[k] if new is None else new for k, new in enumerate(states)])


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
