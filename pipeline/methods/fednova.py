"""FedNova: the change of each client's model is divided by its number of local steps, so that clients with
more steps do not count more (Wang et al. 2020)."""

from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor

from pipeline.engine import Batch, Handle, LocalOptions, Params, State, World
from pipeline.engine.state import combine, weighted_mean, zeros
from pipeline.errors import TrainingError
from pipeline.losses import squared_distance
from pipeline.methods._server_steps import Decay, learned, plain_sgd, shares, steps_taken
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import NonNegative, Optimiser, Positive


@dataclass(frozen=True)
class FedNova(FedAvg):
    """x <- x + tau_eff sum_k p_k (y_k - x) / |a_k|.

    |a_k| is the sum of the weights that the local optimiser gives to its gradients; it is tau_k for tau_k
    steps of plain SGD. If all |a_k| are equal, this is FedAvg.

    Only SGD is allowed, because the change by Adam is no weighted sum of gradients. Running statistics are
    averaged.
    """

    # sum_k p_k |a_k|, or sum_k p_k tau_k
    tau_eff: Literal["normaliser", "steps"] = "normaliser"
    # of FedProx's pull at home
    mu: NonNegative = 0.0
    server_momentum: Decay = 0.0
    lr: Positive | None = None  # of plain SGD; None: the scenario's optimiser

    @property
    def copies(self) -> int:
        return 2 if self.mu else 1

    def init(self, world: World) -> State:
        start = super().init(world)
        self.lengths(world, start.model)  # refused before anything trains
        return State(**start, change=zeros(learned(world, start.model)))

    def round(self, state: State, world: World) -> State:
        weights, rule = world.weights, self.local_rule(world)
        start = world.everyone(state.model)
        options = LocalOptions(optimiser=rule)
        models = world.local_epochs(start, self.loss, server_state=state.model, options=options).models
        p, lengths = shares(weights), self.lengths(world, state.model)
        gone = lengths if self.tau_eff == "normaliser" else steps_taken(world, state.model)
        tau_eff = sum(share * far for share, far in zip(p, gone))
        scales = [tau_eff * share / length if share else 0.0 for share, length in zip(p, lengths)]
        x = learned(world, state.model)
        moved = combine([x, *models, state.change], [1 - sum(scales), *scales, self.server_momentum])
        return State(model=weighted_mean(models, weights).joined(moved), change=combine([moved, x], [1, -1]))

    def loss(self, model: Handle, batch: Batch, server_state: Params, client_state: object) -> Tensor:
        fit = cast(Tensor, super().loss(model, batch, server_state, client_state))
        return fit + self.mu / 2 * squared_distance(model.params, server_state) if self.mu else fit

    def local_rule(self, world: World) -> Optimiser:
        return plain_sgd(world, self.lr, "fednova: it needs sgd, which sums gradients", momentum=True)

    def lengths(self, world: World, model: Params) -> list[float]:
        """|a_k| of every client; 0 if it takes no step."""
        rule, steps = self.local_rule(world), steps_taken(world, model)
        lengths = [normaliser(k, rule.momentum, rule.lr * self.mu) for k in steps]
        if any(k and length <= 0 for k, length in zip(steps, lengths)):
            raise TrainingError(
                f"fednova: mu {self.mu:g} at rate {rule.lr:g} makes local steps diverge: lower mu"
            )
        return lengths


def normaliser(steps: int, momentum: float, pull: float) -> float:
    """|a|: how far SGD with a new momentum buffer and a pull of lr mu goes in `steps` steps of gradient 1.

    The unit is lr. One recurrence replaces the paper's closed forms. With momentum and pull together, the
    released code counts a step twice.
    """
    buffer = length = 0.0
    for _ in range(steps):
        buffer = momentum * buffer + 1 - pull * length
        length += buffer
    return length
