"""Identities and worked numbers of FedTGP, FedLSA, FedGA, FedSR and FedRS."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from federation import CNN4, close, image_clients, image_world, rows, run, same, training, watched

from pipeline import keys
from pipeline.engine import federation as engine
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Params
from pipeline.engine.world import World
from pipeline.errors import ParamError, TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods._server_network import class_vectors, descend, new_network
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedga import FedGA, adjusted_weights
from pipeline.methods.fedlsa import FedLSA, anchor_distance, anchor_gradient
from pipeline.methods.fedproto import FedProto
from pipeline.methods.fedrs import FedRS, restricted_cross_entropy, restricted_scale
from pipeline.methods.fedsr import FedSR, conditional_information, gaussian_divergence
from pipeline.methods.fedtgp import FedTGP, class_gaps, margin_gradient
from pipeline.prototypes import aggregate_means, prototype_contrast, prototype_scores
from pipeline.schema import Model, Optimiser, check

SPHERE, GAUSSIAN = Model("fedlsa"), Model("cnn4_gaussian")
METHODS = {
    "fedtgp": FedTGP(server_epochs=20),
    "running": FedTGP(server_epochs=20, candidates="own", means="running"),
    "averaged": FedTGP(averaging=True, server_epochs=20),
    "fedlsa": FedLSA(server_epochs=20),
    "distance": FedLSA(server_epochs=20, compactness="distance"),
    "fedga": FedGA(),
    "accuracy": FedGA(metric="accuracy"),
    "fedsr": FedSR(),
    "shared": FedSR(share_reference=True, norm="squared"),
    "fedrs": FedRS(),
    "soft": FedRS(mode="soft", bias=True),
}
NETWORKS = {"fedlsa": SPHERE, "distance": SPHERE, "fedsr": GAUSSIAN, "shared": GAUSSIAN}


def small_world(name, sizes=(20, 33, 0, 1, 24), dtype=torch.float32, one_class=False, **changes) -> World:
    clients = image_clients(sizes, NETWORKS.get(name, CNN4), dtype=dtype, one_class=one_class)
    return World.create(clients, training(**changes), 10, 0)


def anchor_separation(anchors, tau):
    """Mean over classes i of log( 1 / (C - 1) sum_{j != i} e^{a_i . a_j / tau} ) (FedLSA Eq. 4), whose
    gradient the server writes out."""
    likeness = (anchors @ anchors.T / tau).masked_fill(torch.eye(len(anchors), dtype=torch.bool), -torch.inf)
    return likeness.logsumexp(1).mean() - math.log(len(anchors) - 1)


def margin_contrast(points, labels, vectors, margin):
    """Mean over points of the cross-entropy of -D, D_j = ||p - v_j|| + margin [j = label] (FedTGP),
    likewise."""
    distances = torch.cdist(points, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    return cross_entropy(-distances - margin * F.one_hot(labels, len(vectors)), labels)


# -- all of them: executors, small clients, checkpoints ------------------------------------------------------


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


# -- the server's network ------------------------------------------------------------------------------------


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
    assert (
        sum(v.numel() for name, v in network.items() if name != "table") == 24_684
        and network["table"].numel() == 1200
    )
    assert class_vectors(network).shape == (10, 84)
    for name in ("hidden.weight", "hidden.bias", "output.weight", "output.bias"):
        bound = 120**-0.5
        assert (
            0.9 * bound < network[name].abs().max() <= bound
            and abs(float(network[name].mean())) < 0.1 * bound
        )
    assert abs(float(network["table"].mean())) < 0.1 and abs(float(network["table"].std()) - 1) < 0.1


def test_steps_on_written_gradients_are_those_of_autograd():
    rng = torch.Generator().manual_seed(0)
    points, labels = (
        torch.randn(12, 4, generator=rng, dtype=torch.float64),
        torch.randint(0, 5, (12,), generator=rng),
    )
    batches = [torch.randperm(12, generator=rng)[:n] for n in (12, 5, 1, 12)]
    actual = descend(
        a_network(), lambda v, chosen: margin_gradient(points[chosen], labels[chosen], v, 1.5), batches, 0.3
    )
    wanted = by_autograd(
        a_network(), lambda v, chosen: margin_contrast(points[chosen], labels[chosen], v, 1.5), batches, 0.3
    )
    assert same(actual, wanted, within=1e-12) and not same(actual, a_network(), within=1e-3)

    weight, bias = (
        torch.randn(5, 4, generator=rng, dtype=torch.float64),
        torch.randn(5, generator=rng, dtype=torch.float64),
    )
    for unit in (True, False):
        for alpha in (0.0, 0.4):

            def loss(raw, _, unit=unit, alpha=alpha):
                anchors = F.normalize(raw, dim=1) if unit else raw
                return cross_entropy(
                    F.linear(anchors, weight, bias), torch.arange(5)
                ) + alpha * anchor_separation(anchors, 0.2)

            actual = descend(
                a_network(),
                lambda v, _, unit=unit, alpha=alpha: anchor_gradient(v, weight, bias, alpha, 0.2, unit),
                range(30),
                0.1,
            )
            assert same(actual, by_autograd(a_network(), loss, range(30), 0.1), within=1e-11)


# -- FedTGP --------------------------------------------------------------------------------------------------

CENTRES = aggregate_means(
    torch.tensor([[[0.0, 0], [3, 4], [0, 0]], [[0, 2], [0, 0], [0, 0]]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
)
G = rows([0, 1], [3, 3], [-2, 0])
P, PC = rows([0, 0], [3, 4], [0, 2]), torch.tensor([0, 1, 0])


def test_fedtgp_worked_numbers():
    close(CENTRES.vectors[:2], [[0, 1], [3, 4]])
    close(class_gaps(**CENTRES), [4.242641] * 3)
    close(margin_contrast(P, PC, G, 0.0), 0.209192)
    close(margin_contrast(P, PC, G, 4.242641), 2.592509)


@pytest.mark.parametrize("to", ["nearest", "farthest"])
def test_fedtgp_gaps_ignore_a_shift_and_scale_with_the_prototypes(to):
    vectors = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = torch.tensor([1, 1, 0, 1, 1, 1]) > 0
    gaps = class_gaps(vectors, known, to)
    close(class_gaps(vectors + 7, known, to), gaps, 1e-5)
    close(class_gaps(3 * vectors, known, to), 3 * gaps, 1e-5)
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
    run(FedTGP(server_epochs=1, cap=7.0), small_world("fedtgp", (20, 0), one_class=True), 1)
    assert seen == [7.0] * len(seen) and seen
    seen.clear()
    run(FedTGP(server_epochs=1, cap=1e-3), small_world("fedtgp", (20, 30)), 1)
    assert set(seen) == {1e-3}


def test_fedtgp_without_lambda_is_fedavg_and_so_is_its_first_round():
    fedavg = run(FedAvg(), image_world())
    for epochs in (0, 7):
        assert same(
            run(FedTGP(averaging=True, lam=0, server_epochs=epochs), image_world()).model, fedavg.model
        )
    assert same(run(METHODS["averaged"], image_world(), 1).model, run(FedAvg(), image_world(), 1).model)
    assert not same(run(METHODS["averaged"], image_world()).model, fedavg.model)


def test_fedtgp_local_term_is_fedprotos_with_the_generators_vectors():
    world = image_world()
    state = run(METHODS["fedtgp"], world, 1)
    close(state.prototypes.vectors, class_vectors(state.generator).tolist())
    batch = Batch(world.clients[0].images, world.clients[0].labels)
    handle = Handle(world.network(0, state.models[0]))
    z = handle.features(batch.images)
    wanted = cross_entropy(handle.head(z), batch.labels) + 10 * F.mse_loss(
        z, state.prototypes.vectors[batch.labels]
    )
    actual, fedproto = (
        method.loss(handle, batch, state.prototypes, None)
        for method in (METHODS["fedtgp"], FedProto(lam=10.0))
    )
    close(actual, wanted, 1e-5)
    assert torch.equal(actual, fedproto)


def test_fedtgp_predicts_by_the_nearest_prototype_or_the_averaged_classifier():
    world = image_world()
    chosen = FedTGP(prediction="classifier", server_epochs=2)
    for method, classifies in ((METHODS["fedtgp"], False), (METHODS["averaged"], True), (chosen, True)):
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
    assert (
        FedTGP().lam == 10 and FedTGP(averaging=True).lam == 1 and FedTGP(averaging=True, lam=10.0).lam == 10
    )
    assert check(FedTGP, {"averaging": True, "server_epochs": 500}, "paper.yaml: methods.fedtgp").lam == 1
    with pytest.raises(ParamError, match="server_epoch'.*nearest: 'server_epochs'"):
        check(FedTGP, {"server_epoch": 500}, "paper.yaml: methods.fedtgp")


# -- FedLSA --------------------------------------------------------------------------------------------------

A = F.normalize(rows([1, 0], [1, 1], [-1, 0.5]), dim=1)
H, HY = F.normalize(rows([2, 1], [-1, 1]), dim=1), torch.tensor([0, 2])
PHI = rows([2, 0], [0, 2], [-2, 0])


def simplex(classes: int) -> torch.Tensor:
    return F.normalize(torch.eye(classes, dtype=torch.float64) - 1 / classes, dim=1)


def test_fedlsa_worked_numbers():
    close(A, [[1, 0], [0.707107, 0.707107], [-0.894427, 0.447214]])
    close(anchor_separation(A, 1.0), -0.015169)
    close(anchor_separation(A, 0.1), 2.967843)
    for tau, wanted in ((0.1, 0.500429), (0.5, 0.471673)):
        close(prototype_contrast(H, HY, A, tau), wanted)
        close(F.cross_entropy(H @ A.T / tau, HY), wanted)
    close(cross_entropy(F.linear(A, PHI), torch.arange(3)), 0.409203)
    close(cross_entropy(F.linear(H, PHI), HY), 0.542339)
    close(anchor_separation(simplex(4), 0.5), -0.666667)


def test_fedlsa_separation_is_bounded_and_least_at_the_simplex():
    rng = torch.Generator().manual_seed(0)
    for classes, tau in ((3, 0.2), (10, 0.1), (7, 1.0)):
        least = -1 / ((classes - 1) * tau)
        close(anchor_separation(simplex(classes), tau), least)
        assert anchor_separation(F.normalize(torch.ones(classes, 4), dim=1), tau).item() == pytest.approx(
            1 / tau, rel=1e-5
        )
        for _ in range(20):
            anchors = F.normalize(torch.randn(classes, classes, generator=rng, dtype=torch.float64), dim=1)
            assert least <= anchor_separation(anchors, tau).item() <= 1 / tau
    two = F.normalize(torch.randn(2, 4, generator=rng), dim=1)
    close(anchor_separation(two, 0.3), two[0] @ two[1] / 0.3, 1e-5)


def test_fedlsa_temperature_outside_has_no_gradient():
    """To the letter, Eq. 4 is the separation at tau = 1 less log tau, a constant."""
    method, world = FedLSA(temperature="outside", alpha=0.4, server_epochs=5), image_world(model=SPHERE)
    state = method.init(world)
    wanted = FedLSA(tau=1.0, alpha=0.4).train(state.network, state.model, 5)
    assert same(method.train(state.network, state.model, 5), wanted)
    assert not same(FedLSA(alpha=0.4).train(state.network, state.model, 5), wanted, within=1e-5)


@pytest.mark.parametrize("network", ["fedlsa", "lenet", "cnn4"])
def test_fedlsa_without_lambda_is_fedavg_on_the_same_network(network):
    fedavg = run(FedAvg(), image_world(model=Model(network)))
    for method in (
        FedLSA(lam=0, server_epochs=3),
        FedLSA(lam=0, server_epochs=0),
        FedLSA(compactness="none", server_epochs=3),
    ):
        assert same(run(method, image_world(model=Model(network))).model, fedavg.model)


def test_fedlsa_anchors_without_alpha_depend_on_the_classifier_alone():
    world = image_world(model=SPHERE)
    state = FedLSA().init(world)

    def trained(**changes):
        return FedLSA(**changes).train(state.network, state.model, 30)

    plain = trained(alpha=0.0, tau=0.1)
    assert same(plain, trained(alpha=0.0, tau=0.9)) and same(plain, trained(alpha=0.4, separation=False))
    assert not same(plain, trained(alpha=0.4), within=1e-5)
    other = state.model.joined(Params({"head.weight": -state.model["head.weight"]}))
    assert not same(plain, FedLSA(alpha=0.0).train(state.network, other, 30), within=1e-5)


def test_fedlsa_anchors_are_trained_before_the_clients_with_the_received_classifier():
    world = image_world(model=SPHERE)
    method = METHODS["fedlsa"]
    start = method.init(world)
    state = run(method, world, 1)
    network = method.train(method.train(start.network, start.model, 19), start.model, 1)
    assert same(state.network, network) and torch.equal(state.anchors, method.anchors(network))
    late = run(dataclasses.replace(method, sent="before_last_step"), world, 1)
    assert same(late.network, network) and torch.equal(
        late.anchors, method.anchors(method.train(start.network, start.model, 19))
    )


def test_fedlsa_local_objective():
    """CE + lambda L_COM on h of length one, or + lambda mean ||h - a_y||; anchors of any length are taken as
    they are."""
    world = image_world(model=SPHERE)
    state = METHODS["fedlsa"].init(world)
    batch = Batch(world.clients[0].images, world.clients[0].labels)
    model = Handle(world.network(0, state.model))
    h = model.features(batch.images)
    close(h.norm(dim=1), [1.0] * 20)
    fit = cross_entropy(model.head(h), batch.labels)
    pull = F.cross_entropy(h @ state.anchors.T / 0.2, batch.labels)
    close(FedLSA(lam=0.7, tau=0.2).loss(model, batch, state.anchors, None), fit + 0.7 * pull, 1e-5)
    away = (h - state.anchors[batch.labels]).norm(dim=1).mean()
    close(
        FedLSA(lam=0.7, compactness="distance").loss(model, batch, state.anchors, None),
        fit + 0.7 * away,
        1e-5,
    )
    long = 3 * state.anchors
    close(
        FedLSA(lam=0.7, tau=0.2, unit=False).loss(model, batch, long, None),
        fit + 0.7 * F.cross_entropy(h @ long.T / 0.2, batch.labels),
        1e-5,
    )
    zero = state.anchors[batch.labels].clone().requires_grad_()
    assert torch.autograd.grad(anchor_distance(zero, batch.labels, state.anchors), zero)[0].isfinite().all()


def test_fedlsa_sizes_of_the_anchor_network():
    world = image_world(model=SPHERE)
    for method, inputs in ((FedLSA(), 120), (FedLSA(inputs=16), 16)):
        network = method.init(world).network
        assert network["table"].shape == (10, inputs) and class_vectors(network).shape == (10, 84)
    assert FedLSA().init(image_world(model=Model("cnn4"))).network["table"].shape == (10, 20)


# -- FedGA ---------------------------------------------------------------------------------------------------


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


def test_fedga_steps():
    assert [step_of(r, rounds=40) for r in (0, 1, 40)] == pytest.approx([0.2 * (1 + 1 / 40), 0.2, 0.2 / 40])
    assert [step_of(r, rounds=40, schedule="paper") for r in (0, 1, 39)] == pytest.approx(
        [0.2, 0.2 * 39 / 40, 0.2 / 40]
    )


def test_fedga_without_steps_is_fedavg_with_uniform_weights():
    state = run(FedGA(step=0), image_world((20, 20, 20, 20)))
    assert same(state.model, run(FedAvg(), image_world((20, 20, 20, 20))).model)
    assert state.weights.tolist() == [0.25] * 4
    uneven = run(FedGA(step=0), image_world()).model
    assert same(uneven, run(FedAvg(), image_world(averaging="uniform")).model, within=1e-7)
    assert not same(uneven, run(FedAvg(), image_world()).model, within=1e-4)


def test_fedga_weights_stay_a_distribution_and_follow_the_clients():
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        before, gaps = (
            torch.rand(6, generator=rng, dtype=torch.float64).softmax(0),
            torch.randn(6, generator=rng, dtype=torch.float64),
        )
        after = adjusted_weights(before, gaps, 1.0)
        assert float(after.sum()) == pytest.approx(1) and after.min() >= 0
        turn = torch.randperm(6, generator=rng)
        close(adjusted_weights(before[turn], gaps[turn], 1.0), after[turn], 1e-5)
    uniform = weights(1, 1, 1, 1) / 4
    for gap in (0.3, -0.3):
        close(adjusted_weights(uniform, torch.full_like(uniform, gap), 0.2), uniform, 1e-5)
    assert torch.equal(adjusted_weights(before, torch.zeros_like(before), 1.0), before)
    assert adjusted_weights(weights(1), weights(-1), 5.0).tolist() == [1.0]  # would be clipped to nothing


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


# -- FedSR ---------------------------------------------------------------------------------------------------

MU, SIGMA = rows([1, 2]), rows([0.5, 1])


def reference(scale=1.0, classes=3, d=2):
    return Params(mean=torch.zeros(classes, d), rho=torch.ones(classes, d), scale=torch.tensor(scale))


def test_fedsr_worked_numbers():
    close(F.softplus(torch.tensor(1.0)), 1.313262)
    close(conditional_information(MU, SIGMA, torch.tensor([0]), reference()), 2.050130)
    close(conditional_information(MU, SIGMA, torch.tensor([0]), reference(2.0)), 6.099702, 2e-6)
    z = rows([3, 4], [0, 2])

    class Fixed:
        def features(self, images):
            return torch.cat([z, torch.zeros(2, 2)], dim=1)

        def normal(self, like):
            return torch.zeros_like(like)

        def head(self, z):
            return torch.zeros(2, 2)

    for norm, wanted in (("plain", 3.5), ("squared", 14.5)):
        value = FedSR(l2r=1.0, cmi=0, norm=norm).loss(Fixed(), Batch(z, torch.tensor([0, 1])), None, None)
        assert value.item() - math.log(2) == pytest.approx(wanted, abs=1e-6)


def test_fedsr_divergence_is_that_of_torch_and_zero_only_at_the_reference():
    rng = torch.Generator().manual_seed(0)
    mu, other = torch.randn(2, 9, 4, generator=rng, dtype=torch.float64)
    sigma, spread = torch.rand(2, 9, 4, generator=rng, dtype=torch.float64) + 0.1
    normal = torch.distributions.Normal
    wanted = torch.distributions.kl_divergence(normal(mu, sigma), normal(other, spread)).sum(1)
    actual = gaussian_divergence(mu, sigma, other, spread)
    close(actual, wanted, 1e-5)
    assert (actual > 0).all() and gaussian_divergence(mu, sigma, mu, sigma).abs().max() < 1e-12
    own = Params(
        mean=2 * mu[:3], rho=(2 * sigma[:3]).expm1().log(), scale=torch.tensor(2.0, dtype=torch.float64)
    )
    assert conditional_information(mu[:3], sigma[:3], torch.arange(3), own).abs() < 1e-12
    assert conditional_information(mu[:3], sigma[:3], torch.tensor([0, 2, 1]), own) > 1e-3


def test_fedsr_without_terms_and_noise_is_fedavg_on_the_same_network(monkeypatch):
    fedavg = run(FedAvg(), image_world(model=GAUSSIAN))
    assert not same(run(FedSR(l2r=0, cmi=0), image_world(model=GAUSSIAN)).model, fedavg.model, within=1e-5)
    monkeypatch.setattr(Handle, "normal", lambda self, like: torch.zeros_like(like))
    assert same(run(FedSR(l2r=0, cmi=0), image_world(model=GAUSSIAN)).model, fedavg.model, within=1e-6)


def test_fedsr_references_start_as_released_and_learn_for_the_classes_at_home():
    world = small_world("fedsr", (20, 33, 0, 1), one_class=True)
    start = FedSR().init(world).references
    assert not start[0]["mean"].any() and (start[0]["rho"] == 1).all() and start[0]["scale"] == 1
    state = run(FedSR(), world)
    for k in (0, 1, 3):
        moved = (state.references[k]["mean"] != 0).any(1)
        assert moved.nonzero().flatten().tolist() == [k] and state.references[k]["scale"] != 1
        assert (state.references[k]["rho"] != 1).any(1).nonzero().flatten().tolist() == [k]
    assert same(state.references[2], start[2])


def test_fedsr_reference_of_a_client_does_not_depend_on_the_others():
    """Where they are local; a round is enough, afterwards the averaged model carries news of the others."""
    two, three = (run(FedSR(), image_world(sizes, model=GAUSSIAN), 1) for sizes in ((20, 33), (20, 33, 40)))
    assert same(two.references[0], three.references[0]) and same(two.references[1], three.references[1])
    assert not same(three.references[0], three.references[1])
    shared = [
        run(METHODS["shared"], image_world(sizes, model=GAUSSIAN), 1).references
        for sizes in ((20, 33), (20, 33, 40))
    ]
    assert same(shared[0][0], shared[0][1]) and not same(shared[0][0], shared[1][0])


def test_fedsr_predicts_by_the_mean_softmax_over_draws():
    world = image_world(model=GAUSSIAN)
    state = run(FedSR(), world, 1)
    model, images = Handle(world.network(0, state.model)), world.clients[0].images
    mu, rho = model.features(images).chunk(2, dim=1)
    fixed = Handle(world.network(0, state.model))
    noise = fixed.normal(mu.expand(20, *mu.shape))
    wanted = torch.stack([model.head(mu + F.softplus(rho) * eps).softmax(1) for eps in noise]).mean(0)
    actual = FedSR().scores(model, images, state)
    close(actual.exp(), wanted, 1e-5)
    close(actual.exp().sum(1), [1.0] * 20)
    assert torch.equal(actual, FedSR().scores(Handle(world.network(0, state.model)), images, state))
    assert float((noise[0] - noise[1]).abs().max()) > 0.5  # every draw its own
    state.model["features.projector.0.bias"][128:] = -1e4  # sigma = 0: as the classifier of the mean
    state.model["features.projector.0.weight"][128:] = 0
    model = Handle(world.network(0, state.model))
    close(FedSR().scores(model, images, state), model(images).log_softmax(1), 1e-5)


def test_fedsr_refuses_a_network_without_deviations():
    with pytest.raises(
        TrainingError,
        match="256 numbers for a head of 128; 'cnn4' gives 128: set the method's `model: {name: lenet_gau",
    ):
        FedSR().init(image_world())


# -- FedRS ---------------------------------------------------------------------------------------------------

Z, ZY, W = rows([1, 2], [0.5, 0]), torch.tensor([1, 0]), rows([1, 0], [0, 1], [1, 1], [-1, 1])
COUNTS = torch.tensor([4, 1, 0, 0])


@pytest.mark.parametrize(
    "mode, scale, loss, gradient",
    [
        (
            "hard",
            (1, 1, 0.5, 0.5),
            0.918678,
            [(-0.078814, 0.167405), (-0.219412, -0.544946), (0.103067, 0.138002), (0.046046, 0.050768)],
        ),
        (
            "soft",
            (1, 0.625, 0.5, 0.5),
            1.156392,
            [(-0.052367, 0.220299), (-0.190940, -0.448206), (0.124869, 0.181606), (0.054067, 0.066809)],
        ),
    ],
)
def test_fedrs_worked_numbers(mode, scale, loss, gradient):
    actual = restricted_scale(COUNTS, 0.5, mode)
    assert actual.tolist() == list(scale)
    weight = W.clone().requires_grad_()
    value = restricted_cross_entropy(Z, ZY, weight, actual.float())
    close(value, loss)
    close(torch.autograd.grad(value, weight)[0], gradient)
    close(restricted_cross_entropy(Z, ZY, W, torch.ones(4)), 1.291929)


def test_fedrs_scale_is_one_with_alpha_one_or_equal_counts_or_every_class():
    for mode in ("hard", "soft"):
        assert restricted_scale(COUNTS, 1.0, mode).tolist() == [1.0] * 4
        assert restricted_scale(torch.tensor([3, 3, 3]), 0.3, mode).tolist() == [1.0] * 3
        # a client without data
        assert restricted_scale(torch.zeros(3, dtype=torch.int64), 0.5, mode).tolist() == [0.5] * 3
    assert restricted_scale(torch.tensor([9, 1, 4]), 0.3, "hard").tolist() == [1.0] * 3
    assert restricted_scale(COUNTS.expand(2, 4), 0.5, "soft").tolist() == [[1, 0.625, 0.5, 0.5]] * 2


def without_bias(monkeypatch):
    real = engine.build

    def build(*given):
        network = real(*given)
        network.head.register_parameter("bias", None)
        return network

    monkeypatch.setattr(engine, "build", build)


@pytest.mark.parametrize("method", [FedRS(alpha=1.0), FedRS(alpha=1.0, mode="soft")], ids=["hard", "soft"])
def test_fedrs_without_restriction_is_fedavg_with_a_classifier_without_bias(method, monkeypatch):
    optimiser = Optimiser("sgd", 0.1, momentum=0.9, weight_decay=1e-3)
    state = run(method, image_world(optimiser=optimiser)).model
    assert not state["head.bias"].any()
    without_bias(monkeypatch)
    fedavg = run(FedAvg(), image_world(optimiser=optimiser)).model
    assert same(Params((name, state[name]) for name in fedavg), fedavg)
    assert same(run(method, image_world(optimiser=optimiser)).model, fedavg)


@pytest.mark.parametrize("method", [FedRS(alpha=0.2), FedRS(alpha=0.2, mode="soft")], ids=["hard", "soft"])
def test_fedrs_restricts_nothing_where_every_class_is_held(method, monkeypatch):
    """All classes equally often: both modes; in mode hard their numbers do not matter."""

    def balanced():
        clients = [
            dataclasses.replace(c, labels=torch.arange(len(c.labels)) % 10) for c in image_clients((20, 40))
        ]
        return World.create(clients, training(), 10, 0)

    state = run(method, balanced()).model
    without_bias(monkeypatch)
    fedavg = run(FedAvg(), balanced()).model
    assert same(Params((name, state[name]) for name in fedavg), fedavg)


def test_fedrs_rows_of_missing_classes_stay_with_alpha_zero():
    world = small_world("fedrs", (20, 33), one_class=True)
    model = FedRS().init(world).model
    trained = world.local_epochs(
        world.everyone(model),
        FedRS().loss,
        client_state=restricted_scale(
            torch.stack([torch.bincount(c.labels, minlength=10) for c in world.clients]), 0.0
        ).float(),
    ).models
    for k in (0, 1):
        moved = (trained[k]["head.weight"] != model["head.weight"]).any(1)
        assert moved.nonzero().flatten().tolist() == [k]


def test_fedrs_bias_is_an_option_and_not_scaled():
    world = image_world()
    state = run(FedRS(bias=True, alpha=1.0), world)
    assert (
        same(state.model, run(FedAvg(), image_world()).model, within=1e-6) and state.model["head.bias"].any()
    )
    bias = torch.tensor([0.1, -0.2, 0.3, 0.4])
    wanted = F.cross_entropy((Z @ W.T) * torch.tensor([1, 1, 0.5, 0.5]) + bias, ZY)
    close(restricted_cross_entropy(Z, ZY, W, torch.tensor([1, 1, 0.5, 0.5]), bias), wanted, 1e-5)


def test_fedrs_refuses_dropout():
    with pytest.raises(TrainingError, match="its network can have no dropout"):
        FedRS().init(image_world(model=Model("cnn2", dropout=0.3)))
