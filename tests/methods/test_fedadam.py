"""FedAdam, FedAdagrad and FedYogi: adaptive steps at the server."""

import pytest
from federation import close, image_world
from quadratic import server_steps

from pipeline import methods
from pipeline.engine.state import State
from pipeline.errors import ParamError
from pipeline.methods.fedadam import FedAdam
from pipeline.methods.fedavg import FedAvg

STEPS = dict(server_lr=0.1, tau=0.01)


@pytest.mark.parametrize(
    "method, first, second, v",
    [
        (FedAdam(**STEPS, second="adagrad", beta1=0.0), [1.095125, -0.090499], [1.052359, -0.090499], None),
        (FedAdam(**STEPS), [1.061846, -0.041482], [1.085121, -0.078926], [5.9401e-4, 1.9701e-4]),
        (FedAdam(**STEPS, second="yogi"), [1.061803, -0.041421], [1.084995, -0.078701], [6e-4, 2e-4]),
        (FedAdam(**STEPS, v0=0.0), [1.066667, -0.05], [1.091457, -0.095113], None),
    ],
    ids=["adagrad", "adam", "yogi", "v0"],
)
def test_two_server_steps(monkeypatch, method, first, second, v):
    state = server_steps(monkeypatch, method, first, second)
    if v:
        close(state.v["head.bias"], v, 1e-12)


def test_bias_correction_counts_the_server_steps():
    """Of the first step: sqrt(1 - .99) / (1 - .9) = 1; of the second .742460."""
    world = image_world().at(1)
    start = FedAdam().init(world)
    for t, scale in ((1, 1.0), (2, 0.742460)):
        before = State({**start, "steps": t - 1})
        plain, corrected = (FedAdam(bias_correction=option).round(before, world) for option in (False, True))
        for key, value in start.model.items():
            close(corrected.model[key] - value, scale * (plain.model[key] - value))
        assert corrected.steps == t


def test_it_sends_what_fedavg_sends():
    world = image_world()
    assert FedAdam().traffic(world) == FedAvg().traffic(world)


@pytest.mark.parametrize(
    "hyper, message",
    [
        ({"second": "adagrad", "bias_correction": True}, "x: 'bias_correction' is for adam and"),
        ({"beta2": 1.0}, "methods.x.beta2: must be at most 0.9999"),
    ],
)
def test_values_that_make_no_sense_are_refused(hyper, message):
    with pytest.raises(ParamError, match=message):
        methods.load("fedadam", hyper, "f: methods.x")
