"""FedCRL: the contrast with global prototypes, and the share of local features."""

import dataclasses
import math

import pytest
import torch
from federation import (
    MLP,
    close,
    image_clients,
    image_world,
    known,
    mlp,
    one_class_world,
    one_round,
    params,
    rows,
    run,
    same,
    tiny_world,
    training,
    watched,
)

from pipeline.engine.state import Clients, State, tensors_of
from pipeline.engine.world import World
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedcrl import FedCRL, interpolate
from pipeline.methods.fedgh import FedGH
from pipeline.methods.fedproto import FedProto
from pipeline.methods.local import Local
from pipeline.prototypes import prototype_contrast
from pipeline.schema import Model

CRL = ([[1.0, 2], [-1, 0.5], [1, 1]], [0, 1, 0])  # batches of two, then one


GLOBAL = State(vectors=rows([1, 0.2], [0.1, 1]), known=known(1, 1))


def test_fedcrl_epoch_of_the_worked_example(monkeypatch):
    world, method = tiny_world(monkeypatch, CRL, network=mlp), FedCRL(tau=0.5)
    start = world.everyone(params(MLP))
    trained = world.local_epochs(start, method.loss, server_state=GLOBAL)
    model = trained.models[0]
    close(model["features.1.weight"], [[1.106684, 0.149662], [-0.108684, 0.875389]])
    close(model["features.1.bias"], [0.106684, 0.011382])
    close(model["head.weight"], [[0.589572, -0.094167], [0.010428, 0.194167]])
    close(model["head.bias"], [0.061348, 0.038652])
    close(trained.logged["contrast"], [0.607021])
    state = method.round(State(models=start, prototypes=GLOBAL, share=None), world)
    close(state.share, [0.615318])


def test_share_of_the_local_features():
    contrast = torch.tensor([0.368249, math.log(100), 0, math.nan, -1e-9], dtype=torch.float64)
    close(FedCRL().share(None, contrast, GLOBAL, GLOBAL, None), [0.744830, 0.025119, 1, 0, 1])


@pytest.mark.parametrize(
    "method, rounds", [(FedCRL(gamma=1e9, alpha=0.0), 3), (FedCRL(first_tau="global"), 1)]
)
def test_a_share_of_zero_is_fedper(method, rounds):
    """FedPer in four lines: received features, a local head, one epoch, average of the features."""
    world = image_world()
    models = world.new_models()
    for number in range(1, rounds + 1):
        models = world.at(number).local_epochs(models, Local().loss).models
        models = models.joined(world.everyone(world.average(models.features)))
    assert same(run(method, image_world(), rounds).models, models)


@pytest.mark.parametrize("choice, share", [("own", 1.0), ("global", 0.0)])
def test_the_first_round_has_no_contrast_and_may_end_with_a_chosen_mix(choice, share):
    state, trained = watched(FedCRL(alpha=100.0, first_tau=choice), image_world(), 1)
    assert state.share.tolist() == [share] * 3
    assert same(trained.models, run(Local(), image_world(), 1).models)


def test_by_default_the_first_mix_is_of_the_contrast_after_training():
    world = image_world()
    evaluated, trained = watched(FedCRL(), world, 1)
    contrast = [
        prototype_contrast(
            world.representations(k, m), world.clients[k].labels, tau=0.1, **evaluated.prototypes
        )
        for k, m in enumerate(trained.models)
    ]
    close(evaluated.share, [math.exp(-0.8 * c.item()) for c in contrast])
    assert all(0 < s < 1 for s in evaluated.share.tolist())


def test_later_shares_come_from_the_mean_contrast_of_the_training():
    world = image_world()
    epoch, trained = one_round(FedCRL(), run(FedCRL(), world, 1), world.at(2))
    close(epoch.share, torch.exp(-0.8 * trained.logged["contrast"]).tolist())


def test_later_shares_may_come_from_one_more_pass():
    """With the prototypes that the client was trained against."""
    world = image_world()
    state = run(FedCRL(), world, 1)
    after, trained = one_round(FedCRL(contrast="post_eval"), state, world.at(2))
    contrast = FedCRL().evaluate(trained.models, state.prototypes, world)
    close(after.share, torch.exp(-0.8 * contrast).tolist())
    assert not same(after.share, one_round(FedCRL(), state, world.at(2))[0].share, 1e-5)


def test_post_is_the_trained_model_and_pre_the_mixed_one():
    world = image_world()
    state, trained = watched(FedCRL(), world, 2)
    assert same(state.models.heads, trained.models.heads)
    mixed = interpolate(trained.models.features, world.average(trained.models.features), state.share)
    assert same(FedCRL().deployed(state, world).features, mixed)


def test_clipping_to_the_letter_reaches_the_evaluated_model_and_the_shared_features():
    state, trained = watched(FedCRL(clip_params=True), image_world(), 2)
    assert math.isfinite(trained.losses[0])  # of the training before it
    for leaf in tensors_of(trained.models) + tensors_of(state.models):
        assert leaf.min() >= 0
        assert leaf.max() <= 1
    assert any(leaf.min() < 0 for leaf in tensors_of(run(FedCRL(), image_world(), 2).models))


def test_interpolation_of_the_worked_example():
    actual = interpolate(
        Clients([params({"features.w": [1, 2]})]), params({"features.w": [0, 4]}), torch.tensor([0.25])
    )
    close(actual[0]["features.w"], [0.25, 3.5])


def test_it_sends_features_means_and_counts():
    world = one_class_world()
    features = world.scalars("features")
    assert FedCRL().traffic(world) == (features + 128 + 1, features + 4 * 128)


@pytest.mark.parametrize(
    "channels, side, classes, fedavg, proto, gh, crl",
    [
        (3, 32, 10, 519828, 2560, 2570, 519808),
        (3, 32, 100, 543048, 25600, 25700, 542848),
        (1, 28, 47, 378718, 12032, 12079, 378624),
    ],
)
def test_traffic_of_the_papers_networks(channels, side, classes, fedavg, proto, gh, crl):
    """Sec. V-B5 of FedCRL, with every class at every client, and the counts that its Eq. 6 weights by."""
    client = dataclasses.replace(
        image_clients((1,), Model("cnn2"))[0],
        images=torch.zeros(classes, channels, side, side),
        labels=torch.arange(classes),
    )
    world = World.create([client], training(), classes, 0)
    assert [sum(m.traffic(world)) for m in (FedAvg(), FedProto(), FedGH(), FedCRL())] == [
        fedavg,
        proto,
        gh,
        crl + classes,
    ]
