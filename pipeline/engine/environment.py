"""Choose device, executor and precision of training from environment variables (FEDREPRO_DEVICE, ...)."""

import importlib
import os
from typing import Any

import torch

from pipeline.errors import ParamError, unknown

EXECUTORS = {"sequential": "Sequential", "stacked": "Stacked"}  # module of pipeline.engine: class
PRECISIONS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16}


def default_device() -> torch.device:
    """FEDREPRO_DEVICE; by default CUDA's GPU if there is one, else the CPU."""
    return torch.device(os.environ.get("FEDREPRO_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))


def executor_name(device: torch.device) -> str:
    """FEDREPRO_EXECUTOR, `sequential` or `stacked`; by default stacked on a GPU, else sequential."""
    wanted = os.environ.get("FEDREPRO_EXECUTOR") or ("stacked" if device.type == "cuda" else "sequential")
    if wanted not in EXECUTORS:
        raise ParamError(f"FEDREPRO_EXECUTOR: {unknown('executor', wanted, EXECUTORS)}")
    return wanted


def precision() -> str:
    """FEDREPRO_PRECISION: `fp32` (default), `tf32` (matrix products on a GPU) or `bf16` (autocast); another
    arithmetic is another result, so it is part of a cell's digest."""
    wanted = os.environ.get("FEDREPRO_PRECISION") or "fp32"
    if wanted not in PRECISIONS:
        raise ParamError(f"FEDREPRO_PRECISION: {unknown('precision', wanted, PRECISIONS)}")
    return wanted


def set_precision(device: torch.device) -> torch.dtype | None:
    """Have torch compute in the precision of the environment; the type for autocast, None without it."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision() == "tf32"
        # cuDNN's faster gradient kernels add in the order of arrival, which varies.
        torch.backends.cudnn.deterministic = True
    return PRECISIONS[precision()]


def autocast(device: torch.device, precision: torch.dtype | None, cached: bool = True) -> torch.autocast:
    """A context of this precision; None: as it is. `cached`: casts of parameters are reused."""
    return torch.autocast(device.type, precision, enabled=precision is not None, cache_enabled=cached)


def new_executor(networks: dict, training, device: torch.device) -> Any:
    """The executor of the environment for these networks and settings. It is looked up by its name, so that a
    cell's digest counts the one that trained it."""
    name = executor_name(device)
    executor = getattr(importlib.import_module(f"pipeline.engine.{name}"), EXECUTORS[name])
    return executor(networks, training, set_precision(device), device)
