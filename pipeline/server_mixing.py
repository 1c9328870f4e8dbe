"""What servers and clients do with whole models besides the weighted mean: attention, element-wise mixing."""
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pipeline.engine.state import Clients, Params, combine, weighted_mean
from pipeline.engine.world import World


def client_mean(models: Iterable[Params], world: World, uniform: bool) -> Params:
    """The scenario's mean of the clients' models, or the uniform one over the clients with data."""
    return weighted_mean(models, [n > 0 for n in world.sizes]) if uniform else world.average(models)


def mix(models: Clients, weights: Tensor) -> Clients:
    """Client i gets sum_j weights[i, j] model_j, summed in float64. weights (clients, clients), of any sign."""
    rows = weights.tolist()
    return Clients(combine(models, row) for row in rows)


def squared_distances(models: Clients, names: Iterable[str]) -> Tensor:
    """(clients, clients) float64: ||w_i - w_j||^2 over the named tensors, from differences and so never negative."""
    names = list(names)
    vectors = torch.stack([torch.cat([model[name].detach().double().flatten() for name in names]) for model in models])
    return torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist").square()


def attention_weights(squared: Tensor, alpha: float, sigma: float) -> Tensor:
    """xi_ij = alpha exp(-||w_i - w_j||^2 / sigma) / sigma and xi_ii = 1 - sum of the others, which may be negative
    (FedAMP, Huang et al. 2021, Eq. 4 and 5). squared (clients, clients) -> (clients, clients), rows sum to 1."""
    others = (alpha / sigma * torch.exp(-squared / sigma)).fill_diagonal_(0)
    return others + torch.diag(1 - others.sum(1))


def without_overshoot(weights: Tensor) -> Tensor:
    """Rows whose own weight is negative give all of it up: the others' are scaled to sum to 1. Our own guard: FedAMP's message overshoots."""
    own = weights.diagonal()
    others = weights - torch.diag(own)
    scaled = others / others.sum(1, keepdim=True).clamp(min=1)
    return scaled + torch.diag(own.clamp(min=0))


def adaptive_mix(local: Params, received: Params, weights: Mapping[str, Tensor]) -> Params:
    """local + (received - local) * weight, element-wise, for the tensors that have weights; the others as received
    (FedALA, Zhang et al. 2023, Eq. 4). Exact at weights 0 and 1; a weight may also be one number for its tensor."""
    return received.joined({name: torch.lerp(local[name], received[name], weight) for name, weight in weights.items()})
