"""What servers compute from the clients' messages, as pure functions: class vectors, heads and mixtures.

A vector per class travels as State(vectors (C, d), known (C,) bool); the rows of unknown classes are zero.
"""
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine.state import Clients, Params, State, combine
from pipeline.errors import TrainingError

LEAST_SHARE = 1e-3                                            # smaller weights of heads become 0 (FedPAC's code)


# -- vectors per class ---------------------------------------------------------------------------------------

def aggregate_means(means: Tensor, weights: Tensor, previous: State | None = None) -> State:
    """vectors_c = sum_k w_kc means_kc / sum_k w_kc, summed in float64.

    means (K, C, d); weights (K, C), not negative, 0 where a client does not hold the class: `ClassMeans.present` for the
    plain mean over owners (FedProto), `ClassMeans.counts` for the mean over samples (FedCRL, Eq. 6). A class without an
    owner keeps its vector of `previous`, where it was known.
    """
    weights, total = weights.double(), weights.double().sum(0)
    known = total > 0
    mean = (weights[..., None] * means.double()).sum(0) / torch.where(known, total, 1.0)[:, None]
    mean = mean.to(means.dtype)
    if previous is None:
        return State(vectors=mean, known=known)
    return State(vectors=torch.where(known[:, None], mean, previous.vectors), known=known | previous.known)


def vectors_sent(labels: Sequence[Tensor], width: int) -> tuple[float, float]:
    """Scalars of one vector of `width` numbers per class: (those of the classes that a client holds, mean over clients;
    those of the classes that anyone holds). labels: every client's, each (n_k,)."""
    return sum(len(mine.unique()) for mine in labels) / len(labels) * width, float(len(torch.cat(list(labels)).unique()) * width)


# -- heads ---------------------------------------------------------------------------------------------------

def fit_head(head: Params, vectors: Tensor, labels: Tensor, lr: float, batch_size: int, order: Tensor) -> Params:
    """One pass of plain SGD on the cross-entropy of a linear head over labelled vectors (FedGH, Algorithm 1).

    vectors (P, d), labels (P,); `order` (P,) is their permutation. A last incomplete batch is kept; without vectors the
    head stays as it is.
    """
    weight, bias = head["head.weight"], head["head.bias"]
    for chosen in order.to(labels.device).split(batch_size):
        inputs = vectors[chosen]
        error = F.softmax(F.linear(inputs, weight, bias), dim=1) - F.one_hot(labels[chosen], len(weight))
        weight, bias = weight - lr * error.T @ inputs / len(inputs), bias - lr * error.mean(0)
    return Params({"head.weight": weight, "head.bias": bias})


