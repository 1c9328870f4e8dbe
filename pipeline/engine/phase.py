"""A local phase: what every client does with its data, and the random draws for it. Executors carry it
out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline import keys
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params
from pipeline.models import Network
from pipeline.schema import Model, Optimiser, Training

Part = Literal["all", "features", "head"]
# Further numbers of a batch, averaged over the phase; those whose names begin with LAST_EPOCH, over its last
# epoch alone.
Logged = dict[str, Tensor]
LAST_EPOCH = "last_epoch."
Objective = Tensor | tuple[Tensor, Logged]  # what a loss gives, see `split_loss`
Loss = Callable[[Handle, Batch, Any, Any], Objective]  # (model, batch, shared, own), see World.local_epochs
Views = Callable[[Tensor, torch.Generator], tuple[Tensor, ...]]
Step = Callable[[Handle, list[Batch], Any, Any], tuple[Params, object] | tuple[Params, object, Logged]]


@dataclass(frozen=True)
class Client:
    """A client's name, domain, network and training data, in memory on the device."""

    name: str
    domain: str
    model: Model
    images: Tensor  # (n, C, H, W), channels last
    labels: Tensor  # (n,)


def without_data(client: Client) -> Client:
    """The client as a round sees it that it is absent from."""
    return replace(client, images=client.images[:0], labels=client.labels[:0])


@lru_cache(maxsize=8)
def merged(clients: tuple[Client, ...]) -> Client:
    """The first client that has data, with the training data of all, one client's after the other's. The same
    object for the same clients, by which an executor knows what it has on the device."""
    first = next(client for client in clients if len(client.labels))
    images = torch.cat([client.images for client in clients])
    return replace(first, images=images, labels=torch.cat([client.labels for client in clients]))


def draw(candidates: Sequence[int], wanted: float | int, of: int, *key: int | str) -> tuple[int, ...]:
    """So many of the candidates in their order, drawn from the key: `wanted` is a share (float) of `of`
    clients, to the nearest number, or a number (int). At least one; all where there are no more."""
    count = max(1, wanted if isinstance(wanted, int) else round(wanted * of))
    order = torch.randperm(len(candidates), generator=keys.torch_generator(*key)).tolist()
    return tuple(sorted(candidates[at] for at in order[:count]))


@dataclass
class Phase:
    """Either `loss` (an optimiser descends it) or `step` (a rule of the method's own) over `epochs`
    passes."""

    clients: tuple[Client, ...]  # as the round has them: an absent one without data
    models: Clients
    loss: Loss | None
    step: Step | None
    trainable: Part
    epochs: int
    shared: Any  # the same for every client
    own: Any  # None, Clients, tensor (clients, ...), dict of these
    optimiser: Optimiser
    together: int  # batches that one step takes
    key: tuple  # (seed, stream, round)
    views: Views | None = None  # what a batch's images become before a loss sees them
    # Further values that each client's optimiser trains; its loss sees them as `own`.
    extra: Clients | None = None


def order(phase: Phase, client: Client, epoch: int) -> Tensor:
    """The permutation of a client's images in an epoch, (n,) on the CPU."""
    return torch.randperm(
        len(client.labels), generator=keys.torch_generator("batches", *phase.key, client.name, epoch)
    )


def generator(purpose: str, phase: Phase, client: Client, epoch: int) -> torch.Generator:
    """The client's own random numbers of an epoch, for `dropout`, `noise` (what its loss draws) or
    `views`."""
    return keys.torch_generator(purpose, *phase.key, client.name, epoch)


def seen_as(phase: Phase, images: Tensor, labels: Tensor, numbers: torch.Generator) -> Batch:
    """The batch that the loss gets: the images as they are, or what the phase's views make of them."""
    if phase.views is None:
        return Batch(images, labels)
    first, *others = phase.views(images, numbers)
    return Batch(first, labels, tuple(others))


def batches(n: int, training: Training, network: nn.Module, together: int = 1) -> list[tuple[int, int]]:
    """(first, last + 1) of every batch. A last incomplete one is kept unless drop_last; one of a single
    sample is left out where the network has BatchNorm, which cannot normalise it. With `together` > 1 a batch
    is what a step cuts into that many equal pieces; a trailing one with fewer samples than pieces is left out
    (Per-FedAvg's D and D')."""
    size = training.batch_size * together
    return cuts(n, size, size if training.drop_last else max(together, least_batch(network)))


def cuts(n: int, size: int, least: int) -> list[tuple[int, int]]:
    """(first, last + 1) of the batches of n images; one of fewer than `least` is left out."""
    return [(first, min(first + size, n)) for first in range(0, n, size) if min(size, n - first) >= least]


def least_batch(*networks: nn.Module) -> int:
    """BatchNorm cannot normalise a single image."""
    return 2 if any(map(has_batchnorm, networks)) else 1


def pieces(batch: Batch, together: int) -> list[Batch]:
    """A batch cut into `together` equal batches; samples that are left over are not used."""
    size = len(batch.labels) // together
    cuts = [slice(i * size, (i + 1) * size) for i in range(together)]
    return [
        Batch(batch.images[cut], batch.labels[cut], tuple(view[cut] for view in batch.views)) for cut in cuts
    ]


def has_batchnorm(network: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules())


def trainable_names(network: Network, part: Part) -> list[str]:
    """The parameters that a phase moves. Some networks hold frozen ones for the sake of their published
    counts."""
    return [
        name
        for name, p in network.named_parameters()
        if p.requires_grad and (part == "all" or name.startswith(part))
    ]


def of_client(own: Any, k: int) -> Any:
    """One client's share of `own`."""
    if isinstance(own, dict):
        return type(own)((name, of_client(value, k)) for name, value in own.items())
    return None if own is None else own[k]


def loss_first(logged: list[Logged]) -> Logged:
    """What a step logged, with its `loss` renamed to the empty name, as in a phase that has a loss."""
    values = dict(logged[0]) if logged else {}
    return {"": values.pop("loss"), **values} if "loss" in values else values


def split_loss(value: Objective) -> tuple[Tensor, Logged]:
    """(loss, logged) of what a loss returned."""
    return value if isinstance(value, tuple) else (value, {})
