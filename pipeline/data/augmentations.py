"""Random augmentations of image batches (crop, flip, colour jitter, AugMix), drawn separately for each image.

Every view is a function `view(images, generator)`. images: uint8 (B, C, H, W) on any device, square, C = 1 or
3, at least 5 pixels wide. generator: a CPU generator, from which all random numbers are drawn, always the
same number of them, so that the draws of a seed do not depend on the images. Views are uint8 with the same
shape and device, except those of `augmix`, which are float32 in [0, 255].
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Generator, Tensor

from pipeline.data import image_operations as pillow
from pipeline.data.image_operations import take
from pipeline.devices import to_device_of

# pixels around an image before a random crop
PAD = 4
# degrees either way (RAHFL's public images)
TURN = 15.0
# A random resized crop's share of the area, its width : height, and the tries to fit it.
SCALE, RATIO, TRIES = (0.2, 1.0), (3 / 4, 4 / 3), 10
JITTER, HUE = 0.4, 0.1  # brightness, contrast and colour 1 +- .4; hue +- .1 of the circle
P_JITTER, P_GREY, P_BLUR, P_FLIP = 0.8, 0.2, 0.5, 0.5
RADIUS = (0.1, 2.0)  # of the Gaussian blur, pixels

WIDTH, DEPTH, SEVERITY = 3, 3, 3  # AugMix: chains, operations in one at most, strength of an operation
NINE = (
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
# The last four resemble the corruptions of the test images.
ALL = (*NINE, "color", "contrast", "brightness", "sharpness")


def crop_flip(images: Tensor, generator: Generator) -> Tensor:
    """Reflect 4 pixels around, crop at random, flip half of them (FangXiuwen/RAHFL, Dataset/utils.py;
    its ColorJitter() does nothing)."""
    return _crop_flip(images, generator, reflect=True)


plain = crop_flip


def simple(images: Tensor, generator: Generator) -> Tensor:
    """RAHFL's weak view for the contrast (Sec. 4.1; FangXiuwen/RAHFL, Dataset/utils.py): reflect 4 pixels
    around, random resized crop back to the size, colour jitter (.8), grey (.2), Gaussian blur (.5), flip
    (.5). The crop is one of the padded image."""
    side = images.shape[3]
    rim = to_device_of(_reflected(torch.arange(-PAD, side + PAD), side), images)
    padded = images[:, :, rim[:, None], rim]
    out = _grayscaled(_jittered(_resized_crop(padded, generator, side), generator), generator)
    radius = _uniform(generator, len(images), *RADIUS)
    out = _where(_chance(generator, len(images), P_BLUR), out, pillow.gaussian_blur, radius)
    return _flipped(out, generator)


def weak(images: Tensor, generator: Generator, crop: Literal["resized", "padded"] = "resized") -> Tensor:
    """FCCL+'s weak view of public images: crop and flip. `resized`: a random resized crop (Sec. 4.1);
    `padded`: 4 black pixels around and a crop of the image's size, what its release does."""
    if crop == "padded":
        return _crop_flip(images, generator, reflect=False)
    return _flipped(_resized_crop(images, generator, images.shape[3]), generator)


def strong(images: Tensor, generator: Generator, crop: Literal["resized", "padded"] = "resized") -> Tensor:
    """FCCL+'s strong view of public images: `weak`, then colour jitter (.8) and grey (.2)."""
    return _grayscaled(_jittered(weak(images, generator, crop), generator), generator)


def crop_flip_rotate(images: Tensor, generator: Generator) -> Tensor:
    """RAHFL's and FCCL's view of public images, and FCCL+'s strong one of Fashion-MNIST (WenkeHuang/FCCL,
    fccl+/datasets/fashion_mnist.py): 4 black pixels around, crop, flip, turn by U(-15, 15) degrees to the
    nearest pixel, as torchvision's RandomRotation does by default."""
    out = _crop_flip(images, generator, reflect=False)
    degrees = _uniform(generator, len(images), -TURN, TURN)
    return pillow.affine_nearest(out, pillow.rotation(degrees, *images.shape[2:]))


