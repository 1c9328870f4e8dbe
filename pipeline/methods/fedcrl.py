"""FedCRL: features and class representations are shared; a contrastive loss pulls towards the latter; each
client mixes global and local features by how well they fit (Huang et al. 2024, Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, LocalOptions, Objective, Params, State, World
from pipeline.engine.state import entries, interpolated
from pipeline.losses import cross_entropy
from pipeline.methods.base import Method
from pipeline.prototypes import aggregate_means, prototype_contrast, vectors_sent
from pipeline.schema import NonNegative, Positive


@dataclass(frozen=True)
class FedCRL(Method):
    """CE + alpha * L_Reg, where L_Reg contrasts omega with all global class representations (Eq. 12 to 14);
    then phi_i <- tau_i phi_i + (1 - tau_i) phi^G with tau_i = exp(-gamma L_i) (Eq. 7 to 9). The head never
    leaves home.

    Algorithm 1 has an initialisation, in which every client trains one epoch without the contrast, and then T
    iterations: T + 1 phases. Here the initialisation is the training of the first `round`, so that R rounds
    are R phases and every method of a table has the same number of local epochs. What begins an iteration of
    the paper (aggregation, Eq. 5 and 6, and the mix, Eq. 8) ends the `round` before it: the state holds what
    the clients train from next.

    Read so where the paper is silent: L_i is the mean over the epoch's batches; the first one, which no
    training has measured, is evaluated against the first global representations; parameters are not clipped
    to [0, 1], since that deletes every negative weight. A client that did not train takes the server's
    features.
    """

    headline = "post"
    # Table I, as the next two
    alpha: NonNegative = 1.0
    # temperature tau_CL
    tau: Positive = 0.1
    gamma: NonNegative = 0.8
    # post_eval: one more pass with the trained features
    contrast: Literal["epoch", "last_batch", "post_eval"] = "epoch"
    # At the first mix: global is tau = 0, the client's features tau = 1.
    first_tau: Literal["evaluate", "global", "own"] = "evaluate"
    clip_params: bool = False  # Algorithm 1, line 22, to the letter

    def init(self, world: World) -> State:
        return State(models=world.new_models(), prototypes=None, share=None)

    def round(self, state: State, world: World) -> State:
        trained = world.local_epochs(state.models, self.loss, server_state=state.prototypes)
        models, logged = trained.models, trained.last if self.contrast == "last_batch" else trained.logged
        if self.clip_params:
            # The clipping runs as a local step, so that the hook `post` scores the clipped models.
            models = world.local_steps(models, self.clip, options=LocalOptions(epochs=1)).models
        seen = world.class_means(models)
        prototypes = aggregate_means(seen.means, seen.counts, state.prototypes)
        share = self.share(models, logged.get("contrast"), state.prototypes, prototypes, world)
        mixed = interpolate(models.features, world.average(models.features), share)
        return State(models=models.joined(mixed), prototypes=prototypes, share=share)

    def loss(self, model: Handle, batch: Batch, server_state: State | None, client_state: Any) -> Objective:
        if server_state is None:
            return super().loss(model, batch, server_state, client_state)
        z = model.features(batch.images)
        fit = cross_entropy(model.head(z), batch.labels)
        pull = prototype_contrast(z, batch.labels, tau=self.tau, **server_state)
        return fit + self.alpha * pull if self.alpha else fit, {"contrast": pull}

    def share(
        self, models: Clients, contrasts: Tensor | None, trained: State | None, newest: State, world: World
    ) -> Tensor:
        """tau_i (K,) of Eq. 7. `trained`: what the epoch was trained against, None at the first mix."""
        if trained is None and self.first_tau != "evaluate":
            return torch.full((len(world.clients),), float(self.first_tau == "own"), dtype=torch.float64)
        if trained is None or contrasts is None or self.contrast == "post_eval":
            contrasts = self.evaluate(models, newest if trained is None else trained, world)
        return torch.exp(-self.gamma * contrasts).clamp(0, 1).nan_to_num(0)

    def evaluate(self, models: Clients, prototypes: State, world: World) -> Tensor:
        """L_Reg (K,) over each client's training set in evaluation mode; NaN without data."""
        values = [
            prototype_contrast(world.representations(k, model), client.labels, tau=self.tau, **prototypes)
            for k, (model, client) in enumerate(zip(models, world.clients, strict=True))
        ]
        return torch.stack([value.cpu().double() for value in values])

    def clip(
        self, model: Handle, batches: list[Batch], server_state: object, client_state: object
    ) -> tuple[Params, object]:
        return entries(lambda value: value.clamp(0, 1), model.params), client_state

    def diagnostics(self, state: State) -> dict[str, float]:
        return {} if state.share is None else {"tau": float(state.share.mean())}

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Each class's count |D_c^i| goes up too, by which Eq. 6 weights; Sec. V-B5 leaves it out."""
        (up, _), (_, down) = (vectors_sent(world, world.width + count) for count in (1, 0))
        return world.scalars("features") + up, world.scalars("features") + down


def interpolate(models: Clients, server: Params, share: Tensor) -> Clients:
    """share_k model_k + (1 - share_k) server for all tensors (FedCRL, Eq. 8). share (K,)."""
    return interpolated(models, server, share.tolist())
