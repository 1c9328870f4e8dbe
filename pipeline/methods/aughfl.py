"""AugHFL: clients learn from each other's predictions; those whose predictions change least under
augmentation count more (Fang, Ye, Yang 2023)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.data.augmentations import augmix, plain
from pipeline.engine import Batch, Clients, Handle, PublicBatch, State, World
from pipeline.losses import consistent_cross_entropy, knowledge_distillation, total, weighted_distillation
from pipeline.methods._collaborative import Collaborative, averaged
from pipeline.schema import NonNegative

# kappa of a client whose views agree to the last digit
SMALLEST_SPREAD = 1e-12
# added to the sum of all 1 / kappa, as released
SMALLEST_SUM = 1e-7
# of the released collaborative loss
CLAMP = (1e-7, 1.0)


@dataclass(frozen=True)
class AugHFL(Collaborative):
    """Collaborative: sum_{i != k} w_i KL(p_i || p_k) on the clean public view, where w_i falls with the
    divergence between client i's predictions on it and on two AugMix versions that it draws. Local: CE + mu
    JSD over the plain view and two AugMix versions of it.

    The weights sum to one over all clients, the client itself included, and are not scaled again without it,
    as released. Read as RAHFL's tables need it: nine operations that no corruption of the benchmark uses (the
    code takes all thirteen), one normalisation, clean public images, and the loss that the code means.
    `released_bug` has the released one: it cuts the student's *log*-probabilities to [1e-7, 1], where none
    lies, so that no gradient is left and only BatchNorm's statistics move.
    """

    mu: NonNegative = 12.0
    operations: Literal["nine", "all"] = "nine"
    released_bug: bool = False

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"public data", "images"})

    def public_batches(self, state: State, world: World) -> Iterable[PublicBatch]:
        return world.public_batches(views=self.mixed)

    def client_output(
        self, model: Handle, images: tuple[Tensor, ...], client_state: object
    ) -> dict[str, Tensor]:
        clean, *mixed = model(torch.cat(images)).split(len(images[0]))
        return {"logits": clean, "kappa": total(knowledge_distillation(z, clean) for z in mixed)}

    def aggregate(self, outputs: list[dict[str, Tensor]], state: State, world: World) -> list:
        weights = firmness_weights(torch.stack([output["kappa"] for output in outputs]))
        logits, count = torch.stack([output["logits"] for output in outputs]), range(len(outputs))
        others = [[i for i in count if i != k] for k in count]
        return [{"logits": logits[rest], "weights": weights[rest]} if rest else None for rest in others]

    def distillation_loss(
        self, output: dict[str, Tensor], received: dict[str, Tensor], client_state: object
    ) -> Tensor:
        if self.released_bug:
            return released_loss(output["logits"], received["logits"], received["weights"])
        return weighted_distillation(output["logits"], received["logits"], received["weights"])

    def local_training(self, models: Clients, state: State, world: World) -> Clients:
        options = self.local_options(world)
        return world.local_epochs(models, self.loss, views=self.views, options=options).models

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: object) -> Tensor:
        return consistent_cross_entropy(model(torch.cat([batch.images, *batch.views])), batch.labels, self.mu)

    def mixed(self, pixels: Tensor, numbers: torch.Generator) -> tuple[Tensor, Tensor]:
        """Two AugMix versions."""
        mix = partial(augmix, operations=self.operations)
        return mix(pixels, numbers), mix(pixels, numbers)

    def views(self, pixels: Tensor, numbers: torch.Generator) -> tuple[Tensor, ...]:
        x = plain(pixels, numbers)
        return x, *self.mixed(x, numbers)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        logits, weights = self.logits(world), len(self.batch_sizes(world))
        return logits + weights + averaged(world), (len(world.clients) - 1) * logits + averaged(world)


def firmness_weights(kappa: Tensor) -> Tensor:
    """w (K,) = (1 / kappa_i) / sum_j 1 / kappa_j. kappa (K,) >= 0: KL(clean || AugMix), summed over both
    versions (AugHFL, Fang et al. 2023)."""
    firmness = 1 / (kappa.clamp(min=0) + SMALLEST_SPREAD)
    return firmness / (firmness.sum() + SMALLEST_SUM)


def released_loss(student: Tensor, teachers: Tensor, weights: Tensor) -> Tensor:
    """The released collaborative loss, without gradient. student (B, C), teachers (m, B, C), weights (m,)."""
    log_q = F.log_softmax(student, dim=1).clamp(*CLAMP)
    targets = F.softmax(teachers, dim=-1).clamp(*CLAMP)
    return total(
        weight * F.kl_div(log_q, target, reduction="batchmean")
        for weight, target in zip(weights, targets, strict=True)
    )
