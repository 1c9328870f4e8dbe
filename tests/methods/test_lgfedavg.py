"""LG-FedAvg: the features stay at home."""

import torch
from federation import B1, B2, MLP, close, image_world, mlp, one_round, same
from tiny import ONE_STEP, TWO_STEPS, body, head, joined, start, tiny

from pipeline.engine.state import State
from pipeline.methods.lgfedavg import LGFedAvg


def one_round_of_two(monkeypatch):
    """LG-FedAvg, its world, its state after a round and what it trained; clients of 2 and 4 images."""
    world, model = tiny(monkeypatch, B1, joined(B1, B2), network=mlp), start(MLP)
    method = LGFedAvg()
    before = State(features=world.everyone(model.features), head=model.head)
    return method, world, *one_round(method, before, world)


def test_features_and_head_are_trained_together(monkeypatch):
    _, _, state, trained = one_round_of_two(monkeypatch)
    for k, ends in enumerate((ONE_STEP, TWO_STEPS)):
        body(state.features[k], *ends[0])
        head(trained.models[k], *ends[1])


def test_the_head_is_averaged_by_images(monkeypatch):
    _, _, state, _ = one_round_of_two(monkeypatch)
    for part, one, two in zip(("weight", "bias"), ONE_STEP[1], TWO_STEPS[1]):
        close(state.head[f"head.{part}"], (torch.tensor(one) + 2 * torch.tensor(two)) / 3)


def test_a_client_is_scored_with_its_features_and_the_common_head(monkeypatch):
    method, world, state, trained = one_round_of_two(monkeypatch)
    deployed = method.deployed(state, world)
    assert same(deployed[0].head, deployed[1].head)
    assert same(deployed.features, trained.models.features)


def test_it_sends_the_head():
    world = image_world()
    assert LGFedAvg().traffic(world) == (world.scalars("head"),) * 2 == (1290, 1290)
