"""FedAvgM: FedAvg with momentum at the server (Hsu, Qi & Brown 2019)."""

from dataclasses import dataclass

from pipeline.engine import State, World
from pipeline.engine.state import combine, weighted_mean, zeros
from pipeline.methods._server_steps import Decay, learned, part, shares
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Positive


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """m <- beta m + Delta with Delta = sum_k p_k y_k - x; x <- x + server_lr m (`nesterov`: Delta + beta m).

    With beta 0 and server_lr 1 it is FedAvg, bit for bit. Running statistics are averaged.
    """

    beta: Decay = 0.9
    server_lr: Positive = 1.0
    nesterov: bool = False

    def init(self, world: World) -> State:
        start = super().init(world)
        return State(**start, m=zeros(learned(world, start.model)))

    def round(self, state: State, world: World) -> State:
        weights = world.weights
        models = world.local_epochs(world.everyone(state.model), self.loss).models
        p, x, beta = shares(weights), part(state.model, state.m), self.beta
        new, old = (1 + beta, beta**2) if self.nesterov else (1, beta)  # the step is new Delta + old m
        step = self.server_lr * new
        moved = combine([x, *models, state.m], [1 - step, *(step * s for s in p), self.server_lr * old])
        m = combine([state.m, *models, x], [beta, *p, -1])
        return State(model=weighted_mean(models, weights).joined(moved), m=m)
