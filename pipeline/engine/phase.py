"""A phase of local training: clients with their data, loss, epochs, mini-batches and random numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline import keys
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params
from pipeline.models import Network, described
from pipeline.schema import Model, Optimiser, Training

Part = Literal["all", "features", "head"]
# Numbers of a batch, averaged over the phase; those whose names begin with LAST_EPOCH, over its last epoch.
Logged = dict[str, Tensor]
LAST_EPOCH = "last_epoch."
# the name under which the loss itself is logged
LOSS = "loss"
# what a loss gives, see `split_loss`
Objective = Tensor | tuple[Tensor, Logged]
# (model, batch, server_state, client_state)
Loss = Callable[[Handle, Batch, Any, Any], Objective]
Views = Callable[[Tensor, torch.Generator], tuple[Tensor, ...]]
# (model, batches, server_state, client_state) -> (trainable parameters, client_state[, logged])
Step = Callable[[Handle, list[Batch], Any, Any], tuple[Params, object] | tuple[Params, object, Logged]]


@dataclass(frozen=True)
class Client:
    """A client and its training data, in memory on the device.

    name, domain: as in the partition; the name is part of the key of the client's random draws
    model: its network. This may also be any torch.nn module, from whose weights all clients start, or a class
        or function that makes one, drawn anew for every seed. `models.outside` describes how it is split into
        features and head. Clients with the same network share one object.
    images: (n, C, H, W), channels last; or other samples (n, ...) that the network accepts
    labels: (n,) int64
    """

    name: str
    domain: str
    model: Model
    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", described(self.model))


@dataclass(frozen=True)
class LocalOptions:
    """How a phase differs from the scenario's local training.

    trainable: the part of the model that trains: `all` (default), `features` or `head`; the rest is frozen
    epochs: passes over a client's data; None: the scenario's `local_epochs`
    optimiser: created anew in every phase; None: the scenario's
    stream: part of the key of all draws; two phases with the same stream in a round see the same batches
    trains_state: whether `client_state`, which must then be Clients of floating tensors, is trained by the
        client's optimiser too
    """

    trainable: Part = "all"
    epochs: int | None = None
    optimiser: Optimiser | None = None
    stream: str = "local"
    trains_state: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Phase:
    """What an executor runs: `epochs` passes over each client's data.

    An optimiser minimises a `loss`, or the method defines the whole `step`.

    key: (seed, stream, round)

    The other fields are as in `World.local_epochs`, `LocalOptions` and `Federation`.
    """

    clients: Sequence[Client]
    models: Clients
    loss: Loss | None = None
    step: Step | None = None
    batches_per_step: int = 1
    trainable: Part
    epochs: int
    optimiser: Optimiser
    trains_state: bool
    server_state: Any
    client_state: Any
    key: tuple
    views: Views | None = None
    work: tuple[float, ...] | None = None

    def epochs_of(self, k: int) -> int:
        """Number of passes of client k."""
        return share_of_epochs(self.epochs, self.work, k)

    @cached_property
    def present(self) -> tuple[int, ...]:
        """The indices of the clients with data, which are the ones that train."""
        return tuple(k for k, size in enumerate(sizes_of(self.clients)) if size)


# -- clients -------------------------------------------------------------------------------------------------


class Roster(Sequence[Client]):
    """Clients that are made when they are read, with what is known of all of them before.

    sizes: the number of training samples of each
    models: the networks that occur, each once
    """

    sizes: tuple[int, ...]
    models: tuple[Model, ...]

    def client(self, k: int) -> Client:
        """Client k, for k from 0."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return tuple(map(self.client, range(len(self))[k]))
        return self.client(range(len(self))[k])


class Made(Roster):
    """Clients whose data nobody holds: each is made anew when it is read, and dropped afterwards.

    sizes: the number of training samples of each
    models: the networks that occur
    make: make(k) returns client k with `sizes[k]` samples, the same each time

    The executor that stacks clients holds all their images, so with it they are all made at once.
    """

    def __init__(self, sizes: Sequence[int], models: Sequence[Model], make: Callable[[int], Client]):
        self.sizes, self.models, self.make = tuple(sizes), tuple(models), make

    def client(self, k: int) -> Client:
        return self.make(k)


class Present(Roster):
    """The clients of a round, in which the absent ones have no data. Of these, one is made when it is read.

    whole: all clients of the federation
    present: indices of those that take part
    """

    def __init__(self, whole: Sequence[Client], present: Sequence[int]):
        self.whole, self.present = whole, frozenset(present)
        self.models, known = models_of(whole), sizes_of(whole)
        sizes = [0] * len(known)
        for k in self.present:
            sizes[k] = known[k]
        self.sizes = tuple(sizes)

    def client(self, k: int) -> Client:
        client = self.whole[k]
        if k in self.present:
            return client
        return replace(client, images=client.images[:0], labels=client.labels[:0])


