"""FedMatch among different networks: clients make their predictions on public data consistent, and the
parameters have two parts (after Jeong et al. 2021)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.data import augmentations
from pipeline.engine import Batch, Clients, Handle, Params, PublicBatch, State, World
from pipeline.engine.state import entries
from pipeline.losses import SMALLEST_SHARE, cross_entropy, total
from pipeline.methods._collaborative import Collaborative, averaged, synchronised
from pipeline.schema import NonNegative, Share, Whole

# psi begins as this share of sigma
PSI_START = 0.2
# public images on which clients are compared
PROBE = 256


@dataclass(frozen=True)
class FedMatch(Collaborative):
    """theta = sigma + psi. Public batches move psi on
        lam_i (1 / H) sum_h KL(p_h || p_i) + lam_a CE(vote, p_i(A(x))) + lam_l2 ||sigma - psi||^2 + lam_l1
        ||psi||_1,
    the first two over the samples of which p_i is confident (at least kappa); private ones move sigma on
    lam_s CE.

    A reconstruction: FCCL+ compares with FedMatch for heterogeneous networks and has not released how. The
    two ideas that it names are here. As networks differ, helpers send predictions instead of weights; they
    are the H clients whose mean answer to a fixed public probe is nearest, chosen again every round. A is the
    strong public augmentation, of the public image itself and not of the scenario's view. `decomposed:
    false`: one part, psi = 0 and no penalties, public and private steps move theta. `pseudo_labels: false`:
    consistency alone. Each part moves by a step of theta with the other held, so a scenario's weight decay is
    of theta.
    """

    helpers: Whole = 2
    kappa: Share = 0.75
    lam_i: NonNegative = 1e-2
    lam_a: NonNegative = 1e-2
    lam_s: NonNegative = 1.0  # the original's 10 means little under Adam
    lam_l1: NonNegative = 1e-4
    lam_l2: NonNegative = 10.0
    decomposed: bool = True
    pseudo_labels: bool = True

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"public data", "images"})

    @property
    def copies(self) -> int:
        return 2 if self.decomposed else 1  # sigma and psi

    def init(self, world: World) -> State:
        """`models` are theta, what a client answers with; psi holds trainable tensors alone."""
        sigma, share = world.new_models(individual=True), PSI_START if self.decomposed else 0.0
        moving = [Handle(world.network(k, model), model).params for k, model in enumerate(sigma)]
        psi = Clients(entries(lambda value: share * value, mine) for mine in moving)
        models = sigma.joined(Clients(map(partial(entries, torch.add), moving, psi)))
        return State(models=models, psi=psi, helpers=[])

    def round(self, state: State, world: World) -> State:
        state = self.before_round(state, world)
        agreed = self.collaborate(state, world)
        # The public phase did not move sigma.
        psi = difference(agreed, difference(state.models, state.psi)) if self.decomposed else state.psi
        models = self.local_training(synchronised(agreed, world), state, world)
        return State({**state, "models": models, "psi": synchronised(psi, world)})

    def before_round(self, state: State, world: World) -> State:
        return State({**state, "helpers": nearest(self.answers(state.models, world), self.helpers)})

    def answers(self, models: Clients, world: World) -> Tensor:
        """(K, C): each client's mean soft prediction for the probe, in evaluation mode."""
        probe = world.public_images[:PROBE]
        logits = [world.outputs(k, model, probe) for k, model in enumerate(models)]
        return torch.stack([F.softmax(z, dim=1).mean(0) for z in logits])

    def public_batches(self, state: State, world: World) -> Iterable[PublicBatch]:
        return world.public_batches(
            views=lambda pixels, numbers: (augmentations.strong(pixels, numbers),), unaugmented=True
        )

    def client_state(self, state: State, world: World) -> Clients:
        return difference(state.models, state.psi)

    def client_output(
        self, model: Handle, images: tuple[Tensor, Tensor], client_state: Params
    ) -> dict[str, Tensor]:
        weak, strong = images
        output = {"p": F.softmax(model(weak), dim=1), "strong": model(strong)}
        if self.decomposed:
            psi = entries(torch.sub, model.params, client_state)
            output["penalty"] = disjoint_penalty(client_state, psi, self.lam_l1, self.lam_l2)
        return output

    def aggregate(self, outputs: list[dict[str, Tensor]], state: State, world: World) -> list[Tensor]:
        """The helpers' answers to the same images (H, B, C)."""
        answers = torch.stack([output["p"] for output in outputs])
        return [answers[mine] for mine in state.helpers]

    def distillation_loss(self, output: dict[str, Tensor], received: Tensor, client_state: object) -> Tensor:
        p = output["p"]
        confident = p.detach().amax(1) >= self.kappa
        value = self.lam_i * inter_client_consistency(p, received, confident)
        if self.pseudo_labels:
            labels = majority_labels(p, received)
            value = value + self.lam_a * pseudo_label_loss(output["strong"], labels, confident)
        return value + output["penalty"] if self.decomposed else value

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: object) -> Tensor:
        return self.lam_s * cross_entropy(model(batch.images), batch.labels)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """Answers to every public image up, H clients' down; sigma and psi where they are averaged."""
        answers, parts = self.logits(world), (2 if self.decomposed else 1) * averaged(world)
        return answers + parts, min(self.helpers, len(world.clients) - 1) * answers + parts


def nearest(answers: Tensor, count: int) -> list[list[int]]:
    """For each row of answers (K, C) the `count` nearest others, or all; of equals the first."""
    rows = answers.double()
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").tolist()
    return [
        sorted((j for j in range(len(row)) if j != k), key=row.__getitem__)[:count]
        for k, row in enumerate(distances)
    ]


def difference(models: Clients, parts: Clients) -> Clients:
    """models - parts for the tensors that `parts` has."""
    return Clients(
        entries(lambda value, whole: whole - value, part, model)
        for model, part in zip(models, parts, strict=True)
    )


def inter_client_consistency(local: Tensor, helpers: Tensor, confident: Tensor) -> Tensor:
    """Mean over helpers and confident samples of sum_c p_h log(p_h / p_local); 0 where no sample is confident
    (FedMatch, Jeong et al. 2021, Eq. 2).

    Probabilities: local (B, C) with the gradient, helpers (H, B, C) constants; confident (B,) bool. Cut to
    [1e-7, 1].
    """
    local, helpers = local.clamp(SMALLEST_SHARE, 1.0), helpers.detach().clamp(SMALLEST_SHARE, 1.0)
    each = (helpers * (helpers.log() - local.log())).sum(-1).sum(0) / max(len(helpers), 1)
    return _mean_where(confident, each)


def majority_labels(local: Tensor, helpers: Tensor) -> Tensor:
    """(B,): the class that most of the local model and its helpers name; of equals the smallest."""
    votes = F.one_hot(torch.cat([local.detach()[None], helpers]).argmax(-1), local.shape[-1]).sum(0)
    return votes.argmax(-1)  # the first of equal maxima


def pseudo_label_loss(logits: Tensor, labels: Tensor, confident: Tensor) -> Tensor:
    """Mean over the confident samples of the cross-entropy with pseudo-labels; 0 where there is none
    (FedMatch, Eq. 3). logits (B, C), labels (B,), confident (B,) bool."""
    return _mean_where(confident, F.cross_entropy(logits, labels, reduction="none"))


def disjoint_penalty(sigma: Mapping[str, Tensor], psi: Mapping[str, Tensor], l1: float, l2: float) -> Tensor:
    """l2 ||sigma - psi||^2 + l1 ||psi||_1 over all trainable tensors (FedMatch, Eq. 5)."""
    return total(
        l2 * (sigma[name].detach() - value).pow(2).sum() + l1 * value.abs().sum()
        for name, value in psi.items()
    )


def _mean_where(chosen: Tensor, values: Tensor) -> Tensor:
    return torch.where(chosen, values, 0.0).sum() / chosen.sum().clamp(min=1)
