"""Device, executor and precision of training, chosen by environment variables such as FEDREPRO_DEVICE."""

import importlib
import os

import torch

from pipeline.engine.trained import Executor
from pipeline.errors import ParamError, unknown
from pipeline.models import Network
from pipeline.schema import Model, Training

# module of pipeline.engine: class
EXECUTORS = {"sequential": "Sequential", "stacked": "Stacked", "compiled": "Compiled"}
PRECISIONS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16}


def default_device() -> torch.device:
    """The device named by FEDREPRO_DEVICE; by default a CUDA GPU if there is one, otherwise the CPU."""
    return torch.device(os.environ.get("FEDREPRO_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))


def executor_name(device: torch.device) -> str:
    """FEDREPRO_EXECUTOR, one of EXECUTORS; by default `stacked` on a GPU and `sequential` on a CPU."""
    wanted = os.environ.get("FEDREPRO_EXECUTOR") or ("stacked" if device.type == "cuda" else "sequential")
    if wanted not in EXECUTORS:
        raise ParamError(f"FEDREPRO_EXECUTOR: {unknown('executor', wanted, EXECUTORS)}")
    return wanted


def precision() -> str:
    """FEDREPRO_PRECISION: `fp32` (default), `tf32` (matrix products on a GPU) or `bf16` (autocast).

    Another precision gives another result, so it is part of a cell's digest.
    """
    wanted = os.environ.get("FEDREPRO_PRECISION") or "fp32"
    if wanted not in PRECISIONS:
        raise ParamError(f"FEDREPRO_PRECISION: {unknown('precision', wanted, PRECISIONS)}")
    return wanted


def set_precision(device: torch.device) -> torch.dtype | None:
    """Let torch compute in the environment's precision; returns the type for autocast, None without
    autocast.

    On a GPU, CUBLAS_WORKSPACE_CONFIG becomes :4096:8 unless it is set. cuBLAS reads it before its first
    product, so this must run before any: with workspaces of its own choice, products on several streams can
    have other bits in another run (NVIDIA's cuBLAS documentation, "Results reproducibility").
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision() == "tf32"
        # cuDNN's faster gradient kernels add in the order of arrival, which varies.
        torch.backends.cudnn.deterministic = True
    return PRECISIONS[precision()]


def autocast(device: torch.device, precision: torch.dtype | None, cached: bool = True) -> torch.autocast:
    """A context of this precision; with None, nothing changes.

    cached: whether casts of parameters are reused
    """
    return torch.autocast(device.type, precision, enabled=precision is not None, cache_enabled=cached)


def new_executor(networks: dict[Model, Network], training: Training, device: torch.device) -> Executor:
    """The executor that the environment selects, for these networks and settings.

    It is looked up by its name, so that a cell's digest contains the executor that trained it.
    """
    name = executor_name(device)
    executor = getattr(importlib.import_module(f"pipeline.engine.{name}"), EXECUTORS[name])
    return executor(networks, training, set_precision(device), device)
