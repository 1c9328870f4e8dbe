"""FedPAC: features aligned to global class means, heads combined for each client (Xu, Tong, Huang 2023, Algorithm 1)."""
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, State
from pipeline.engine.world import World
from pipeline.losses import cross_entropy, prototype_distance
from pipeline.methods.fedper import FedPer
from pipeline.params import NonNegative, Optimiser, Whole
from pipeline.server import aggregate_means, combine_heads, label_statistics, vectors_sent
from pipeline.server_mixing import mix


@dataclass(frozen=True)
class FedPAC(FedPer):
    """Statistics of the received features, then the head alone, then the features alone with CE + lambda * mean over
    samples and dimensions of (z - Cbar_y)^2. The server averages the features and gives client i the heads' combination
    sum_j a_ij pi_j of its quadratic program.

    The first round has no global means and no pull. All clients take part in every round, so that afterwards each of
    their classes has one.
    """
    lam: NonNegative = 1.0                # the paper's
    head_epochs: Whole = 1                # the paper's; the features train for the round's epochs
    head_optimiser: Optimiser | None = None    # None: the scenario's; released code: SGD 0.1, momentum 0.5, decay 5e-4
    weighted: bool = True                 # global means over samples (paper, released code); PFLlib: over owners

    def init(self, world: World) -> State:
        return State(**super().init(world), prototypes=None)

    def round(self, state: State, world: World) -> State:
        received = self.deployed(state, world)
        h, spread = self.statistics(received, world)
        models = world.local_epochs(received, super().loss, trainable="head", epochs=self.head_epochs,
                                    optimiser=self.head_optimiser, stream="head").models
        models = world.local_epochs(models, self.loss, trainable="features", shared=state.prototypes).models
        seen = world.class_means(models)
        return State(features=world.average(models.features), heads=mix(models.heads, combine_heads(h, spread)),
                     prototypes=aggregate_means(seen.means, seen.counts if self.weighted else seen.present, state.prototypes))

    def statistics(self, models: Clients, world: World) -> tuple[Tensor, Tensor]:
        """h (K, C, d) and V (K,) of `label_statistics`."""
        found = [label_statistics(world.representations(k, model), client.labels, world.classes)
                 for k, (client, model) in enumerate(zip(world.clients, models, strict=True))]
        return torch.stack([h for h, _ in found]), torch.stack([spread for _, spread in found])

    def loss(self, model: Handle, batch: Batch, shared: State | None, own: object) -> Tensor:
        if shared is None or not self.lam:
            return super().loss(model, batch, shared, own)
        z = model.features(batch.images)
        return cross_entropy(model.head(z), batch.labels) + self.lam * prototype_distance(z, batch.labels, **shared)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Up go, beside the model, class means, h and V, and where the means are weighted a count for every class mean."""
        up, down = vectors_sent([client.labels for client in world.clients], world.width)
        counts = up / world.width if self.weighted else 0.0
        return world.scalars() + 2 * up + 1 + counts, world.scalars() + down
