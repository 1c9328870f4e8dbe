"""Optimisers as torch's."""

import sys

import pytest
import torch
from repository import ROOT, python
from repository import run as process

from pipeline.engine.optimisers import Steps
from pipeline.schema import Optimiser

SETTINGS = [
    Optimiser("sgd", 0.1),
    Optimiser("sgd", 0.05, momentum=0.9, weight_decay=0.01),
    Optimiser("adam", 0.003, weight_decay=0.01),
    Optimiser("adamw", 0.003, weight_decay=0.1),
    Optimiser("sgd", 0.1, momentum=0.9, clip=0.5),
    Optimiser("adamw", 0.003, weight_decay=0.1, clip=1e6),
]


def reference(settings, parameters):
    if settings.name != "sgd":
        kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        foreach=False,
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_same_as_torch(settings):
    torch.manual_seed(0)
    mine = [
        torch.randn(3, 4, requires_grad=True),
        torch.randn(5, requires_grad=True),
        torch.randn(2, requires_grad=True),
    ]
    theirs = [p.detach().clone().requires_grad_() for p in mine]
    steps, other = Steps(settings, mine), reference(settings, theirs)
    for _ in range(5):
        for parameters in (mine, theirs):  # the third one is never used and has no gradient
            ((parameters[0].sum() * parameters[1].sin()).sum() ** 2).backward()
        steps.step([p.grad for p in mine])
        for p in mine:
            p.grad = None
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(theirs, settings.clip, foreach=False)
        other.step()
        other.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs))


def test_adam_with_gradients_that_lie_otherwise_in_memory():
    """Of a convolution in channels_last; the fused form by itself would mix up the entries."""
    torch.manual_seed(0)
    start, gradient = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    moved = []
    for layout in (torch.contiguous_format, torch.channels_last):
        moved.append(start.clone())
        Steps(Optimiser("adam", 0.1), [moved[-1]]).step([gradient.contiguous(memory_format=layout)])
    assert torch.equal(*moved)
    assert not torch.equal(moved[0], start)


ADAM = """
import hashlib, sys, torch
from pipeline.engine.optimisers import Steps
from pipeline.schema import Optimiser
torch.manual_seed(0)
p = torch.randn(50_000)
steps = Steps(Optimiser("adam", 0.1), [p])
for _ in range(3):
    steps.step([torch.randn(50_000) * 1e-3])
Steps(Optimiser(), [p.clone()]).step([p])
print(hashlib.sha256(p.numpy().tobytes()).hexdigest())
print("torch._dynamo" in sys.modules)
"""


def test_adam_does_not_take_mkls_root():
    """It rounds otherwise in MKL's portable mode, and on another maker's processor. Nor does it import the
    compiler."""
    here = python(ROOT, ADAM).stdout.split()
    there = process(ROOT, sys.executable, "-c", ADAM, MKL_CBWR="COMPATIBLE").stdout.split()
    assert here[0] == there[0]
    assert len(here[0]) == 64
    assert there[1] == "False"
