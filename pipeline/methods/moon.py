"""MOON: FedAvg with a contrastive loss that pulls representations to the global model's and away from
those of the client's previous model (Li, He, Song 2021, Eq. 3 and Algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Batch, Handle, Objective, Params, State, World
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Count, NonNegative, Positive


@dataclass(frozen=True)
class Moon(FedAvg):
    """CE + mu * model contrast; z is the input of the last linear layer, no extra projection head.

    The first round has no previous model and is a FedAvg round, as in the released code.
    """

    mu: NonNegative = 5.0  # released example for CIFAR-10; 1 elsewhere
    tau: Positive = 0.5
    buffer: Count = 1  # how many of a client's previous models are negatives

    @property
    def copies(self) -> int:
        return 2 + self.buffer if self.mu else 1

    def init(self, world: World) -> State:
        return State(**super().init(world), previous=State())

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(
            world.everyone(state.model), self.loss, server_state=state.model, client_state=state.previous
        ).models
        held = world.renewed(state.previous["0"], models) if state.previous else models
        previous = [held, *state.previous.values()][: self.buffer]
        return State(
            model=world.average(models), previous=State((str(age), last) for age, last in enumerate(previous))
        )

    def loss(
        self, model: Handle, batch: Batch, server_state: Params, client_state: dict[str, Params]
    ) -> Objective:
        if not client_state or not self.mu:
            return super().loss(model, batch, server_state, client_state)
        z = model.features(batch.images)
        near, *far = (
            model.other(params).features(batch.images) for params in (server_state, *client_state.values())
        )
        return cross_entropy(model.head(z), batch.labels) + self.mu * model_contrast(z, near, far, self.tau)


def model_contrast(z: Tensor, positive: Tensor, negatives: Sequence[Tensor], tau: float) -> Tensor:
    """Mean over the batch of -log softmax of cos(z, .) / tau at the positive (MOON, Li et al. 2021, Eq. 3).

    z, positive and each of the negatives (B, d); z carries the gradient. Without negatives it is 0.
    """
    similarities = torch.stack(
        [F.cosine_similarity(z, other.detach(), dim=1) for other in (positive, *negatives)], dim=1
    )
    return -F.log_softmax(similarities / tau, dim=1)[:, 0].mean()
