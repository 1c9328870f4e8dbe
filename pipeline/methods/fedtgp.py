"""FedTGP: the server trains class prototypes that keep a margin between each other (Zhang et al. 2024,
Algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline import keys
from pipeline.engine import ClassMeans, Params, State, World
from pipeline.methods._server_network import class_vectors, descend, new_network
from pipeline.methods.fedproto import FedProto
from pipeline.prototypes import vectors_sent
from pipeline.schema import Count, NonNegative, Positive, Whole

SMALLEST_DISTANCE = 1e-6  # nearer points have no direction to their vector


@dataclass(frozen=True)
class FedTGP(FedProto):
    """FedProto whose prototypes come from a generator at the server. It learns, from all class means that
    went up, to give each the nearest prototype of its class: CE of -(||p - G_j|| + m [j = c]), m the
    largest gap between a class and its nearest neighbour, at most `cap`. All classes' prototypes go down,
    also those that no client holds.

    The generator lives on from round to round; its optimiser, plain SGD, is new in each.
    """

    supports = frozenset()
    # None: 10, as in the released command, or 1 where models are averaged; a number after __post_init__.
    lam: NonNegative | None = None  # type: ignore[assignment]    # FedProto's is never None
    # FedLSA, for its server; released command 100, its default 1000
    server_epochs: Whole = 500
    # None: the clients' rate, as released
    server_lr: Positive | None = None
    # None: the clients' batch size, as released
    server_batch: Count | None = None
    # all class means in one batch, instead of shuffled ones
    full_batch: bool = False
    cap: Positive = 100.0
    # nearest: the released code's; farthest: the largest distance of all pairs.
    margin: Literal["nearest", "farthest"] = "nearest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam is None:
            object.__setattr__(self, "lam", 1.0 if self.averaging else 10.0)

    def init(self, world: World) -> State:
        start = super().init(world)
        head = (start.model if self.averaging else start.models[0])["head.weight"]
        generator = keys.torch_generator("server", world.seed, "prototypes")
        return State(**start, generator=new_network(world.classes, world.width, world.width, generator, head))

    def at_server(self, seen: ClassMeans, state: State, world: World) -> dict[str, Any]:
        generator = self.train(state.generator, seen, world)
        vectors = class_vectors(generator)
        known = torch.ones(world.classes, dtype=torch.bool, device=vectors.device)
        return {"prototypes": State(vectors=vectors, known=known), "generator": generator}

    def train(self, generator: Params, seen: ClassMeans, world: World) -> Params:
        """Server epochs over all (class mean, class) pairs, client by client, then shuffled."""
        centres = self.aggregate(seen, None)
        margin = min(float(class_gaps(**centres, to=self.margin).max()), self.cap)
        points, labels = seen.means[seen.present].cpu(), seen.present.nonzero()[:, 1].cpu()

        def gradient(vectors: Tensor, chosen: Tensor) -> Tensor:
            return margin_gradient(points[chosen], labels[chosen], vectors, margin)

        rate = self.server_lr or world.training.optimiser.lr
        return descend(generator, gradient, self.batches(len(labels), world), rate)

    def batches(self, pairs: int, world: World) -> Iterator[Tensor]:
        rng = keys.torch_generator("server", world.seed, world.round)
        size = self.server_batch or world.training.batch_size
        for _ in range(self.server_epochs if pairs else 0):
            if self.full_batch:
                yield torch.arange(pairs)
            else:
                yield from torch.randperm(pairs, generator=rng).split(size)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        up, _ = vectors_sent(world, world.width)
        model = world.scalars() if self.averaging else 0.0
        return model + up, model + float(world.classes * world.width)


def class_gaps(vectors: Tensor, known: Tensor, to: Literal["nearest", "farthest"] = "nearest") -> Tensor:
    """(C,): the distance from every class's vector to the nearest (or farthest) of the others; a class that
    is not `known` takes the smallest of these, and all are infinite where fewer than two classes are known.
    (FedTGP's code.)

    vectors (C, d), known (C,) bool.
    """
    distances = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    pairs = known[:, None] & known & ~torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    if to == "nearest":
        gaps = distances.masked_fill(~pairs, torch.inf).amin(1)
    else:
        gaps = distances.masked_fill(~pairs, -torch.inf).amax(1).masked_fill(~pairs.any(1), torch.inf)
    return torch.where(known, gaps, gaps.amin())


def margin_gradient(points: Tensor, labels: Tensor, vectors: Tensor, margin: float) -> Tensor:
    """(C, d): d / d vectors of the mean over points of the cross-entropy of -D, D_j = ||p - v_j|| + margin [j
    = label] (FedTGP, Zhang et al. 2024). points (P, d), labels (P,), vectors (C, d). A point on top of a
    vector does not move it."""
    distances = torch.cdist(points, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    wanted = F.one_hot(labels, len(vectors))
    error = wanted - F.softmax(-distances - margin * wanted, dim=1)
    pull = error / distances.clamp(min=SMALLEST_DISTANCE) / len(points)
    pull = pull.masked_fill_(distances <= SMALLEST_DISTANCE, 0.0)
    return pull.sum(0)[:, None] * vectors - pull.T @ points
