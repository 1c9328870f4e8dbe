"""FedProto where the clients' networks differ: class means are computed in a space into which all clients
project (Tan et al. 2022; as a baseline of RAHFL)."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from pipeline.engine import Batch, Handle, Objective, State, World
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
class FedProtoHetero(Method):
    """CE + lam * mean over samples and dimensions of (h - G_y)^2, h the embedding; G_c = mean over the
    owners' class means.

    h is the output of the projector that RAHFL gives every network (1024 numbers); `features` takes the
    representation itself, where all networks have one width. No public data and no averaging. The first round
    is plain cross-entropy, but embeds its batches all the same. The classifier predicts, as for every row of
    RAHFL's tables.

    The class means are by default those of the embeddings that local training makes in passing, each before
    its step. RAHFL has one epoch; of several the authors' code counts the last alone (`last_epoch`).
    """

    headline = "post"
    lam: NonNegative = 1.0
    space: Literal["projector", "features"] = "projector"
    means: Means = "running"
    weighted: bool = False  # owners by their samples of the class; the code has the plain mean
    prediction: Literal["classifier", "prototype"] = "classifier"

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"projector"} if self.space == "projector" else ())

    def init(self, world: World) -> State:
        return State(models=world.new_models(individual=True), prototypes=None)

    def round(self, state: State, world: World) -> State:
        trained = world.local_epochs(state.models, self.loss, server_state=state.prototypes)
        seen = class_means_of(trained, world, self.means, embed=self.embedding)
        weights = seen.counts if self.weighted else seen.present
        return State(models=trained.models, prototypes=aggregate_means(seen.means, weights, state.prototypes))

    def loss(self, model: Handle, batch: Batch, server_state: State | None, client_state: Any) -> Objective:
        z = model.features(batch.images)
        fit, h = cross_entropy(model.head(z), batch.labels), self.embedding(model, z)
        if server_state is not None and self.lam:
            fit = fit + self.lam * prototype_distance(h, batch.labels, **server_state)
        return fit, {} if self.means == "eval" else class_sums(h, batch.labels, model.classes, self.means)

    def embedding(self, model: Handle, z: Tensor) -> Tensor:
        return model.project(z) if self.space == "projector" else z

    def scores(self, model: Handle, images: Tensor, state: State) -> Tensor:
        if self.prediction == "classifier" or state.prototypes is None:
            return super().scores(model, images, state)
        return prototype_scores(self.embedding(model, model.features(images)), **state.prototypes)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        projector = world.clients[0].model.projector if self.space == "projector" else None
        width = projector or world.width
        up, down = vectors_sent(world, width)
        counts = up / width if self.weighted else 0.0  # one number for every class mean
        return up + counts, down
