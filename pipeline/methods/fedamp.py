"""FedAMP: clients with similar models attract each other more strongly (Huang et al. 2021, Algorithm 1)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, Params, State, World
from pipeline.engine.state import mix
from pipeline.losses import cross_entropy, squared_distance
from pipeline.methods.base import Method
from pipeline.schema import NonNegative, Positive


@dataclass(frozen=True)
class FedAMP(Method):
    """u_k = sum_j xi_kj w_j at the server; at home, from w_k, a client descends F_k + lambda / (2
    alpha) ||w - u_k||^2.

    The state holds the weights xi of the next messages (the identity before the first upload), and what they
    were before the guard: `self_weight`, the smallest xi_kk (1: clients see only themselves; below 0:
    overshoot), and `rescaled`, how many rows the guard has met so far.
    """

    headline = "post"
    alpha: Positive = 1000.0  # alpha_k; with sigma and lam from a former PFLlib command
    sigma: Positive = 0.1
    lam: NonNegative = 1.0
    # leave negative xi_kk as they are: the paper's weights, which overshoot
    raw: bool = False
    # norm: PFLlib's, whose gradient has a constant length
    penalty: Literal["squared", "norm"] = "squared"

    @property
    def copies(self) -> int:
        return 2 if self.lam else 1  # w_k and u_k

    def init(self, world: World) -> State:
        models = world.everyone(world.new_model())
        return State(
            models=models, weights=torch.eye(len(models), dtype=torch.float64), self_weight=1.0, rescaled=0
        )

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(
            state.models, self.loss, client_state=mix(state.models, state.weights)
        ).models
        weights = attention_weights(self._distances(models, world), self.alpha, self.sigma)
        diagonal = weights.diagonal()
        return State(
            models=models,
            weights=weights if self.raw else without_overshoot(weights),
            self_weight=float(diagonal.min()),
            rescaled=state.rescaled + int((diagonal < 0).sum()),
        )

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: Params) -> Tensor:
        fit = cross_entropy(model(batch.images), batch.labels)
        pull = squared_distance if self.penalty == "squared" else distance
        return fit + self.lam / (2 * self.alpha) * pull(model.params, client_state) if self.lam else fit

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


def distance(params: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """||params - anchor|| over all tensors of `params`, the anchor held constant; its gradient is zero where
    they are equal. (FedAMP's penalty in PFLlib.)"""
    return torch.linalg.vector_norm(
        torch.cat([(value - anchor[name].detach()).flatten() for name, value in params.items()])
    )


def squared_distances(models: Clients, names: Iterable[str]) -> Tensor:
    """(clients, clients) float64: ||w_i - w_j||^2 over the named tensors, never negative."""
    names = list(names)
    vectors = torch.stack(
        [torch.cat([model[name].detach().double().flatten() for name in names]) for model in models]
    )
    return torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()


def attention_weights(squared: Tensor, alpha: float, sigma: float) -> Tensor:
    """xi_ij = alpha exp(-||w_i - w_j||^2 / sigma) / sigma and xi_ii = 1 - sum of the others, which may be
    negative (FedAMP, Huang et al. 2021, Eq. 4 and 5). squared (clients, clients) -> (clients, clients), rows
    sum to 1."""
    others = (alpha / sigma * torch.exp(-squared / sigma)).fill_diagonal_(0)
    return others + torch.diag(1 - others.sum(1))


def without_overshoot(weights: Tensor) -> Tensor:
    """Rows of weights (clients, clients) whose diagonal weight is negative give all of it up: the others' are
    scaled to sum to 1. Our guard: FedAMP's message overshoots."""
    diagonal = weights.diagonal()
    others = weights - torch.diag(diagonal)
    scaled = others / others.sum(1, keepdim=True).clamp(min=1)
    return scaled + torch.diag(diagonal.clamp(min=0))
