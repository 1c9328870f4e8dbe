"""Models and a method's state as plain values that checkpoints can store, and weighted averages of models."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node, tree_leaves, tree_map_only

from pipeline.errors import TrainingError

# names that an entry of a State cannot have
DICT = frozenset(dir(dict))


class Params(dict):
    """The state of one model, name -> tensor. Names start with `features.` or `head.`."""

    def __missing__(self, name: str) -> Tensor:
        raise TrainingError(f"the network has no {name!r}; a method that reads it needs a linear head")

    @property
    def features(self) -> "Params":
        return self._part("features.")

    @property
    def head(self) -> "Params":
        return self._part("head.")

    def _part(self, prefix: str) -> "Params":
        return Params({name: value for name, value in self.items() if name.startswith(prefix)})

    def joined(self, other: Mapping[str, Tensor]) -> "Params":
        """This model, with its entries replaced by those of another one.

        other: name -> tensor, for example another model's `head`
        """
        return Params({**self, **other})


class Clients(list[Params]):
    """The model (or part of a model) of every client, in the order of the clients."""

    @property
    def features(self) -> "Clients":
        return Clients(model.features for model in self)

    @property
    def heads(self) -> "Clients":
        return Clients(model.head for model in self)

    def joined(self, other: "Clients") -> "Clients":
        """Each client's model, with its entries replaced by those of the client's other model.

        other: one for each client; ValueError for another number
        """
        return Clients(mine.joined(theirs) for mine, theirs in zip(self, other, strict=True))


class State(dict):
    """What a method keeps between rounds: named Params, Clients, tensors, numbers, lists and dicts of these.

    An entry `model` is also `state.model`. Each round makes a new state: `State(**state, model=new)`, or
    `State({**state, "model": new})` to replace an older model.

    ValueError for an entry with the name of a dict's method, such as `values`.
    """

    __slots__ = ()

    def __init__(self, *values: Any, **more: Any):
        super().__init__(*values, **more)
        if taken := sorted(name for name in self if name in DICT):
            raise ValueError(f"State: {taken[0]!r} is a method of every dict: give the entry another name")

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the state has no {name!r}; it has {', '.join(map(str, self))}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *map(str, self)]


def _named(value: dict) -> tuple[list, list]:
    return list(value.values()), list(value)


# torch.func and what walks nested values see the tensors inside.
register_pytree_node(Params, _named, lambda values, names: Params(zip(names, values)))
register_pytree_node(State, _named, lambda values, names: State(zip(names, values)))
register_pytree_node(Clients, lambda clients: (list(clients), None), lambda models, _: Clients(models))


def tensors_of(value: object) -> list[Tensor]:
    """All tensors in nested dicts, sequences and Clients, in a fixed order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same value with other tensors, given in the order of `tensors_of`."""
    return tree_map_only(Tensor, lambda _: next(tensors), value)


def weighted_mean(models: Iterable[Params], weights: Iterable[float]) -> Params:
    """sum_k (w_k / sum_j w_j) model_k, summed in float64 in the given order.

    models: with the same entries; integer entries (BatchNorm's counters) come from the first model with
        positive weight
    weights: one for each model, not negative; a model of weight 0 is not used

    ValueError if no weight is positive.
    """
    pairs = [(model, float(weight)) for model, weight in zip(models, weights, strict=True) if weight > 0]
    if not pairs:
        raise ValueError("weighted_mean needs at least one positive weight")
    if len(pairs) == 1:
        return entries(Tensor.clone, pairs[0][0])  # no rounding through its weight
    total = sum(weight for _, weight in pairs)
    return combine([model for model, _ in pairs], [weight / total for _, weight in pairs])


def combine(models: Iterable[Params], weights: Iterable[float]) -> Params:
    """sum_k w_k model_k, summed in float64 in the given order.

    models: with the same entries; integer entries come from the first model
    weights: one for each model, with any sign and sum
    """
    weights = list(weights)

    def combined(*values: Tensor) -> Tensor:
        if not values[0].is_floating_point():
            return values[0].clone()
        total = torch.zeros_like(values[0], dtype=torch.float64)
        for value, weight in zip(values, weights, strict=True):
            total.add_(value, alpha=weight)
        return total.to(values[0].dtype)

    return entries(combined, *models)


def entries(function: Callable[..., Tensor], *models: Mapping[str, Tensor]) -> Params:
    """A model whose entries are computed from those of other models.

    function: function(value, ...) gets the entries of one name from all models
    models: the first one gives the names
    """
    return Params((name, function(*(model[name] for model in models))) for name in models[0])


def zeros(model: Mapping[str, Tensor]) -> Params:
    """A model with all entries zero."""
    return Params((name, torch.zeros_like(value)) for name, value in model.items())


_KINDS = {"params": Params, "state": State}


def pack(value):
    """Convert a state to nested dicts and lists of tensors and numbers, which torch.load(weights_only=True)
    accepts.

    value: anything that a `State` may hold
    """
    if isinstance(value, Clients):
        return {"kind": "clients", "value": [pack(model) for model in value]}
    if isinstance(value, dict):
        kind = next((name for name, cls in _KINDS.items() if type(value) is cls), "dict")
        return {"kind": kind, "value": {k: pack(v) for k, v in value.items()}}
    if isinstance(value, (list, tuple)):
        return [pack(v) for v in value]
    return value


def unpack(value):
    """The inverse of `pack`; tuples come back as lists."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if value["kind"] == "clients":
        return Clients(unpack(model) for model in value["value"])
    return _KINDS.get(value["kind"], dict)({k: unpack(v) for k, v in value["value"].items()})


def mix(models: Clients, weights: Tensor) -> Clients:
    """Client i gets sum_j weights[i, j] model_j, summed in float64.

    models: one for each client
    weights: (clients, clients), with any sign
    """
    rows = weights.tolist()
    return Clients(combine(models, row) for row in rows)
