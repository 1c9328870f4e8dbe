"""Which devices run asynchronously as CUDA's do, and how values are copied to a device."""
import torch
from torch import Tensor


def runs_ahead(device: torch.device) -> bool:
    """Does the host go on while the device works, with streams, graphs and pinned memory? Apple's GPUs (mps)
    have none of these."""
    return device.type not in ("cpu", "mps")


def beside(values: Tensor, others: Tensor) -> Tensor:
    """`values` on the device of `others`; where the device allows, the host goes on during the copy."""
    if values.device == others.device or not runs_ahead(others.device):
        return values.to(others.device)
    return values.pin_memory().to(others.device, non_blocking=True)
