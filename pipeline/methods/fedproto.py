"""FedProto: clients send class means, and fit their representations to the global ones (Tan et al. 2022,
Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.engine import Batch, ClassMeans, Clients, Handle, Objective, State, World
from pipeline.losses import cross_entropy
from pipeline.methods.base import Method
from pipeline.prototypes import (
    Means,
    aggregate_means,
    class_means_of,
    class_sums,
    prototype_distance,
    prototype_scores,
    vectors_sent,
)
from pipeline.schema import NonNegative


@dataclass(frozen=True)
class FedProto(Method):
    """CE + lambda * mean over samples and dimensions of (z - Cbar_y)^2; Cbar_c = mean over the owners' class
    means.

    As published, every client keeps its model (networks may differ in all but d) and an image gets the class
    of the nearest of the newest prototypes; before there are any, the classifier's. "With model parameter
    averaging" (FedCCL, FedLSA) the models are averaged too, and the global classifier predicts. Prototypes
    are computed after local training, in evaluation mode. The first round is plain cross-entropy.
    """

    lam: NonNegative = 1.0  # released code: 1 for MNIST and FEMNIST, 0.1 for CIFAR-10
    averaging: bool = False
    weighted: bool = False  # owners by their samples of the class; the code has the plain mean
    # None: the prototype, but the classifier where models are averaged.
    prediction: Literal["prototype", "classifier"] | None = None
    # Classes that may be predicted: every class with a prototype, or those that the client trains on.
    candidates: Literal["all", "own"] = "all"
    means: Means = "eval"  # last_epoch in the authors' code, running in PFLlib

    def __post_init__(self) -> None:
        if self.averaging and self.candidates == "own":
            raise ValueError("'candidates: own' needs a model for each client, not 'averaging: true'")

    @property
    def supports(self) -> frozenset[str]:
        return frozenset({"unseen clients"} if self.candidates == "all" else ())

    @property
    def headline(self) -> Literal["pre", "post"]:
        return "pre" if self.averaging else "post"

    def init(self, world: World) -> State:
        start = {"model": world.new_model()} if self.averaging else {"models": world.new_models()}
        owned = world.class_counts > 0
        # A client without data may predict all classes.
        return State(**start, prototypes=None, owned=owned | ~owned.any(1, keepdim=True))

    def round(self, state: State, world: World) -> State:
        trained = world.local_epochs(self.deployed(state, world), self.loss, server_state=state.prototypes)
        models = trained.models
        new = {"model": world.average(models)} if self.averaging else {"models": models}
        server = self.at_server(class_means_of(trained, world, self.means), state, world)
        return State({**state, **new, **server})

    def at_server(self, seen: ClassMeans, state: State, world: World) -> dict[str, Any]:
        """The new prototypes, and what else the server holds."""
        return {"prototypes": self.aggregate(seen, state.prototypes)}

    def aggregate(self, seen: ClassMeans, previous: State | None) -> State:
        return aggregate_means(seen.means, seen.counts if self.weighted else seen.present, previous)

    def loss(self, model: Handle, batch: Batch, server_state: State | None, client_state: Any) -> Objective:
        z = model.features(batch.images)
        fit = cross_entropy(model.head(z), batch.labels)
        if server_state is not None and self.lam:
            fit = fit + self.lam * prototype_distance(z, batch.labels, **server_state)
        return fit if self.means == "eval" else (fit, class_sums(z, batch.labels, model.classes, self.means))

    def adapted(self, state: State, world: World) -> Clients:
        """A new model that trains with the prototypes; where models are averaged, the global one."""
        if self.averaging:
            return self.deployed(state, world)
        return world.local_epochs(world.new_models(), self.loss, server_state=state.prototypes).models

    def scores(self, model: Handle, images: Tensor, state: State) -> Tensor:
        by = self.prediction or ("classifier" if self.averaging else "prototype")
        if by == "classifier" or state.prototypes is None:
            return super().scores(model, images, state)
        scores = prototype_scores(model.features(images), **state.prototypes)
        if self.candidates == "all":
            return scores
        return scores.masked_fill(~state.owned[model.client], -torch.inf)

    def vectors(self, state: State) -> Tensor | None:
        if state.prototypes is None:
            return None
        return state.prototypes.vectors.masked_fill(~state.prototypes.known[:, None], torch.nan)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        up, down = vectors_sent(world, world.width)
        model = world.scalars() if self.averaging else 0.0
        return model + up, model + down
