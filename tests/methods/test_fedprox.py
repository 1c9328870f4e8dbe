"""FedProx: a pull to the received model."""

import pytest
from federation import B1, B2, TINY, close, params, tiny_world

from pipeline.engine.state import State
from pipeline.losses import squared_distance
from pipeline.methods.fedprox import FedProx

ANCHOR = {"head.weight": [[0.4, 0], [0, 0.4]], "head.bias": [0.1, 0]}


def test_the_penalty_of_the_tiny_head():
    assert 1 / 2 * squared_distance(params(TINY), params(ANCHOR)).item() == pytest.approx(0.045, abs=1e-6)


def test_two_steps_from_the_anchor_of_the_tiny_head(monkeypatch):
    world = tiny_world(monkeypatch, (B1[0] + B2[0], B1[1] + B2[1]))
    state = FedProx(mu=1.0).round(State(model=params(ANCHOR)), world)
    close(state.model["head.weight"], [[0.457167, 0.091731], [-0.057167, 0.308269]])
    close(state.model["head.bias"], [0.091207, 0.008793])


@pytest.mark.parametrize("scale", [0.5, 0.01])
def test_the_scale_of_other_code_multiplies_the_pull(monkeypatch, scale):
    batch = (B1[0] + B2[0], B1[1] + B2[1])
    scaled = FedProx(mu=1.0, legacy_scale=scale).round(
        State(model=params(ANCHOR)), tiny_world(monkeypatch, batch, local_epochs=2)
    )
    weaker = FedProx(mu=scale).round(
        State(model=params(ANCHOR)), tiny_world(monkeypatch, batch, local_epochs=2)
    )
    close(scaled.model["head.weight"], weaker.model["head.weight"])


@pytest.mark.parametrize(
    "method, copies",
    [(FedProx(), 2), (FedProx(mu=0.0), 1), (FedProx(legacy_scale=0.0), 1)],
    ids=["pull", "no mu", "no scale"],
)
def test_with_a_pull_the_received_model_is_kept_too(method, copies):
    assert method.copies == copies
