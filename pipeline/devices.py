"""Device-specific performance: asynchronous copies to GPUs, slow bf16 on CPUs, reuse of freed CPU memory."""

import ctypes
import platform
import sys

import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of malloc.h, for mallopt(3)


def runs_ahead(device: torch.device) -> bool:
    """Does the host go on while the device works, with streams and pinned memory? Not on Apple's mps."""
    return device.type not in ("cpu", "mps")


def to_device_of(values: Tensor, others: Tensor) -> Tensor:
    """`values` on the device of `others`; where the device allows, the host goes on during the copy."""
    if values.device == others.device or not runs_ahead(others.device):
        return values.to(others.device)
    return values.pin_memory().to(others.device, non_blocking=True)


def slow_bf16() -> str:
    """Why bf16 would be slow on this processor; empty where it has the instructions or cannot be known."""
    known = platform.machine() in ("x86_64", "AMD64")
    if not known or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return ""
    return "this processor has no bf16 instructions: on one like it, bf16 took nine times as long as fp32"


def keep_memory() -> None:
    """Have this process, and those that it forks, keep the memory that tensors leave instead of returning it
    to the system: glibc maps every tensor of 32 MiB or more again, and the system clears it page by page,
    a fifth of the time of a ResNet at batch 256. Without effect where there is no glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 64 * 2**20)):
            mallopt(option, value)
