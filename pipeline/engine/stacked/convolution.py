"""Convolutions whose weights differ by client: grouped convolution or im2col, whichever is faster on this
GPU.

Which one is faster differs by GPU and shape. For images of one channel, the grouped convolution is a
depthwise one. On CUDA, the first step with a new shape times both, replayed from a CUDA graph as steps are.
The choice is stored in `.cells`, so that a resumed run rounds as before, and results record which one was
used.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from pipeline import files
from pipeline.engine.stacked.graphs import recorded
from pipeline.errors import DAMAGED, ParamError
from pipeline.schema import ROOT, check

aten = torch.ops.aten
# elsewhere the grouped convolution, without a trial
DEVICES = ("cuda",)
# card -> shape -> is im2col chosen?
PATH = ROOT / ".cells" / "convolutions.json"
TRIES = 3
# of the grouped convolution's time; im2col is chosen below it
SHARE = 0.9
# numbers in im2col's matrix, above which it is not tried
MOST = 2**30
# What cuDNN says where it has no grouped convolution of a kind and shape, such as double precision.
NO_ENGINE = "unable to find an engine"
# shape -> is im2col chosen? of this process
used: dict[str, bool] = {}


class Convolutions(TorchFunctionMode):
    """Has conv2d under vmap over `clients` take the way that is chosen for its shape."""

    def __init__(self, clients: int, device: torch.device):
        super().__init__()
        self.clients, self.device = clients, device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.conv2d and len(args) == 7 and _differs_by_client(args[1]):
            *values, dilation, groups = args
            if groups == 1 and dilation == (1, 1) and self._unfolds(*values):
                return unfolded(*values)
        return func(*args, **kwargs or {})

    def _unfolds(self, images: Tensor, weight: Tensor, _: Tensor | None, stride, padding) -> bool:
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else images.dtype
        # A first layer needs no gradient of its images.
        backward = "and images" if images.requires_grad else "weights"
        shape = self.clients, *images.shape, *weight.shape, *stride, *padding, kind, backward
        if (key := " ".join(map(str, shape))) not in used:
            x, w = (
                torch.ones(self.clients, *v.shape, dtype=v.dtype, device=self.device)
                for v in (images, weight)
            )
            wanted = (0, 1) if images.requires_grad else (0,)
            used[key] = chosen(self.device, key, lambda: im2col_wins(x, w, stride, padding, wanted))
        return used[key]


def _differs_by_client(weight: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(weight):
        if _functorch.is_batchedtensor(weight):
            return True
        weight = _functorch.get_unwrapped(weight)
    return False


def unfolded(images: Tensor, weight: Tensor, bias: Tensor | None, stride, padding) -> Tensor:
    """conv2d of images (B, C, H, W) as one product of (B H' W', C k k) and (C k k, O). The result is channels
    last, as the product leaves it."""
    if any(padding):
        images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    patches = Patches.apply(images, tuple(weight.shape[2:]), tuple(stride))
    rows = patches.shape[:3]
    out = patches.view(rows.numel(), -1) @ weight.flatten(1).t()
    if bias is not None:
        out = out + bias.to(out.dtype)
    return out.view(*rows, -1).permute(0, 3, 1, 2)


class Patches(torch.autograd.Function):
    """What a kernel sees of images: (..., C, H, W) -> (..., H', W', C, k, k), strided views that are copied
    once. F.unfold launches a kernel for every image on CUDA; the derivative of views has no rule for stacked
    clients, who would take turns."""

    @staticmethod
    def forward(images, kernel, stride):
        views = images.unfold(-2, kernel[0], stride[0]).unfold(-2, kernel[1], stride[1])
        return views.movedim(-5, -3).contiguous()

    @staticmethod
    def setup_context(ctx, inputs, output):
        images, *ctx.how = inputs
        ctx.sides = images.shape[-2:]

    @staticmethod
    def backward(ctx, slopes):
        return Overlaid.apply(slopes, ctx.sides, *ctx.how), None, None

    @staticmethod
    def vmap(info, in_dims, images, *how):
        return Patches.apply(images.movedim(in_dims[0], 0), *how), 0


class Overlaid(torch.autograd.Function):
    """The derivative of `Patches`: every pixel is the sum of its places in the patches."""

    @staticmethod
    def forward(patches, sides, kernel, stride):
        patches = patches.movedim(-3, -5)
        *most, high, _, _, _ = patches.shape
        rows = (*most, high, sides[1], kernel[0])
        across = aten.unfold_backward(patches, rows, len(most) + 1, kernel[1], stride[1])
        return aten.unfold_backward(across, (*most, *sides), len(most), kernel[0], stride[0])

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, _, *ctx.how = inputs

    @staticmethod
    def backward(ctx, slopes):
        return Patches.apply(slopes, *ctx.how), None, None, None

    @staticmethod
    def vmap(info, in_dims, patches, *how):
        return Overlaid.apply(patches.movedim(in_dims[0], 0), *how), 0


def chosen(device: torch.device, key: str, trial: Callable[[], bool]) -> bool:
    """Is im2col chosen for this shape on this card? As an earlier trial says, else this one."""
    card, known = torch.cuda.get_device_name(device), {}
    with suppress(*DAMAGED, ParamError):
        known = check(dict[str, dict[str, bool]], json.loads(PATH.read_text(encoding="utf-8")), "")
    if key not in known.setdefault(card, {}):
        known[card][key] = trial()
        files.write_json(PATH, known)
    return known[card][key]


def im2col_wins(images: Tensor, weights: Tensor, stride, padding, wanted: tuple[int, ...] = (0, 1)) -> bool:
    """Both ways, forward and backward, timed for all clients.

    images, weights: (clients, B, C, H, W) and (clients, O, C, k, k)
    wanted: gradients of weights (0), images (1)
    """
    if images.numel() * weights[0, 0, 0].numel() > MOST:
        return False
    seconds = []
    for way in (F.conv2d, unfolded):

        def loss(weight: Tensor, images: Tensor, way=way) -> Tensor:
            return way(images, weight, None, stride, padding).float().sum()

        step = partial(torch.func.vmap(torch.func.grad(loss, argnums=wanted)), weights, images)
        try:
            seconds.append(replayed(step, images.device))
        except torch.OutOfMemoryError:
            return False
        except RuntimeError as error:
            if way is unfolded or NO_ENGINE not in str(error):
                raise
            seconds.append(math.inf)
    return seconds[1] < SHARE * seconds[0]


def replayed(step: Callable[[], object], device: torch.device) -> float:
    """Seconds of TRIES steps without what launching them takes, which a recorded step does not. Where they
    cannot be recorded, they are launched."""
    step()
    run = step
    with suppress(RuntimeError):
        run = recorded(step, device).replay
    run()
    torch.cuda.synchronize(device)
    begun = time.perf_counter()
    for _ in range(TRIES):
        run()
    torch.cuda.synchronize(device)
    return time.perf_counter() - begun
