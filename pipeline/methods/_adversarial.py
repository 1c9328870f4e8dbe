"""Adversarial training, that is training on attacked images, for FedAvg+ and FedCCL+ (FedCCL, Sec. 5.5)."""

from dataclasses import dataclass
from typing import Any

from pipeline.attacks import pgd
from pipeline.engine import Batch, Handle, Objective, State, World
from pipeline.errors import TrainingError
from pipeline.schema import Count, NonNegative, Positive


@dataclass(frozen=True)
class AdversarialTraining:
    """A mixin to put before a method's class: the local objective then sees attacked images only, without a
    clean term (FedCCL, Eq. 21 to 24).

    The paper states no numbers. Those here are for MNIST; with eps = 0 nothing is attacked.
    """

    supports = frozenset[str]()
    requires = frozenset({"one network", "pixels in [0, 1]"})
    # Fashion-MNIST: 0.1
    eps: NonNegative = 0.3
    # None: eps / 4
    step: Positive | None = None
    steps: Count = 10
    random_start: bool = True

    def init(self, world: World) -> State:
        for client in world.clients:
            if len(client.labels) and not (client.images.min() >= 0 and client.images.max() <= 1):
                raise TrainingError(
                    f"client {client.name}: attacks need pixels in [0, 1]; set the scenario's data.normalise "
                    "to none"
                )
        return super().init(world)  # type: ignore[misc]    # the next base is a method's class

    def loss(self, model: Handle, batch: Batch, server_state: Any, client_state: Any) -> Objective:
        if self.eps:
            step = self.eps / 4 if self.step is None else self.step
            attacked = pgd(model, batch.images, batch.labels, self.eps, step, self.steps, self.random_start)
            batch = batch._replace(images=attacked)
        return super().loss(model, batch, server_state, client_state)  # type: ignore[misc]    # likewise
