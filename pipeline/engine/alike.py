"""Decide whether local training of several seeds can run as one, or replay an earlier CUDA graph."""

from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from pipeline.engine.phase import Phase


def alike(a: Phase, b: Phase) -> bool:
    """Do two phases run the same code on values of the same shapes? Their models are of the same clients."""
    return (
        same_code(a.loss, b.loss)
        and same_code(a.step, b.step)
        and (a.views is None) == (b.views is None)
        and _settings(a) == _settings(b)
        and same_form(a.server_state, b.server_state)
        and same_form(a.client_state, b.client_state)
    )


def _settings(phase: Phase) -> tuple:
    return phase.trainable, phase.epochs, phase.optimiser, phase.batches_per_step, phase.trains_state


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


def tensors_of(value: object) -> list[Tensor]:
    """Every tensor in nested dicts, sequences and Clients, in a fixed order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value with other tensors in the order of `tensors_of`."""
    return tree_map_only(Tensor, lambda _: next(tensors), value)
