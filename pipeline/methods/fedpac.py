"""FedPAC: features are pulled to the global class means, and each client gets its own combination of the
clients' heads (Xu, Tong, Huang 2023, Algorithm 1)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, LocalOptions, Objective, State, World
from pipeline.engine.state import mix
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedper import FedPer
from pipeline.prototypes import aggregate_means, prototype_distance, vectors_sent
from pipeline.schema import NonNegative, Optimiser, Whole

LEAST_SHARE = 1e-3  # smaller weights of heads become 0 (FedPAC's code)


@dataclass(frozen=True)
class FedPAC(FedPer):
    """Statistics of the received features, then the head alone, then the features alone with CE + lambda *
    mean over samples and dimensions of (z - Cbar_y)^2. The server averages the features and gives client i
    the heads' combination sum_j a_ij pi_j of its quadratic program.

    The first round has no global means and no pull. All clients take part in every round, so that afterwards
    each of their classes has one.
    """

    supports = frozenset()
    # the paper's
    lam: NonNegative = 1.0
    # the paper's; the features train for the round's epochs
    head_epochs: Whole = 1
    # None: the scenario's. The released code has SGD at 0.1, momentum 0.5, decay 5e-4.
    head_optimiser: Optimiser | None = None
    weighted: bool = True  # global means over samples (paper, released code); PFLlib: over owners

    def init(self, world: World) -> State:
        return State(**super().init(world), prototypes=None)

    def round(self, state: State, world: World) -> State:
        received = self.deployed(state, world)
        h, spread = self.statistics(received, world)
        head = LocalOptions("head", self.head_epochs, self.head_optimiser, "head")
        models = world.local_epochs(received, super().loss, options=head).models
        models = world.local_epochs(
            models, self.loss, server_state=state.prototypes, options=LocalOptions("features")
        ).models
        seen = world.class_means(models)
        weights = seen.counts if self.weighted else seen.present
        return State(
            features=world.average(models.features),
            heads=mix(models.heads, combine_heads(h, spread)),
            prototypes=aggregate_means(seen.means, weights, state.prototypes),
        )

    def statistics(self, models: Clients, world: World) -> tuple[Tensor, Tensor]:
        """h (K, C, d) and V (K,) of `label_statistics`."""
        statistics = [
            label_statistics(world.representations(k, model), client.labels, world.classes)
            for k, (client, model) in enumerate(zip(world.clients, models, strict=True))
        ]
        h, spread = zip(*statistics)
        return torch.stack(h), torch.stack(spread)

    def loss(self, model: Handle, batch: Batch, server_state: State | None, client_state: Any) -> Objective:
        if server_state is None or not self.lam:
            return super().loss(model, batch, server_state, client_state)
        z = model.features(batch.images)
        pull = prototype_distance(z, batch.labels, **server_state)
        return cross_entropy(model.head(z), batch.labels) + self.lam * pull

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Up go the model, class means, h and V, and a count for every mean where these are weighted."""
        up, down = vectors_sent(world, world.width)
        counts = up / world.width if self.weighted else 0.0
        return world.scalars() + 2 * up + 1 + counts, world.scalars() + down


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

    It minimises sum_j a_j^2 V_j + ||sum_j a_j (h_i - h_j)||^2 over a >= 0, sum a = 1. h (K, C, d), spread V
    (K,). Weights below LEAST_SHARE become 0, and the rest are scaled to sum to one. A client whose statistics
    are not finite (one without data) keeps its head and lends it to nobody. A client takes its head alone
    wherever that is optimal.
    """
    weights = torch.eye(len(h), dtype=torch.float64)
    usable = (h.flatten(1).isfinite().all(1) & spread.isfinite()).cpu()
    members = usable.nonzero()[:, 0]
    if len(members):
        rows = _combinations(
            h.detach().cpu().double().flatten(1)[usable].numpy(),
            spread.detach().cpu().double()[usable].numpy(),
        )
        weights[members[:, None], members[None, :]] = torch.from_numpy(rows)
    return weights


def _combinations(h: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The programs of `combine_heads` for h (K, D), spread (K,), without a solver of quadratic programs: for
    a fixed direction of x the best scale of ||M x||^2 + (1'x - 1)^2 is a monotone function of the objective,
    so that the non-negative least squares solution, scaled to sum to one, is exact. Raises TrainingError
    where SciPy's solver does not settle."""
    from scipy.optimize import nnls  # here, because a report that names the method needs none

    # The same distances between clients in at most K numbers.
    near = np.linalg.qr(h.T, mode="r").T  # type: ignore[attr-defined]    # R alone, whatever the stub says
    rows = np.eye(len(h))
    for i in range(len(h)):
        factor = np.vstack([np.diag(np.sqrt(spread)), (near[i] - near).T])
        scale = np.sqrt((factor**2).sum() / len(h)) or 1.0
        try:
            x, _ = nnls(np.vstack([factor / scale, np.ones(len(h))]), np.append(np.zeros(len(factor)), 1.0))
        except RuntimeError as error:
            raise TrainingError(f"FedPAC's weights of {len(h)} heads did not settle: {error}") from None
        x = np.where(x / x.sum() < LEAST_SHARE, 0.0, x)
        x = x / x.sum()
        if spread[i] > ((factor @ x) ** 2).sum():  # what its head alone gives
            rows[i] = x
    return rows