def augmix(images: Tensor, generator: Generator, operations: Literal["nine", "all"] = "nine") -> Tensor:
    """AugMix (Hendrycks et al. 2020, Alg. 1; width 3, depth 1..3, severity 3): float32 (B, C, H, W) in [0,
    255], not rounded.

    (1 - m) x + m sum_i w_i chain_i(x) with w ~ Dirichlet(1, 1, 1), m ~ Beta(1, 1). The reference mixes
    normalised images, which is the same because the weights sum to 1. `nine` leaves out operations that
    resemble the test corruptions (RAHFL); `all` is AugHFL's thirteen. Two views of one image are two calls.
    """
    n = len(images)
    names = NINE if operations == "nine" else ALL
    depth = torch.randint(1, DEPTH + 1, (n, WIDTH), generator=generator)
    drawn = torch.randint(len(names), (n, WIDTH, DEPTH), generator=generator)
    level = _uniform(generator, (n, WIDTH, DEPTH), 0.1, SEVERITY)
    sign = 1.0 - 2.0 * _chance(generator, (n, WIDTH, DEPTH), 0.5)
    # Gamma(1) draws, which divided by their sum are Dirichlet(1, 1, 1).
    weights = torch.empty(n, WIDTH).exponential_(generator=generator)
    share = _uniform(generator, n, 0.0, 1.0)  # Beta(1, 1)
    return mix(
        images, chains(images, depth, drawn, level, sign), weights / weights.sum(1, keepdim=True), share
    )


def magnitude(operation: str, level: Tensor, side: int = 32) -> Tensor:
    """An operation's parameter at a level, 0.1 .. 3 (bits, degrees, threshold, slope, pixels); float64."""
    level = level.double()
    kind = operation.split("_")[0]
    if kind in ("posterize", "rotate", "solarize", "translate"):
        steps = (
            level * {"posterize": 4, "rotate": 30, "solarize": 256, "translate": side / 3}[kind] / 10
        ).trunc()
        return {"posterize": 4 - steps, "solarize": 256 - steps}.get(kind, steps)
    return level * 0.3 / 10 if kind == "shear" else level * 1.8 / 10 + 0.1


def chains(images: Tensor, depth: Tensor, drawn: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """uint8 (B, chains, C, H, W): every chain's first `depth` (B, chains) operations applied to the image,
    one after the other. drawn, places in ALL, level and sign (+-1) are (B, chains, steps)."""
    count = drawn.shape[1]
    out = images.repeat_interleave(count, 0)
    depth, drawn, level, sign = depth.flatten(), drawn.flatten(0, 1), level.flatten(0, 1), sign.flatten(0, 1)
    for step in range(drawn.shape[1]):
        live = torch.where(depth > step, drawn[:, step], -1)
        out = apply(out, live, level[:, step], sign[:, step])
    return out.unflatten(0, (len(images), count))


def apply(images: Tensor, drawn: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """One operation per image: drawn (B,) places in ALL, -1 for none; level (B,) 0.1 .. 3; sign (B,) +-1 for
    those that have one."""
    side = images.shape[3]
    is_ = {name: drawn == place for place, name in enumerate(ALL)}
    out = images.clone()
    for name in ("autocontrast", "equalize"):
        out = _where(is_[name], out, getattr(pillow, name))
    for name in ("posterize", "solarize"):
        out = _where(is_[name], out, getattr(pillow, name), magnitude(name, level).long())
    for name in ALL[len(NINE) :]:
        out = _where(is_[name], out, getattr(pillow, name), magnitude(name, level))
    maps = pillow.rotation(sign * magnitude("rotate", level) * is_["rotate"], *images.shape[2:])
    for column, name in ((1, "shear_x"), (3, "shear_y"), (2, "translate_x"), (5, "translate_y")):
        maps[:, column] += sign * magnitude(name, level, side) * is_[name]
    moved = is_["rotate"] | is_["shear_x"] | is_["shear_y"] | is_["translate_x"] | is_["translate_y"]
    return _where(moved, out, pillow.affine, maps)


def mix(images: Tensor, chained: Tensor, weights: Tensor, share: Tensor) -> Tensor:
    """(1 - share) x + share sum_i weights_i chained_i, float32. chained (B, chains, C, H, W), weights (B,
    chains), share (B,)."""
    weights, share = to_device_of(weights.float(), images), pillow.per_image(share.float(), images)
    mixture = (weights[:, None] @ chained.flatten(2).float()).view(images.shape)
    return torch.lerp(images.float(), mixture, share)


def _uniform(generator: Generator, shape: int | tuple[int, ...], low: float, high: float) -> Tensor:
    """U(low, high), float64."""
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)


def _chance(generator: Generator, shape: int | tuple[int, ...], p: float) -> Tensor:
    return torch.rand(shape, generator=generator) < p


def _where(chosen: Tensor, images: Tensor, operation: Callable[..., Tensor], *strengths: Tensor) -> Tensor:
    """Write `operation(images, *strengths)` into the images that are chosen (B,), a CPU mask."""
    rows = chosen.nonzero()[:, 0]
    if len(rows):
        places = to_device_of(rows, images)
        images[places] = operation(images[places], *(strength[rows] for strength in strengths))
    return images


def _crop_flip(images: Tensor, generator: Generator, reflect: bool) -> Tensor:
    n, _, height, width = images.shape
    top, left = torch.randint(2 * PAD + 1, (2, n, 1), generator=generator)
    flip = _chance(generator, (n, 1), P_FLIP)
    rows = torch.arange(height) + top - PAD  # (B, H) in the image, which begins at 0
    columns = torch.arange(width) + left - PAD
    columns = torch.where(flip, columns.flip(1), columns)
    if reflect:
        return take(
            images, to_device_of(_places(_reflected(rows, height), _reflected(columns, width), width), images)
        )
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None]
    places = _places(rows.clamp(0, height - 1), columns.clamp(0, width - 1), width)
    return take(images, to_device_of(places, images)) * to_device_of(inside[:, None], images)


