"""FCCL: clients align the correlation of their logits on public data, class by class, and distil from
their earlier models in local training (Huang et al. 2022)."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, Params, State, World
from pipeline.losses import cross_entropy, knowledge_distillation
from pipeline.methods._collaborative import MeanLogits
from pipeline.schema import Count, NonNegative
from pipeline.schema.checker import Range

SMALLEST_SPREAD = 1e-6  # of a column of logits: a constant one correlates with nothing


@dataclass(frozen=True)
class FCCL(MeanLogits):
    """Public: sum_u (1 - M_uu)^2 + lambda sum_{u != v} (1 + M_uv)^2 with M = correlation of Z_i with Zbar
    (Eq. 1 and 2). Private: CE + KL to the model of the last round's end + KL to theta*, trained on private
    data alone (Eq. 19 of FCCL+).

    Clients start from theta*: the scenario's pretraining, or `pretraining` epochs where it has none. One
    reading of teachers for FCCL and FCCL+ within a comparison: `teacher_mode: train` of the journal code,
    `eval` of the conference's.
    """

    lam: NonNegative = 0.0051
    # Target correlation of different classes; 0: decorrelated, as in Barlow Twins.
    off_target: Annotated[float, Range(low=-1, high=1)] = -1.0
    pearson: bool = False  # Eq. 1 to the letter; the codes have (B - 1) / B of it
    # conference: as in that code, a client's share of Zbar comes from its last model in evaluation mode.
    consensus: Literal["mean", "conference"] = "mean"
    # of BatchNorm in the teachers
    teacher_mode: Literal["train", "eval"] = "train"
    # epochs of BASE (FCCL+ Sec. 4.1)
    pretraining: Count = 50

    @property
    def copies(self) -> int:
        return 3  # the model and two teachers

    def init(self, world: World) -> State:
        models = world.new_models(self.pretraining, individual=True)  # theta*
        return State(models=models, pretrained=models)

    def client_state(self, state: State, world: World) -> Clients | None:
        return state.models if self.consensus == "conference" else None

    def client_output(self, model: Handle, images: Tensor, client_state: Any) -> dict[str, Tensor]:
        output = super().client_output(model, images, client_state)
        return output | self.earlier_output(model, images, client_state)

    def earlier_output(self, model: Handle, images: Tensor, earlier: Params) -> dict[str, Tensor]:
        """The logits of the last round's model, where the consensus takes them."""
        return {"before": model.other(earlier)(images)} if self.consensus == "conference" else {}

    def aggregate(self, outputs: list[dict[str, Tensor]], state: State, world: World) -> list[Tensor]:
        received = super().aggregate(outputs, state, world)
        if self.consensus == "mean":
            return received
        return [zbar + (out["before"] - out["sent"]) / len(outputs) for zbar, out in zip(received, outputs)]

    def distillation_loss(self, output: dict[str, Tensor], received: Tensor, client_state: object) -> Tensor:
        matrix = cross_correlation(output["logits"], received, self.pearson)
        return correlation_distance(matrix, self.lam, self.off_target)

    def local_training(self, models: Clients, state: State, world: World) -> Clients:
        teachers = State(previous=state.models, pretrained=state.pretrained)
        options = self.local_options(world)
        return world.local_epochs(models, self.loss, client_state=teachers, options=options).models

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: dict) -> Tensor:
        logits = model(batch.images)
        return cross_entropy(logits, batch.labels) + sum(
            knowledge_distillation(logits, self.taught(model, client_state[teacher], batch.images))
            for teacher in ("previous", "pretrained")
        )

    def taught(self, model: Handle, teacher: Params, images: Tensor) -> Tensor:
        return model.other(teacher, training=self.teacher_mode == "train")(images)


def cross_correlation(logits: Tensor, consensus: Tensor, pearson: bool = False) -> Tensor:
    """M (C, C): how column u of the logits correlates with column v of the consensus over the batch (FCCL Eq.
    1).

    As the code has it: columns standardised with the unbiased deviation, then a mean over B, so that M is (B
    - 1) / B times Pearson's correlation; `pearson` gives the paper's. A column that is constant over the
    batch has M = 0.
    """
    size = len(logits)
    exact = _standard(logits).T @ _standard(consensus)
    return exact if pearson else exact * (size - 1) / size


def _standard(columns: Tensor) -> Tensor:
    """Each column (B,) about its mean and of length one."""
    centred = columns - columns.mean(0)
    return centred / torch.linalg.vector_norm(centred, dim=0).clamp(min=SMALLEST_SPREAD)


def correlation_distance(matrix: Tensor, lam: float, off_target: float = -1.0) -> Tensor:
    """sum_u (1 - M_uu)^2 + lambda sum_{u != v} (M_uv - off_target)^2 (FCCL Eq. 2). matrix (C, C).

    The papers and both codes draw different classes to -1; 0 is the decorrelation of Barlow Twins.
    """
    same = torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
    gap = torch.where(same, 1.0 - matrix, matrix - off_target).pow(2)
    return torch.where(same, gap, lam * gap).sum()
