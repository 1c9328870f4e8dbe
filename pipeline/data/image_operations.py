"""Pillow's image operations (colour, contrast, rotation, blur) on batches of tensors, with a strength for
each image.

Images are uint8 (B, C, H, W) with C = 1 (grey) or 3 (RGB), on any device. The result is a new tensor, uint8
with the same shape. Strengths are tensors (B,). Tests show that values equal Pillow's, except where sums in
another order or in 32 bits cross a rounding bound: fewer than one value in a thousand of a blur, by one grey
level. Operations that have no meaning for grey images leave them unchanged, as in Pillow.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.devices import to_device_of

SLACK = 2.0**-32  # Pillow cuts fractions off: 199.99999999999 means 200


def per_image(values: Tensor, images: Tensor) -> Tensor:
    """values (B,) on the images' device as (B, 1, 1, 1)."""
    return to_device_of(values, images)[:, None, None, None]


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the upper `bits` (B,) int64 of each value, 1 .. 8."""
    return images & (256 - 2 ** per_image(8 - bits, images)).to(torch.uint8)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values of at least `threshold` (B,) int64, 0 .. 256."""
    return torch.where(images < per_image(threshold, images), images, 255 - images)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to 0 .. 255; a constant channel stays."""
    low, high = (bound[:, :, None, None].double() for bound in images.flatten(2).aminmax(dim=2))
    flat = high <= low
    # 255 / x would be 255 (1 / x), rounded twice
    scale = torch.where(flat, 1.0, torch.full_like(low, 255) / (high - low))
    offset = torch.where(flat, 0.0, -low * scale)
    return (images * scale + offset).clamp_(0, 255).to(torch.uint8)


def equalize(images: Tensor) -> Tensor:
    """Flatten each channel's histogram in whole numbers; a channel whose steps round to 0 stays."""
    values = images.flatten(2).long()  # (B, C, H W)
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, values, torch.ones_like(values))
    last = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - last) // 255
    table = (step // 2 + counts.cumsum(2) - counts) // step.clamp(min=1)
    table = torch.where(step > 0, table.clamp(max=255), torch.arange(256, device=images.device))
    return table.to(torch.uint8).gather(2, values).view(images.shape)


def grey(images: Tensor) -> Tensor:
    """(B, 1, H, W): luma of ITU-R 601 in Pillow's whole numbers."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).to(torch.uint8)[:, None]


def grayscale(images: Tensor) -> Tensor:
    """The grey image in every channel."""
    return grey(images).expand_as(images).clone()


def blend(start: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """start + factor (images - start), cut off to 0 .. 255. start broadcasts to the images; factor (B,)."""
    start = start.float()
    return (
        ((images - start).mul_(per_image(factor.float(), images)).add_(start)).clamp_(0, 255).to(torch.uint8)
    )


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards black; factor (B,), 1 changes nothing."""
    return blend(images.new_zeros(1, 1, 1, 1), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards the image's mean grey."""
    mean = grey(images).flatten(1).double().mean(1)
    return blend(per_image((mean + 0.5).floor(), images), images, factor)


def color(images: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards the grey image (torchvision's saturation)."""
    return blend(grey(images), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from or towards the image smoothed with (1 1 1, 1 5 1, 1 1 1) / 13; its border is not smoothed."""
    values = images.int()
    rows = values[:, :, :-2] + values[:, :, 1:-1] + values[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * values[:, :, 1:-1, 1:-1]
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = ((2 * total + 13) // 26).to(torch.uint8)  # rounded to the nearest
    return blend(smooth, images, factor)


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by `turn` (B,) of a circle, -0.5 .. 0.5, through Pillow's 8-bit HSV."""
    if images.shape[1] == 1:
        return images.clone()
    value, low = images.amax(1).float(), images.amin(1).float()
    span = value - low
    red, green, blue = ((value - channel) / span.clamp(min=1) for channel in images.unbind(1))
    angle = torch.where(
        images[:, 0] == value,
        (blue - green).double(),
        torch.where(images[:, 1] == value, 2 + red.double() - blue, 4 + green.double() - red),
    )
    # 32 and 64 bits where Pillow has them
    angle = ((angle.float().double() / 6 + 1).fmod(1).float().double() * 255).int()
    shift = to_device_of((turn.double() * 255).trunc().int(), images)[:, None, None]
    saturation = ((span / value.clamp(min=1)).double() * 255).floor().float() / 255
    sixths = torch.where(span > 0, angle + shift, shift).remainder(256).double() * 6 / 255
    part = (sixths - sixths.floor()).float()
    p, q, t = (
        value * (1 - s)
        for s in (
            saturation.double(),
            (saturation * part).double(),
            saturation.double() * (1 - part.double()),
        )
    )
    p, q, t = ((x + 0.5).floor().float() for x in (p, q, t))
    sector = (sixths.floor().long() % 6)[:, None, None].expand(-1, 1, 3, -1, -1)
    corners = ((value, t, p), (q, value, p), (p, value, t), (p, q, value), (t, p, value), (value, p, q))
    choices = torch.stack([torch.stack(corner, 1) for corner in corners], 1)
    return choices.gather(1, sector)[:, 0].to(torch.uint8)


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """(B, 6) float64: the map of `affine` that turns counter-clockwise about the centre."""
    turn = -torch.deg2rad(degrees.double())
    cos, sin = turn.cos(), turn.sin()
    x, y = width / 2, height / 2
    return torch.stack([cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y], 1)


def affine(images: Tensor, maps: Tensor) -> Tensor:
    """Bilinear; black where the source lies outside. maps (B, 6) rows (a, b, c, d, e, f): the output pixel
    (x, y) comes from (a x + b y + c, d x + e y + f), positions counted from the upper left corner, in the
    middle of a pixel."""
    height, width = images.shape[2:]
    a, b, c, d, e, f = to_device_of(maps.double(), images)[:, :, None, None].unbind(1)
    x = torch.arange(width, device=images.device, dtype=torch.float64) + 0.5
    y = torch.arange(height, device=images.device, dtype=torch.float64)[:, None] + 0.5
    x, y = a * x + b * y + c, d * x + e * y + f
    grid = torch.stack([x * (2 / width) - 1, y * (2 / height) - 1], 3)
    out = F.grid_sample(images.double(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return (out.add_(SLACK) * inside[:, None]).to(torch.uint8)


def affine_nearest(images: Tensor, maps: Tensor) -> Tensor:
    """As `affine` with the nearest pixel's value, in Pillow's fixed point of 16 bits."""
    height, width = images.shape[2:]
    a, b, c, d, e, f = maps.unbind(1)
    a, b, c, d, e, f = (
        to_device_of((v * 65536 + 0.5).floor().long(), images)[:, None, None]
        for v in (a, b, c + (a + b) / 2, d, e, f + (d + e) / 2)
    )
    x = torch.arange(width, device=images.device)
    y = torch.arange(height, device=images.device)[:, None]
    x, y = (a * x + b * y + c) >> 16, (d * x + e * y + f) >> 16
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return take(images, y.clamp(0, height - 1) * width + x.clamp(0, width - 1)) * inside[:, None]


def take(images: Tensor, places: Tensor) -> Tensor:
    """The pixels at `places` (B, h, w) int64, counted row by row, in every channel: (B, C, h, w)."""
    index = places.flatten(1)[:, None].expand(-1, images.shape[1], -1)
    return images.flatten(2).gather(2, index).unflatten(2, places.shape[1:])


def resized_crop(
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int
) -> Tensor:
    """Cut a box, four tensors (B,) int64, and resize it bilinearly with antialiasing to (B, C, size, size):
    rows first, then columns, each rounded. (Since version 13 Pillow takes columns first where they shrink
    much more: one grey level.)"""
    batch, channels, rows, columns = images.shape
    across = to_device_of(_triangles(left, width, columns, size), images)
    down = to_device_of(_triangles(top, height, rows, size), images)
    wide = _rounded(images.double().reshape(batch, channels * rows, columns) @ across.mT)
    return _rounded(down[:, None] @ wide.view(batch, channels, rows, size)).to(torch.uint8)


def _triangles(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """(B, size, side): how much every source pixel counts in every output pixel, in Pillow's fixed point of
    22 bits, which decides ties. Pixels outside the box count nothing."""
    start, length = start[:, None, None].double(), length[:, None, None].double()
    scale = length / size
    pixel = torch.arange(side) - start
    centre = (torch.arange(size)[:, None] + 0.5) * scale
    weights = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weights = torch.where((pixel >= 0) & (pixel < length), weights, 0.0)
    return _rounded(weights / weights.sum(2, keepdim=True) * 2**22) / 2**22


def _rounded(x: Tensor) -> Tensor:
    return x.add_(0.5).floor_()


def gaussian_blur(images: Tensor, radius: Tensor) -> Tensor:
    """Pillow's approximation: three box blurs of fractional width along rows, three along columns, each
    rounded. radius (B,) in pixels is the standard deviation, 0 <= radius < 2.4 (boxes of five pixels at
    most); the border is repeated."""
    variance = radius.double() ** 2 / 3
    whole = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    reach = whole + part
    inner = 1 / (2 * reach + 1)
    outer = (1 - (2 * whole + 1) * inner) / 2
    near, far = torch.where(whole > 0, inner, outer), torch.where(whole > 0, outer, 0.0)
    weights = [per_image(w.float(), images) for w in (inner, near, far)]
    x = images.float()
    for _ in range(2):  # rows, then columns
        for _ in range(3):
            x = _box(x, *weights)
        x = x.mT.contiguous()
    return x.to(torch.uint8)


def _box(x: Tensor, middle: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """One box blur along the last axis: five weights, symmetric."""
    width = x.shape[3]
    wide = F.pad(x, (2, 2, 0, 0), mode="replicate")
    out = x * middle
    out += (wide[..., 1 : width + 1] + wide[..., 3 : width + 3]) * near
    out += (wide[..., :width] + wide[..., 4:]) * far
    return _rounded(out)
