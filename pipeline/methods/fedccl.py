"""FedCCL: a contrastive loss pulls representations to the clusters of all clients' classes and to one
balanced signal for each class (Qiao et al. 2024, Algorithm 1)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.clustering import by_class, class_averages, keep_missing
from pipeline.engine import Batch, Clients, Handle, Objective, State, World
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.prototypes import prototype_contrast
from pipeline.schema import Positive


@dataclass(frozen=True)
class FedCCL(FedAvg):
    """CE + L_local + L_global (Eq. 16, 17). Local signals Xi_c are the means of the FINCH clusters of each
    client's class (Eq. 10), all clients' together (Eq. 11); the global signal U_c is the mean of the means of
    the FINCH clusters of Xi_c (Eq. 14, 15), so that every cluster counts the same, whatever its size.

    Signals come from the trained local models before averaging. FINCH drops the level with one cluster, as
    its code does: "only one cluster left", to the letter, would always end in plain averages. The first round
    is plain cross-entropy.
    """

    supports = frozenset()
    tau: Positive = 0.07
    local_contrast: bool = True
    global_contrast: bool = True
    local_signals: Literal["finch", "mean"] = "finch"  # mean: a client's class means (Eq. 7, Table 7)
    # mean: the mean of all local signals of the class (Eq. 12, Table 7).
    global_signals: Literal["finch", "mean"] = "finch"
    exclude_own: bool = False  # contrast with the other clients' local signals only
    # How a contrast is reduced over a batch: Eq. 16 and 17 sum, but the cross-entropy is a mean.
    reduction: Literal["mean", "sum"] = "mean"

    def init(self, world: World) -> State:
        return State(**super().init(world), signals=None)

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(
            world.everyone(state.model),
            self.loss,
            server_state=state.signals,
            client_state=self.usable(state, world),
        ).models
        return State(model=world.average(models), signals=self.signals(models, state.signals, world))

    def signals(self, models: Clients, previous: State | None, world: World) -> State | None:
        """Xi as everyone.vectors (P, d), .classes and .owners (P,); U as balanced.vectors (C, d), .known
        (C,); the number of global clusters."""
        if not (self.local_contrast or self.global_contrast):
            return None
        signals = []
        for k, (client, model) in enumerate(zip(world.clients, models, strict=True)):
            if len(client.labels):
                mine = by_class(world.representations(k, model), client.labels, self.local_signals)
                signals.append(State(**mine, owners=torch.full_like(mine.classes, k)))
        union = keep_missing(
            State((name, torch.cat([mine[name] for mine in signals])) for name in signals[0]),
            None if previous is None else previous.everyone,
        )
        clusters = by_class(union.vectors, union.classes, self.global_signals)
        return State(
            everyone=union,
            balanced=class_averages(**clusters, count=world.classes),
            clusters=len(clusters.classes),
        )

    def usable(self, state: State, world: World) -> Tensor | None:
        """(clients, P): the local signals that a client is contrasted with; None for all."""
        if state.signals is None or not self.exclude_own:
            return None
        owners = state.signals.everyone.owners
        return owners != torch.arange(len(world.clients), device=owners.device)[:, None]

    def loss(
        self, model: Handle, batch: Batch, server_state: State | None, client_state: Tensor | None
    ) -> Objective:
        if server_state is None:
            return super().loss(model, batch, server_state, client_state)
        z = model.features(batch.images)
        value = cross_entropy(model.head(z), batch.labels)
        scale = len(batch.labels) if self.reduction == "sum" else 1
        if self.local_contrast:
            local = server_state.everyone
            value = value + scale * prototype_contrast(
                z, batch.labels, local.vectors, self.tau, local.classes, client_state
            )
        if self.global_contrast:
            value = value + scale * prototype_contrast(z, batch.labels, tau=self.tau, **server_state.balanced)
        return value

    def diagnostics(self, state: State) -> dict[str, float]:
        if state.signals is None:
            return {}
        return {
            "local_signals": len(state.signals.everyone.classes),
            "global_clusters": state.signals.clusters,
        }

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Of the signals that `state` holds; a contrast that is off receives none."""
        if state is None or state.signals is None:
            return world.scalars(), world.scalars()
        local, known = state.signals.everyone.vectors.numel(), int(state.signals.balanced.known.sum())
        down = self.local_contrast * local + self.global_contrast * known * world.width
        return world.scalars() + local / len(world.clients), world.scalars() + down
