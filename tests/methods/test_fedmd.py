"""FedMD: clients approach the mean of all logits."""

import pytest
from all_methods import name
from public_data import B512, CLASSES, adam, collaborates_as, costs, sgd, three, zbar

from pipeline.methods.fedmd import FedMD

CASES = [
    (FedMD(), lambda k, zs, hs, answers: (zs[k] - zbar(answers)).abs().mean(), adam, 1),
    (
        FedMD(distance="mse", public_optimiser="sgd", second_forward=True),
        lambda k, zs, hs, answers: (zs[k] - zbar(answers)).pow(2).mean(),
        sgd,
        2,
    ),
]


@pytest.mark.parametrize("method, loss, optimiser, forwards", CASES, ids=[name(case[0]) for case in CASES])
def test_public_phase_as_written_out(method, loss, optimiser, forwards, monkeypatch):
    collaborates_as(method, loss, optimiser, forwards, monkeypatch)


def test_it_sends_the_logits_of_all_public_images():
    assert costs(FedMD(), B512) == (50_000, 50_000)


def test_every_pass_over_the_public_images_is_sent(monkeypatch):
    assert FedMD().traffic(three(monkeypatch, passes=2)) == (2 * 20 * CLASSES,) * 2
