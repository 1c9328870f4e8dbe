"""RHFL: clients learn from each other's predictions on public data, more from confident clients; the local
loss is robust to wrong labels (Fang & Ye 2022, Algorithm 1)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Batch, Handle, LocalOptions, State, World
from pipeline.losses import SMALLEST_LABEL, SMALLEST_SHARE, weighted_distillation
from pipeline.methods._collaborative import Collaborative
from pipeline.schema import NonNegative, Optimiser


@dataclass(frozen=True)
class RHFL(Collaborative):
    """L_col^k = sum_{i != k} W_i KL(softmax(Z_i) || softmax(Z_k)); at home alpha CE + beta RCE.

    W is set once a round from the private losses at the round's start and at the last one's. It sums to 1
    over all clients, the client itself included, while the first round has 1 / (K - 1) each, as published.
    As in the code, losses are measured in training mode, which moves the running statistics of BatchNorm. A
    client without data has a constant loss. `reweighted: false` is HFL, with 1 / (K - 1) in every
    round.

    Pretraining, where a scenario has it, is the engine's and on plain cross-entropy (RHFL's was on SL).
    """

    alpha: NonNegative = 0.1
    beta: NonNegative = 1.0
    eta: NonNegative = 0.5  # `beta` in RHFL's code
    reweighted: bool = True
    guarded: bool = False  # uniform W where the losses rise in total, which would reverse its order

    def init(self, world: World) -> State:
        return State(**super().init(world), losses=None, weights=None)

    def before_round(self, state: State, world: World) -> State:
        others = max(len(world.clients) - 1, 1)
        uniform = torch.full((len(world.clients),), 1 / others, dtype=torch.float64)
        if not self.reweighted:
            return State({**state, "weights": uniform})
        measure = Optimiser("sgd", 0.0)  # at rate 0 a pass changes only BatchNorm's running statistics
        options = LocalOptions("head", 1, measure, "confidence")
        trained = world.local_epochs(state.models, self.loss, options=options)
        losses = torch.tensor(trained.losses, dtype=torch.float64)
        known = state.losses is not None and len(losses) > 1
        weights = confidence_weights(state.losses.cpu(), losses, self.eta, self.guarded) if known else uniform
        return State(models=trained.models, losses=losses, weights=weights)

    def aggregate(self, outputs: list[Tensor], state: State, world: World) -> list[dict[str, Tensor] | None]:
        if len(outputs) == 1:
            return [None]
        answers, others = torch.stack(outputs), 1 - torch.eye(len(outputs), dtype=torch.float64)
        return [{"answers": answers, "weights": (state.weights.cpu() * row).to(answers)} for row in others]

    def distillation_loss(self, output: Tensor, received: dict[str, Tensor], client_state: object) -> Tensor:
        return weighted_distillation(output, received["answers"], received["weights"])

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: object) -> Tensor:
        return symmetric_cross_entropy(model(batch.images), batch.labels, self.alpha, self.beta)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """A client receives the predictions of all others; if the server sends their weighted mean instead,
        which has the same gradient, as many numbers as it sends."""
        up, down = super().traffic(world)
        return up + float(self.reweighted), down + (len(world.clients) - 2) * self.logits(world)


def reverse_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-mean_b sum_c p_bc log(onehot_bc), p cut to [1e-7, 1] and the label to [1e-4, 1]; the gradient flows
    through p (Wang et al. 2019). logits (B, C), labels (B,)."""
    others = torch.arange(logits.shape[1], device=labels.device) != labels[:, None]
    shares = F.softmax(logits, dim=1).clamp(SMALLEST_SHARE, 1.0)
    return -math.log(SMALLEST_LABEL) * torch.where(others, shares, 0.0).sum(1).mean()


def symmetric_cross_entropy(logits: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
    """alpha CE + beta RCE (SL of RHFL, Fang & Ye 2022). logits (B, C), labels (B,)."""
    return alpha * F.cross_entropy(logits, labels) + beta * reverse_cross_entropy(logits, labels)


def confidence_weights(previous: Tensor, current: Tensor, eta: float, guarded: bool = False) -> Tensor:
    """W (K,): softmax over the clients of 1 / (K - 1) + eta F_k / sum_j F_j with F_k = (L_k^prev - L_k) / L_k
    (RHFL's client confidence re-weighting).

    previous, current (K,): the clients' mean private losses; NaN (no data) counts as an unchanged loss. A sum
    of F that is not positive reverses the order, as the formula has it unless `guarded` makes W
    uniform. For a sum of 0, W is uniform in any case.
    """
    gain = (previous - current) / current
    gain = torch.where(gain.isfinite(), gain, 0.0)
    total = gain.sum()
    usable = total > 0 if guarded else total != 0
    share = torch.where(usable, gain / torch.where(usable, total, 1.0), 1 / len(gain))
    return F.softmax(1 / (len(gain) - 1) + eta * share, dim=0)
