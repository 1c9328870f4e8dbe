"""Public images, which the server and all clients see, and the step that clients take on a batch of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from pipeline import keys
from pipeline.data import augmentations
from pipeline.data.tensors import Pixels
from pipeline.devices import runs_ahead
from pipeline.engine.environment import autocast, set_precision
from pipeline.engine.handle import Handle, drawn
from pipeline.engine.optimisers import Steps
from pipeline.engine.phase import Client, Views, cuts, of_client, trainable_names
from pipeline.engine.state import Clients, entries
from pipeline.models import set_generator
from pipeline.models.layers import Recomputed
from pipeline.schema import Optimiser
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
Output = Tensor | dict[str, Tensor]
ClientOutput = Callable[[Handle, Any, Any], Output]  # (model, images, client_state)


class PublicBatch(NamedTuple):
    """A tensor (B, C, H, W), or each client's views of it, [(images, view, ...)]; with the key of its
    draws."""

    images: Any
    key: tuple[int, ...]


@dataclass(frozen=True)
class Public:
    """Unlabelled images (N, C, H, W) as network inputs, and how a round uses them."""

    images: Tensor
    settings: Settings
    pixels: Pixels

    def cuts(self, least: int) -> list[tuple[int, int]]:
        """(first, last + 1) of every batch; an incomplete one is left out if drop_last or `least` says so."""
        size = self.settings.batch_size
        return cuts(len(self.images), size, size if self.settings.drop_last else least)

    def batches(self, seed: int, round: int, least: int) -> Iterator[tuple[PublicBatch, Tensor]]:
        """The batches of all passes of a round, in keyed random order and augmented in the same way for all
        clients.

        Each batch comes with its images (B, C, H, W) before augmentation.
        """
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

    def of_clients(
        self, clients: Sequence[Client], batch: PublicBatch, views: Views, viewed: Tensor
    ) -> PublicBatch:
        """Each client's version of one batch, from the client's draws: (images, then all views of
        `viewed`)."""
        (images, key), pixels = batch, self.pixels.bytes(viewed)

        def of(client: Client) -> tuple[Tensor, ...]:
            made = views(pixels, keys.torch_generator("public own views", *key, client.name))
            return images, *(self.pixels.inputs(view, images) for view in made)

        return PublicBatch([of(client) for client in clients], key)


@dataclass(frozen=True, eq=False)
class Collaboration:
    """The step that all clients take on a public batch; see World.collaborate.

    On a GPU every client has its own stream, so that small networks run in parallel. On a CPU, if the
    clients' graphs together need much memory, every client first computes its outputs without a graph, and
    again with a graph when its turn to step comes.
    """

    world: Any
    models: Clients
    batch: PublicBatch
    client_output: ClientOutput
    aggregate: Callable[[list[Output]], list]
    loss: Callable[[Any, Any, Any], Tensor]
    client_state: object
    optimiser: Optimiser

    def run(self) -> Clients:
        """Every client's model after its step."""
        count, device = len(self.world.clients), self.world.device
        repeats = [self._repeats(k) for k in range(count)]
        _wait(device)
        passes = [self._forward(k, graph=not repeats[k]) for k in range(count)]
        _wait(device)
        messages = self.aggregate([tree_map(Tensor.detach, output) for *_, output in passes])
        _wait(device)
        moved = [tensors for tensors, *_ in passes]
        for k, message in enumerate(messages):
            if message is not None:
                moved[k] = self._step(
                    k, message, *(self._forward(k, graph=True) if repeats[k] else passes[k])
                )
        _wait(device)
        return Clients(entries(Tensor.detach, tensors) for tensors in moved)

    def _forward(self, k: int, graph: bool) -> tuple[dict[str, Tensor], list[Tensor], Output]:
        """Client k's model after its forward pass (BatchNorm's statistics have moved), its trainable tensors,
        and its outputs; every call gives the same."""
        client, device = self.world.clients[k], self.world.device
        key: tuple[int | str, ...] = (*self.batch.key, client.name)
        network = self.world.networks[client.model].train()
        with self._stream(k):
            tensors = entries(lambda value: value.detach().clone(), self.models[k])
        moving = {name: tensors[name].requires_grad_() for name in trainable_names(network, "all")}
        set_generator(network, keys.torch_generator("public dropout", *key))
        draws = partial(drawn, keys.torch_generator("public noise", *key))
        handle = Handle(network, tensors, set(moving), draws)
        with self._stream(k), autocast(device, set_precision(device)), torch.set_grad_enabled(graph):
            output = self.client_output(handle, self._images(k), of_client(self.client_state, k))
        return tensors, list(moving.values()), output

    def _step(self, k: int, message: object, tensors: dict, parameters: list, output: Output) -> dict:
        with self._stream(k):
            value = self.loss(output, message, of_client(self.client_state, k))
            gradients = torch.autograd.grad(value, parameters, allow_unused=True)
            Steps(self.optimiser, parameters).step(gradients)
        return tensors

    def _images(self, k: int) -> Tensor | tuple[Tensor, ...]:
        """The images that client k sees."""
        return self.batch.images[k] if isinstance(self.batch.images, list) else self.batch.images

    def _repeats(self, k: int) -> bool:
        """Is a client's graph computed a second time, instead of holding those of all clients? Not where the
        network already holds little."""
        images = self._images(k)
        parts = (images,) if isinstance(images, Tensor) else images
        large = len(self.world.clients) * sum(part.numel() for part in parts) >= LARGE
        layers = self.world.networks[self.world.clients[k].model].modules()
        return parts[0].is_cpu and large and not any(isinstance(layer, Recomputed) for layer in layers)

    def _stream(self, k: int):
        device = self.world.device
        if not runs_ahead(device):
            return nullcontext()
        return torch.cuda.stream(_streams(device, len(self.world.clients))[k])


@cache
def _streams(device: torch.device, count: int) -> list:
    """The same streams every time: memory freed on a stream can be reused on that stream alone."""
    return [torch.cuda.Stream(device) for _ in range(count)]


def _wait(device: torch.device) -> None:
    """Synchronise the clients' streams with the device's: streams do not wait for each other."""
    if runs_ahead(device):
        torch.cuda.synchronize(device)
