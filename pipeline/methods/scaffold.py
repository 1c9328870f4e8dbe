"""SCAFFOLD: local steps are corrected by how the client's gradients differ from those of all clients
(Karimireddy et al. 2020)."""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, LocalOptions, Params, State, World
from pipeline.engine.phase import has_batchnorm
from pipeline.engine.state import combine, weighted_mean, zeros
from pipeline.errors import TrainingError
from pipeline.methods._server_steps import learned, part, plain_sgd, steps_taken
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import NonNegative, Optimiser, Positive


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """y_k <- y_k - lr (g_k(y_k) - c_k + c) for K_k steps from x; c_k <- c_k - c + (x - y_k) / (K_k lr)
    (option II) or the gradient of its data at x (option I); x <- x + server_lr (sum_k p_k y_k - x);
    c <- sum_k p_k c_k, that over all clients, the absent with the c_k that they keep.

    Controls start at zero, so that sum_k p_k c_k is what c + sum_k p_k (c_k^+ - c_k) of Algorithm 1 comes to,
    without its rounding. Plain SGD alone: of no other rule is (x - y_k) / (K_k lr) a mean of gradients.
    """

    copies = 2  # y_k and c - c_k
    option: Literal["II", "I"] = "II"
    # eta_g
    server_lr: NonNegative = 1.0
    # of plain SGD; None: the scenario's optimiser
    lr: Positive | None = None

    def init(self, world: World) -> State:
        start = super().init(world)
        self.local_rule(world)  # refused before anything trains
        network = world.network(0, start.model)
        if self.option == "I" and (has_batchnorm(network) or network.dropout.p):
            raise TrainingError(
                "scaffold: option I takes one gradient of all data, which leaves open what "
                "BatchNorm and dropout do: take `option: II`"
            )
        control = zeros(learned(world, start.model))
        return State(**start, control=control, controls=world.everyone(control))

    def round(self, state: State, world: World) -> State:
        weights, rule = world.weights, self.local_rule(world)
        corrections = Clients(combine([state.control, mine], [1, -1]) for mine in state.controls)
        start = world.everyone(state.model)
        options = LocalOptions(optimiser=rule)
        models = world.local_epochs(start, self.loss, client_state=corrections, options=options).models
        controls = self.renewed(state, models, world, rule)
        mean, x = weighted_mean(models, weights), part(state.model, state.control)
        moved = combine([x, mean], [1 - self.server_lr, self.server_lr])
        everyone = world.whole.weights
        return State(model=mean.joined(moved), control=weighted_mean(controls, everyone), controls=controls)

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: Params) -> Tensor:
        """CE + <c - c_k, y>; the term's value is subtracted, so that the logged loss is the cross-entropy."""
        term = sum((client_state[name] * value).sum() for name, value in model.params.items())
        return super().loss(model, batch, server_state, client_state) + (term - term.detach())

    def renewed(self, state: State, models: Clients, world: World, rule: Optimiser) -> Clients:
        """Every client's new c_k; the old one where it took no step."""
        steps = steps_taken(world, state.model)
        if self.option == "I":
            gradients = world.each(world.everyone(state.model), self.gradient)
            return Clients(
                combine([gradient, state.model], [1, rule.weight_decay]) if k else mine
                for gradient, mine, k in zip(gradients, state.controls, steps)
            )
        scales = [1 / (k * rule.lr) if k else 0 for k in steps]
        return Clients(
            combine([mine, state.control, state.model, y], [1, -1, s, -s]) if s else mine
            for mine, y, s in zip(state.controls, models, scales)
        )

    def gradient(self, model: Handle, images: Tensor, labels: Tensor, client_state: object) -> Params:
        """Of the mean loss over a client's images, which are not augmented here."""
        loss = cast(Tensor, super().loss(model, Batch(images, labels), None, client_state))
        gradients = torch.autograd.grad(loss, list(model.params.values()), materialize_grads=True)
        return Params(zip(model.params, gradients))

    def local_rule(self, world: World) -> Optimiser:
        return plain_sgd(world, self.lr, "scaffold: its controls are means of plain SGD's gradients")

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        control = sum(value.numel() for value in learned(world, world.new_model()).values())
        return world.scalars() + control, world.scalars() + control
