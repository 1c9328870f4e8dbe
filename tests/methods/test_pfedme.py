"""pFedMe: Moreau envelopes."""

import pytest
from federation import B1, B2, close, image_world, params, same, watched
from tiny import ANCHOR, head, joined, start, tiny

from pipeline.engine.state import Clients, Params, State
from pipeline.engine.trained import Trained
from pipeline.engine.world import World
from pipeline.losses import squared_distance
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.local import Local
from pipeline.methods.pfedme import PFedMe
from pipeline.schema import Optimiser

SMALL = dict(lam=5.0, inner_steps=2, inner_lr=0.1, lr=0.05)


def begun(model: Params) -> State:
    """pFedMe's state before the first round."""
    return State(model=model, personal=None)


@pytest.mark.parametrize(
    "options, w, theta",
    [
        (
            {},
            ([[0.527739, -0.158311], [0.072261, 0.258311]], [0.001251, 0.098749]),
            ([[0.558597, -0.092951], [0.041403, 0.192951]], [-0.011348, 0.111348]),
        ),
        (
            {"start": "reset"},
            ([[0.526219, -0.161016], [0.073781, 0.261016]], [0.001015, 0.098985]),
            ([[0.552517, -0.103773], [0.047483, 0.203773]], [-0.012292, 0.112292]),
        ),
        ({"decay": 0.001}, ([[0.527695, -0.158300], [0.072256, 0.258292]], [0.001251, 0.098741]), None),
    ],
)
def test_pfedme_two_batches_of_the_tiny_head(monkeypatch, options, w, theta):
    world = tiny(monkeypatch)
    state = PFedMe(**SMALL, **options).round(begun(start()), world)
    head(state.model, *w)
    if theta:
        head(state.personal[0], *theta)  # what the tables score, in separate storage


@pytest.mark.parametrize(
    "options, sizes, wanted",
    [
        ({"beta": 2.0, "uniform": True}, (3, 1), [-0.5, 3]),
        ({"beta": 2.0}, (3, 1), [-0.75, 2.5]),
        ({"beta": 0.5, "uniform": True}, (3, 1), [0.625, 0.75]),
    ],
)
def test_pfedme_server_of_the_worked_example(monkeypatch, options, sizes, wanted):
    world = image_world(sizes)
    ends = Clients([params({"head.w": [0, 1]}), params({"head.w": [0.5, 2]})])
    monkeypatch.setattr(World, "local_steps", lambda *_, **__: Trained(ends, [], client_state=ends))
    close(PFedMe(**options).round(begun(params({"head.w": [1, 0]})), world).model["head.w"], wanted)


def locally(world):
    """The tiny head after a round of Local."""
    return Local().round(State(models=Clients([start()])), world).models[0]


def test_without_pull_the_server_stays_and_one_inner_step_is_local_training(monkeypatch):
    world = tiny(monkeypatch)
    state = PFedMe(lam=0.0, inner_steps=1, inner_lr=0.1).round(begun(start()), world)
    assert same(state.model, start())
    close(state.personal[0], locally(world), 1e-12)


def test_without_pull_three_inner_steps_are_each_batch_three_times(monkeypatch):
    state = PFedMe(lam=0.0, inner_steps=3, inner_lr=0.1).round(begun(start()), tiny(monkeypatch))
    thrice = tiny(monkeypatch, joined(B1, B1, B1, B2, B2, B2))
    close(state.personal[0], locally(thrice), 1e-12)


def test_one_inner_step_on_one_batch_is_sgd_at_the_product_of_the_rates(monkeypatch):
    w = PFedMe(**{**SMALL, "inner_steps": 1}).round(begun(start()), tiny(monkeypatch, B1)).model
    sgd = tiny(monkeypatch, B1, optimiser=Optimiser(lr=0.05 * 5 * 0.1))
    close(w, FedAvg().round(State(model=start()), sgd).model, 1e-12)


def test_many_inner_steps_on_a_parabola_reach_its_proximal_point(monkeypatch):
    """The minimum of |theta - a|^2 / 2 + lambda / 2 |theta - w|^2."""
    world, target, lam = tiny(monkeypatch, B1), start(ANCHOR), 5.0
    method = PFedMe(lam=lam, inner_steps=200, inner_lr=0.1, lr=0.05)
    monkeypatch.setattr(PFedMe, "loss", lambda self, model, *_: squared_distance(model.params, target) / 2)
    state = method.round(begun(start()), world)
    wanted = Params({name: (target[name] + lam * start()[name]) / (1 + lam) for name in target})
    close(state.personal[0], wanted, 1e-12)


def test_before_the_first_round_there_is_no_personal_model():
    world = image_world()
    assert PFedMe().after_training(PFedMe().init(world), None) is None


def test_it_scores_w_before_training_and_theta_after_it():
    world = image_world()
    state, trained = watched(PFedMe(), world, 1)
    assert all(model is state.model for model in PFedMe().deployed(state, world))
    assert PFedMe().after_training(state, trained.models) is state.personal
    assert all(not same(theta, state.model) for theta in state.personal)


def test_it_sends_the_whole_model():
    world = image_world()
    assert PFedMe().traffic(world) == (world.scalars(), world.scalars())
