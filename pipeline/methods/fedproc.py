"""FedProc: the loss begins as a contrast with the global class means, and cross-entropy gradually replaces
it (Mu et al. 2023)."""

from dataclasses import dataclass

from torch import Tensor

from pipeline.engine import Batch, Handle, State, World
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.prototypes import aggregate_means, prototype_contrast, unit, vectors_sent
from pipeline.schema import Positive, Share


@dataclass(frozen=True)
class FedProc(FedAvg):
    """a_t CE + (1 - a_t) l_gpc, a_t = t / T for round t = 0, 1, ... of T; l_gpc contrasts z with every
    class's prototype.

    Prototypes are means of unit representations over all clients' samples, computed by the trained local
    models. The first round is plain cross-entropy. Classes that nobody ever held are left out of l_gpc.
    """

    supports = frozenset()
    # a constant a_t (FCCL+ Table 7: 0.5); None: t / T, the paper's and the code's
    alpha: Share | None = None
    # the method has no temperature
    tau: Positive = 1.0
    # prototypes by samples, as the code; false: the plain mean over owners
    weighted: bool = True
    # True: the classifier sees unit representations too, as in the released network.
    normalise_features: bool = False

    def init(self, world: World) -> State:
        return State(**super().init(world), prototypes=None)

    def round(self, state: State, world: World) -> State:
        server_state = None if state.prototypes is None else State(**state.prototypes, fit=self.fit(world))
        models = world.local_epochs(world.everyone(state.model), self.loss, server_state=server_state).models
        seen = world.class_means(models, lambda _, z: unit(z))
        prototypes = aggregate_means(
            seen.means, seen.counts if self.weighted else seen.present, state.prototypes
        )
        return State(model=world.average(models), prototypes=prototypes)

    def fit(self, world: World) -> float:
        """a_t, the weight of the cross-entropy."""
        return min((world.round - 1) / world.training.rounds, 1.0) if self.alpha is None else self.alpha

    def loss(self, model: Handle, batch: Batch, server_state: State | None, client_state: object) -> Tensor:
        z = model.features(batch.images)
        error = cross_entropy(model.head(self.seen_by_head(z)), batch.labels)
        if server_state is None or server_state.fit == 1:
            return error
        pull = prototype_contrast(z, batch.labels, server_state.vectors, self.tau, known=server_state.known)
        return server_state.fit * error + (1 - server_state.fit) * pull

    def seen_by_head(self, z: Tensor) -> Tensor:
        return unit(z) if self.normalise_features else z

    def scores(self, model: Handle, images: Tensor, state: State) -> Tensor:
        return model.head(self.seen_by_head(model.features(images)))

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        # One more number per class: its count.
        up, _ = vectors_sent(world, world.width + 1)
        return world.scalars() + up, world.scalars() + world.classes * world.width
