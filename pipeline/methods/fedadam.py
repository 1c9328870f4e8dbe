"""FedAdam, FedYogi, FedAdagrad: FedAvg in which the server updates the model with an adaptive optimiser
(Reddi et al. 2021, Algorithm 2)."""

from dataclasses import dataclass
from math import sqrt
from typing import Literal

from torch import Tensor

from pipeline.engine import State, World
from pipeline.engine.state import combine, entries, weighted_mean, zeros
from pipeline.methods._server_steps import Decay, learned, part, shares
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import NonNegative, Positive


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """m <- beta1 m + (1 - beta1) Delta with Delta = sum_k p_k y_k - x; v <- beta2 v + (1 - beta2) Delta^2;
    x <- x + server_lr m / (sqrt(v) + tau), entry by entry. Yogi and Adagrad have another v.

    An entry moves by about server_lr however large Delta is, so tune it. Running statistics are averaged.
    """

    beta1: Decay = 0.9  # the paper has 0 with adagrad
    beta2: Decay = 0.99
    tau: Positive = 0.001
    server_lr: Positive = 0.01
    v0: NonNegative | None = None  # v at first; None: tau^2
    second: Literal["adam", "yogi", "adagrad"] = "adam"
    bias_correction: bool = False

    def __post_init__(self) -> None:
        if self.bias_correction and self.second == "adagrad":
            raise ValueError("'bias_correction' is for adam and yogi: adagrad's v is a sum")

    def init(self, world: World) -> State:
        start = super().init(world)
        m, v0 = zeros(learned(world, start.model)), self.tau**2 if self.v0 is None else self.v0
        return State(**start, m=m, v=entries(lambda value: value + v0, m), steps=0)

    def round(self, state: State, world: World) -> State:
        weights = world.weights
        models = world.local_epochs(world.everyone(state.model), self.loss).models
        x, t = part(state.model, state.m), state.steps + 1
        change = combine([x, *models], [-1, *shares(weights)])
        m = combine([state.m, change], [self.beta1, 1 - self.beta1])
        v = entries(lambda value, moved: self.spread(value, moved.square()), state.v, change)
        corrected = sqrt(1 - self.beta2**t) / (1 - self.beta1**t) if self.bias_correction else 1
        step = entries(lambda m, v: m / (v.double().sqrt() + self.tau).to(m.dtype), m, v)
        model = weighted_mean(models, weights).joined(combine([x, step], [1, self.server_lr * corrected]))
        return State(model=model, m=m, v=v, steps=t)

    def spread(self, v: Tensor, square: Tensor) -> Tensor:
        """v after a change of this square."""
        match self.second:
            case "adam":
                return self.beta2 * v + (1 - self.beta2) * square
            case "yogi":
                return v - (1 - self.beta2) * square * (v - square).sign()
            case "adagrad":
                return v + square
