"""Ditto: FedAvg, and in addition a personal model for every client, regularised towards the global one (Li
et al. 2021, Algorithm 1)."""

from dataclasses import dataclass

from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, LocalOptions, Params, State, World
from pipeline.engine.phase import split_loss
from pipeline.losses import squared_distance
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Count, NonNegative


@dataclass(frozen=True)
class Ditto(FedAvg):
    """min_v F_k(v) + (lambda / 2) ||v - w||^2 with w as received, constant over the personal pass.

    Two passes, each with a new optimiser. Both draw from the stream that FedAvg and Local draw from, so
    that w is FedAvg's for every lambda, and v is Local's for lambda 0, bit for bit.
    """

    headline = "post"
    copies = 2
    lam: NonNegative = 1.0  # the released scripts'
    personal_epochs: Count = 1

    def init(self, world: World) -> State:
        return State(**super().init(world), personal=world.new_models())

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(world.everyone(state.model), self.loss).models
        personal = self.personalised(state.personal, state.model, self.personal_epochs, world)
        return State(model=world.average(models), personal=personal)

    def personalised(self, models: Clients, center: Params, epochs: int, world: World) -> Clients:
        options = LocalOptions(epochs=epochs)
        return world.local_epochs(models, self.pull, server_state=center, options=options).models

    def pull(self, model: Handle, batch: Batch, server_state: Params, client_state: object) -> Tensor:
        fit, _ = split_loss(self.loss(model, batch, server_state, client_state))
        return fit + self.lam / 2 * squared_distance(model.params, server_state) if self.lam else fit

    def adapted(self, state: State, world: World) -> Clients:
        """Personal models that begin as the global one."""
        epochs = world.training.adaptation or self.personal_epochs
        return self.personalised(world.everyone(state.model), state.model, epochs, world)

    def deployed(self, state: State, world: World) -> Clients:
        return state.personal
