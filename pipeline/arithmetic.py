"""Portable CPU arithmetic: restrict torch, oneDNN and MKL to instructions that round alike on Intel and AMD.

`portable` restricts torch's kernels and oneDNN to AVX2, and MKL to a mode that works on every maker's
processors. Then an Intel and an AMD processor round alike. Without it, each library uses the fastest
instructions it finds. The libraries read the environment when they are loaded, so it must be set before torch
is imported. Processors without AVX2 train, too, but may round differently.
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
