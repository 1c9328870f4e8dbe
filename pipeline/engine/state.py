"""Models and a method's state as plain values that checkpoints can store, and weighted averages of models."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node, tree_leaves, tree_map_only

from pipeline.devices import to_device_of
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
        positive weight. On a CPU they are read one by one, and only the sum is held
    weights: one for each model, not negative; a model of weight 0 is not used

    ValueError if no weight is positive.
    """
    weights = [float(weight) for weight in weights]
    positive = [weight for weight in weights if weight > 0]
    if not positive:
        raise ValueError("weighted_mean needs at least one positive weight")
    used = (model for model, weight in zip(models, weights, strict=True) if weight > 0)
    if len(positive) == 1:
        [model] = used
        return entries(Tensor.clone, model)  # no rounding through its weight
    total = sum(positive)
    return combine(used, [weight / total for weight in positive])


def combine(models: Iterable[Params], weights: Iterable[float]) -> Params:
    """sum_k w_k model_k, summed in float64 in the given order; on a card in one matrix product.

    models: with the same entries; integer entries come from the first model. On a CPU they are read one by
        one, and only the sum is held
    weights: one for each model, with any sign and sum

    ValueError without any model.
    """
    models = iter(models)
    first = next(models, None)
    if first is None:
        raise ValueError("combine needs at least one model")
    models = itertools.chain([first], models)
    if on_card(first):
        return _products(list(models), torch.tensor([list(weights)], dtype=torch.float64))[0]

    sums = Params(
        (name, torch.zeros_like(value, dtype=torch.float64) if value.is_floating_point() else value.clone())
        for name, value in first.items()
    )
    floating = [name for name, value in first.items() if value.is_floating_point()]
    for model, weight in zip(models, weights, strict=True):
        for name in floating:
            sums[name].add_(model[name], alpha=weight)
    return entries(lambda total, value: total.to(value.dtype), sums, first)


def mix(models: Clients, weights: Tensor) -> Clients:
    """Client i gets sum_j weights[i, j] model_j, summed in float64; on a card all of them in one matrix
    product.

    models: one for each client, with the same entries
    weights: (clients, clients), with any sign
    """
    if on_card(models[0]):
        return Clients(_products(models, weights))
    rows = weights.tolist()
    return Clients(combine(models, row) for row in rows)


def interpolated(models: Clients, other: Params, shares: Iterable[float]) -> Clients:
    """Client k gets share_k model_k + (1 - share_k) other, summed in float64; on a card all of them at once.

    models: one for each client, with the same entries; integer entries come from these
    other: with the same entries
    shares: one for each client
    """
    shares = list(shares)
    if not on_card(other):
        return Clients(
            combine((mine, other), (share, 1 - share)) for mine, share in zip(models, shares, strict=True)
        )

    both = torch.tensor([[share, 1 - share] for share in shares], dtype=torch.float64)
    mine, others = to_device_of(both, next(iter(other.values()))).split(1, 1)

    def between(values: Tensor) -> Tensor:
        return torch.addcmul(mine * values[:-1], others, values[-1:])

    return Clients(_computed([*models, other], between, models))


# -- on a card: all models at once ---------------------------------------------------------------------------

# devices on which models are summed one after another
ONE_BY_ONE = ("cpu",)
# values of all models that are float64 at the same time
AT_ONCE = 2**26


def on_card(model: Mapping[str, Tensor]) -> bool:
    """Are these values on a card, and outside a training step? A step, which torch.func maps over clients and
    a graph may record, must not copy weights from the host."""
    value = next(iter(model.values()), None)
    in_step = torch._C._functorch.peek_interpreter_stack() is not None
    return value is not None and value.device.type not in ONE_BY_ONE and not in_step


def flattened(models: Sequence[Mapping[str, Tensor]], names: Sequence[str]) -> Tensor:
    """(models, scalars): the entries of these names, one after another, in memory of their own.

    names: of entries of one type
    """
    return torch.cat([model[name].reshape(-1) for model in models for name in names]).view(len(models), -1)


def floating_names(model: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of the floating-point entries, those of one type together."""
    kinds: dict[torch.dtype, list[str]] = {}
    for name, value in model.items():
        if value.is_floating_point():
            kinds.setdefault(value.dtype, []).append(name)
    return list(kinds.values())


def _products(models: Sequence[Params], weights: Tensor) -> list[Params]:
    """Model i is sum_j weights[i, j] models[j], in float64.

    weights: (targets, models)
    """
    if weights.shape[1] != len(models):
        raise ValueError(f"{len(models)} models, but {weights.shape[1]} weights")
    matrix = to_device_of(weights.double(), next(iter(models[0].values())))
    return _computed(models, lambda values: matrix @ values, [models[0]] * len(weights))


def _computed(
    models: Sequence[Params], function: Callable[[Tensor], Tensor], sources: Sequence[Params]
) -> list[Params]:
    """New models whose entries are computed from those of others, all of one type at once.

    models: with the same entries
    function: gets values of all models, float64 (models, n), and returns those of the new ones, (new, n)
    sources: for each new model the one that gives its integer entries
    """
    shapes = {name: value.shape for name, value in models[0].items()}
    made: list[dict[str, Tensor]] = [{} for _ in sources]
    for names in floating_names(models[0]):
        values = flattened(models, names)
        blocks = values.split(max(1, AT_ONCE // len(models)), 1)
        rows = [function(block.double()).to(values.dtype) for block in blocks]
        whole = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
        for new, row in zip(made, _separate(whole), strict=True):
            parts = row.split([shapes[name].numel() for name in names])
            new.update((name, part.view(shapes[name])) for name, part in zip(names, parts, strict=True))
    return [
        Params((name, new.get(name, value)) for name, value in source.items())
        for new, source in zip(made, sources, strict=True)
    ]


def _separate(rows: Tensor) -> Sequence[Tensor]:
    """Every row in memory of its own: one that outlives the others must not hold theirs."""
    if len(rows) == 1:
        return rows.unbind()
    copies = [torch.empty_like(row) for row in rows.unbind()]
    torch._foreach_copy_(copies, rows.unbind())
    return copies


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
