"""FedLSA: anchors that the server trains, and the local objective."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from federation import SPHERE, close, image_world, run, same

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Params
from pipeline.losses import cross_entropy
from pipeline.methods._server_network import class_vectors
from pipeline.methods.fedlsa import FedLSA, anchor_distance
from pipeline.methods.fedtgp import FedTGP
from pipeline.schema import Model


def test_fedlsa_temperature_outside_has_no_gradient():
    """To the letter, Eq. 4 is the separation at tau = 1 less log tau, a constant."""
    method, world = FedLSA(temperature="outside", alpha=0.4, server_epochs=5), image_world(model=SPHERE)
    state = method.init(world)
    wanted = FedLSA(tau=1.0, alpha=0.4).train(state.network, state.model, 5)
    assert same(method.train(state.network, state.model, 5), wanted)
    assert not same(FedLSA(alpha=0.4).train(state.network, state.model, 5), wanted, within=1e-5)


def trained_anchors(**changes):
    """The server's network after 30 steps on the first model's classifier."""
    state = FedLSA().init(image_world(model=SPHERE))
    return FedLSA(**changes).train(state.network, state.model, 30)


def test_without_alpha_or_separation_the_temperature_does_not_matter():
    plain = trained_anchors(alpha=0.0, tau=0.1)
    assert same(plain, trained_anchors(alpha=0.0, tau=0.9))
    assert same(plain, trained_anchors(alpha=0.4, separation=False))


def test_alpha_moves_the_anchors():
    assert not same(trained_anchors(alpha=0.0), trained_anchors(alpha=0.4), within=1e-5)


def test_anchors_depend_on_the_received_classifier():
    state = FedLSA().init(image_world(model=SPHERE))
    other = state.model.joined(Params({"head.weight": -state.model["head.weight"]}))
    moved = FedLSA(alpha=0.0).train(state.network, other, 30)
    assert not same(trained_anchors(alpha=0.0), moved, within=1e-5)


@pytest.mark.parametrize(
    "method, inputs", [(FedLSA(), 120), (FedLSA(inputs=16), 16)], ids=["default", "given"]
)
def test_the_server_network_has_the_width_of_the_encoder_or_a_given_one(method, inputs):
    network = method.init(image_world(model=SPHERE)).network
    assert network["table"].shape == (10, inputs)
    assert class_vectors(network).shape == (10, 84)


def test_without_projector_the_server_network_has_twice_as_many_inputs_as_classes():
    assert FedLSA().init(image_world(model=Model("cnn4"))).network["table"].shape == (10, 20)


FEDTGP, FEDLSA = FedTGP(server_epochs=20), FedLSA(server_epochs=20)


def test_anchors_are_trained_before_the_clients_with_the_received_classifier():
    world, method = image_world(model=SPHERE), FEDLSA
    start = method.init(world)
    state = run(method, world, 1)
    network = method.train(method.train(start.network, start.model, 19), start.model, 1)
    assert same(state.network, network)
    assert torch.equal(state.anchors, method.anchors(network))


def test_anchors_may_be_sent_as_they_are_before_the_last_step():
    world, method = image_world(model=SPHERE), dataclasses.replace(FEDLSA, sent="before_last_step")
    start, state = method.init(world), run(method, world, 1)
    assert same(state.network, run(FEDLSA, world, 1).network)
    assert torch.equal(state.anchors, method.anchors(method.train(start.network, start.model, 19)))


def local():
    """The anchors of the first round, the first client's batch, and a handle of the model."""
    world = image_world(model=SPHERE)
    state = FEDLSA.init(world)
    batch = Batch(world.clients[0].images, world.clients[0].labels)
    return state.anchors, batch, Handle(world.network(0, state.model))


def test_representations_have_length_one():
    _, batch, model = local()
    close(model.features(batch.images).norm(dim=1), [1.0] * 20)


def test_the_loss_is_cross_entropy_and_lambda_times_compactness():
    """L_COM: the cross-entropy of h . a / tau."""
    anchors, batch, model = local()
    h = model.features(batch.images)
    fit = cross_entropy(model.head(h), batch.labels)
    pull = F.cross_entropy(h @ anchors.T / 0.2, batch.labels)
    close(FedLSA(lam=0.7, tau=0.2).loss(model, batch, anchors, None), fit + 0.7 * pull, 1e-5)


def test_compactness_may_be_the_mean_distance_to_the_anchor():
    anchors, batch, model = local()
    h = model.features(batch.images)
    fit = cross_entropy(model.head(h), batch.labels)
    away = (h - anchors[batch.labels]).norm(dim=1).mean()
    by_distance = FedLSA(lam=0.7, compactness="distance").loss(model, batch, anchors, None)
    close(by_distance, fit + 0.7 * away, 1e-5)


def test_anchors_may_have_any_length():
    anchors, batch, model = local()
    h, long = model.features(batch.images), 3 * anchors
    fit = cross_entropy(model.head(h), batch.labels)
    pulled = FedLSA(lam=0.7, tau=0.2, unit=False).loss(model, batch, long, None)
    close(pulled, fit + 0.7 * F.cross_entropy(h @ long.T / 0.2, batch.labels), 1e-5)


def test_the_distance_has_a_finite_slope_at_the_anchor():
    anchors, batch, _ = local()
    zero = anchors[batch.labels].clone().requires_grad_()
    assert torch.autograd.grad(anchor_distance(zero, batch.labels, anchors), zero)[0].isfinite().all()


def test_it_sends_the_model_and_receives_the_anchors_too():
    sphere = image_world(model=SPHERE)
    assert FedLSA().traffic(sphere) == (sphere.scalars(), sphere.scalars() + 10 * 84)
