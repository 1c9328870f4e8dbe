"""Base of the methods that distil on public data (FCCL+, Algorithm 1; RAHFL, Sec. 3.3)."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.engine import Clients, Handle, LocalOptions, PublicBatch, State, World
from pipeline.methods.base import Method
from pipeline.schema import Optimiser

PUBLIC_DECAY = 1e-5  # of the SGD in FCCL+'s code (FedDF) and in MarsFL (FedMD)


@dataclass(frozen=True)
class Collaborative(Method):
    """A round: distil on public images, [average the models,] train on private ones. Every client keeps its
    network.

        before_round   once, before the batches: the state that the round works with (accuracies, weights,
                       helpers)
        collaborate, for every public batch:
            client_output      every client's forward in train mode, with its graph; the server gets its
                               output detached
            aggregate          at the server: what each client receives; None for one that takes no step
            distillation_loss  between a client's output and what it received; one step of a new optimiser
        synchronised   the average of all models, only where all hold one network and the scenario says so
                       (Table 15)
        local_training the local phase, `loss` on private data

    A method defines `aggregate` and `distillation_loss`, and overrides what else differs. By default clients
    send logits and learn by cross-entropy. `client_state(state, world)` gives a value (Clients, a tensor, a
    dict of these) of which `client_output` and `distillation_loss` see the client's share. A client without
    data skips the local phase and has no weight in an average of models; it takes part in everything else.

    public_optimiser: `adam` as in the papers, or the `sgd` (weight decay 1e-5) of FCCL+'s FedDF; new for
        every client and batch
    schedule: `constant` as in the papers' text, or `release`, the decay of FCCL+'s code, for public and
        private steps
    """

    public_optimiser: Literal["adam", "sgd"] = "adam"
    schedule: Literal["constant", "release"] = "constant"

    @property
    def headline(self) -> Literal["pre", "post"]:
        return "post"

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"public data"})

    def before_round(self, state: State, world: World) -> State:
        return state

    def public_batches(self, state: State, world: World) -> Iterable[PublicBatch]:
        """The public batches of this round."""
        return world.public_batches()

    def client_state(self, state: State, world: World) -> Any:
        return None

    def client_output(self, model: Handle, images: Any, client_state: Any) -> Tensor | dict[str, Tensor]:
        """A client's outputs on a public batch: its logits (B, C)."""
        return model(images)

    def aggregate(self, outputs: list, state: State, world: World) -> list:
        """What each client receives, from the outputs of all; None for a client that takes no step."""
        raise NotImplementedError

    def distillation_loss(self, output: Any, received: Any, client_state: Any) -> Tensor:
        """The collaborative loss of one client on one public batch."""
        raise NotImplementedError

    def local_training(self, models: Clients, state: State, world: World) -> Clients:
        """The local phase. `state.models` are the clients' models at the end of the previous round."""
        return world.local_epochs(models, self.loss, options=self.local_options(world)).models

    def init(self, world: World) -> State:
        return State(models=world.new_models(individual=True))

    def round(self, state: State, world: World) -> State:
        state = self.before_round(state, world)
        models = synchronised(self.collaborate(state, world), world)
        return State({**state, "models": self.local_training(models, state, world)})

    def collaborate(self, state: State, world: World) -> Clients:
        models, client_state = state.models, self.client_state(state, world)
        for batch in self.public_batches(state, world):
            models = world.collaborate(
                models,
                batch,
                self.client_output,
                lambda outputs: self.aggregate(outputs, state, world),
                self.distillation_loss,
                client_state=client_state,
                optimiser=self.batch_optimiser(world),
            )
        return models

    def batch_optimiser(self, world: World) -> Optimiser:
        """The optimiser of one public batch."""
        decay = PUBLIC_DECAY if self.public_optimiser == "sgd" else 0.0
        return Optimiser(self.public_optimiser, self.rate(world), weight_decay=decay)

    def local_options(self, world: World) -> LocalOptions:
        """The scenario's optimiser at this round's rate."""
        return LocalOptions(optimiser=dataclasses.replace(world.training.optimiser, lr=self.rate(world)))

    def rate(self, world: World) -> float:
        """The round's rate. FCCL+'s code: lr, then lr (1 - 0.9 (r - 1) / E) from r = 1 of 0 to E - 1."""
        lr, r = world.training.optimiser.lr, world.round - 1
        released = lr if r < 1 else lr * (1 - 0.9 * (r - 1) / world.training.rounds)
        return lr if self.schedule == "constant" else released

    def batch_sizes(self, world: World) -> list[int]:
        """Sizes of the public batches of a round."""
        return [len(batch.images) for batch in world.public_batches()]

    def logits(self, world: World) -> float:
        """Scalars of a client's logits of all public images of a round."""
        return float(sum(self.batch_sizes(world)) * world.classes)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Logits of every public image up, as many numbers down; the models too where they are averaged."""
        both = self.logits(world) + averaged(world)
        return both, both


def averages(world: World) -> bool:
    """Do all clients hold one architecture that the scenario averages (FCCL+ Sec. 4.4, Table 15)?"""
    return world.homogeneous and world.training.averaging == "uniform"


def synchronised(models: Clients, world: World) -> Clients:
    """The uniform average at every client where models are averaged; else the models as they are."""
    return world.everyone(world.average(models)) if averages(world) else models


def averaged(world: World) -> float:
    """Scalars of a model where `synchronised` averages models, else 0."""
    return world.scalars() if averages(world) else 0.0


@dataclass(frozen=True)
class MeanLogits(Collaborative):
    """Every client receives Zbar = (1/K) sum_j Z_j, the mean of all logits.

    `second_forward`: a released code computes Zbar without gradient and forwards once more for its loss.
    Logits are the same but for dropout; the running statistics of BatchNorm move twice.
    """

    second_forward: bool = False

    def client_output(self, model: Handle, images: Tensor, client_state: Any) -> dict[str, Tensor]:
        logits = model(images)
        return {"sent": logits.detach(), "logits": model(images) if self.second_forward else logits}

    def aggregate(self, outputs: list[dict[str, Tensor]], state: State, world: World) -> list[Tensor]:
        return [mean(output["sent"] for output in outputs)] * len(outputs)


def mean(values: Iterable[Tensor]) -> Tensor:
    """The plain mean of K clients' outputs."""
    return torch.stack(list(values)).mean(0)
