"""Convert stored samples to normalised network inputs, and images to pixels and back for augmentation."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.devices import to_device_of
from pipeline.errors import TrainingError
from pipeline.schema import Data

STATISTICS = {  # mean and standard deviation per channel, of images in [0, 1]
    "none": ((0.0,) * 3, (1.0,) * 3),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    # These are (125.3, 123.0, 113.9) / 255 and (63.0, 62.1, 66.7) / 255.
    "cifar10": ((0.4914, 0.4824, 0.4467), (0.2471, 0.2435, 0.2616)),
}
# ITU-R 601, as Pillow converts
GREY = (0.299, 0.587, 0.114)
# images resized at once
CHUNK = 4096


def to_tensor(images: np.ndarray, data: Data) -> Tensor:
    """uint8 (N, H, W, C) -> float32 (N, channels, size, size) in channels-last layout, resized and
    normalised.

    Resizing is bilinear with antialiasing. One channel becomes three by repetition, three become one as grey.
    """
    out = torch.empty(len(images), data.channels, data.size, data.size).contiguous(
        memory_format=torch.channels_last
    )
    for start in range(0, len(images), CHUNK):
        chunk = (
            torch.from_numpy(np.ascontiguousarray(images[start : start + CHUNK]))
            .permute(0, 3, 1, 2)
            .float()
            .div_(255)
        )
        resized = _channels(chunk, data.channels)
        if resized.shape[-2:] != (data.size, data.size):
            resized = F.interpolate(resized, data.size, mode="bilinear", antialias=True, align_corners=False)
        mean, std = _statistics(data.normalise, resized)
        out[start : start + CHUNK] = (resized - mean) / std
    return out


@dataclass(frozen=True)
class Scale:
    """Mean and deviation, (F, 1, ...) float64, of each entry of a sample's first axis: a column of a table
    (F,), a channel of a signal (F, length)."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, samples: np.ndarray) -> "Scale":
        """That of (N, F, ...); the deviation of what is always the same is 1."""
        axes = (0, *range(2, samples.ndim))
        mean = samples.mean(axes, np.float64, keepdims=True)[0]
        deviation = samples.std(axes, np.float64, keepdims=True)[0]
        return cls(mean, np.where(deviation > 0, deviation, 1.0))


def numbers(samples: np.ndarray, scale: Scale | None) -> Tensor:
    """Samples (N, ...) as they are stored: int64 stays, all else becomes float32; with a scale, normalised,
    float32."""
    if scale is not None:
        samples = ((samples - scale.mean) / scale.deviation).astype(np.float32)
    elif samples.dtype != np.int64:
        samples = samples.astype(np.float32)
    return torch.from_numpy(np.array(samples))


@dataclass(frozen=True)
class Pixels:
    """Converts between network inputs and pixels, for augmentations and corruptions."""

    normalise: str = "half"

    def bytes(self, images: Tensor) -> Tensor:
        """Network inputs (B, C, H, W) -> uint8 of the same shape. TrainingError for what is no image."""
        if images.dim() != 4 or self.normalise not in STATISTICS:
            shape = (*images.shape[1:],)
            raise TrainingError(f"views and augmentations are of images (C, H, W), not of the shape {shape}")
        mean, std = _statistics(self.normalise, images)
        return (images * std + mean).mul(255).round().clamp(0, 255).to(torch.uint8)

    def inputs(self, pixels: Tensor, like: Tensor) -> Tensor:
        """Pixels in [0, 255] (B, C, H, W) -> network inputs in the dtype and layout of `like`."""
        mean, std = _statistics(self.normalise, like)
        return ((pixels.to(like.dtype) / 255 - mean) / std).contiguous(memory_format=torch.channels_last)


def _channels(x: Tensor, wanted: int) -> Tensor:
    if x.shape[1] == wanted:
        return x
    if wanted == 3:
        return x.expand(-1, 3, -1, -1)
    return (x * torch.tensor(GREY).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _statistics(how: str, images: Tensor) -> Iterator[Tensor]:
    """Mean and deviation (1, C, 1, 1) of every channel, on the images' device."""
    for values in STATISTICS[how]:
        of_channels = torch.tensor(values[: images.shape[1]], dtype=images.dtype)
        yield to_device_of(of_channels, images).view(1, -1, 1, 1)
