"""FedAvg+: FedAvg on adversarial examples (FedCCL, Sec. 5.5, Eq. 21)."""

from dataclasses import dataclass

from pipeline.methods._adversarial import AdversarialTraining
from pipeline.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgPlus(AdversarialTraining, FedAvg):
    """CE(model(x~), y), where x~ attacks the client's current model with PGD."""
