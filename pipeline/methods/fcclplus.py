"""FCCL+: clients align the correlation of logits and the similarity between images on public data; local
training distils the classes other than the label (Huang et al. 2023, Algorithm 1)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engine import Batch, Client, Clients, Handle, Params, State, World
from pipeline.engine.state import zeros
from pipeline.engine.world import supervised
from pipeline.losses import cross_entropy, knowledge_distillation, total
from pipeline.methods._collaborative import mean
from pipeline.methods.fccl import FCCL
from pipeline.schema import NonNegative, Positive, Share

FISHER_CHUNK = 8  # samples whose gradients are held at once


@dataclass(frozen=True)
class FCCLPlus(FCCL):
    """Public: L_FCCM + omega L_FISL (Eq. 6). Private: CE + L_FNTD with the model of the last round's end as
    teacher (Eq. 14); before the first round that is the client's first model. No pretraining.

    `local`: what keeps the client from forgetting. fntd; kd over all classes (Eq. 10); ce: nothing; ewc,
    whose weight is `ewc`; fccl: FCCL's two teachers, and then its theta* to start from (Table 10 without
    FNTD). `kd_share`: the first part of every round's local epochs is under kd, the rest under fntd (Table
    17), each part with a new optimiser. `second_forward`: features for FISL by a second forward, as in the
    code. They are taken before dropout.
    """

    mu: Positive = 0.02  # Sec. 4.1 and the code; Table 7 prints 0.002
    omega: NonNegative = 3.0
    tau: Positive = 3.0  # the code has 1 for Office-Caltech and Office-Home
    fccm: bool = True
    local: Literal["fntd", "kd", "ce", "ewc", "fccl"] = "fntd"
    kd_share: Share = 0.0
    ewc: NonNegative = 0.7
    # FNTD over the C - 1 other classes: Eq. 12 in place of Eq. 13
    renormalise: bool = False
    # tau^2 before L_FNTD, as in the code, where tau is 1 for Office-Caltech; Eq. 14 has no factor
    tau_squared: bool = False
    # collaborated: theta^e, the model after this round's public phase (Fig. 9).
    teacher: Literal["previous", "collaborated"] = "previous"

    def __post_init__(self) -> None:
        if self.kd_share and self.local != "fntd":
            raise ValueError("'kd_share' goes with local: fntd")
        if not self.fccm and not self.omega:
            raise ValueError("'fccm: false' with 'omega: 0' leaves nothing to agree on")

    @property
    def copies(self) -> int:
        return 3 if self.local in ("fccl", "ewc") else 1 if self.local == "ce" else 2

    def init(self, world: World) -> State:
        if self.local == "fccl":
            return super().init(world)
        return State(models=world.new_models(individual=True))

    def client_output(self, model: Handle, images: Tensor, client_state: Any) -> dict[str, Tensor]:
        z = model.features(images)
        logits = model.head(z)
        output = {"sent": logits, "logits": logits}
        if self.omega:
            z = model.features(images) if self.second_forward else z
            output["similarity"] = instance_similarity(z, self.mu)
        return output | self.earlier_output(model, images, client_state)

    def aggregate(self, outputs: list[dict[str, Tensor]], state: State, world: World) -> list:
        means = {"similarity": mean(output["similarity"] for output in outputs)} if self.omega else {}
        return [{"logits": zbar, **means} for zbar in super().aggregate(outputs, state, world)]

    def distillation_loss(self, output: dict[str, Tensor], received: Any, client_state: object) -> Tensor:
        terms = [super().distillation_loss(output, received["logits"], client_state)] if self.fccm else []
        if self.omega:
            terms.append(self.omega * knowledge_distillation(output["similarity"], received["similarity"]))
        return total(terms)

    def local_training(self, models: Clients, state: State, world: World) -> Clients:
        teachers = State(previous=models if self.teacher == "collaborated" else state.models)
        if self.local == "fccl":
            teachers["pretrained"] = state.pretrained
        if self.local == "ewc":
            teachers["fisher"] = fisher(teachers.previous, world)
        epochs, options = world.training.local_epochs, self.local_options(world)
        first = round(self.kd_share * epochs)
        for loss, count, stream in (
            (self.all_classes, first, "local under kd"),
            (self.loss, epochs - first, "local"),
        ):
            part = replace(options, epochs=count, stream=stream)
            models = world.local_epochs(models, loss, client_state=teachers, options=part).models
        return models

    def loss(self, model: Handle, batch: Batch, server_state: object, client_state: dict) -> Tensor:
        if self.local == "fccl":
            return super().loss(model, batch, server_state, client_state)
        if self.local == "kd":
            return self.all_classes(model, batch, server_state, client_state)
        logits = model(batch.images)
        fit = cross_entropy(logits, batch.labels)
        if self.local == "ce":
            return fit
        previous = client_state["previous"]
        if self.local == "ewc":
            return fit + self.ewc * elastic_penalty(model.params, previous, client_state["fisher"])
        teacher = self.taught(model, previous, batch.images)
        term = non_target_distillation(logits, teacher, batch.labels, self.tau, self.renormalise)
        weight = self.tau**2 if self.tau_squared else 1.0
        return fit + weight * term

    def all_classes(self, model: Handle, batch: Batch, server_state: object, client_state: dict) -> Tensor:
        """CE + tau^2 KL over all classes (Eq. 10)."""
        logits = model(batch.images)
        teacher = self.taught(model, client_state["previous"], batch.images)
        term = knowledge_distillation(logits, teacher, self.tau)
        return cross_entropy(logits, batch.labels) + self.tau**2 * term

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """The logits, and the B (B - 1) similarities of every public batch, up and down."""
        up, down = super().traffic(world)
        more = sum(b * (b - 1) for b in self.batch_sizes(world)) if self.omega else 0
        less = 0 if self.fccm else self.logits(world)
        return up + more - less, down + more - less


def fisher(models: Clients, world: World) -> Clients:
    """Every client's diagonal empirical Fisher information: mean over its samples of the squared gradient of
    log p(label), in evaluation mode; zero for a client without data. Trainable tensors only.
    (EWC, Kirkpatrick et al. 2017.)"""
    error = partial(supervised, server_state=None, client_state=None)

    def of(k: int, client: Client, model: Params) -> Params:
        handle = Handle(world.network(k, model), model, stacked=True)

        def squares(image: Tensor, label: Tensor) -> dict[str, Tensor]:
            gradient = handle.gradient(error, Batch(image[None], label[None]))
            return {name: value.pow(2) for name, value in gradient.items()}

        mean = zeros(handle.params)
        for images, labels in zip(client.images.split(FISHER_CHUNK), client.labels.split(FISHER_CHUNK)):
            for name, value in torch.func.vmap(squares)(images, labels).items() if len(labels) else ():
                mean[name] += value.sum(0) / len(client.labels)
        return mean

    return Clients(of(k, *both) for k, both in enumerate(zip(world.clients, models, strict=True)))


def non_target_distillation(
    student: Tensor, teacher: Tensor, labels: Tensor, tau: float = 1.0, renormalise: bool = False
) -> Tensor:
    """Mean over the batch of sum_{u != y} p_T^u log(p_T^u / p_S^u), p = softmax(. / tau), without a factor
    tau^2 (FCCL+, Huang et al. 2023, Eq. 13). student, teacher (B, C) logits, labels (B,).

    p runs over all C classes, as in Eq. 13 and the code: the value can be negative, and the student's target
    logit is always pushed down. `renormalise`: p over the C - 1 other classes, as Eq. 12 and its text need;
    the target logit has no gradient then.
    """
    target = torch.arange(student.shape[1], device=labels.device) == labels[:, None]
    student, teacher = student / tau, teacher.detach() / tau
    if renormalise:
        never = torch.finfo(student.dtype).min  # not -inf, whose gradient is NaN
        student, teacher = student.masked_fill(target, never), teacher.masked_fill(target, never)
    log_teacher = F.log_softmax(teacher, dim=1)
    terms = log_teacher.exp() * (log_teacher - F.log_softmax(student, dim=1))
    return torch.where(target, 0.0, terms).sum(1).mean()


def instance_similarity(features: Tensor, mu: float) -> Tensor:
    """S (B, B - 1): cosines of every row of features (B, d) with the others in order, divided by mu (FCCL+
    Eq. 3 and 4; distilled by Eq. 5). Widths d need not agree between clients."""
    size, rows = len(features), F.normalize(features, dim=1)
    cosines = rows @ rows.T
    # This drops the diagonal.
    others = cosines.flatten()[1:].view(size - 1, size + 1)[:, :-1] if size > 1 else cosines[:, 1:]
    return others.reshape(size, size - 1) / mu


def elastic_penalty(
    params: Mapping[str, Tensor], anchor: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
) -> Tensor:
    """sum_p F_p (theta_p - anchor_p)^2 over all trainable tensors, without a factor 1/2 (EWC, Kirkpatrick
    et al. 2017, as FCCL+ Table 16 has it). All three map a tensor's name to values of its shape."""
    return total(
        (fisher[name] * (value - anchor[name].detach()).pow(2)).sum() for name, value in params.items()
    )
