"""FedRep: shared features, heads that stay home; the head first, then the features (Collins et al. 2021, Algorithm 1)."""
from dataclasses import dataclass

from pipeline.engine.state import Clients, State
from pipeline.engine.world import World
from pipeline.methods.base import Method
from pipeline.params import Whole


@dataclass(frozen=True)
class FedRep(Method):
    """tau_h epochs on the head with the received features frozen, then the round's epochs on the features."""
    head_epochs: Whole = 10               # tau_h, the recorded value for CIFAR-10

    def init(self, world: World) -> State:
        models = world.new_models()
        return State(features=models[0].features, heads=models.heads)

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(self.deployed(state, world), self.loss, trainable="head", epochs=self.head_epochs, stream="head")
        models = world.local_epochs(models, self.loss, trainable="features")
        return State(features=world.average(models.features), heads=models.heads)

    def deployed(self, state: State, world: World) -> Clients:
        return world.everyone(state.features).joined(state.heads)

    def traffic(self, world: World) -> tuple[float, float]:
        return world.scalars("features"), world.scalars("features")
