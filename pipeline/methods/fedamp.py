"""FedAMP: clients with like models attract each other more (Huang et al. 2021, Algorithm 1)."""
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params, State
from pipeline.engine.world import World
from pipeline.losses import distance, squared_distance
from pipeline.methods.base import Method
from pipeline.params import NonNegative, Positive
from pipeline.server_mixing import attention_weights, mix, squared_distances, without_overshoot


@dataclass(frozen=True)
class FedAMP(Method):
    """u_k = sum_j xi_kj w_j at the server; at home, from its own w_k, a client descends F_k + lambda / (2 alpha) ||w - u_k||^2.

    The state holds the weights xi of the next messages (the identity before the first upload), and what they were before
    the guard: `self_weight`, the smallest xi_kk (1: clients see only themselves; below 0: overshoot), and `rescaled`,
    how many rows the guard has met so far.
    """
    headline = "post"
    alpha: Positive = 1000.0              # alpha_k; with sigma and lam from a former PFLlib command
    sigma: Positive = 0.1
    lam: NonNegative = 1.0
    raw: bool = False                     # leave negative xi_kk as they are: the paper's weights, which overshoot
    penalty: Literal["squared", "norm"] = "squared"    # norm: PFLlib's, whose gradient has a constant length

    def init(self, world: World) -> State:
        models = world.everyone(world.new_model())
        return State(models=models, weights=torch.eye(len(models), dtype=torch.float64), self_weight=1.0, rescaled=0)

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(state.models, self.loss, own=mix(state.models, state.weights)).models
        weights = attention_weights(self._distances(models, world), self.alpha, self.sigma)
        own = weights.diagonal()
        return State(models=models, weights=weights if self.raw else without_overshoot(weights),
                     self_weight=float(own.min()), rescaled=state.rescaled + int((own < 0).sum()))

    def loss(self, model: Handle, batch: Batch, shared: object, own: Params) -> Tensor:
        fit = super().loss(model, batch, shared, own)
        pull = squared_distance if self.penalty == "squared" else distance
        return fit + self.lam / (2 * self.alpha) * pull(model.params, own) if self.lam else fit

    def deployed(self, state: State, world: World) -> Clients:
        return state.models

    def diagnostics(self, state: State) -> dict[str, float]:
        return {"self_weight": state.self_weight, "rescaled": state.rescaled}

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return world.scalars(), world.scalars()

    @staticmethod
    def _distances(models: Clients, world: World) -> Tensor:
        """Without buffers; a client without data is infinitely far from all, so that it changes nothing."""
        squared = squared_distances(models, dict(world.network(0, models[0]).named_parameters())).cpu()
        empty = torch.tensor([n == 0 for n in world.sizes])
        return squared.masked_fill(empty[:, None] | empty[None, :], torch.inf)
