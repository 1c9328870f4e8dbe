"""FedCCL+: FedCCL on adversarial examples (FedCCL, Sec. 5.5, Eq. 22 to 24)."""

from dataclasses import dataclass

from pipeline.methods._adversarial import AdversarialTraining
from pipeline.methods.fedccl import FedCCL


@dataclass(frozen=True)
class FedCCLPlus(AdversarialTraining, FedCCL):
    """FedCCL's local objective on x~ instead of x. The signals, which the features of x~ are drawn to,
    come from the clean images, and the attack is on the cross-entropy alone."""
