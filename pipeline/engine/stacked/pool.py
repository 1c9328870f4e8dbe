"""The images and labels of all clients in one tensor, from which batches are taken by index."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.data.tensors import STATISTICS, Pixels
from pipeline.devices import to_device_of
from pipeline.engine.phase import Client

# Values of a byte.
BYTES = 256


class Coding(NamedTuple):
    """Network inputs as bytes. values: (channels * 256,), every byte's input, channel after channel, which
    begins at `begin` (channels, 1, 1)."""

    pixels: Pixels
    values: Tensor
    begin: Tensor

    @classmethod
    def of(cls, normalise: str, like: Tensor) -> "Coding":
        """That of images of this normalisation. Inputs are computed on the CPU, as those of a data set."""
        channels, pixels = like.shape[1], Pixels(normalise)
        every = torch.arange(BYTES, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, channels, 1, 1)
        values = pixels.inputs(every, torch.zeros(1, channels, 1, 1, dtype=like.dtype))
        begin = torch.arange(0, channels * BYTES, BYTES, dtype=torch.int32).view(-1, 1, 1)
        return cls(pixels, to_device_of(values.flatten(1).t().reshape(-1), like), to_device_of(begin, like))

    def inputs(self, pixels: Tensor) -> Tensor:
        """The network inputs of bytes (n, channels, H, W)."""
        places = pixels + self.begin
        return self.values.index_select(0, places.flatten()).view(places.shape)


class Pool:
    """Images that are bytes are held as bytes, a quarter of their inputs' memory, and become inputs when they
    are taken: the same ones, bit for bit.

    starts: where each client's images begin
    coding: of the images; None where they are held as they are
    """

    def __init__(self) -> None:
        self.starts: dict[Client, int] = {}
        self.coding: Coding | None = None
        self._parts: tuple[Tensor, ...] = ()

    def add(self, clients: Iterable[Client]) -> None:
        """Append these clients' data if they are not in it."""
        new = [c for c in dict.fromkeys(clients) if c not in self.starts and len(c.labels)]
        if not new:
            return
        begin = len(self._parts[1]) if self._parts else 0
        self.starts |= zip(new, itertools.accumulate((len(c.labels) for c in new), initial=begin))
        images = [c.images for c in new]
        codings = self._codings(images[0])
        found = ((coding, parts) for coding in codings if (parts := coded(images, coding)) is not None)
        coding, parts = next(found, (None, images))
        old = [self._parts] if self._parts else []
        if self.coding and not coding:  # these are no bytes
            old = [(self.coding.inputs(self._parts[0]), self._parts[1])]
        self.coding = coding
        new_parts = zip(parts, (c.labels for c in new), strict=True)
        self._parts = tuple(map(torch.cat, zip(*old, *new_parts)))

    def _codings(self, like: Tensor) -> list[Coding]:
        """Those that images may have: that of the ones in the pool, or any."""
        if self._parts:
            return [self.coding] if self.coding else []
        pictures = (
            like.dim() == 4 and like.is_floating_point() and like.shape[1] <= len(STATISTICS["none"][0])
        )
        return [Coding.of(normalise, like) for normalise in STATISTICS] if pictures else []

    @property
    def nbytes(self) -> int:
        """Memory of images and labels."""
        return sum(values.nbytes for values in self._parts)

    def take(self, index: Tensor, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Images (rows, batch, ...) and labels (rows, batch) by their places."""
        images, labels = (values.index_select(0, index) for values in self._parts)
        if self.coding:
            images = self.coding.inputs(images)
        return images.unflatten(0, shape), labels.unflatten(0, shape)


def coded(images: list[Tensor], coding: Coding) -> list[Tensor] | None:
    """The images as bytes; None where these would not be the same inputs. The host waits once."""
    parts = [coding.pixels.bytes(some) for some in images]
    same = [(coding.inputs(part) == some).all() for part, some in zip(parts, images, strict=True)]
    return parts if torch.stack(same).all() else None
