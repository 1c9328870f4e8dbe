"""FedPer: features are shared, heads stay at the client, both are trained together (Arivazhagan et al.
2019, Algorithm 1)."""

from dataclasses import dataclass

from pipeline.engine import Clients, LocalOptions, State, World
from pipeline.methods.base import Method


@dataclass(frozen=True)
class FedPer(Method):
    """phi_k <- phi, one joint pass over (phi_k, pi_k), phi <- mean of the phi_k. pi_k is the last layer."""

    supports = frozenset({"partial participation", "unseen clients"})

    def init(self, world: World) -> State:
        models = world.new_models()
        return State(features=models[0].features, heads=models.heads)

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(self.deployed(state, world), self.loss).models
        return State(features=world.average(models.features), heads=models.heads)

    def deployed(self, state: State, world: World) -> Clients:
        return world.everyone(state.features).joined(state.heads)

    def adapted(self, state: State, world: World) -> Clients:
        """The received features with a new head, which alone learns (Collins et al. 2021, Sec. 5)."""
        start = world.everyone(state.features).joined(world.new_models().heads)
        options = LocalOptions("head", self.adaptation_epochs(world))
        return world.local_epochs(start, self.loss, options=options).models

    def adaptation_epochs(self, world: World) -> int:
        """Epochs in which only the head is trained, at a client that joins after the last round."""
        return world.training.local_epochs

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return world.scalars("features"), world.scalars("features")
