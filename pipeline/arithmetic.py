"""Portable CPU arithmetic: limit torch, oneDNN and MKL to instructions that round alike on Intel and AMD.

`portable` holds torch's kernels and oneDNN to AVX2 and MKL to its mode for every maker's processors, so that
an Intel and an AMD processor round alike; without it each library takes the fastest instructions that it
finds. The libraries read the environment when they are loaded, so it is set before torch is imported.
Processors without AVX2 go on as they can.
"""

import os
import platform

PORTABLE = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}


def environment(arithmetic: str | None) -> dict[str, str]:
    """What a process that trains must have in its environment when it starts."""
    return dict(PORTABLE) if arithmetic == "portable" else {}


def adopt(arithmetic: str | None) -> None:
    """Set it for this process, before torch is imported, and for those that it starts."""
    os.environ.update(environment(arithmetic))


def in_use() -> str:
    """`portable` where this process runs under that setting, else an empty string."""
    if platform.machine().lower() not in ("x86_64", "amd64") or any(
        os.environ.get(key) != value for key, value in PORTABLE.items()
    ):
        return ""
    import torch

    return "portable" if torch.backends.cpu.get_cpu_capability() == "AVX2" else ""
