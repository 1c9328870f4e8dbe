"""FedDF: the server distils the ensemble of all clients' models on unlabelled data (Lin et al. 2020)."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline import keys
from pipeline.engine import Clients, Handle, Params, State, World
from pipeline.engine.optimisers import Steps
from pipeline.engine.phase import trainable_names
from pipeline.engine.state import weighted_mean
from pipeline.losses import knowledge_distillation
from pipeline.methods._collaborative import MeanLogits, mean
from pipeline.models import set_generator
from pipeline.schema import Count, Optimiser, Positive

SERVER_RATE = 1e-3  # of the original's Adam, as the next
LONGEST_GRADIENT = 5.0


@dataclass(frozen=True)
class FedDF(MeanLogits):
    """KL(softmax(Zbar / tau) || softmax(Z_i / tau)) on public data, no factor tau^2; Zbar is the mean of
    logits.

    form `clients`, FCCL+'s: every client distils its model batch by batch, here with the SGD of its code,
    whose forward is a second one. For RAHFL's tables `public_optimiser: adam` is the choice that fits the
    other methods. form `original`: clients train first; the server averages the models of each architecture
    and distils one student per architecture from all clients' models, frozen; the students go back. Adam with
    cosine decay, as Lin et al.; their early stop needs labelled images at the server and is left out.
    """

    public_optimiser: Literal["adam", "sgd"] = "sgd"
    second_forward: bool = True
    form: Literal["clients", "original"] = "clients"
    tau: Positive = 1.0
    # original: at most so many of the public batches, again and again
    server_steps: Count = 10_000
    # original: first average by samples (paper) or uniform (code)
    weighted: bool = True

    @property
    def headline(self) -> Literal["pre", "post"]:
        return "post" if self.form == "clients" else "pre"

    def init(self, world: World) -> State:
        # The original's server sends one model of each architecture.
        return super().init(world) if self.form == "clients" else State(models=world.new_models())

    def round(self, state: State, world: World) -> State:
        if self.form == "clients":
            return super().round(state, world)
        return State(models=self.fuse(self.local_training(state.models, state, world), state.models, world))

    def distillation_loss(self, output: dict[str, Tensor], received: Tensor, client_state: object) -> Tensor:
        return knowledge_distillation(output["logits"], received, self.tau)

    def fuse(self, models: Clients, before: Clients, world: World) -> Clients:
        """The distilled model of its architecture for every client. Clients without data send nothing."""
        senders = [k for k, n in enumerate(world.sizes) if n]
        teachers = [Handle(world.network(k, models[k]), models[k]).other(models[k]) for k in senders]
        fused = {}
        for k, client in enumerate(world.clients):
            if client.model not in fused:
                mates = [j for j in senders if world.clients[j].model == client.model]
                weights = [world.sizes[j] if self.weighted else 1 for j in mates]
                start = weighted_mean([models[j] for j in mates], weights) if mates else before[k]
                fused[client.model] = self.distil(k, start, teachers, world)
        return Clients(fused[client.model] for client in world.clients)

    def distil(self, k: int, start: Params, teachers: Sequence[Handle], world: World) -> Params:
        """The student of client k's architecture after `server_steps` steps on the public batches."""
        network = world.network(k, start).train()
        set_generator(
            network, keys.torch_generator("distil", world.seed, world.round, world.clients[k].model.name)
        )
        tensors, names = {name: v.clone() for name, v in start.items()}, trainable_names(network, "all")
        moving = [tensors[name].requires_grad_() for name in names]
        student = Handle(network, tensors, set(names))
        optimise = Steps(Optimiser("adam", SERVER_RATE, clip=LONGEST_GRADIENT), moving)
        rounds = itertools.chain.from_iterable(world.public_batches() for _ in itertools.count())
        for step, (images, _) in enumerate(itertools.islice(rounds, self.server_steps)):
            ensemble = mean(teacher(images) for teacher in teachers)
            loss = knowledge_distillation(student(images), ensemble, self.tau)
            rate = SERVER_RATE * (1 + math.cos(math.pi * step / self.server_steps)) / 2
            optimise.settings = dataclasses.replace(optimise.settings, lr=rate)
            optimise.step(torch.autograd.grad(loss, moving, allow_unused=True))
        return Params((name, value.detach()) for name, value in tensors.items())

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        return super().traffic(world) if self.form == "clients" else (world.scalars(), world.scalars())
