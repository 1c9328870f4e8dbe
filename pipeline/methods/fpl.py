"""FPL: the server clusters the clients' class means; a contrastive loss pulls representations to the
clusters, and a second term fits them to the mean of these (Huang et al. 2023)."""

from dataclasses import dataclass
from typing import Any, Literal

from pipeline.clustering import by_class, class_averages, keep_missing
from pipeline.engine import Batch, Handle, Objective, State, World
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.prototypes import (
    Means,
    class_means_of,
    class_sums,
    prototype_contrast,
    prototype_distance,
    vectors_sent,
)
from pipeline.schema import Positive


@dataclass(frozen=True)
class FPL(FedAvg):
    """CE + CPCL + UPCR: a contrast with the cluster prototypes P_c of all classes, whose positives are summed
    inside the log (Eq. 8), and the squared distance to the mean of P_y, the unbiased prototype (Eq. 10).

    P_c are the means of the FINCH clusters of the clients' means of class c (Eq. 4 and 5). The first round is
    plain cross-entropy.
    """

    supports = frozenset()
    tau: Positive = 0.02
    # first: FINCH's first level only, as the paper's text
    clusters: Literal["finch", "first"] = "finch"
    # over the d dimensions: the code's mean, or the sum of Eq. 10
    upcr: Literal["mean", "sum"] = "mean"
    # last_epoch in the released code
    means: Means = "eval"

    def init(self, world: World) -> State:
        return State(**super().init(world), prototypes=None)

    def round(self, state: State, world: World) -> State:
        trained = world.local_epochs(
            world.everyone(state.model), self.loss, server_state=self.message(state.prototypes, world.classes)
        )
        seen = class_means_of(trained, world, self.means)
        classes = seen.present.nonzero()[:, 1]  # client by client, their classes in order
        prototypes = by_class(seen.means[seen.present], classes, self.clusters)
        known = keep_missing(prototypes, state.prototypes)
        return State(model=world.average(trained.models), prototypes=known)

    def message(self, prototypes: State | None, classes: int) -> State | None:
        """The cluster prototypes, and from them each class's unbiased prototype (Eq. 6)."""
        if prototypes is None:
            return None
        return State(clusters=prototypes, unbiased=class_averages(**prototypes, count=classes))

    def loss(self, model: Handle, batch: Batch, server_state: State | None, client_state: Any) -> Objective:
        z = model.features(batch.images)
        value = cross_entropy(model.head(z), batch.labels)
        if server_state is not None:
            value = value + prototype_contrast(z, batch.labels, tau=self.tau, **server_state.clusters)
            dimensions = z.shape[1] if self.upcr == "sum" else 1
            value = value + dimensions * prototype_distance(z, batch.labels, **server_state.unbiased)
        if self.means == "eval":
            return value
        return value, class_sums(z, batch.labels, model.classes, self.means)

    def diagnostics(self, state: State) -> dict[str, float]:
        return {} if state.prototypes is None else {"prototypes": len(state.prototypes.classes)}

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Down goes what `state` holds; how many clusters there are changes from round to round."""
        up, _ = vectors_sent(world, world.width)
        down = 0 if state is None or state.prototypes is None else state.prototypes.vectors.numel()
        return world.scalars() + up, world.scalars() + down
