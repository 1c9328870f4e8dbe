"""FedMD: clients fit their logits on public data to the mean of all clients' logits (Li & Wang 2019,
Algorithm 1)."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from pipeline.methods._collaborative import MeanLogits


@dataclass(frozen=True)
class FedMD(MeanLogits):
    """Digest: mean over batch and classes of |Z_i - Zbar|, the authors' code. Revisit: cross-entropy.

    FCCL+ describes FedMD with the squared error (`distance: mse`); both of its released ports have the
    absolute one. The public data have no labels here, so the original's initial training on them is left out.
    MarsFL's variant: `second_forward: true, public_optimiser: sgd`.
    """

    distance: Literal["l1", "mse"] = "l1"

    def distillation_loss(self, output: dict[str, Tensor], received: Tensor, client_state: object) -> Tensor:
        return (F.l1_loss if self.distance == "l1" else F.mse_loss)(output["logits"], received)
