"""Local: every client trains alone (the papers' rows Local, BASE and Baseline)."""

from dataclasses import dataclass

from pipeline.engine import Clients, State, World
from pipeline.methods.base import Method


@dataclass(frozen=True)
class Local(Method):
    """No transfer. All clients of one network start from the same parameters, unless the scenario has public
    data and averages no models: its methods have no model at the server, and each client draws one."""

    supports = frozenset({"partial participation", "unseen clients"})
    requires = frozenset()

    def init(self, world: World) -> State:
        return State(models=world.new_models(individual=True))

    def round(self, state: State, world: World) -> State:
        return State(models=world.local_epochs(state.models, self.loss).models)

    def adapted(self, state: State, world: World) -> Clients:
        """Alone, from the beginning."""
        return world.local_epochs(world.new_models(individual=True), self.loss).models

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return 0.0, 0.0
