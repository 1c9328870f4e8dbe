"""What FedAvg+ and FedCCL+ share: training on attacked images."""

import dataclasses

import pytest
from federation import image_clients, pictures, run, same, training

from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavg_plus import FedAvgPlus
from pipeline.methods.fedccl import FedCCL
from pipeline.methods.fedccl_plus import FedCCLPlus

FEDAVG, FEDCCL = FedAvgPlus(eps=0.1, steps=3), FedCCLPlus(eps=0.1, steps=3)


PAIRS = pytest.mark.parametrize("plain, plus", [(FedAvg, FedAvgPlus), (FedCCL, FedCCLPlus)])


@PAIRS
def test_without_eps_a_method_is_the_plain_one(plain, plus):
    assert same(run(plus(eps=0), pictures(), 2), run(plain(), pictures(), 2))


@PAIRS
def test_with_eps_it_is_another(plain, plus):
    assert not same(run(plus(eps=0.1, steps=1), pictures(), 1), run(plain(), pictures(), 1), within=1e-4)


@pytest.mark.parametrize("method", [FEDAVG, FEDCCL], ids=["FedAvg+", "FedCCL+"])
def test_pixels_out_of_range_are_refused(method):
    with pytest.raises(TrainingError, match=r"client c0: attacks need pixels in \[0, 1\]"):
        method.init(World.create(image_clients((20,)), training(), 10, 0))


def test_black_and_white_pixels_are_in_range():
    client = image_clients((2,))[0]
    corners = dataclasses.replace(client, images=(client.images > 0).float())
    assert {*corners.images.unique().tolist()} == {0.0, 1.0}
    FEDAVG.init(World.create([corners], training(), 10, 0))
