"""FedRS: the logits of classes that a client does not have are scaled down in its softmax (Li & Zhan
2021)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Batch, Handle, Params, State, World
from pipeline.errors import TrainingError
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Share


@dataclass(frozen=True)
class FedRS(FedAvg):
    """CE of q_c = alpha_kc (w_c . z), in training only; alpha_kc = 1 for the client's classes, else
    alpha.

    The released classifier has no bias: it is zero from the start, and no step moves it.
    """

    supports = frozenset()
    # recommended in the paper
    alpha: Share = 0.5
    # soft: by the classes' sizes, as in the released code
    mode: Literal["hard", "soft"] = "hard"
    # True: a bias that is learned, added without the scale
    bias: bool = False

    def init(self, world: World) -> State:
        if world.network(0, model := world.new_model()).dropout.p:
            raise TrainingError(
                "FedRS makes its logits from the representation itself: its network can have no dropout"
            )
        if not self.bias and "head.bias" in model:
            model = model.joined(Params({"head.bias": torch.zeros_like(model["head.bias"])}))
        return State(model=model)

    def round(self, state: State, world: World) -> State:
        scale = restricted_scale(world.class_counts, self.alpha, self.mode)
        models = world.local_epochs(
            world.everyone(state.model), self.loss, client_state=scale.to(state.model["head.weight"])
        ).models
        return State(model=world.average(models))

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: Tensor) -> Tensor:
        return restricted_cross_entropy(
            model.features(batch.images),
            batch.labels,
            model.params["head.weight"],
            client_state,
            model.params["head.bias"] if self.bias else None,
        )

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        scalars = world.scalars() - (0 if self.bias else world.classes)
        return scalars, scalars


def restricted_scale(counts: Tensor, alpha: float, mode: Literal["hard", "soft"] = "hard") -> Tensor:
    """alpha_c (..., C) from a client's images per class, counts (..., C) (FedRS, Li & Zhan 2021).

    hard  1 for classes that the client holds, alpha for the others (paper)
    soft  alpha + (1 - alpha) n_c / max n: rare classes are damped too (released code)
    """
    largest = counts.clamp(min=1) if mode == "hard" else counts.amax(-1, keepdim=True).clamp(min=1)
    held = counts.double() / largest
    return 1 - (1 - alpha) * (1 - held)  # exactly 1 where the class is held in full


def restricted_cross_entropy(
    z: Tensor, labels: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy of the logits scale_c * (w_c . z) (+ bias_c, which is not scaled) (FedRS, Li & Zhan
    2021).

    z (B, d), labels (B,), weight (C, d), scale (C,), bias (C,).
    """
    logits = F.linear(z, weight) * scale
    return F.cross_entropy(logits if bias is None else logits + bias, labels)
