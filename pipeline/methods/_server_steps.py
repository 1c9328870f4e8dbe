"""Helpers for methods: numbers of local steps, averaging weights, parts of a model, plain SGD."""

from collections.abc import Iterable, Sequence
from typing import Annotated

from pipeline.engine import Params, World
from pipeline.engine.phase import batches, trainable_names
from pipeline.errors import TrainingError
from pipeline.schema import Optimiser
from pipeline.schema.checker import Range

Decay = Annotated[float, Range(low=0, high=0.9999)]  # what is left of a running mean after a round


def steps_taken(world: World, model: Params) -> list[int]:
    """K_k: steps of every client's optimiser in a round; 0 where it has no usable batch."""
    network = world.network(0, model)
    return [world.epochs_of(k) * len(batches(n, world.training, network)) for k, n in enumerate(world.sizes)]


def shares(weights: Sequence[float]) -> list[float]:
    """p_k: the weights, scaled to sum to one."""
    total = sum(weights)
    return [weight / total for weight in weights]


def learned(world: World, model: Params) -> Params:
    """The entries that gradients move: a server's step could make a running variance negative."""
    return part(model, trainable_names(world.network(0, model), "all"))


def part(model: Params, names: Iterable[str]) -> Params:
    """These entries of a model."""
    return Params((name, model[name]) for name in names)


def plain_sgd(world: World, lr: float | None, why: str, momentum: bool = False) -> Optimiser:
    """SGD without momentum at rate `lr`, which decays as the scenario's; where that is None the scenario's
    optimiser.

    Raises TrainingError, beginning with `why`, where that is Adam, or has a momentum that is not allowed.
    """
    given = world.training.optimiser
    if lr is not None:
        decay = given.weight_decay if given.name == "sgd" else 0.0
        rule = Optimiser("sgd", lr, weight_decay=decay, lr_decay=given.lr_decay, clip=given.clip)
        return rule.in_round(world.round)
    if given.name != "sgd" or given.momentum and not momentum:
        rule = given.name + (f" with momentum {given.momentum:g}" if given.momentum else "")  # type: ignore[assignment]
        raise TrainingError(
            f"{why}, but the scenario's optimiser is {rule}: "
            "give the method's row an `lr`, a rate of plain SGD"
        )
    return given
