"""FedLSA: the server learns an anchor on the unit sphere for each class, and clients' representations are
pulled to it (Fu et al. 2025, Algorithm 1)."""

from dataclasses import dataclass
from itertools import repeat
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline import keys
from pipeline.engine import Batch, Handle, Objective, Params, State, World
from pipeline.losses import cross_entropy
from pipeline.methods._server_network import SMALLEST_NORM, class_vectors, descend, new_network
from pipeline.methods.fedavg import FedAvg
from pipeline.prototypes import cosine, prototype_contrast
from pipeline.schema import Count, NonNegative, Positive, Whole


@dataclass(frozen=True)
class FedLSA(FedAvg):
    """A round: the server trains A = nor(Theta(R)) with the global classifier, on CE(phi(a_i), i) + alpha *
    separation; then clients train CE(phi(h), y) + lambda * compactness, the contrast of h with the anchors at
    temperature tau; then models are averaged. h = nor(projector(z)) is the representation of the network
    `fedlsa`; with another network, the contrast normalises the representation. R and Theta persist over the
    rounds; the first round's anchors are trained with the untrained classifier.

    Read so where the text is silent or cannot be meant: tau divides inside the exponent, anchors have length
    one, both R and Theta learn. Learning rates are not stated.
    """

    supports = frozenset()
    # the paper has 0.02 or 0.4; like the next two, it depends on the data set
    alpha: NonNegative = 0.02
    # 0.1 or 0.7
    lam: NonNegative = 0.1
    # 0.1 or 0.2
    tau: Positive = 0.1
    # steps over all anchors at once
    server_epochs: Whole = 500
    server_lr: Positive = 0.01
    # width of R and Theta; None: that of the network's encoder, else of h
    inputs: Count | None = None
    # False: anchors are trained on the classifier's loss alone (Tables 4 and 5)
    separation: bool = True
    # distance: the mean of ||h - a_y|| (Tables 4 and 5).
    compactness: Literal["anchor", "distance", "none"] = "anchor"
    # outside: Eq. 4 to the letter
    temperature: Literal["inside", "outside"] = "inside"
    # False: anchors of any length
    unit: bool = True
    # before_last_step: line 17 to the letter
    sent: Literal["newest", "before_last_step"] = "newest"

    def init(self, world: World) -> State:
        start = super().init(world)
        encoded = start.model.get("features.projector.0.weight", start.model["head.weight"]).shape[1]
        generator = keys.torch_generator("server", world.seed, "anchors")
        network = new_network(
            world.classes, self.inputs or encoded, world.width, generator, start.model["head.weight"]
        )
        return State(**start, network=network, anchors=self.anchors(network))

    def round(self, state: State, world: World) -> State:
        nearly = self.train(state.network, state.model, max(self.server_epochs - 1, 0))
        network = self.train(nearly, state.model, min(self.server_epochs, 1))
        anchors = self.anchors(network if self.sent == "newest" else nearly)
        models = world.local_epochs(world.everyone(state.model), self.loss, server_state=anchors).models
        return State(model=world.average(models), network=network, anchors=anchors)

    def train(self, network: Params, model: Params, steps: int) -> Params:
        """Full-batch steps on L_ACE + alpha * L_SEP (Eq. 3 to 5); the classifier does not move."""
        weight, bias = model["head.weight"].cpu(), model["head.bias"].cpu()
        alpha = self.alpha if self.separation else 0.0
        # outside, log tau is a constant without gradient
        tau = self.tau if self.temperature == "inside" else 1.0

        def gradient(raw: Tensor, _: None) -> Tensor:
            return anchor_gradient(raw, weight, bias, alpha, tau, self.unit)

        return descend(network, gradient, repeat(None, steps), self.server_lr)

    def anchors(self, network: Params) -> Tensor:
        """A (C, L)."""
        raw = class_vectors(network)
        return F.normalize(raw, dim=1, eps=SMALLEST_NORM) if self.unit else raw

    def loss(self, model: Handle, batch: Batch, server_state: Tensor, client_state: object) -> Objective:
        if self.compactness == "none" or not self.lam:
            return super().loss(model, batch, server_state, client_state)
        h = model.features(batch.images)
        fit = cross_entropy(model.head(h), batch.labels)
        if self.compactness == "distance":
            return fit + self.lam * anchor_distance(h, batch.labels, server_state)
        likeness = cosine if self.unit else F.linear  # of h (B, L) with anchors (C, L)
        return fit + self.lam * prototype_contrast(
            h, batch.labels, server_state, self.tau, similarity=likeness
        )

    def vectors(self, state: State) -> Tensor:
        return state.anchors

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return world.scalars(), world.scalars() + world.classes * world.width


def anchor_distance(z: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
    """Mean over the batch of ||z - a_y||, the anchors held constant. z (B, d), labels (B,), anchors (C, d).
    (FedLSA's ablation without the contrast: "L2-norm to constrain intra-class representations".)"""
    return torch.linalg.vector_norm(z - anchors.detach()[labels], dim=1).mean()


def anchor_gradient(
    raw: Tensor, weight: Tensor, bias: Tensor, alpha: float, tau: float, unit: bool
) -> Tensor:
    """(C, d): d / d raw of mean_i CE(W a_i + b, i) + alpha mean_i log( 1 / (C - 1) sum_{j != i} e^{a_i . a_j
    / tau} ), where a = nor(raw) if `unit`, else raw. The head, weight (C, d) and bias (C,), is constant.
    (FedLSA, Fu et al. 2025, Eq. 3 to 5.)"""
    classes = len(raw)
    length = torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp(min=SMALLEST_NORM)
    anchors = raw / length if unit else raw
    error = F.softmax(F.linear(anchors, weight, bias), dim=1)
    error.diagonal().sub_(1)
    slope = error @ weight / classes
    if alpha:
        likeness = anchors @ anchors.T / tau
        likeness.fill_diagonal_(-torch.inf)
        nearness = F.softmax(likeness, dim=1)
        slope += (alpha / (classes * tau)) * ((nearness + nearness.T) @ anchors)
    return (slope - (slope * anchors).sum(1, keepdim=True) * anchors) / length if unit else slope
