"""FedDyn: a penalty that changes with each client makes the local optima agree with the global one (Acar
et al. 2021, Algorithm 1)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, State, World
from pipeline.engine.state import combine, weighted_mean, zeros
from pipeline.errors import warn
from pipeline.losses import squared_distance
from pipeline.methods._server_steps import learned, part
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Positive


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """y_k descends CE - <g_k, y> + alpha_k / 2 ||y - x||^2; g_k <- g_k - alpha_k (y_k - x);
    x <- mean_k y_k - mean_k g_k / alpha_k.

    In the units of the released code, v_k = -g_k / alpha_k: a pull to x - v_k; v_k <- v_k + y_k - x;
    x <- mean_k y_k + mean_k v_k. Means are uniform; alpha_k = alpha mean_j(n_j) / n_k has them minimise the
    loss of all samples; where the scenario averages uniformly it is alpha. The mean of the v_k is over all
    clients, that of the y_k over those who take part. Running statistics are averaged.
    """

    # y_k and the centre of its pull
    copies = 2
    # released; the paper tunes it over 0.1, 0.01 and 0.001
    alpha: Positive = 0.01
    # x, or mean_k y_k
    scored: Literal["sent", "mean"] = "sent"

    def init(self, world: World) -> State:
        start, local = super().init(world), world.training.optimiser
        reach = local.lr * max(self.alphas(world.weights))
        if local.name == "sgd" and reach >= 1:
            warn(f"feddyn: lr alpha_k is {reach:.3g} at the smallest client, so steps overshoot: lower alpha")
        drift = zeros(learned(world, start.model))
        return State(**start, mean=start.model, drifts=world.everyone(drift))

    def round(self, state: State, world: World) -> State:
        weights = world.weights
        x, steps = part(state.model, state.drifts[0]), [weight > 0 for weight in weights]
        centres = Clients(combine([x, drift], [1, -1]) for drift in state.drifts)
        everyone = world.whole.weights
        kind = next(iter(x.values())).dtype
        alphas = torch.tensor(self.alphas(everyone), dtype=kind, device=world.device)
        client_state = State(centre=centres, alpha=alphas)
        models = world.local_epochs(world.everyone(state.model), self.loss, client_state=client_state).models
        drifts = Clients(
            combine([drift, y, x], [1, 1, -1]) if step else drift
            for drift, y, step in zip(state.drifts, models, steps)
        )
        mean = weighted_mean(models, weights).joined(weighted_mean((part(y, x) for y in models), steps))
        moved = combine([weighted_mean(drifts, [weight > 0 for weight in everyone]), mean], [1, 1])
        return State(model=mean.joined(moved), mean=mean, drifts=drifts)

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: State) -> Tensor:
        """CE and the pull; its value is subtracted, so that the logged loss is the cross-entropy."""
        term = client_state["alpha"] / 2 * squared_distance(model.params, client_state["centre"])
        return super().loss(model, batch, server_state, client_state) + (term - term.detach())

    def deployed(self, state: State, world: World) -> Clients:
        return world.everyone(state.model if self.scored == "sent" else state.mean)

    def diagnostics(self, state: State) -> dict[str, float]:
        """How far x lies from the mean of the clients' models."""
        gaps = combine([part(state.model, state.drifts[0]), state.mean], [1, -1])
        return {"shift": sum(float(gap.double().square().sum()) for gap in gaps.values()) ** 0.5}

    def alphas(self, weights: list[int]) -> list[float]:
        """alpha_k; 0 for a client that takes no step."""
        mean = sum(weights) / max(1, sum(weight > 0 for weight in weights))
        return [self.alpha * mean / weight if weight else 0.0 for weight in weights]