def sizes_of(clients: Sequence[Client]) -> tuple[int, ...]:
    """The number of training samples of each client."""
    return clients.sizes if isinstance(clients, Roster) else tuple(len(client.labels) for client in clients)


def models_of(clients: Sequence[Client]) -> tuple[Model, ...]:
    """The networks of the clients, each once, in the order of their first clients."""
    if isinstance(clients, Roster):
        return clients.models
    return tuple(dict.fromkeys(client.model for client in clients))


def of_client(client_state: Any, k: int) -> Any:
    """The part of a `client_state` that belongs to client k; None if there is no state.

    client_state: Clients, a tensor (clients, ...), a dict of these, or None
    k: the client's index
    """
    if isinstance(client_state, dict):
        return type(client_state)((name, of_client(value, k)) for name, value in client_state.items())
    return None if client_state is None else client_state[k]


def of_all(shares: Sequence[Any]) -> Any:
    """The `client_state` that these parts, one for each client, make up."""
    if isinstance(shares[0], Params):
        return Clients(shares)
    if isinstance(shares[0], dict):
        kind = type(shares[0])
        return kind((name, of_all([share[name] for share in shares])) for name in shares[0])
    return None if shares[0] is None else torch.stack(list(shares))


def share_of_epochs(epochs: int, work: Sequence[float] | None, k: int) -> int:
    """Number of epochs, from 1 to `epochs`, of a client that does the fraction work[k] of them."""
    return epochs if work is None else min(epochs, 1 + int(work[k] * epochs))


# -- draws ---------------------------------------------------------------------------------------------------


def draw(candidates: Sequence[int], wanted: float | int, total: int, *key: int | str) -> tuple[int, ...]:
    """Sample candidates without replacement; they stay in their order.

    candidates: indices of clients
    wanted: a count (int), or a fraction (float) of `total` clients, rounded to the nearest number; at least
        one client is drawn, and all if there are no more
    key: of the draw
    """
    count = max(1, wanted if isinstance(wanted, int) else round(wanted * total))
    order = torch.randperm(len(candidates), generator=keys.torch_generator(*key)).tolist()
    return tuple(sorted(candidates[i] for i in order[:count]))


def order(phase: Phase, client: Client, epoch: int) -> Tensor:
    """The permutation of a client's images in an epoch, (n,) on the CPU."""
    return torch.randperm(len(client.labels), generator=generator("batches", phase, client, epoch))


def generator(purpose: str, phase: Phase, client: Client, epoch: int) -> torch.Generator:
    """The client's random generator of an epoch, for `batches`, `dropout`, `noise` (of its loss) or
    `views`."""
    return keys.torch_generator(purpose, *phase.key, client.name, epoch)


# -- batches -------------------------------------------------------------------------------------------------


def batches(
    n: int, training: Training, network: nn.Module, batches_per_step: int = 1
) -> list[tuple[int, int]]:
    """(first, last + 1) of every batch of a client's images.

    n: number of images
    training: its batch_size and drop_last are used
    network: the client's
    batches_per_step: number of mini-batches that one step uses; default 1

    A last incomplete batch is used unless drop_last is set. A batch of a single sample is left out if the
    network has BatchNorm, which cannot normalise it. If `batches_per_step` is above 1, the pairs are the
    pieces that one step uses together; a last piece with fewer samples than `batches_per_step` is left out
    (Per-FedAvg's D and D').
    """
    size = training.batch_size * batches_per_step
    return cuts(n, size, size if training.drop_last else max(batches_per_step, least_batch(network)))


def cuts(n: int, size: int, least: int) -> list[tuple[int, int]]:
    """(first, last + 1) of each batch of n images; batches of fewer than `least` images are left out."""
    return [(first, min(first + size, n)) for first in range(0, n, size) if min(size, n - first) >= least]


def least_batch(*networks: nn.Module) -> int:
    """Smallest batch that the network can train on: 2 with BatchNorm, which cannot normalise one image,
    otherwise 1."""
    return 2 if any(map(has_batchnorm, networks)) else 1


def has_batchnorm(network: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())


def pieces(batch: Batch, count: int) -> list[Batch]:
    """A batch cut into `count` equal batches; remaining samples are not used."""
    size = len(batch.labels) // count
    cuts = [slice(i * size, (i + 1) * size) for i in range(count)]
    return [
        Batch(batch.images[cut], batch.labels[cut], tuple(view[cut] for view in batch.views)) for cut in cuts
    ]


# -- parameters and losses -----------------------------------------------------------------------------------


def trainable_names(network: Network, part: Part) -> list[str]:
    """Names of the parameters that a phase trains, without those that the network freezes."""
    return [
        name
        for name, p in network.named_parameters()
        if p.requires_grad and (part == "all" or name.startswith(part))
    ]


def split_loss(value: Objective) -> tuple[Tensor, Logged]:
    """(loss, logged values) of what a loss function returned; the loss itself is logged, too."""
    loss, logged = value if isinstance(value, tuple) else (value, {})
    return loss, {**logged, LOSS: loss}
