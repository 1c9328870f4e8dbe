"""Kernels recorded as a CUDA graph, which a launch replays."""

from collections.abc import Callable
from typing import Any

import torch


def recorded(run: Callable[[], object], device: torch.device, memory: Any = None) -> torch.cuda.CUDAGraph:
    """The kernels that `run` launches, without running them. RuntimeError where they cannot be recorded.

    run: has run before, so that all memory that persists is allocated
    memory: a pool that other graphs share
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    torch.cuda.synchronize(device)
    try:
        with (
            torch.cuda.device(device),
            torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"),
        ):
            run()
    finally:
        torch.cuda.set_stream(stream)  # a recording that fails leaves its stream current
    return graph