def _places(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """(B, h, w): numbers of the pixels where rows (B, h) and columns (B, w) meet."""
    return rows[:, :, None] * width + columns[:, None]


def _reflected(places: Tensor, side: int) -> Tensor:
    """Positions below 0 and above side - 1 mirrored at the border, which itself is not repeated."""
    return (side - 1) - ((side - 1) - places.abs()).abs()


def _resized_crop(images: Tensor, generator: Generator, size: int) -> Tensor:
    """torchvision's RandomResizedCrop(size, scale=(.2, 1)): ten tries for a box that fits."""
    n, _, rows, columns = images.shape
    area = rows * columns * _uniform(generator, (n, TRIES), *SCALE)
    ratio = _uniform(generator, (n, TRIES), math.log(RATIO[0]), math.log(RATIO[1])).exp()
    height, width = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (height <= rows) & (width <= columns) & (height > 0) & (width > 0)
    first = fits.int().argmax(1, keepdim=True)
    height, width = (
        torch.where(fits.any(1), side.gather(1, first)[:, 0], whole).long()
        for side, whole in ((height, rows), (width, columns))
    )
    place = _uniform(generator, (2, n), 0.0, 1.0)
    top, left = (place[0] * (rows - height + 1)).long(), (place[1] * (columns - width + 1)).long()
    return pillow.resized_crop(images, top, left, height, width, size)


def _jittered(images: Tensor, generator: Generator) -> Tensor:
    """torchvision's ColorJitter(.4, .4, .4, .1) with probability .8, its order drawn for each image."""
    n = len(images)
    chosen = _chance(generator, n, P_JITTER)
    order = torch.rand(n, 4, generator=generator).argsort(1)
    factors = _uniform(generator, (3, n), 1 - JITTER, 1 + JITTER)
    strengths = (*factors, _uniform(generator, n, -HUE, HUE))
    for step in range(4):
        for place, operation in enumerate((pillow.brightness, pillow.contrast, pillow.color, pillow.hue)):
            images = _where(chosen & (order[:, step] == place), images, operation, strengths[place])
    return images


def _grayscaled(images: Tensor, generator: Generator) -> Tensor:
    return _where(_chance(generator, len(images), P_GREY), images, pillow.grayscale)


def _flipped(images: Tensor, generator: Generator) -> Tensor:
    flip = pillow.per_image(_chance(generator, len(images), P_FLIP), images)
    return torch.where(flip, images.flip(3), images)
