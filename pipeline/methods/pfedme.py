"""pFedMe: personal models with a quadratic penalty on the distance to the client's copy of the global
model (T. Dinh et al. 2020, Algorithm 1)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, Logged, Params, State, World
from pipeline.engine.state import combine, entries
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import Count, NonNegative, Positive


@dataclass(frozen=True)
class PFedMe(FedAvg):
    """Per batch: theta descends f + (lambda / 2) ||theta - w_k||^2 for K steps on that batch, then
    w_k <- w_k - lr lambda (w_k - theta). Only w_k travels. Stable while inner_lr (lambda + L) < 2 and lr
    lambda < 1.

    After training theta is scored, before it the global w. Both levels take plain gradient steps.
    """

    headline = "post"
    # theta and w_k
    copies = 2
    # released code, as are inner_steps and beta
    lam: NonNegative = 15.0
    # K
    inner_steps: Count = 5
    # PFLlib's; the released code has 0.09 and, tuned, 0.1 to 0.01
    inner_lr: Positive = 0.01
    # eta of the step on w_k; the released code's tuned value
    lr: NonNegative = 0.01
    # w <- (1 - beta) w + beta mean(w_k); up to 2 in the released code
    beta: NonNegative = 1.0
    # a batch's theta: the last batch's (all public codes), or w_k
    start: Literal["warm", "reset"] = "warm"
    # of theta: 0.001 in the released code, not in the paper
    decay: NonNegative = 0.0
    # the paper's mean over clients; False: weighted by samples, as the released code
    uniform: bool = False

    def init(self, world: World) -> State:
        return State(**super().init(world), personal=None)

    def round(self, state: State, world: World) -> State:
        received = world.everyone(state.model)
        trained = world.local_steps(received, self.step, client_state=received)
        mean = world.average(trained.models, self.uniform)
        personal = trained.client_state
        if state.personal is not None:
            personal = world.renewed(state.personal, personal)
        return State(model=combine([state.model, mean], [1 - self.beta, self.beta]), personal=personal)

    def after_training(self, state: State, trained: Clients | None) -> Clients | None:
        """theta; w_k is what a client sends."""
        return state.personal

    def adapted(self, state: State, world: World) -> Clients:
        """theta after one round."""
        received = world.everyone(state.model)
        return world.local_steps(received, self.step, client_state=received).client_state

    def step(
        self, model: Handle, batches: list[Batch], server_state: object, theta: Params
    ) -> tuple[Params, Params, Logged]:
        """w_k and theta after one batch; the loss of the theta before the batch."""
        w = model.params
        inner = Params((name, (theta if self.start == "warm" else w)[name]) for name in w)
        losses = []
        for _ in range(self.inner_steps):
            gradient, loss = model.at(inner).gradient_and_loss(self.plain_loss, batches[0])
            losses.append(loss)
            inner = entries(self.descended, inner, gradient, w)
        rate = self.lr * self.lam
        outer = entries(lambda value, mine: torch.sub(value, value - mine, alpha=rate), w, inner)
        return outer, theta.joined(inner), {"loss": losses[0]}

    def descended(self, theta: Tensor, gradient: Tensor, w: Tensor) -> Tensor:
        """theta - inner_lr (gradient + lam (theta - w) + decay theta), in the gradient's memory: few
        passes over it, and its format, which a convolution of one channel needs to be fast."""
        pull = gradient.add_(theta - w, alpha=self.lam)
        pull = pull.add_(theta, alpha=self.decay) if self.decay else pull
        return pull.mul_(-self.inner_lr).add_(theta)
