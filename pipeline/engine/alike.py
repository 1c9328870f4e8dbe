"""Decide whether local training of several seeds can run as one, or replay an earlier CUDA graph."""

import dataclasses
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

from torch import Tensor

from pipeline.engine.phase import Phase
from pipeline.engine.state import Clients


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
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
    if type(a) is not type(b):
        return False
    if _is_container(a):
        x, y = dict(_parts(a)), dict(_parts(b))
        return list(x) == list(y) and all(same_form(x[name], y[name]) for name in x)
    return a is b or (isinstance(a, (bool, int, float, str)) and a == b)


def tensors_of(value: object) -> list[Tensor]:
    """Every tensor in nested dicts, sequences, Clients and dataclasses, in a fixed order."""
    if isinstance(value, Tensor):
        return [value]
    parts = _parts(value) if _is_container(value) else []
    return [tensor for _, part in parts for tensor in tensors_of(part)]


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value with other tensors in the order of `tensors_of`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if not _is_container(value):
        return value
    parts = [(name, with_tensors(part, tensors)) for name, part in _parts(value)]
    if isinstance(value, dict):
        return type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **dict(parts))
    values = [part for _, part in parts]
    return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)


def _is_container(value: object) -> bool:
    return isinstance(value, (dict, list, tuple, Clients)) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _parts(value) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    if dataclasses.is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return list(enumerate(value))
