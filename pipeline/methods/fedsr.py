"""FedSR: representations are Gaussian, short, and close to one Gaussian for each class (Nguyen, Torr, Lim
2022)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Batch, Handle, LocalOptions, Params, State, World
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Count, NonNegative

LEAST_SIGMA, LEAST_SCALE = 1e-8, 1e-4  # the logarithms of sigma and of the scale stay finite


@dataclass(frozen=True)
class FedSR(FedAvg):
    """CE(g(z)) + a_L2R * mean ||z|| + a_CMI * mean KL( N(s mu, (s sigma)^2) || r_y ), z = mu + sigma eps one
    draw.

    The features' last layer gives (mu, rho), sigma = softplus(rho) (network `lenet_gaussian`). The references
    r_c, a Gaussian per class, and the scale s are learned with the model, by its optimiser, and stay with the
    client, as in the released code. Predictions are the mean softmax over draws. Clients train whole epochs;
    the code takes five steps.
    """

    supports = frozenset()
    # released code
    l2r: NonNegative = 0.01
    # released code; its README's example 0.001
    cmi: NonNegative = 0.0005
    # of z in L2R; squared: the paper's
    norm: Literal["plain", "squared"] = "plain"
    # True: the references are averaged with the models; the paper argues for one r(z | y) for all.
    share_reference: bool = False
    samples: Count = 20  # draws per test image

    def init(self, world: World) -> State:
        start = super().init(world)
        image = world.clients[0].images.new_zeros(1, *world.clients[0].images.shape[1:])
        width = world.network(0, start.model).features(image).shape[1]
        if width != 2 * world.width:
            raise TrainingError(
                f"FedSR's features give a mean and a deviation, {2 * world.width} numbers for a head of "
                f"{world.width}; "
                f"{world.clients[0].model.name!r} gives {width}: set the method's `model: {{name: "
                f"lenet_gaussian}}`"
            )
        zeros = torch.zeros_like(start.model["head.weight"])
        reference = Params(mean=zeros, rho=torch.ones_like(zeros), scale=zeros.new_ones(()))
        return State(**start, references=world.everyone(reference))

    def round(self, state: State, world: World) -> State:
        options = LocalOptions(trains_state=True)
        trained = world.local_epochs(
            world.everyone(state.model), self.loss, client_state=state.references, options=options
        )
        references = trained.client_state
        if self.share_reference:
            references = world.everyone(world.average(references))
        return State(model=world.average(trained.models), references=references)

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: Params) -> Tensor:
        mu, sigma = gaussian(model, batch.images)
        z = mu + sigma * model.normal(mu)
        value = cross_entropy(model.head(z), batch.labels)
        if self.l2r:
            plain = self.norm == "plain"
            norms = torch.linalg.vector_norm(z, dim=1) if plain else z.pow(2).sum(1)
            value = value + self.l2r * norms.mean()
        if self.cmi:
            value = value + self.cmi * conditional_information(mu, sigma, batch.labels, client_state)
        return value

    def scores(self, model: Handle, images: Tensor, state: State) -> Tensor:
        """log of the mean over draws of softmax(g(z)), (B, classes)."""
        mu, sigma = gaussian(model, images)
        mu, sigma = (value.expand(self.samples, *value.shape) for value in (mu, sigma))
        logits = model.head((mu + sigma * model.normal(mu)).flatten(0, 1)).unflatten(
            0, (self.samples, len(images))
        )
        return F.log_softmax(logits, dim=2).logsumexp(0) - math.log(self.samples)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        extra = 2 * world.classes * world.width + 1 if self.share_reference else 0
        return world.scalars() + extra, world.scalars() + extra


def gaussian(model: Handle, images: Tensor) -> tuple[Tensor, Tensor]:
    """(mu, sigma), both (B, d)."""
    mu, rho = model.features(images).chunk(2, dim=1)
    return mu, F.softplus(rho) + LEAST_SIGMA


def conditional_information(mu: Tensor, sigma: Tensor, labels: Tensor, reference: Params) -> Tensor:
    """Mean over the batch of KL( N(s mu, (s sigma)^2) || N(m_y, softplus(rho_y)^2) ) (released code).

    mu, sigma (B, d); labels (B,); reference: `mean`, `rho` (C, d) and the scale s, `scale` (), of which the
    size counts.
    """
    scale = reference["scale"].abs().clamp(min=LEAST_SCALE)
    return gaussian_divergence(
        scale * mu, scale * sigma, reference["mean"][labels], F.softplus(reference["rho"][labels])
    ).mean()


def gaussian_divergence(
    mean: Tensor, deviation: Tensor, other_mean: Tensor, other_deviation: Tensor
) -> Tensor:
    """(B,): KL( N(mean, deviation^2) || N(other_mean, other_deviation^2) ), summed over dimensions; all (B,
    d). (FedSR, Nguyen et al. 2022, the conditional information term.)"""
    ratio = (deviation.pow(2) + (mean - other_mean).pow(2)) / (2 * other_deviation.pow(2))
    return (other_deviation.log() - deviation.log() + ratio - 0.5).sum(1)
