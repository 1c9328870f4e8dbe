"""FedGA: clients whose loss increases most by averaging get more weight in the next average (Zhang et al.
2023, FedDG-GA)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Clients, State, World
from pipeline.engine.state import weighted_mean
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import NonNegative


@dataclass(frozen=True)
class FedGA(FedAvg):
    """w = sum_i a_i w_i with the current a; then a_i moves by the gap g_i = loss_i(w) - loss_i(w_i), scaled
    to the largest, times step_r / M. a is uniform at first, whatever the clients' sizes.

    Gaps are measured on the clients' training data in evaluation mode, since no part of it is held out, and
    never on test data. A client without data has weight 0. MarsFL's version differs (the sign is reversed and
    the two losses are on different data) and is not followed.
    """

    supports = frozenset()
    # d of the released code
    step: NonNegative = 0.2
    # the paper's; the released code's default is the accuracy
    metric: Literal["loss", "accuracy"] = "loss"
    # step_r = d (1 - (r - 1) / R) or d (1 - r / R), r from 0
    schedule: Literal["code", "paper"] = "code"

    def init(self, world: World) -> State:
        present = self.present(world).double()
        return State(**super().init(world), weights=present / present.sum().clamp(min=1))

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(world.everyone(state.model), self.loss, server_state=state).models
        model = weighted_mean(models, state.weights.tolist())
        gaps = self.measure(world.everyone(model), world) - self.measure(models, world)
        present, weights = self.present(world), state.weights.cpu().clone()
        weights[present] = adjusted_weights(weights[present], gaps[present], self.step_size(world))
        return State(model=model, weights=weights)

    def diagnostics(self, state: State) -> dict[str, float]:
        return {"largest_weight": float(state.weights.max())}

    def step_size(self, world: World) -> float:
        passed = world.round - (2 if self.schedule == "code" else 1)
        return self.step * (1 - passed / world.training.rounds)

    def measure(self, models: Clients, world: World) -> Tensor:
        """(K,) float64: each model's mean loss, or error rate, on its client's training set; else NaN."""
        errors = []
        for k, (client, model) in enumerate(zip(world.clients, models, strict=True)):
            logits = world.outputs(k, model, client.images).double()
            wrong = (logits.argmax(1) != client.labels).double().mean()
            errors.append(F.cross_entropy(logits, client.labels) if self.metric == "loss" else wrong)
        return torch.stack(errors).cpu()

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return world.scalars() + 2, world.scalars()

    @staticmethod
    def present(world: World) -> Tensor:
        return torch.tensor([n > 0 for n in world.sizes])


def adjusted_weights(weights: Tensor, gaps: Tensor, step: float) -> Tensor:
    """clip(a_i + g_i / max_j |g_j| * step / M, 0, 1), scaled to sum to one; weights (M,), gaps (M,) of losses
    or of error rates, after minus before. Without any gap, or where every weight would be 0, they stay as
    they are."""
    largest = gaps.abs().max()
    if largest == 0:
        return weights
    moved = (weights + gaps / largest * step / len(weights)).clamp(0, 1)
    return moved / moved.sum() if moved.sum() > 0 else weights
