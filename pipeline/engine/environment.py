"""What the environment says of a training: its device, executor and precision."""

import importlib
import os

import torch

from pipeline.errors import ParamError, unknown

EXECUTORS = {"sequential": "Sequential", "stacked": "Stacked"}  # module of pipeline.engine: class
PRECISIONS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16}


def default_device() -> torch.device:
    """FEDREPRO_DEVICE; by default CUDA's GPU if there is one, else the CPU."""
    return torch.device(os.environ.get("FEDREPRO_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))


def executor_name(device: torch.device) -> str:
    """FEDREPRO_EXECUTOR: `sequential` or `stacked`; by default stacked on a GPU, where launches count, else
    sequential."""
    wanted = os.environ.get("FEDREPRO_EXECUTOR") or ("stacked" if device.type == "cuda" else "sequential")
    if wanted not in EXECUTORS:
        raise ParamError(f"FEDREPRO_EXECUTOR: {unknown('executor', wanted, EXECUTORS)}")
    return wanted


def executor_module(name: str):
    """The module of an executor. It is looked up by its name, so that a cell's digest counts the one executor
    that trained it."""
    return importlib.import_module(f"pipeline.engine.{name}")


def precision() -> str:
    """FEDREPRO_PRECISION: `fp32` (default), `tf32` (matrix products on a GPU) or `bf16` (autocast); another
    arithmetic is another result, so it is part of a cell's digest."""
    wanted = os.environ.get("FEDREPRO_PRECISION") or "fp32"
    if wanted not in PRECISIONS:
        raise ParamError(f"FEDREPRO_PRECISION: {unknown('precision', wanted, PRECISIONS)}")
    return wanted
