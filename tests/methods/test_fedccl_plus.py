"""FedCCL+: FedCCL on attacked images, with signals of clean ones."""

import dataclasses

from federation import pictures, run, same, watched

from pipeline.methods.fedavg_plus import FedAvgPlus
from pipeline.methods.fedccl import FedCCL
from pipeline.methods.fedccl_plus import FedCCLPlus

FEDAVG, FEDCCL = FedAvgPlus(eps=0.1, steps=3), FedCCLPlus(eps=0.1, steps=3)


def test_without_contrasts_it_is_fedavg_plus():
    plain = dataclasses.replace(FEDCCL, local_contrast=False, global_contrast=False)
    assert same(run(plain, pictures(), 2).model, run(FEDAVG, pictures(), 2).model)


def test_its_first_round_is_that_of_fedavg_plus():
    assert same(run(FEDCCL, pictures(), 1).model, run(FEDAVG, pictures(), 1).model)


def test_with_contrasts_it_is_not_fedavg_plus():
    assert not same(run(FEDCCL, pictures(), 2).model, run(FEDAVG, pictures(), 2).model)


def test_signals_come_from_clean_images_and_the_trained_models():
    world = pictures()
    state, trained = watched(FEDCCL, world, 1)
    assert same(state.signals, FedCCL().signals(trained.models, None, world))
