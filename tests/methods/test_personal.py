"""What several methods with models of clients share: uniform means, losses of rules of their own."""

import dataclasses
import math

import pytest
from federation import image_world, run, same, watched

from pipeline.methods.fedrep import FedRep
from pipeline.methods.lgfedavg import LGFedAvg
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.methods.pfedme import PFedMe


@pytest.mark.parametrize(
    "method",
    [PFedMe(inner_steps=2), PerFedAvg(), FedRep(head_epochs=1), LGFedAvg()],
    ids=lambda m: type(m).__name__,
)
def test_uniform_mean_matters_for_unequal_sizes_only(method):
    uniform = dataclasses.replace(method, uniform=True)
    for sizes, alike in (((6, 6), True), ((4, 16), False)):
        deployed = [m.deployed(run(m, image_world(sizes), 1), image_world(sizes)) for m in (method, uniform)]
        assert same(*deployed) is alike


@pytest.mark.parametrize(
    "method", [PFedMe(), PerFedAvg(), PerFedAvg(variant="hf"), PerFedAvg(meta="adam")], ids=repr
)
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_rules_of_their_record_a_training_loss(method, executor, monkeypatch):
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    world = image_world(sizes=(20, 0, 33))
    losses = watched(method, world, rounds=1)[1].losses
    assert math.isnan(losses[1])
    assert all(1 < losses[k] < 4 for k in (0, 2))  # near log 10 after one round
