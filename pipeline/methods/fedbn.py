"""FedBN: FedAvg of all parameters except those of BatchNorm layers, which stay at the client (Li et al.
2021, Algorithm 1)."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from pipeline.engine import Clients, Params, State, World
from pipeline.errors import TrainingError
from pipeline.methods._server_steps import part
from pipeline.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """phi_k <- phi, one joint pass over (phi_k, b_k), phi <- sum_k p_k phi_k. b_k, all entries of a client's
    BatchNorm layers, is neither sent nor overwritten. A layer's type decides, not its name."""

    supports = frozenset()
    # statistics: weight and bias are averaged
    local: Literal["all", "statistics"] = "all"
    # run on a network without BatchNorm, where this is FedAvg
    allow_plain: bool = False

    def init(self, world: World) -> State:
        model = world.new_model()
        names = self.at_home(world, model)
        if not names and not self.allow_plain:
            lacks = world.clients[0].model.name
            raise TrainingError(
                f"fedbn: {lacks} has no BatchNorm, which leaves FedAvg: give the method's "
                "row a `model` that has, or `allow_plain: true`"
            )
        shared = part(model, [name for name in model if name not in names])
        return State(shared=shared, norms=world.everyone(part(model, names)))

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(self.deployed(state, world), self.loss).models
        return State(
            shared=world.average(part(model, state.shared) for model in models),
            norms=Clients(part(model, state.norms[0]) for model in models),
        )

    def deployed(self, state: State, world: World) -> Clients:
        return world.everyone(state.shared).joined(state.norms)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        model = world.new_model()
        home = [model[name] for name in self.at_home(world, model)]
        sent = world.scalars() - sum(value.numel() for value in home if value.is_floating_point())
        return sent, sent

    def at_home(self, world: World, model: Params) -> list[str]:
        """The entries that never leave a client."""
        return [
            f"{path}.{name}"
            for path, layer in world.network(0, model).named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
            for name in layer.state_dict()
            if self.local == "all" or name not in ("weight", "bias")
        ]
