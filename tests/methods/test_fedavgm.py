"""FedAvgM: momentum at the server."""

import pytest
from federation import image_world
from quadratic import server_steps

from pipeline import methods
from pipeline.errors import ParamError
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavgm import FedAvgM


@pytest.mark.parametrize(
    "method, first, second",
    [
        (FedAvgM(), [1.2, -0.1], [1.28, -0.19]),
        (FedAvgM(nesterov=True), [1.38, -0.19], [1.352, -0.271]),
    ],
    ids=["momentum", "nesterov"],
)
def test_two_server_steps(monkeypatch, method, first, second):
    server_steps(monkeypatch, method, first, second)


def test_it_sends_what_fedavg_sends():
    world = image_world()
    assert FedAvgM().traffic(world) == FedAvg().traffic(world)


def test_a_momentum_of_one_is_refused():
    with pytest.raises(ParamError, match="methods.x.beta: must be at most 0.9999"):
        methods.load("fedavgm", {"beta": 1}, "f: methods.x")
