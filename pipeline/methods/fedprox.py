"""FedProx: FedAvg with a penalty on the distance to the global model of the round (Li et al. 2020, Eq. 2)."""

from dataclasses import dataclass

from torch import Tensor

from pipeline.engine import Batch, Handle, State
from pipeline.losses import cross_entropy, squared_distance
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import NonNegative


@dataclass(frozen=True)
class FedProx(FedAvg):
    """CE + (mu / 2) ||w_k - w||^2 over all trainable tensors; w is what the server sent this round."""

    mu: NonNegative = 0.01  # no default works for all (the authors' README); FCCL+ Table 7 has 0.01
    # 0.01 gives the smaller penalty of RethinkFL's code, for comparison only.
    legacy_scale: NonNegative = 1.0

    @property
    def copies(self) -> int:
        return 2 if self.mu and self.legacy_scale else 1

    def loss(self, model: Handle, batch: Batch, server_state: State, client_state: object) -> Tensor:
        fit = cross_entropy(model(batch.images), batch.labels)
        weight = self.mu * self.legacy_scale / 2
        return fit + weight * squared_distance(model.params, server_state.model) if weight else fit
