"""LG-FedAvg: features stay at the client, the head is shared (Liang et al. 2020)."""

from dataclasses import dataclass

from pipeline.engine import Clients, State, World
from pipeline.methods.base import Method


@dataclass(frozen=True)
class LGFedAvg(Method):
    """pi_k <- pi, one joint pass over (phi_k, pi_k), pi <- mean of the pi_k; the counterpart of FedPer.

    All start from one random model; the released code starts from a trained FedAvg model instead.
    """

    supports = frozenset({"partial participation"})
    uniform: bool = False  # the released code's mean over clients; False: weighted by samples, as FedAvg

    def init(self, world: World) -> State:
        models = world.new_models()
        return State(features=models.features, head=models[0].head)

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(self.deployed(state, world), self.loss).models
        return State(features=models.features, head=world.average(models.heads, self.uniform))

    def deployed(self, state: State, world: World) -> Clients:
        return state.features.joined(world.everyone(state.head))

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return world.scalars("head"), world.scalars("head")
