"""Class prototypes: losses that use them, how clients compute them and how a server aggregates them."""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import ClassMeans, State, Trained, World
from pipeline.engine.phase import LAST_EPOCH

# Which representations a client's class means are of: eval, of one more pass after training, in evaluation
# mode; of the training batches, each before its step, of all local epochs (running, as PFLlib has it) or of
# the last (last_epoch, as the codes of FedProto and FPL have it).
Means = Literal["eval", "running", "last_epoch"]
SMALLEST_NORM = 1e-8  # a representation of zeros has cosine 0 with everything


def cosine(z: Tensor, vectors: Tensor) -> Tensor:
    """Cosine of every row of z (B, d) with every row of vectors (P, d): (B, P)."""
    return F.normalize(z, dim=1, eps=SMALLEST_NORM) @ F.normalize(vectors, dim=1, eps=SMALLEST_NORM).T


def prototype_contrast(
    z: Tensor,
    labels: Tensor,
    vectors: Tensor,
    tau: float,
    classes: Tensor | None = None,
    known: Tensor | None = None,
    similarity: Callable[[Tensor, Tensor], Tensor] = cosine,
) -> Tensor:
    """Mean over the batch of -log( sum_{p of class y} e^{s(z,p)/tau} / sum_{all p} e^{s(z,p)/tau} ).

    z (B, d) carries the gradient; labels (B,). vectors (P, d) are constants of the classes `classes` (P,), by
    default one per class in order; `known` (P,) bool leaves the others out altogether. A sample whose class
    has no vector adds 0 and counts in the mean. `similarity` (z, vectors) -> (B, P). (FedCRL Eq. 12; FPL,
    Huang et al. 2023, Eq. 8.)
    """
    classes = torch.arange(len(vectors), device=labels.device) if classes is None else classes
    known = torch.ones_like(classes, dtype=torch.bool) if known is None else known
    logits = similarity(z, vectors.detach()) / tau
    never = torch.finfo(logits.dtype).min  # not -inf, whose gradient is NaN where nothing is left
    positive = (classes == labels[:, None]) & known
    share = F.log_softmax(logits.masked_fill(~known, never), dim=1).masked_fill(~positive, never).logsumexp(1)
    return -torch.where(positive.any(1), share, 0.0).mean()


def prototype_distance(z: Tensor, labels: Tensor, vectors: Tensor, known: Tensor | None = None) -> Tensor:
    """Mean over batch and dimensions of (z - vectors_y)^2 (FedProto's code; FPL's UPCR; FedPAC; FedTGP).

    z (B, d) carries the gradient; labels (B,); vectors (C, d) are constants. Samples whose class is not
    `known` (C,) add 0 and count in the mean.
    """
    gap = z - vectors.detach()[labels]
    return (gap if known is None else torch.where(known[labels][:, None], gap, 0.0)).pow(2).mean()


def class_sums(z: Tensor, labels: Tensor, classes: int, over: str = "running") -> dict[str, Tensor]:
    """What a batch adds to its client's class means, per sample: `class_sum` (C, d) and `class_count` (C,). z
    (B, d) is taken as a constant. If a loss logs it, `logged_means` gives the class means over the
    training batches of a phase, or of its last epoch."""
    member = (labels[:, None] == torch.arange(classes, device=labels.device)).to(z.dtype)
    prefix = LAST_EPOCH if over == "last_epoch" else ""
    return {prefix + "class_sum": member.T @ z.detach() / len(labels), prefix + "class_count": member.mean(0)}


def class_means_of(trained: Trained, world: World, means: Means, **of: Callable) -> ClassMeans:
    """The clients' class means after a local phase, or during it: `means`. of: as of World.class_means."""
    if means == "eval":
        return world.class_means(trained.models, **of)
    return logged_means(trained, world.class_counts)


def logged_means(trained: Trained, counts: Tensor) -> ClassMeans:
    """As World.class_means, of the representations computed during training, while the model changed, over
    the epochs that `class_sums` names.

    counts: (clients, classes) int64, `World.class_counts`: what a client counts, also where some of its
        samples were in no batch. A class of which it saw none has no mean, and counts 0.
    """
    like = trained.models[0]["head.weight"]
    prefix = LAST_EPOCH if LAST_EPOCH + "class_sum" in trained.logged else ""
    sums, seen = (
        trained.logged[prefix + name].to(like.device).nan_to_num(0) for name in ("class_sum", "class_count")
    )
    means = sums / torch.where(seen > 0, seen, 1.0)[..., None]
    return ClassMeans(means.to(like.dtype), torch.where(seen > 0, counts.to(like.device), 0))


def prototype_scores(z: Tensor, vectors: Tensor, known: Tensor) -> Tensor:
    """(B, C): minus the mean squared distance of z (B, d) to vectors (C, d), -inf where not known."""
    distances = torch.cdist(z, vectors, compute_mode="donot_use_mm_for_euclid_dist").pow(2) / z.shape[1]
    return -distances.masked_fill(~known, torch.inf)


def unit(z: Tensor) -> Tensor:
    """Rows (B, d) at length one; a zero row stays zero."""
    return F.normalize(z, dim=1, eps=SMALLEST_NORM)


def aggregate_means(means: Tensor, weights: Tensor, previous: State | None = None) -> State:
    """vectors_c = sum_k w_kc means_kc / sum_k w_kc, summed in float64.

    means (K, C, d); weights (K, C), not negative, 0 where a client does not hold the class:
    `ClassMeans.present` for the plain mean over owners (FedProto), `ClassMeans.counts` for the mean over
    samples (FedCRL, Eq. 6). A class without an owner keeps its vector of `previous`, where it was known.
    """
    weights, total = weights.double(), weights.double().sum(0)
    known = total > 0
    mean = (weights[..., None] * means.double()).sum(0) / torch.where(known, total, 1.0)[:, None]
    mean = mean.to(means.dtype)
    if previous is None:
        return State(vectors=mean, known=known)
    return State(vectors=torch.where(known[:, None], mean, previous.vectors), known=known | previous.known)


def vectors_sent(world: World, width: int) -> tuple[float, float]:
    """Scalars of one vector of `width` numbers per class: (those of the classes that a client holds, mean
    over clients; those of the classes that anyone holds)."""
    held = world.class_counts > 0
    return held.sum().item() / len(held) * width, float(held.any(0).sum().item() * width)
