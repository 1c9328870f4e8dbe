"""FedGH: one global head that the server trains on the clients' class means (Yi et al. 2023, Algorithm 1)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline import keys
from pipeline.engine import Clients, Params, State, World
from pipeline.methods.base import Method
from pipeline.prototypes import vectors_sent
from pipeline.schema import Count, NonNegative


@dataclass(frozen=True)
class FedGH(Method):
    """Clients train features and the received head, send a mean representation per class, and drop their
    head.

    The server's head takes one pass of SGD over all (mean, class) pairs, shuffled, each pair once
    whatever the number of samples behind it. The released codes differ: one never moves the server's head,
    the other lets client 0 share it; neither is followed.
    """

    # as declared in the released code; PFLlib has 1, which can diverge
    server_lr: NonNegative = 0.01
    # PFLlib: the clients' batch size; 1 goes pair by pair, as the paper does
    server_batch: Count = 16

    def init(self, world: World) -> State:
        models = world.new_models()
        return State(features=models.features, head=models[0].head)

    def round(self, state: State, world: World) -> State:
        models = world.local_epochs(self.deployed(state, world), self.loss).models
        seen = world.class_means(models)
        labels = seen.present.nonzero()[:, 1]  # client by client, their classes in order
        order = torch.randperm(len(labels), generator=keys.torch_generator("server", world.seed, world.round))
        head = fit_head(
            state.head, seen.means[seen.present], labels, self.server_lr, self.server_batch, order
        )
        return State(features=models.features, head=head)

    def deployed(self, state: State, world: World) -> Clients:
        return state.features.joined(world.everyone(state.head))

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        up, _ = vectors_sent(world, world.width)
        return up, world.scalars("head")


def fit_head(
    head: Params, vectors: Tensor, labels: Tensor, lr: float, batch_size: int, order: Tensor
) -> Params:
    """One pass of plain SGD on the cross-entropy of a linear head over labelled vectors (FedGH, Algorithm 1).

    vectors (P, d), labels (P,); `order` (P,) is their permutation. A last incomplete batch counts; without
    vectors the head stays as it is.
    """
    weight, bias = head["head.weight"], head["head.bias"]
    for chosen in order.to(labels.device).split(batch_size):
        inputs = vectors[chosen]
        error = F.softmax(F.linear(inputs, weight, bias), dim=1) - F.one_hot(labels[chosen], len(weight))
        weight, bias = weight - lr * error.T @ inputs / len(inputs), bias - lr * error.mean(0)
    return Params({"head.weight": weight, "head.bias": bias})
