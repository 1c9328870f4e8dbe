"""FedNTD: distils the global model on the classes that an image does not show (Lee et al. 2022)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import State
from pipeline.losses import cross_entropy, knowledge_distillation
from pipeline.methods.fedavg import FedAvg
from pipeline.schema import NonNegative, Positive


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """CE + beta tau^2 KL(global || local), both softmaxes without the image's class."""

    beta: NonNegative = 1.0
    tau: Positive = 1.0
    copies = 2

    def loss(self, model: Handle, batch: Batch, server_state: State, client_state: object) -> Tensor:
        logits, teacher = model(batch.images), model.other(server_state.model)(batch.images)
        student, teacher = (without(scores, batch.labels) for scores in (logits, teacher))
        distillation = self.tau**2 * knowledge_distillation(student, teacher, self.tau)
        return cross_entropy(logits, batch.labels) + self.beta * distillation


def without(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, C) logits -> (B, C - 1), those of the labels (B,) left out."""
    classes = torch.arange(logits.shape[1] - 1, device=labels.device).expand(len(labels), -1)
    return logits.gather(1, classes + (classes >= labels[:, None]))
