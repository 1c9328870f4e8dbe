"""RAHFL: clients learn only from clients that are at least as accurate, and train locally on several views
of each image (Fang, Ye, Du 2025, Eq. 2 to 13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.data.augmentations import augmix, plain, simple
from pipeline.engine import Batch, Client, Clients, Handle, Objective, State, World
from pipeline.errors import TrainingError
from pipeline.losses import consistent_cross_entropy, supervised_contrast, weighted_distillation
from pipeline.methods._collaborative import Collaborative, averaged
from pipeline.schema import Count, NonNegative, Positive

# of the strong view's similarities (RAHFL's code)
LEAST_SIMILARITY = 1e-9
# the released contrast is scaled by tau_c / 0.07 (Khosla et al.'s code)
BASE_TAU = 0.07


@dataclass(frozen=True)
class RAHFL(Collaborative):
    """Collaborative: the mean over M_kq = 1 of KL(p_q || p_k); M from the clients' accuracies at the start of
    the round. Local: CE(x) + mu JSD(x, x'_1, x'_2) + l_c + gamma l_d; x plain, x'_1 and x'_2 AugMix versions
    of it, x'' a simple view.

    One forward on [x, x'_1, x'_2] gives CE and JSD, a second one on [x, x'_1, x''] the features of l_c and
    l_d, which are scaled to length one; both in training mode, so BatchNorm's statistics move twice.

    Ablations: `asymmetric` off is HFL, learning from all others; `augmix` off is the cross-entropy alone;
    `contrast` `none` leaves l_c and l_d out, `supcon` contrasts x with x'_1 and has no l_d; M is renewed
    every `matrix_every` rounds.

    `acc_source`: which labelled images measure the clients; the paper says a part of the generic test data.
    `heldout` are images that no client holds, `test` the test images, both corrupted where any private image
    is, so that one training gives the clean and the corrupted number. In the code the test file that chooses
    the teachers also gives the number: a run by `test_clean` for the clean columns, another one by
    `test_corrupted` for the others. `private` are a client's training images, on which clients cannot be
    compared fairly. The state has the accuracies on heldout and on test images wherever the scenario has
    them.

    `contrast_form` and `distillation_form`: the released code, which made the numbers, or Eq. 5 and Eq. 6 to
    8: sums over anchors instead of means, no factor tau_c / 0.07, no inner exponential, the view itself left
    out, no stopped gradient.
    """

    mu: NonNegative = 12.0  # Sec. 4.1, as the next three
    gamma: NonNegative = 1.0
    tau_c: Positive = 0.2
    tau_d: Positive = 0.2
    asymmetric: bool = True
    augmix: bool = True
    contrast: Literal["dcl", "supcon", "none"] = "dcl"
    matrix_every: Count = 1
    acc_source: Literal["heldout", "test", "test_clean", "test_corrupted", "private"] = "heldout"
    contrast_form: Literal["code", "paper"] = "code"
    distillation_form: Literal["code", "paper"] = "code"

    def __post_init__(self) -> None:
        if self.contrast != "none" and not self.augmix:
            raise ValueError(f"contrast: {self.contrast} compares AugMix views, so it needs augmix: true")

    @property
    def requires(self) -> frozenset[str]:
        return frozenset(
            {"public data", "images", "held-out images"}
            if self.asymmetric and self.acc_source == "heldout"
            else {"public data", "images"}
        )

    def before_round(self, state: State, world: World) -> State:
        if not self.asymmetric or (world.round - 1) % self.matrix_every:
            return state
        accuracies = self.accuracies(state.models, world)
        matrix = transfer_matrix(accuracies[self.acc_source])
        return State({**state, "accuracies": accuracies, "matrix": matrix})

    def accuracies(self, models: Clients, world: World) -> State:
        """source -> (K,) accuracies as shares: heldout and test where the scenario has them, any other source
        only where it is the `acc_source`."""
        common = {"heldout": world.heldout, "test": world.test}
        if self.acc_source.startswith("test_"):
            common[self.acc_source] = world.test_sets.get(self.acc_source.removeprefix("test_"))
        accuracies = State(
            (name, shares_right(world, models, [images] * len(models)))
            for name, images in common.items()
            if images is not None
        )
        if self.acc_source == "private":
            accuracies["private"] = shares_right(world, models, world.clients)
        if self.acc_source not in accuracies:
            raise TrainingError(
                f"acc_source: {self.acc_source} needs labelled images that this scenario does not set aside"
            )
        return accuracies

    def aggregate(self, outputs: list[Tensor], state: State, world: World) -> list[Tensor | None]:
        matrix = state.matrix if self.asymmetric else 1 - torch.eye(len(outputs))
        logits = torch.stack(outputs)
        chosen = [row.nonzero()[:, 0].to(logits.device) for row in matrix]
        return [logits[teachers] if len(teachers) else None for teachers in chosen]

    def distillation_loss(self, output: Tensor, received: Tensor, client_state: object) -> Tensor:
        weights = torch.full((len(received),), 1 / len(received), device=received.device)
        return weighted_distillation(output, received, weights)

    def local_training(self, models: Clients, state: State, world: World) -> Clients:
        views, options = self.views if self.augmix else None, self.local_options(world)
        return world.local_epochs(models, self.loss, views=views, options=options).models

    def views(self, pixels: Tensor, numbers: torch.Generator) -> tuple[Tensor, ...]:
        """(x, x'_1, x'_2), and x'' for the DCL."""
        x = plain(pixels, numbers)
        views = x, augmix(x, numbers), augmix(x, numbers)
        return (*views, simple(pixels, numbers)) if self.contrast == "dcl" else views

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: object) -> Objective:
        if not self.augmix:
            return super().loss(model, batch, server_state, client_state)
        x, first, second = batch.images, *batch.views[:2]
        fit = consistent_cross_entropy(model(torch.cat([x, first, second])), batch.labels, self.mu)
        if self.contrast == "none":
            return fit
        views = [x, first] if self.contrast == "supcon" else [x, first, batch.views[2]]
        clean, *mixed = F.normalize(model.features(torch.cat(views)), dim=1).split(len(x))
        fit = fit + self.contrasted(torch.cat([clean, mixed[-1]]), batch.labels)
        if self.contrast == "supcon" or not self.gamma:
            return fit
        return fit + self.gamma * self.distilled(clean, weak=mixed[1], strong=mixed[0])

    def contrasted(self, z: Tensor, labels: Tensor) -> Tensor:
        """l_c, Eq. 5."""
        scale = self.tau_c / BASE_TAU if self.contrast_form == "code" else len(z)
        return scale * supervised_contrast(z, labels, self.tau_c)

    def distilled(self, clean: Tensor, weak: Tensor, strong: Tensor) -> Tensor:
        """l_d, Eq. 8."""
        scale = 1 if self.distillation_form == "code" else len(clean)
        return scale * view_distillation(clean, weak, strong, self.tau_d, self.distillation_form)

    def diagnostics(self, state: State) -> dict[str, float]:
        """Mean accuracy in percent on every source of images by which teachers could be chosen, and M by its
        elements off the diagonal: `learns.<p>.<q>` is 1 where client p learns from client q, else 0."""
        shares = state.get("accuracies", {})
        numbers = {f"accuracy.{name}": 100 * float(share.nanmean()) for name, share in shares.items()}
        for p, row in enumerate(state["matrix"].tolist() if "matrix" in state else []):
            numbers |= {f"learns.{p}.{q}": float(learns) for q, learns in enumerate(row) if p != q}
        return numbers

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Down go the logits of as many teachers as the matrix of `state` has, mean over clients: (K - 1) / 2
        before there is one, which it is where no two accuracies are equal."""
        others, logits = len(world.clients) - 1, self.logits(world)
        up, teachers = (logits + 1 / self.matrix_every, others / 2) if self.asymmetric else (logits, others)
        if self.asymmetric and state is not None and "matrix" in state:
            teachers = float(state.matrix.sum()) / len(state.matrix)
        return up + averaged(world), teachers * logits + averaged(world)


def transfer_matrix(accuracies: Tensor) -> Tensor:
    """M (K, K): 1 where client p learns from q, ACC_p <= ACC_q and q != p (Eq. 12); clients of equal accuracy
    teach each other. A client whose accuracy (K,) is NaN neither learns nor teaches."""
    return (accuracies[:, None] <= accuracies[None, :]).int().fill_diagonal_(0)


def shares_right(world: World, models: Clients, test_sets: Sequence[Batch | Client]) -> Tensor:
    """Each client's accuracy (K,) on its test set, a share in float64; NaN without images."""
    shares = []
    for k, (model, test) in enumerate(zip(models, test_sets, strict=True)):
        right = world.outputs(k, model, test.images).argmax(1) == test.labels
        shares.append(int(right.sum()) / len(right) if len(right) else torch.nan)
    return torch.tensor(shares, dtype=torch.float64)


def view_distillation(
    plain: Tensor, weak: Tensor, strong: Tensor, tau: float, form: Literal["code", "paper"] = "code"
) -> Tensor:
    """Mean over rows of KL(q_i || s_i): the weak view's similarities to a batch are the teacher of the strong
    view's (RAHFL Eq. 6 to 8).

    plain, weak, strong (B, d), rows of length 1; the batch is R = [weak; plain]. As in the released code
    q_i = softmax(exp(weak_i . R) / tau), s_i the same of strong_i, with q constant, while R inside s carries
    gradient; as in the paper there is no inner exponential, weak_i itself is left out of both, and q carries
    gradient too.
    """
    rows = torch.cat([weak, plain])
    likeness = weak @ rows.T, strong @ rows.T
    if form == "code":
        q, s = (F.softmax(z.exp() / tau, dim=1) for z in likeness)
        return F.kl_div((s + LEAST_SIMILARITY).log(), q.detach(), reduction="sum") / len(weak)
    itself = torch.eye(len(weak), len(rows), dtype=torch.bool, device=rows.device)
    q, s = (F.log_softmax((z / tau).masked_fill(itself, torch.finfo(z.dtype).min), dim=1) for z in likeness)
    return torch.where(itself, 0.0, q.exp() * (q - s)).sum() / len(weak)
