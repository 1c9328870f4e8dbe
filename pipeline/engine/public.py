"""Public images that server and clients share, and the step that clients take together on a batch of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline import keys
from pipeline.data import augmentations
from pipeline.data.tensors import Pixels
from pipeline.devices import runs_ahead
from pipeline.engine.handle import Draws, Handle
from pipeline.engine.optimisers import Steps
from pipeline.engine.phase import Client, Views, cuts, of_client, trainable_names
from pipeline.engine.state import Clients, Params
from pipeline.models import Network, set_generator
from pipeline.models.layers import Recomputed
from pipeline.schema import Model, Optimiser
from pipeline.schema import Public as Settings

AUGMENTATIONS = {
    "none": None,
    "weak": augmentations.weak,
    "strong": augmentations.strong,
    "weak_padded": partial(augmentations.weak, crop="padded"),
    "strong_padded": partial(augmentations.strong, crop="padded"),
    "crop_flip_rotate": augmentations.crop_flip_rotate,
}
LARGE = 1 << 22  # numbers in all clients' images of a batch: four times 342 images of 3 x 32 x 32
Shown = Tensor | dict[str, Tensor]
Look = Callable[[Handle, Any, Any], Shown]


class PublicBatch(NamedTuple):
    """A public batch, a tensor (B, C, H, W), or what each client sees of it, [(images, view, ...)], and the
    key of the draws that go with it."""

    images: Any
    key: tuple[int, ...]


@dataclass(frozen=True)
class Public:
    """Unlabelled images (N, C, H, W) as network inputs, and how a round goes through them."""

    images: Tensor
    settings: Settings
    pixels: Pixels

    def cuts(self, least: int) -> list[tuple[int, int]]:
        """(first, last + 1) of every batch of a pass; an incomplete one is left out with drop_last, or below
        `least` images."""
        size = self.settings.batch_size
        return cuts(len(self.images), size, size if self.settings.drop_last else least)

    def batches(self, seed: int, round: int, least: int) -> Iterator[tuple[PublicBatch, Tensor]]:
        """The batches of every pass of a round, a keyed permutation, augmented alike for all; each with its
        images (B, C, H, W) before the augmentation."""
        augment = AUGMENTATIONS[self.settings.augmentation]
        for epoch in range(self.settings.epochs):
            key = (seed, round, epoch)
            order = torch.randperm(len(self.images), generator=keys.torch_generator("public", *key)).to(
                self.images.device
            )
            numbers = keys.torch_generator("public views", *key)
            for first, last in self.cuts(least):
                images = stored = self.images.index_select(0, order[first:last])
                if augment is not None:
                    images = self.pixels.inputs(augment(self.pixels.bytes(stored), numbers), stored)
                yield PublicBatch(images, (*key, first)), stored

    def seen_by(
        self, clients: Sequence[Client], batch: PublicBatch, views: Views, viewed: Tensor
    ) -> PublicBatch:
        """What each client makes of one batch: (images, then every view of `viewed`), drawn from its own
        numbers."""
        images, key = batch
        pixels = self.pixels.bytes(viewed)
        return PublicBatch(
            [
                (
                    images,
                    *(
                        self.pixels.inputs(view, images)
                        for view in views(pixels, keys.torch_generator("public own views", *key, c.name))
                    ),
                )
                for c in clients
            ],
            key,
        )


def step_together(
    clients: Sequence[Client],
    networks: dict[Model, Network],
    models: Clients,
    batch: PublicBatch,
    look: Look,
    agree: Callable[[list], list],
    loss: Callable[[Any, Any, Any], Tensor],
    own: object,
    optimiser: Optimiser,
    autocast: torch.dtype | None = None,
) -> Clients:
    """See World.collaborate. On a GPU every client has a stream of its own, so that networks too small to
    fill it overlap. On a CPU, if the clients' graphs together are large, every client first computes its
    outputs without a graph, and again with one when it is its turn to step."""
    (images, key), device = batch, clients[0].images.device
    streams = _streams(device, len(clients)) if runs_ahead(device) else [None] * len(clients)
    again = [
        _looks_again(networks[client.model], _of(images, k), len(clients)) for k, client in enumerate(clients)
    ]

    def seen_by(k: int, graph: bool) -> tuple[dict[str, Tensor], list[Tensor], Shown]:
        """Client k's model after its forward pass (BatchNorm's statistics have moved), its trainable tensors,
        and its outputs; every call gives the same."""
        client, network = clients[k], networks[clients[k].model].train()
        with _on(streams[k]):
            tensors = {name: value.detach().clone() for name, value in models[k].items()}
        moving = {name: tensors[name].requires_grad_() for name in trainable_names(network, "all")}
        set_generator(network, keys.torch_generator("public dropout", *key, client.name))
        handle = Handle(
            network, tensors, set(moving), Draws(keys.torch_generator("public noise", *key, client.name))
        )
        precision = torch.autocast(device.type, autocast, enabled=autocast is not None)
        with _on(streams[k]), precision, torch.set_grad_enabled(graph):
            return tensors, list(moving.values()), look(handle, _of(images, k), of_client(own, k))

    def step(k: int, message: object) -> dict[str, Tensor]:
        tensors, parameters, shown = seen_by(k, graph=True) if again[k] else looks[k]
        with _on(streams[k]):
            gradients = torch.autograd.grad(
                loss(shown, message, of_client(own, k)), parameters, allow_unused=True
            )
            Steps(optimiser, parameters).step(gradients)
        return tensors

    _wait(device)
    looks = [seen_by(k, graph=not again[k]) for k in range(len(clients))]
    _wait(device)
    received = agree([_constant(shown) for *_, shown in looks])
    _wait(device)
    held = [looks[k][0] if message is None else step(k, message) for k, message in enumerate(received)]
    _wait(device)
    return Clients(Params((name, value.detach()) for name, value in tensors.items()) for tensors in held)


def _looks_again(network: Network, seen: Tensor | tuple[Tensor, ...], clients: int) -> bool:
    """Whether to compute a client's graph a second time instead of keeping those of all clients; not where
    the network already keeps little."""
    parts = (seen,) if isinstance(seen, Tensor) else seen
    keeps_little = any(isinstance(layer, Recomputed) for layer in network.modules())
    return parts[0].is_cpu and clients * sum(part.numel() for part in parts) >= LARGE and not keeps_little


def _of(images: Tensor | list, k: int) -> Tensor | tuple[Tensor, ...]:
    """The images that client k sees."""
    return images[k] if isinstance(images, list) else images


def _constant(shown: Shown) -> Shown:
    return (
        {name: value.detach() for name, value in shown.items()} if isinstance(shown, dict) else shown.detach()
    )


@cache
def _streams(device: torch.device, count: int) -> list:
    """The same streams every time, since memory that was freed on a stream can be reused on that stream
    alone."""
    return [torch.cuda.Stream(device) for _ in range(count)]


def _on(stream):
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def _wait(device: torch.device) -> None:
    """Synchronise the clients' streams with the device's own stream: streams do not wait for each other by
    themselves."""
    if runs_ahead(device):
        torch.cuda.synchronize(device)
