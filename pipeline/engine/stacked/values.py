"""Clients' models and states as stacked tensors for torch.func, and whether several seeds can be stacked
together."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from pipeline.devices import to_device_of
from pipeline.engine.phase import Phase
from pipeline.engine.state import Params

# prefix of a client state that is trained with the models
STATE = "client_state."
# of a phase
SETTINGS = attrgetter("trainable", "batches_per_step", "trains_state")
# (phase, client)
Member = tuple[int, int]


def joined(*values: Tensor) -> Tensor:
    """(n, ...) in the contiguous layout. Channels-last values would keep their strides; vmap's convolution,
    which treats clients as channels, would then give channels-last results, which cuDNN's BatchNorm refuses
    under vmap."""
    return torch.stack(values).contiguous()


def put(stack: Tensor, values: tuple[Tensor, ...]) -> None:
    """Copy the values into the stack, each into its row; one that all clients start from, in one launch."""
    same = all(value is values[0] for value in values)
    new = values[0][None] if same else joined(*values)
    stack.copy_(to_device_of(new, stack))


def rows_of(stacks: dict[Any, Tensor]) -> list[dict[Any, Tensor]]:
    """Every client's values, in memory of their own: the stack's is written again, and a row that outlives
    the others must not hold theirs."""
    rows = {name: stack.unbind() for name, stack in stacks.items()}
    copies = {name: list(map(torch.empty_like, values)) for name, values in rows.items()}
    for kind in {stack.dtype for stack in stacks.values()}:  # one launch for many of one kind
        mine = [name for name, stack in stacks.items() if stack.dtype == kind]
        torch._foreach_copy_(
            [copy for name in mine for copy in copies[name]], [row for name in mine for row in rows[name]]
        )
    return [dict(zip(stacks, of_one)) for of_one in zip(*copies.values(), strict=True)]


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


class Lazily(UserDict):
    """Like a State whose parts are gathered when they are read: a part may be a model per client."""

    def __getitem__(self, name: str):
        return self.data[name]()

    def __getattr__(self, name: str):
        return self[name]


def pick(values: Tensor, place: Tensor) -> Tensor:
    """values[place], where `place` is a scalar that differs by client inside vmap."""
    return values.index_select(0, place.view(1)).squeeze(0)


def alike(a: Phase, b: Phase) -> bool:
    """As `same_steps`, at the same rate and for as many epochs. Their models are of the same clients."""
    return same_steps(a, b) and a.optimiser.lr == b.optimiser.lr and a.epochs == b.epochs


def same_steps(a: Phase, b: Phase) -> bool:
    """Do two phases run the same code on values of the same shapes?"""
    return (
        same_code(a.loss, b.loss)
        and same_code(a.step, b.step)
        and (a.views is None) == (b.views is None)
        and SETTINGS(a) == SETTINGS(b)
        and replace(a.optimiser, lr=b.optimiser.lr) == b.optimiser
        and same_form(a.server_state, b.server_state)
        and same_form(a.client_state, b.client_state)
    )


def same_code(a: Callable | None, b: Callable | None) -> bool:
    """The same function, or the same method of equal (frozen) objects. Two closures are never the same, since
    they may hold values of a round."""
    if isinstance(a, MethodType) and isinstance(b, MethodType):
        return a.__func__ is b.__func__ and type(a.__self__) is type(b.__self__) and a.__self__ == b.__self__
    return a is b and not getattr(a, "__closure__", None)


def same_form(a: object, b: object) -> bool:
    """Equal but for the values of tensors."""
    (mine, form), (theirs, other) = tree_flatten(a), tree_flatten(b)
    return form == other and all(map(_same_leaf, mine, theirs))


def _same_leaf(a: object, b: object) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    return a is b or (type(a) is type(b) and isinstance(a, (bool, int, float, str)) and a == b)