def label_statistics(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """(h (C, d), V ()) of one client in float64: h_c = p_c mu_c, its class means times label shares, and V =
    (E ||f||^2 - sum_c ||h_c||^2) / n, the variance of their estimate (FedPAC, Xu et al. 2023).

    features (n, d), labels (n,). Without samples both are NaN.
    """
    features, n = features.double(), len(labels)
    h = F.one_hot(labels, classes).double().T @ features / n
    return h, ((features.pow(2).sum() / n - h.pow(2).sum()) / n).clamp(min=0)


def combine_heads(h: Tensor, spread: Tensor) -> Tensor:
    """Weights (K, K): row i is client i's combination of the K heads (FedPAC, Xu et al. 2023).

    It minimises sum_j a_j^2 V_j + ||sum_j a_j (h_i - h_j)||^2 over a >= 0, sum a = 1. h (K, C, d), spread V (K,).
    Weights below LEAST_SHARE become 0, and the rest are scaled to sum to one. A client whose statistics are not finite
    (one without data) keeps its own head and lends it to nobody. The own head alone is taken wherever it is optimal.
    """
    weights = torch.eye(len(h), dtype=torch.float64)
    usable = (h.flatten(1).isfinite().all(1) & spread.isfinite()).cpu()
    members = usable.nonzero()[:, 0]
    if len(members):
        rows = _combinations(h.detach().cpu().double().flatten(1)[usable].numpy(), spread.detach().cpu().double()[usable].numpy())
        weights[members[:, None], members[None, :]] = torch.from_numpy(rows)
    return weights


def _combinations(h: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The programs of `combine_heads` for h (K, D), spread (K,), without a solver of quadratic programs: for a fixed
    direction of x the best scale of ||M x||^2 + (1'x - 1)^2 is a monotone function of the objective, so that the
    non-negative least squares solution, scaled to sum to one, is exact."""
    near = np.linalg.qr(h.T, mode="r").T                      # the same distances between clients in at most K numbers
    rows = np.empty((len(h), len(h)))
    for i in range(len(h)):
        factor = np.vstack([np.diag(np.sqrt(spread)), (near[i] - near).T])
        scale = np.sqrt((factor ** 2).sum() / len(h)) or 1.0
        q, r = np.linalg.qr(np.vstack([factor / scale, np.ones(len(h))]))      # as many rows as unknowns are enough
        x = nnls(r, q[-1], start=i)
        x = np.where(x / x.sum() < LEAST_SHARE, 0.0, x)
        rows[i] = x / x.sum()
    return rows


def nnls(matrix: np.ndarray, target: np.ndarray, start: int | None = None) -> np.ndarray:
    """min ||matrix x - target|| over x >= 0 in float64, by the active-set method of Lawson and Hanson (1974, ch. 23).

    matrix (m, n), target (m,); `start` is the first column to enter. Raises TrainingError when it does not settle.
    """
    n = matrix.shape[1]
    x, free, refused = np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)
    enough = 10 * max(matrix.shape) * np.finfo(float).eps * np.abs(matrix).sum(0).max(initial=1.0) * np.abs(target).max(initial=0.0)
    entering = start
    for _ in range(10 * n + 10):
        if entering is None:
            slope = np.where(free | refused, -np.inf, matrix.T @ (target - matrix @ x))
            entering = int(slope.argmax())
            if slope[entering] <= enough:
                return x
        moved = _to_least_squares(matrix, target, x, free | (np.arange(n) == entering))
        if moved[entering] > 0:
            x, free, refused = moved, moved > 0, np.zeros(n, bool)
        else:
            refused[entering] = True                          # only rounding let it in: try the next one
        entering = None
    raise TrainingError(f"non-negative least squares with {n} unknowns did not settle")


def _to_least_squares(matrix: np.ndarray, target: np.ndarray, x: np.ndarray, free: np.ndarray) -> np.ndarray:
    """From x towards the least-squares solution over the free columns; each that reaches zero on the way stays there."""
    while free.any():
        wanted = np.zeros_like(x)
        wanted[free] = _least_squares(matrix[:, free], target)
        leaving = free & (wanted <= 0)
        if not leaving.any():
            return wanted
        shares = np.where(leaving, x / np.where(leaving, np.maximum(x - wanted, np.finfo(float).tiny), 1.0), np.inf)
        x = x + shares.min() * (wanted - x)
        free = free & ~(leaving & (shares <= shares.min()))
        x = np.where(free, np.maximum(x, 0), 0.0)
    return x


def _least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """By QR with pivoting: several times faster than NumPy's singular values, and sound where columns depend on each other."""
    return torch.linalg.lstsq(torch.from_numpy(matrix), torch.from_numpy(target)[:, None], driver="gelsy").solution[:, 0].numpy()


# -- mixtures ------------------------------------------------------------------------------------------------

def interpolate(models: Clients, server: Params, share: Tensor) -> Clients:
    """share_k model_k + (1 - share_k) server, one number per client for all tensors (FedCRL, Eq. 8). share (K,)."""
    return Clients(combine((mine, server), (s, 1 - s)) for mine, s in zip(models, share.tolist(), strict=True))
