"""Convolutions with weights per client: grouped convolution or im2col, whichever is faster on this GPU.

Which is faster differs by GPU and shape. The first step of a shape tries both on CUDA. The choice stays in
`.cells`, so that a run which goes on rounds as before, and results record what a process has used.
"""

import json
import time
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from pipeline import files
from pipeline.errors import DAMAGED, ParamError
from pipeline.schema import ROOT, check

# elsewhere the grouped convolution, without a trial
DEVICES = ("cuda",)
# card -> shape -> is im2col chosen?
PATH = ROOT / ".cells" / "convolutions.json"
TRIES = 3
# of the grouped convolution's time; im2col is chosen below it
SHARE = 0.9
# numbers in im2col's matrix, above which it is not tried
MOST = 2**30
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
        shape = self.clients, *images.shape, *weight.shape, *stride, *padding, kind
        if (key := " ".join(map(str, shape))) not in used:
            x, w = (
                torch.ones(self.clients, *v.shape, dtype=v.dtype, device=self.device)
                for v in (images, weight)
            )
            used[key] = chosen(self.device, key, lambda: im2col_wins(x, w, stride, padding))
        return used[key]


def _differs_by_client(weight: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(weight):
        if _functorch.is_batchedtensor(weight):
            return True
        weight = _functorch.get_unwrapped(weight)
    return False


def unfolded(images: Tensor, weight: Tensor, bias: Tensor | None, stride, padding) -> Tensor:
    """conv2d of images (B, C, H, W) as one product of (O, C k k) and (C k k, B H' W')."""
    kernel, sides = weight.shape[2:], images.shape[2:]
    high, wide = (
        (side + 2 * pad - k) // step + 1 for side, k, pad, step in zip(sides, kernel, padding, stride)
    )
    patches = F.unfold(images, kernel, padding=padding, stride=stride).transpose(0, 1).flatten(1)
    out = weight.flatten(1) @ patches
    if bias is not None:
        out = out + bias[:, None].to(out.dtype)
    return out.view(-1, len(images), high, wide).transpose(0, 1)


def chosen(device: torch.device, key: str, trial: Callable[[], bool]) -> bool:
    """Is im2col chosen for this shape on this card? As an earlier trial says, else this one."""
    card, known = torch.cuda.get_device_name(device), {}
    with suppress(*DAMAGED, ParamError):
        known = check(dict[str, dict[str, bool]], json.loads(PATH.read_text(encoding="utf-8")), "")
    if key not in known.setdefault(card, {}):
        known[card][key] = trial()
        files.write_json(PATH, known)
    return known[card][key]


def im2col_wins(images: Tensor, weights: Tensor, stride, padding) -> bool:
    """Both ways, forward and backward, timed for all clients: images (clients, B, C, H, W)."""
    if images.numel() * weights[0, 0, 0].numel() > MOST:
        return False
    seconds = []
    for way in (F.conv2d, unfolded):

        def loss(weight: Tensor, images: Tensor, way=way) -> Tensor:
            return way(images, weight, None, stride, padding).float().sum()

        step = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)))
        try:
            step(weights, images)
            torch.cuda.synchronize(images.device)
            begun = time.perf_counter()
            for _ in range(TRIES):
                step(weights, images)
            torch.cuda.synchronize(images.device)
        except torch.OutOfMemoryError:
            return False
        seconds.append(time.perf_counter() - begun)
    return seconds[1] < SHARE * seconds[0]
