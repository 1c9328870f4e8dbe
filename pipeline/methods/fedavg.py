"""FedAvg: clients train locally, the server averages their models weighted by samples (McMahan et al.
2017, Algorithm 1)."""

from dataclasses import dataclass

from pipeline.engine import State, World
from pipeline.methods.base import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """w <- sum_k (n_k / sum_j n_j) w_k, where every client k has trained from w."""

    supports = frozenset({"partial participation", "unseen clients"})

    def init(self, world: World) -> State:
        return State(model=world.new_model())

    def round(self, state: State, world: World) -> State:
        return State(model=world.local_mean(state.model, self.loss, server_state=state))

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return world.scalars(), world.scalars()
