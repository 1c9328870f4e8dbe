"""What local training leaves, as values."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.engine.phase import LAST_EPOCH
from pipeline.engine.state import Clients


@dataclass(frozen=True)
class ClassMeans:
    """Mean representation of every class at every client.

    means (clients, classes, d), zero where a client has no sample of the class; counts (clients, classes)
    int64.
    """

    means: Tensor
    counts: Tensor

    @property
    def present(self) -> Tensor:
        """(clients, classes) bool: does the client hold the class?"""
        return self.counts > 0


@dataclass(frozen=True)
class Trained:
    """What a local phase leaves: the clients' models, their mean training losses (NaN without data, or where
    a rule of a method's own has none), the means of what was logged, and what each client keeps beside its
    model (`own` after steps, `extra` after training)."""

    models: Clients
    losses: list[float]
    logged: dict[str, Tensor] = field(default_factory=dict)  # name -> (clients, ...) in float64 on the CPU
    last: dict[str, Tensor] = field(default_factory=dict)  # the same of each client's last batch alone
    own: Any = None

    def mean_loss(self, sizes: Sequence[int]) -> float:
        """The mean of the losses over clients, weighted by their numbers of samples; NaN where there is
        none."""
        total = sum(n for n, value in zip(sizes, self.losses) if n and math.isfinite(value))
        return (
            sum(n * value for n, value in zip(sizes, self.losses) if n and math.isfinite(value)) / total
            if total
            else math.nan
        )

    def class_means(self, held: Tensor) -> ClassMeans:
        """As World.class_means, but of the representations computed during training, in training mode, while
        the model changed, over the epochs of the phase that `prototypes.class_sums` was told. The loss must
        have logged these.

        `held` (clients, classes) int64, `World.class_counts`, is what a client counts, also where some of its
        samples were in no batch; a class of which it saw none has no mean, and counts 0."""
        like = self.models[0]["head.weight"]
        over = LAST_EPOCH if LAST_EPOCH + "class_sum" in self.logged else ""
        sums, counts = (
            self.logged[over + name].to(like.device).nan_to_num(0) for name in ("class_sum", "class_count")
        )
        means = sums / torch.where(counts > 0, counts, 1.0)[..., None]
        return ClassMeans(means.to(like.dtype), torch.where(counts > 0, held.to(like.device), 0))


class Watch:
    """Wraps an executor and keeps for the trainer what a round's local phases return, since a world keeps
    nothing.

    `trained` is the last phase, with the losses of the last one that had any; None before the first.
    """

    def __init__(self, executor):
        self.executor = executor
        self.trained: Trained | None = None

    def run(self, phase) -> Trained:
        found = self.executor.run(phase)
        # not every rule of a method's own has a loss
        silent = phase.loss is None and not any(map(math.isfinite, found.losses))
        self.trained = (
            dataclasses.replace(found, losses=self.trained.losses) if silent and self.trained else found
        )
        return found
