"""KT-pFL: the server learns a matrix of coefficients that says how much each client learns from each
other's predictions (Zhang et al. 2021, Eq. 5 to 8)."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Clients, Handle, Params, State, World
from pipeline.methods._collaborative import Collaborative
from pipeline.schema import NonNegative, Positive

# of a probability whose logarithm is taken
LEAST = 1e-12
# the mean change of a row that the released code aims at
ENOUGH = 0.01
# of the softmax that it puts over a row
SHARPNESS = 5.0


@dataclass(frozen=True)
class KTpFL(Collaborative):
    """Predict on the public images, move the coefficients c (K, K), learn from t_k = sum_m c_km P_m, then at
    home.

    The predictions P_k = softmax(Z_k / tau) are those of the models that the round begins with, in evaluation
    mode, and stay the same through the distillation. They are made on this round's public batches: the fixed
    public set, augmented as the scenario says. The distillation takes a new optimiser for every batch, as
    RAHFL's other baselines do.

    `update`: `paper`, one gradient step on lam KL + rho ||c - 1/K||^2, then cut at 0 and rows scaled to sum
    to one, which the paper leaves open; `code`, the released mean squared error with another step size and a
    softmax over each row.
    """

    update: Literal["paper", "code"] = "paper"
    eta: Positive = 0.1  # step of c (eta_3); like lam it is not stated: our choice
    lam: NonNegative = 1.0
    # penalty_ratio of the released configurations
    rho: NonNegative = 0.7
    # released: 10
    tau: Positive = 1.0
    # mean: over all elements, the released code's
    reduction: Literal["batchmean", "mean"] = "batchmean"

    def init(self, world: World) -> State:
        n = len(world.clients)
        return State(**super().init(world), coefficients=torch.full((n, n), 1 / n, dtype=torch.float64))

    def before_round(self, state: State, world: World) -> State:
        # .cpu(), because a checkpoint is loaded onto the GPU.
        predictions, c = self.predictions(state.models, world), state.coefficients.cpu()
        if self.update == "code":
            moved = released_coefficients(c, predictions, self.rho)
        else:
            moved = onto_rows(stepped_coefficients(c, predictions, self.eta, self.lam, self.rho))
        return State({**state, "coefficients": moved})

    def predictions(self, models: Clients, world: World) -> Tensor:
        """P (K, n, C) in float64 on the CPU."""
        batches = [batch.images for batch in world.public_batches()]
        logits = [
            torch.cat([world.outputs(k, model, images) for images in batches])
            for k, model in enumerate(models)
        ]
        return torch.stack([self.soft(z).cpu().double() for z in logits])

    def soft(self, logits: Tensor) -> Tensor:
        return F.softmax(logits / self.tau, dim=1)

    def client_state(self, state: State, world: World) -> Clients:
        return state.models

    def client_output(self, model: Handle, images: Tensor, client_state: Params) -> dict[str, Tensor]:
        return {"sent": self.soft(model.other(client_state)(images)), "logits": model(images)}

    def aggregate(self, outputs: list[dict[str, Tensor]], state: State, world: World) -> list[Tensor]:
        sent = torch.stack([output["sent"] for output in outputs])
        return list(torch.einsum("km,mbc->kbc", state.coefficients.to(sent), sent))

    def distillation_loss(self, output: dict[str, Tensor], received: Tensor, client_state: object) -> Tensor:
        logits = output["logits"]
        value = F.kl_div(F.log_softmax(logits / self.tau, dim=1), received, reduction="batchmean")
        return value / logits.shape[1] if self.reduction == "mean" else value


def gradient(c: Tensor, predictions: Tensor) -> Tensor:
    """(K, K): the gradient in c (K, K) of sum_k KL(t_k || P_k), mean over images, with t_k = sum_m c_km P_m
    and constant predictions P (K, n, C): (1/n) sum_x sum_y P_m (log t_k + 1 - log P_k)."""
    targets, logs = torch.einsum("km,mnc->knc", c, predictions), predictions.clamp(min=LEAST).log()
    slopes = targets.clamp(min=LEAST).log() + 1 - logs
    return torch.einsum("knc,mnc->km", slopes, predictions) / predictions.shape[1]


def stepped_coefficients(c: Tensor, predictions: Tensor, eta: float, lam: float, rho: float) -> Tensor:
    """c - eta lam d objective / d c - 2 eta rho (c - 1/K) (KT-pFL Eq. 8 in its plain form). c (K, K),
    predictions (K, n, C). Rows need not sum to one."""
    return c - eta * lam * gradient(c, predictions) - 2 * eta * rho * (c - 1 / len(c))


def onto_rows(c: Tensor) -> Tensor:
    """Negative entries at 0, every row scaled to sum to one; a row without a positive entry becomes
    uniform. c (K, K). Our choice: targets are distributions again."""
    cut = c.clamp(min=0)
    total = cut.sum(1, keepdim=True)
    return torch.where(total > 0, cut / torch.where(total > 0, total, 1.0), 1 / len(c))


def released_coefficients(c: Tensor, predictions: Tensor, rho: float) -> Tensor:
    """The released code's update: each row descends MSE(P_k, sum_m c_km P_m) + rho MSE(c_k, 1/K), both means
    over elements, by a step whose size is tuned five times so that entries move by about `ENOUGH`; then c_k
    <- softmax(5 c_k). c (K, K), predictions (K, n, C)."""
    flat, moved = predictions.flatten(1), []
    for k, row in enumerate(c):
        slope = 2 * flat @ (row @ flat - flat[k]) / flat.shape[1] + 2 * rho * (row - 1 / len(c)) / len(c)
        step, size = 1.0, slope.abs().mean().item()
        for _ in range(5):
            if size > ENOUGH:
                step, size = step / 5, size / 5
            if size < ENOUGH:  # in the same pass, as released
                step, size = step * 5, size * 5
        moved.append(row - step * slope)
    return F.softmax(SHARPNESS * torch.stack(moved), dim=1)
