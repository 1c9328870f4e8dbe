"""FedPCL: a contrastive loss pulls representations to the global class means and to those of every client
(Tan et al. 2022)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, Params, State, World
from pipeline.losses import cross_entropy, supervised_contrast
from pipeline.methods.base import Method
from pipeline.prototypes import aggregate_means, prototype_scores, unit, vectors_sent
from pipeline.schema import NonNegative, Positive


@dataclass(frozen=True)
class FedPCL(Method):
    """CE + L_g + L_p. Both contrast the unit representation with class means of unit representations by inner
    products: L_g with the mean over the clients that hold a class, L_p with each client's set in turn, where
    a class that it lacks is the global one.

    By default as in FedCCL's tables, "with model parameter averaging", with cross-entropy and the averaged
    classifier. The published form is `averaging=False, ce=False, inference="local_prototype",
    normalise_head=True`: models stay home, the first round only collects class means, and the nearest of a
    client's class means predicts.
    """

    tau: Positive = 0.07
    # of L_g
    global_weight: NonNegative = 1.0
    # of L_p
    local_weight: NonNegative = 1.0
    averaging: bool = True
    ce: bool = True
    inference: Literal["classifier", "local_prototype"] = "classifier"
    # the classifier sees unit representations too, as in the released network
    normalise_head: bool = False
    # the paper's denominators: only labels other than the sample's
    exclude_positive: bool = False
    # official: the released loss; anchors are class means, summed over the sets, and there is no L_g.
    contrast: Literal["paper", "official"] = "paper"

    def init(self, world: World) -> State:
        start = State(model=world.new_model()) if self.averaging else State(models=world.new_models())
        return State(**start, prototypes=None, means=None, present=None)

    def round(self, state: State, world: World) -> State:
        models = super().deployed(state, world)
        if self.ce or state.prototypes is not None:
            models = world.local_epochs(models, self.loss, server_state=self.message(state, world)).models
        seen = world.class_means(models, lambda _, z: unit(z))
        prototypes = aggregate_means(seen.means, seen.present, state.prototypes)
        new = {"model": world.average(models)} if self.averaging else {"models": models}
        return State(**new, prototypes=prototypes, means=seen.means, present=seen.present)

    def message(self, state: State, world: World) -> State | None:
        """Global prototypes (C, d), and the padded sets (N, C, d) of the clients with data."""
        if state.prototypes is None:
            return None
        padded = torch.where(state.present[..., None], state.means, state.prototypes.vectors)
        return State(prototypes=state.prototypes, sets=padded[torch.tensor([n > 0 for n in world.sizes])])

    def loss(self, model: Handle, batch: Batch, server_state: State | None, client_state: object) -> Tensor:
        z = model.features(batch.images)
        fit = cross_entropy(model.head(unit(z) if self.normalise_head else z), batch.labels)
        fit = fit if self.ce else 0 * fit  # as the released code: weight decay acts on the head all the same
        return fit if server_state is None else fit + self.contrasts(model, batch, z, server_state)

    def contrasts(self, model: Handle, batch: Batch, z: Tensor, server_state: State) -> Tensor:
        if self.contrast == "official":  # two views; without augmentation they are the same
            z = torch.cat([z, model.features(batch.views[0]) if batch.views else z])
            z, labels = unit(z), batch.labels.repeat(2)
            terms = [supervised_contrast(z, labels, self.tau, mine[labels]) for mine in server_state.sets]
            return self.local_weight * torch.stack(terms).sum()
        value = torch.zeros((), dtype=z.dtype, device=z.device)
        average, known = server_state.prototypes.vectors, server_state.prototypes.known
        for weight, sets in ((self.global_weight, average[None]), (self.local_weight, server_state.sets)):
            if weight:
                value = value + weight * prototype_sets_contrast(
                    unit(z), batch.labels, sets, self.tau, known, self.exclude_positive
                )
        return value

    def deployed(self, state: State, world: World) -> Clients:
        models = super().deployed(state, world)
        if self.inference == "classifier":
            return models
        # A copy each: with a client's class means, an averaged model predicts differently.
        return Clients(Params(model) for model in models)

    def scores(self, model: Handle, images: Tensor, state: State) -> Tensor:
        z = model.features(images)
        if self.inference == "classifier" or state.prototypes is None:
            return model.head(unit(z) if self.normalise_head else z)
        mine = State(vectors=state.means[model.client], known=state.present[model.client])
        # A client without data uses the global class means.
        return prototype_scores(unit(z), **(mine if mine.known.any() else state.prototypes))

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        up, _ = vectors_sent(world, world.width)
        model = world.scalars() if self.averaging else 0.0
        return model + up, model + world.classes * world.width + up * len(world.clients)


def prototype_sets_contrast(
    z: Tensor,
    labels: Tensor,
    sets: Tensor,
    tau: float,
    known: Tensor | None = None,
    exclude_positive: bool = False,
) -> Tensor:
    """Mean over batch and sets of -log( e^{z.p_y / tau} / sum_a e^{z.p_a / tau} ), p from one set at a time
    (FedPCL, Tan et al. 2022).

    z (B, d), of unit length, carries the gradient; labels (B,); sets (N, C, d) are constants; `known` (C,)
    leaves classes out. `exclude_positive` leaves p_y out of the denominator. A sample whose class is not
    known, or that has nothing in its denominator, adds 0 and counts in the mean.
    """
    classes = torch.arange(sets.shape[1], device=labels.device)
    known = torch.ones_like(classes, dtype=torch.bool) if known is None else known
    logits = torch.einsum("bd,ncd->bnc", z, sets.detach()) / tau
    positive = classes == labels[:, None]  # (B, C)
    against = known & ~positive if exclude_positive else known.expand_as(positive)
    never = torch.finfo(logits.dtype).min
    nearness = torch.where(positive[:, None], logits, 0.0).sum(2)
    missed = logits.masked_fill(~against[:, None], never).logsumexp(2) - nearness  # (B, N)
    counted = known[labels] & against.any(1)
    return torch.where(counted[:, None], missed, 0.0).mean()
