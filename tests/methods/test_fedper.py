"""FedPer: the head stays at home."""

import pytest
from federation import B1, B2, MLP, image_world, mlp, run, same, tiny_world
from tiny import ONE_STEP, TWO_STEPS, body, head, joined, start, tiny

from pipeline.engine.state import Clients, State
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedper import FedPer
from pipeline.models import Network


@pytest.mark.parametrize("batches, ends", [((B1,), ONE_STEP), ((B1, B2), TWO_STEPS)])
def test_fedper_steps_of_the_mlp(monkeypatch, batches, ends):
    world, model = tiny(monkeypatch, joined(*batches), network=mlp), start(MLP)
    state = FedPer().round(State(features=model.features, heads=Clients([model.head])), world)
    body(state.features, *ends[0])
    head(state.heads[0], *ends[1])


def fixed_head() -> Network:
    network = mlp()
    network.head.requires_grad_(False)
    return network


def test_fedper_with_nothing_personal_is_fedavg(monkeypatch):
    """A head that nobody moves is as good as none."""
    fedper, fedavg = (
        run(method, tiny_world(monkeypatch, B1, joined(B2, B1), network=fixed_head))
        for method in (FedPer(), FedAvg())
    )
    assert same(fedper.features, fedavg.model.features)


def test_it_sends_the_features():
    world = image_world()
    assert FedPer().traffic(world) == (world.scalars("features"),) * 2
