"""FedALA: each client learns for every parameter how much of the global model to take over (Zhang et al.
2023, Algorithm 1)."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline import keys
from pipeline.engine import Clients, Params, State, World
from pipeline.engine.phase import trainable_names
from pipeline.errors import warn
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.models import set_generator
from pipeline.schema import Count, Fraction, NonNegative, Positive, Whole

MOST_EPOCHS = 1000  # the start phase may never settle: a noisy loss keeps its spread


@dataclass(frozen=True)
class FedALA(FedAvg):
    """The client starts from w_k + (w - w_k) * A_k in the last layers and from w below, A_k in [0, 1] learnt
    first.

    The state holds what each client starts its next round from (scored before training), A_k, whether the
    client has its start phase before it (1 or 0), and how many epochs its last weight learning took.
    """

    supports = frozenset()
    # the default of this and the next four is the released code's
    eta: NonNegative = 1.0
    # of the training samples, for the weights
    share: Fraction = 0.8
    # last parameter tensors that have weights: 2 is the head; 0: all
    tensors: Whole = 2
    # the start phase ends when the std of the last losses is below
    threshold: Positive = 0.1
    # how many last losses
    losses: Count = 10
    # slice: of one fixed order, contiguous, as released; random: a draw, as in FL-bench.
    subset: Literal["slice", "random"] = "slice"
    dropout: bool = False  # the released code leaves it on while weights are learnt

    def init(self, world: World) -> State:
        model, n = world.new_model(), len(world.clients)
        names = trainable_names(world.network(0, model), "all")
        names = names[-self.tensors :] if self.tensors else names
        ones = Params((name, torch.ones_like(model[name])) for name in names)
        return State(
            models=world.everyone(model),
            weights=world.everyone(ones),
            starting=torch.ones(n),
            epochs=torch.zeros(n),
        )

    def round(self, state: State, world: World) -> State:
        local = world.local_epochs(state.models, self.loss).models
        received = world.average(local)
        learnt = [
            self._learn(world, k, local[k], received, state.weights[k], bool(state.starting[k]))
            for k in range(len(world.clients))
        ]
        weights, epochs = Clients(w for w, _ in learnt), torch.tensor([float(e) for _, e in learnt])
        models = Clients(adaptive_mix(mine, received, a) for mine, a in zip(local, weights, strict=True))
        starting = state.starting.cpu() * (epochs == 0)
        return State(models=models, weights=weights, starting=starting, epochs=epochs)

    def diagnostics(self, state: State) -> dict[str, float]:
        return {"mixing_epochs": float(state.epochs.mean())}

    def _learn(
        self, world: World, k: int, local: Params, received: Params, weights: Params, starting: bool
    ) -> tuple[Params, int]:
        """(A_k, epochs): one pass over the subset, or in the start phase passes until the loss has settled;
        none where there are no data or where the two models are equal."""
        if not world.sizes[k] or all(torch.equal(local[name], received[name]) for name in received):
            return weights, 0
        above = all(name.startswith("head.") for name in weights)  # then the features are computed once
        inputs = world.representations(k, received) if above else world.clients[k].images
        chosen, labels = self._subset(world, k).to(inputs.device), world.clients[k].labels
        batches = [(inputs[part], labels[part]) for part in chosen.split(world.training.batch_size)]
        network, name = world.network(k, received), world.clients[k].name
        network.dropout.train(self.dropout)
        set_generator(network, keys.torch_generator("dropout", world.seed, "mixing", world.round, name))
        scores = nn.Sequential(network.dropout, network.head) if above else network
        mixed = {name: value for name, value in network.named_parameters() if name in weights}
        weights = Params((name, a.clone()) for name, a in weights.items())
        seen: list[float] = []
        while len(seen) < (MOST_EPOCHS if starting else 1) and not self._settled(seen):
            for inputs, labels in batches:
                with torch.no_grad():
                    for name, a in weights.items():
                        mixed[name].copy_(torch.lerp(local[name], received[name], a))
                loss = cross_entropy(scores(inputs), labels)
                slopes = torch.autograd.grad(loss, [mixed[name] for name in weights])
                for (name, a), slope in zip(weights.items(), slopes):
                    a.sub_(self.eta * slope * (received[name] - local[name])).clamp_(0, 1)
            seen.append(loss.item())  # of the last batch, before its step
        if starting and not self._settled(seen):
            place = f"seed {world.seed}, round {world.round}, client {world.clients[k].name}"
            warn(f"{place}: the mixing weights did not settle in {MOST_EPOCHS} epochs")
        return weights, len(seen)

    def _settled(self, seen: list[float]) -> bool:
        """More than `losses` epochs, and the last losses nearly equal."""
        return len(seen) > self.losses and statistics.pstdev(seen[-self.losses :]) < self.threshold

    def _subset(self, world: World, k: int) -> Tensor:
        """Indices (max(1, share n),) of the samples for the weights. The released code's order comes from a
        shuffled split; ours is sorted, so a permutation that is fixed for the run replaces it."""
        n, name = world.sizes[k], world.clients[k].name
        size, key = max(1, int(self.share * n)), (world.seed, world.round, name)
        if self.subset == "random":
            return torch.randperm(n, generator=keys.torch_generator("mixing subset", *key))[:size]
        order = torch.randperm(n, generator=keys.torch_generator("mixing order", world.seed, name))
        first = int(torch.randint(n - size + 1, (), generator=keys.torch_generator("mixing slice", *key)))
        return order[first : first + size]


def adaptive_mix(local: Params, received: Params, weights: Mapping[str, Tensor]) -> Params:
    """local + (received - local) * weight, element-wise, for the tensors that have weights; the others as
    received (FedALA, Zhang et al. 2023, Eq. 4). Exact at weights 0 and 1; a weight has its tensor's shape
    or is one number for it."""
    return received.joined(
        {name: torch.lerp(local[name], received[name], weight) for name, weight in weights.items()}
    )
