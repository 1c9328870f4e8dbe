"""A scored model as a file that plain PyTorch runs, including the method's prediction rule.

The file is a graph of `torch.export` (`.pt2`): `torch.export.load(file).module()` maps images to scores. It
needs no code of this repository, so it works for every network and every prediction rule, also those in
papers' folders.
"""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.overrides import TorchFunctionMode

from pipeline.engine.federation import new_network
from pipeline.engine.handle import Handle
from pipeline.engine.state import Params, State, tensors_of, with_tensors
from pipeline.engine.world import World
from pipeline.methods.base import Method
from pipeline.models import Network

# How many images the graph is traced with; torch.export takes a batch of one for a constant.
TRACED_IMAGES = 2
# What ends up in an exported model: images (B, C, H, W) -> scores (B, classes).
Scores = Callable[[Tensor], Tensor]


class Scored(nn.Module):
    """A client's model with the method's rule: images (B, C, H, W) -> scores (B, classes), larger is
    likelier.

    method: whose `scores` is the rule
    state: after the last round, for rules that read prototypes; tensors on the CPU
    network: the client's, with its model, in evaluation mode
    client: its number

    A rule that draws numbers (FedSR) draws them once, for all images the same, so that the answer to an image
    does not depend on the others of its batch.
    """

    def __init__(self, method: Method, state: State, network: Network, client: int):
        super().__init__()
        self.network = network
        self.method = method
        self.state = state
        self.client = client
        self.draws: list[Tensor] = []
        self.tracing = False

    def forward(self, images: Tensor) -> Tensor:
        self.drawn = 0
        if not self.tracing:
            self.draws = []
        handle = Handle(self.network, draws=self._numbers, client=self.client)
        return self.method.scores(handle, images, self.state)

    def _numbers(self, draw: Callable, shape: torch.Size) -> Tensor:
        if not self.tracing:
            generator = torch.Generator().manual_seed(len(self.draws))
            self.draws.append(draw(shape, generator=generator))
            return self.draws[-1]
        self.drawn += 1
        return self.draws[self.drawn - 1].expand(shape)


class _Truths(TorchFunctionMode):
    """Notes the truth of tensors that decide about a branch of the rule, then repeats it.

    torch.export cannot follow `if known.any()`, where `known` is a part of the state and so a constant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[bool] = []
        self.repeated: int | None = None

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is not Tensor.__bool__:
            return function(*args, **(kwargs or {}))
        if self.repeated is None:
            self.noted.append(bool(function(*args)))
            return self.noted[-1]
        self.repeated += 1
        return self.noted[self.repeated - 1]


def scored(method: Method, state: State, world: World, client: int, model: Params) -> Scored:
    """The module of a client's model, on the CPU.

    method, state: as after the last round
    world: with all clients
    client: its number
    model: what its network holds
    """
    with torch.random.fork_rng(devices=[]):
        images = world.clients[0].images
        network = new_network(world.clients[client].model, images, world.classes, torch.device("cpu"))
    network.load_state_dict(model)
    on_cpu = with_tensors(state, iter([value.detach().cpu().clone() for value in tensors_of(state)]))
    return Scored(method, on_cpu, network.eval(), client).eval()


class _Repeated(nn.Module):
    """A scored model whose rule takes the noted branches."""

    def __init__(self, scored: Scored, truths: _Truths):
        super().__init__()
        self.scored = scored
        self.truths = truths

    def forward(self, images: Tensor) -> Tensor:
        self.truths.repeated = 0
        with self.truths:
            return self.scored(images)


@torch.no_grad()
def exported(module: Scored, like: Tensor) -> tuple[torch.export.ExportedProgram, bool]:
    """The graph of a scored model, and whether it takes any number of images; else it takes one at a time.

    module: of `scored`
    like: images (n, C, H, W), or other samples; their values do not matter
    """
    truths, one = _Truths(), torch.zeros(1, *like.shape[1:], dtype=like.dtype)
    with truths:
        module(one)
    module.tracing = True
    repeated = _Repeated(module, truths).eval()
    many = {"images": {0: torch.export.Dim("images")}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            images = one.expand(TRACED_IMAGES, *one.shape[1:]).contiguous()
            return torch.export.export(repeated, (images,), dynamic_shapes=many), True
        except UserError:  # the rule computes with the number of images
            return torch.export.export(repeated, (one,)), False


def save(program: torch.export.ExportedProgram, path: Path) -> None:
    """Write a graph with its weights."""
    with warnings.catch_warnings():  # of tensors that share memory, which matters on other devices alone
        warnings.simplefilter("ignore")
        torch.export.save(program, path)


def load(path: Path, any_number: bool = True) -> Scores:
    """The function that a file holds, as the code on the card loads it.

    any_number: of images at once, as `exported` said; False: it is called for one after the other
    """
    model = torch.export.load(path).module()
    if any_number:
        return model
    return lambda images: torch.cat([model(one) for one in images.split(1)])
