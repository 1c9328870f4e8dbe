"""Identities and worked numbers of FedTGP, FedLSA and FedGA."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from federation import close, image_world, rows, run, same, watched

from pipeline import keys
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Params
from pipeline.errors import ParamError
from pipeline.losses import cross_entropy
from pipeline.methods._server_network import class_vectors, descend, new_network
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedga import FedGA, adjusted_weights
from pipeline.methods.fedlsa import FedLSA, anchor_distance, anchor_gradient
from pipeline.methods.fedrs import FedRS
from pipeline.methods.fedsr import FedSR
from pipeline.methods.fedtgp import FedTGP, class_gaps, margin_gradient
from pipeline.prototypes import aggregate_means, prototype_scores
from pipeline.schema import Model, check

SPHERE, GAUSSIAN = Model("fedlsa"), Model("cnn4_gaussian")
FEDTGP, FEDLSA = FedTGP(server_epochs=20), FedLSA(server_epochs=20)
AVERAGED = FedTGP(averaging=True, server_epochs=20)


def anchor_separation(anchors, tau):
    """Mean over i of log( 1 / (C - 1) sum_{j != i} e^{a_i . a_j / tau} ) (FedLSA Eq. 4)."""
    likeness = (anchors @ anchors.T / tau).masked_fill(torch.eye(len(anchors), dtype=torch.bool), -torch.inf)
    return likeness.logsumexp(1).mean() - math.log(len(anchors) - 1)


def margin_contrast(points, labels, vectors, margin):
    """Mean over points of the cross-entropy of -D, D_j = ||p - v_j|| + margin [j = label] (FedTGP)."""
    distances = torch.cdist(points, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return cross_entropy(-distances - margin * F.one_hot(labels, len(vectors)), labels)


def test_traffic():
    """Means over clients; clients 0 to 2 hold 20, 33 and 7 images of ten classes."""
    world = image_world()
    p, d, held = world.scalars(), 128, sum(len(c.labels.unique()) for c in world.clients) / 3
    assert FedTGP().traffic(world) == (held * d, 10 * d)
    assert FedTGP(averaging=True).traffic(world) == (p + held * d, p + 10 * d)
    assert FedGA().traffic(world) == (p + 2, p)
    assert FedRS().traffic(world) == (p - 10, p - 10) and FedRS(bias=True).traffic(world) == (p, p)
    sphere, gaussian = image_world(model=SPHERE), image_world(model=GAUSSIAN)
    assert FedLSA().traffic(sphere) == (sphere.scalars(), sphere.scalars() + 10 * 84)
    assert FedSR().traffic(gaussian) == (gaussian.scalars(),) * 2
    assert FedSR(share_reference=True).traffic(gaussian) == (gaussian.scalars() + 2 * 10 * d + 1,) * 2
    assert gaussian.scalars() == p + 20 * d + d  # the last layer twice as wide


def a_network(dtype=torch.float64, classes=5, inputs=7, outputs=4) -> Params:
    return new_network(classes, inputs, outputs, keys.torch_generator("test"), torch.zeros((), dtype=dtype))


def by_autograd(network, loss, batches, lr):
    values = {name: value.clone().requires_grad_() for name, value in network.items()}
    for batch in batches:
        slopes = torch.autograd.grad(loss(class_vectors(values), batch), list(values.values()))
        values = {
            name: (value - lr * slope).detach().requires_grad_()
            for (name, value), slope in zip(values.items(), slopes)
        }
    return Params((name, value.detach()) for name, value in values.items())


def test_a_server_network_has_the_papers_sizes_and_pytorchs_initialisation():
    network = new_network(10, 120, 84, keys.torch_generator("test"), torch.zeros(()))
    assert sum(v.numel() for name, v in network.items() if name != "table") == 24_684
    assert network["table"].numel() == 1200
    assert class_vectors(network).shape == (10, 84)
    for name in ("hidden.weight", "hidden.bias", "output.weight", "output.bias"):
        bound = 120**-0.5
        assert 0.9 * bound < network[name].abs().max() <= bound
        assert abs(float(network[name].mean())) < 0.1 * bound
    assert abs(float(network["table"].mean())) < 0.1 and abs(float(network["table"].std()) - 1) < 0.1


def test_steps_on_written_gradients_are_those_of_autograd():
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(12, 4, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, 5, (12,), generator=rng)
    batches = [torch.randperm(12, generator=rng)[:n] for n in (12, 5, 1, 12)]
    actual = descend(
        a_network(), lambda v, chosen: margin_gradient(points[chosen], labels[chosen], v, 1.5), batches, 0.3
    )
    wanted = by_autograd(
        a_network(), lambda v, chosen: margin_contrast(points[chosen], labels[chosen], v, 1.5), batches, 0.3
    )
    assert same(actual, wanted, within=1e-12) and not same(actual, a_network(), within=1e-3)

    weight = torch.randn(5, 4, generator=rng, dtype=torch.float64)
    bias = torch.randn(5, generator=rng, dtype=torch.float64)
    for unit in (True, False):
        for alpha in (0.0, 0.4):

            def loss(raw, _, unit=unit, alpha=alpha):
                anchors = F.normalize(raw, dim=1) if unit else raw
                fit = cross_entropy(F.linear(anchors, weight, bias), torch.arange(5))
                return fit + alpha * anchor_separation(anchors, 0.2)

            actual = descend(
                a_network(),
                lambda v, _, unit=unit, alpha=alpha: anchor_gradient(v, weight, bias, alpha, 0.2, unit),
                range(30),
                0.1,
            )
            assert same(actual, by_autograd(a_network(), loss, range(30), 0.1), within=1e-11)


CENTRES = aggregate_means(
    torch.tensor([[[0.0, 0], [3, 4], [0, 0]], [[0, 2], [0, 0], [0, 0]]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
)
G = rows([0, 1], [3, 3], [-2, 0])


def test_fedtgp_worked_numbers():
    close(class_gaps(**CENTRES), [4.242641] * 3)


@pytest.mark.parametrize("to", ["nearest", "farthest"])
def test_fedtgp_gaps_are_those_of_the_known_prototypes(to):
    vectors = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = torch.tensor([1, 1, 0, 1, 1, 1]) > 0
    gaps = class_gaps(vectors, known, to)
    among = torch.cdist(vectors[known], vectors[known])
    if to == "nearest":
        close(gaps.max(), among.fill_diagonal_(torch.inf).amin(1).max(), 1e-5)
    else:
        close(gaps.max(), among.max(), 1e-5)
    assert gaps[2] == gaps[known].min()


def test_fedtgp_margin_is_the_cap_with_fewer_than_two_classes(monkeypatch):
    for known in ([0, 0, 0], [0, 1, 0]):
        for to in ("nearest", "farthest"):
            assert class_gaps(G, torch.tensor(known) > 0, to).isinf().all()
    seen = []
    monkeypatch.setattr(
        "pipeline.methods.fedtgp.margin_gradient",
        lambda *given: seen.append(given[3]) or torch.zeros(10, 128),
    )
    run(FedTGP(server_epochs=1, cap=7.0), image_world((20, 0), one_class=True), 1)
    assert seen == [7.0] * len(seen) and seen
    seen.clear()
    run(FedTGP(server_epochs=1, cap=1e-3), image_world((20, 30)), 1)
    assert set(seen) == {1e-3}


def test_fedtgp_local_term_is_the_distance_to_the_generators_vectors():
    world = image_world()
    state = run(FEDTGP, world, 1)
    close(state.prototypes.vectors, class_vectors(state.generator).tolist())
    batch = Batch(world.clients[0].images, world.clients[0].labels)
    handle = Handle(world.network(0, state.models[0]))
    z = handle.features(batch.images)
    wanted = cross_entropy(handle.head(z), batch.labels) + 10 * F.mse_loss(
        z, state.prototypes.vectors[batch.labels]
    )
    close(FEDTGP.loss(handle, batch, state.prototypes, None), wanted, 1e-5)


def test_fedtgp_predicts_by_the_nearest_prototype_or_the_averaged_classifier():
    world = image_world()
    chosen = FedTGP(prediction="classifier", server_epochs=2)
    for method, classifies in ((FEDTGP, False), (AVERAGED, True), (chosen, True)):
        state = run(method, world, 1)
        handle, images = Handle(world.network(0, method.deployed(state, world)[0])), world.clients[0].images
        wanted = (
            handle(images) if classifies else prototype_scores(handle.features(images), **state.prototypes)
        )
        assert torch.equal(method.scores(handle, images, state), wanted)


def test_fedtgp_server_goes_over_every_class_mean_once_per_epoch():
    world = image_world(batch_size=4).at(1)
    for changes, size in (({}, 4), ({"server_batch": 5}, 5), ({"full_batch": True}, 11)):
        batches = list(FedTGP(server_epochs=3, **changes).batches(11, world))
        assert max(map(len, batches)) == size and len(batches) == 3 * math.ceil(11 / size)
        assert torch.cat(batches).bincount().tolist() == [3] * 11
    assert list(FedTGP().batches(0, world)) == []


def test_fedtgp_lambda_follows_the_averaging():
    assert FedTGP().lam == 10
    assert FedTGP(averaging=True).lam == 1
    assert FedTGP(averaging=True, lam=10.0).lam == 10
    assert check(FedTGP, {"averaging": True, "server_epochs": 500}, "paper.yaml: methods.fedtgp").lam == 1
    with pytest.raises(ParamError, match="server_epoch'.*nearest: 'server_epochs'"):
        check(FedTGP, {"server_epoch": 500}, "paper.yaml: methods.fedtgp")


def test_fedlsa_temperature_outside_has_no_gradient():
    """To the letter, Eq. 4 is the separation at tau = 1 less log tau, a constant."""
    method, world = FedLSA(temperature="outside", alpha=0.4, server_epochs=5), image_world(model=SPHERE)
    state = method.init(world)
    wanted = FedLSA(tau=1.0, alpha=0.4).train(state.network, state.model, 5)
    assert same(method.train(state.network, state.model, 5), wanted)
    assert not same(FedLSA(alpha=0.4).train(state.network, state.model, 5), wanted, within=1e-5)


def test_fedlsa_anchors_depend_on_the_received_classifier_alone_without_alpha():
    world = image_world(model=SPHERE)
    state = FedLSA().init(world)

    def trained(**changes):
        return FedLSA(**changes).train(state.network, state.model, 30)

    plain = trained(alpha=0.0, tau=0.1)
    assert same(plain, trained(alpha=0.0, tau=0.9)) and same(plain, trained(alpha=0.4, separation=False))
    assert not same(plain, trained(alpha=0.4), within=1e-5)
    other = state.model.joined(Params({"head.weight": -state.model["head.weight"]}))
    assert not same(plain, FedLSA(alpha=0.0).train(state.network, other, 30), within=1e-5)
    for method, inputs in ((FedLSA(), 120), (FedLSA(inputs=16), 16)):
        network = method.init(world).network
        assert network["table"].shape == (10, inputs) and class_vectors(network).shape == (10, 84)
    assert FedLSA().init(image_world(model=Model("cnn4"))).network["table"].shape == (10, 20)


def test_fedlsa_anchors_are_trained_before_the_clients_with_the_received_classifier():
    world, method = image_world(model=SPHERE), FEDLSA
    start = method.init(world)
    state = run(method, world, 1)
    network = method.train(method.train(start.network, start.model, 19), start.model, 1)
    assert same(state.network, network) and torch.equal(state.anchors, method.anchors(network))
    late = run(dataclasses.replace(method, sent="before_last_step"), world, 1)
    assert same(late.network, network)
    assert torch.equal(late.anchors, method.anchors(method.train(start.network, start.model, 19)))


def test_fedlsa_local_objective():
    """CE + lambda L_COM on h of length one, or + lambda mean ||h - a_y||; anchors may have any length."""
    world = image_world(model=SPHERE)
    state = FEDLSA.init(world)
    batch = Batch(world.clients[0].images, world.clients[0].labels)
    model = Handle(world.network(0, state.model))
    h = model.features(batch.images)
    close(h.norm(dim=1), [1.0] * 20)
    fit = cross_entropy(model.head(h), batch.labels)
    pull = F.cross_entropy(h @ state.anchors.T / 0.2, batch.labels)
    close(FedLSA(lam=0.7, tau=0.2).loss(model, batch, state.anchors, None), fit + 0.7 * pull, 1e-5)
    away = (h - state.anchors[batch.labels]).norm(dim=1).mean()
    by_distance = FedLSA(lam=0.7, compactness="distance").loss(model, batch, state.anchors, None)
    close(by_distance, fit + 0.7 * away, 1e-5)
    long = 3 * state.anchors
    pulled = FedLSA(lam=0.7, tau=0.2, unit=False).loss(model, batch, long, None)
    close(pulled, fit + 0.7 * F.cross_entropy(h @ long.T / 0.2, batch.labels), 1e-5)
    zero = state.anchors[batch.labels].clone().requires_grad_()
    assert torch.autograd.grad(anchor_distance(zero, batch.labels, state.anchors), zero)[0].isfinite().all()


def weights(*values):
    return torch.tensor(values, dtype=torch.float64)


def step_of(r, **changes):
    world = image_world(rounds=changes.pop("rounds"))
    return FedGA(**changes).step_size(world.at(r + 1))


def test_fedga_worked_numbers():
    gaps = weights(0.9, 0.8, 0.7) - weights(0.6, 0.8, 0.75)  # of accuracies: before less after
    third = weights(1, 1, 1) / 3
    close(adjusted_weights(third, gaps, step_of(0, step=0.2, rounds=40)), [0.380026, 0.315375, 0.304599])
    close(adjusted_weights(third, gaps, step_of(1, step=0.2, rounds=40)), [0.378947, 0.315789, 0.305263])
    gaps = weights(0.2, 1.1, 1.4) - weights(1, 1, 1)
    close(
        adjusted_weights(weights(0.02, 0.95, 0.03), gaps, step_of(1, step=0.9, rounds=10)),
        [0, 0.845824, 0.154176],
    )
    before = weights(0.2, 0.5, 0.3)
    assert torch.equal(adjusted_weights(before, torch.zeros_like(before), 1.0), before)
    assert adjusted_weights(weights(1), weights(-1), 5.0).tolist() == [1.0]  # would be clipped to nothing
    assert [step_of(r, rounds=40) for r in (0, 1, 40)] == pytest.approx([0.2 * (1 + 1 / 40), 0.2, 0.2 / 40])
    assert [step_of(r, rounds=40, schedule="paper") for r in (0, 1, 39)] == pytest.approx(
        [0.2, 0.2 * 39 / 40, 0.2 / 40]
    )


def test_fedga_measures_models_on_their_clients_training_data():
    world = image_world((20, 0, 7))
    models = world.local_epochs(world.new_models(), FedAvg().loss).models
    for metric in ("loss", "accuracy"):
        actual = FedGA(metric=metric).measure(models, world)
        assert actual[1].isnan()
        for k in (0, 2):
            logits = world.network(k, models[k])(world.clients[k].images).detach().double()
            labels = world.clients[k].labels
            wanted = (
                F.cross_entropy(logits, labels)
                if metric == "loss"
                else 1 - (logits.argmax(1) == labels).double().mean()
            )
            assert float(actual[k]) == pytest.approx(float(wanted))


def test_fedga_gives_the_client_that_loses_most_by_averaging_more_weight():
    world = image_world((20, 33, 0, 7))
    method = FedGA()
    state, trained = watched(method, world, 1)
    models, world = trained.models, world.at(1)
    start = weights(1, 1, 0, 1) / 3
    mean = Params(
        (name, sum(float(a) * model[name] for a, model in zip(start, models))) for name in models[0]
    )
    assert same(state.model, mean, within=1e-6)
    gaps = method.measure(world.everyone(state.model), world) - method.measure(models, world)
    held = torch.tensor([0, 1, 3])
    assert int(state.weights[held].argmax()) == int(gaps[held].argmax()) and state.weights[2] == 0
    assert method.diagnostics(state) == {"largest_weight": float(state.weights.max())}
    close(state.weights[held], adjusted_weights(start[held], gaps[held], 0.2 * (1 + 1 / 3)).tolist())
