"""Rounds in which only some clients take part, clients that come after the last round, and clients that have
images but no usable batch, who are without data to every method."""

import dataclasses
from functools import partial

import pytest
import torch
from all_methods import METHODS
from all_methods import name as named
from federation import (
    close,
    difference,
    executor_world,
    image_clients,
    image_world,
    miniature_cells,
    miniature_world,
    one_round,
    params,
    run,
    same,
    tiny_world,
    training,
)
from quadratic import DOUBLE, UNIFORM, from_zero, quadratic, y, ys

from pipeline import methods
from pipeline.cells import loading
from pipeline.engine import federation
from pipeline.engine.phase import LocalOptions, Made, Present
from pipeline.engine.state import Clients, State, tensors_of, zeros
from pipeline.engine.world import World
from pipeline.errors import ParamError, TrainingError
from pipeline.methods.base import Method
from pipeline.methods.ditto import Ditto
from pipeline.methods.fedadam import FedAdam
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fednova import FedNova
from pipeline.methods.fedper import FedPer
from pipeline.methods.fedproto import FedProto
from pipeline.methods.fedrep import FedRep
from pipeline.methods.moon import Moon
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.methods.scaffold import Scaffold
from pipeline.prototypes import class_sums, logged_means
from pipeline.schema import Model, Optimiser, Public

world = partial(executor_world, sizes=(20, 33, 7, 33, 0, 1, 48))

PARTIAL = [method for method in METHODS if "partial participation" in method.supports]
RESTRICTED = FedProto(candidates="own")
LATE = [method for method in PARTIAL if "unseen clients" in method.supports] + [FedProto()]


def of_clients(state: State) -> dict[str, Clients]:
    """What a state holds for every client; of MOON's models the last ones."""
    actual = {name: value for name, value in state.items() if isinstance(value, Clients)}
    return actual | ({"previous": state.previous["0"]} if "previous" in state else {})


def test_the_draw_depends_on_seed_and_round_alone(monkeypatch):
    """The same for every executor, order of rounds and number of earlier draws; a share is of all clients."""
    drawn = {}
    for executor in ("sequential", "stacked"):
        w = world(executor, monkeypatch, sizes=(20,) * 10, participation=0.3)
        drawn[executor] = [w.at(round).participants for round in (1, 2, 3, 4)]
        assert w.at(4).at(2).participants == drawn[executor][1]
    assert drawn["sequential"] == drawn["stacked"]
    assert len(set(drawn["stacked"])) > 1
    assert all(len(present) == 3 and sorted(present) == list(present) for present in drawn["stacked"])
    others = image_world((20,) * 10, seed=1, participation=0.3)
    assert [others.at(round).participants for round in (1, 2, 3, 4)] != drawn["stacked"]


@pytest.mark.parametrize(("wanted", "count"), [(0.01, 1), (1, 1), (4, 4), (0.5, 3), (1.0, 5), (6, 5)])
def test_how_many_take_part(wanted, count):
    """At least one, and never a client without data: with none that can train there is nothing to average."""
    w = image_world((9, 9, 0, 9, 9, 9), participation=wanted)
    assert all(
        len(w.at(round).participants) == count and 2 not in w.at(round).participants for round in range(1, 30)
    )
    assert w.participants == w.at(0).participants == tuple(range(6))  # all initialise


def test_a_round_shows_absent_clients_without_data_and_the_whole_with_it():
    w = image_world((9, 9, 9), participation=1)
    once = w.at(1)
    [k] = once.participants
    assert (
        [len(client.labels) for client in once.clients]
        == list(once.sizes)
        == [9 * (j == k) for j in range(3)]
    )
    assert once.whole.clients is w.clients
    assert once.whole.sizes == (9, 9, 9)
    assert once.whole.round == 1
    assert w.whole is w
    assert image_world((9, 9, 9)).at(1).whole.round == 1


def test_some_of_those_who_take_part_fail():
    """A share of them, the same in every round's repetition; at least one sends."""
    plain, w = (image_world((9,) * 10, participation=6, **more) for more in ({}, {"failing": 0.5}))
    for number in range(1, 6):
        sent = w.at(number).participants
        assert len(sent) == 3
        assert {*sent} < {*plain.at(number).participants}
        assert w.at(9).at(number).participants == sent
        assert sum(map(bool, w.at(number).sizes)) == 3
    assert len(image_world((9, 9), failing=1.0).at(1).participants) == 1


def test_stragglers_do_one_to_all_epochs():
    """Half of the clients in every round, uniformly; the work is drawn from seed, round and client."""
    w = image_world((9,) * 20, local_epochs=4, stragglers=0.5)
    done = [[w.at(number).epochs_of(k) for k in range(20)] for number in range(1, 40)]
    late = [epochs for round in done for epochs in round if epochs < 4]
    assert {*late} == {1, 2, 3}
    assert all(sum(epochs == 4 for epochs in round) >= 10 for round in done)
    assert 0.6 < len(late) / (39 * 10) < 0.9  # 3 of 4
    assert [w.at(7).at(2).epochs_of(k) for k in range(20)] == done[1] != done[2]
    assert [w.at(0).epochs_of(k) for k in range(20)] == [4] * 20
    with pytest.raises(ValueError, match="local_epochs"):
        training(stragglers=0.5)


def test_before_the_first_round_everyone_does_all_epochs():
    """Also if a round was asked for first."""
    w = image_world((9,) * 20, local_epochs=4, stragglers=0.5)
    assert [w.at(7).at(0).epochs_of(k) for k in range(20)] == [4] * 20


def test_the_rate_decays_from_round_to_round():
    w = image_world(optimiser=Optimiser(lr=0.4, lr_decay=0.5, clip=2.0))
    assert [w.at(number).training.optimiser.lr for number in (0, 1, 2, 3)] == [0.4, 0.4, 0.2, 0.1]
    assert w.at(3).at(2).training.optimiser.lr == 0.2
    rule = FedNova(lr=0.8).local_rule(w.at(3))
    assert (rule.lr, rule.clip) == (0.2, 2.0)


@pytest.mark.parametrize("method", PARTIAL, ids=named)
def test_the_absent_keep_their_state(method):
    """Bit for bit. Their data enter nowhere: two rounds that a client misses are the same with others."""
    w = image_world((20, 33, 7, 12, 9), participation=2)
    state, _ = one_round(method, method.init(w), w.at(1))
    after, _ = one_round(method, state, w.at(2))
    before, now = of_clients(state), of_clients(after)
    for name in before:
        saved = [same(old, new) for old, new in zip(before[name], now[name], strict=True)]
        assert saved == [k not in w.at(2).participants for k in range(5)], name
    missing = set(range(5)) - {*w.at(1).participants, *w.at(2).participants}
    others = [
        dataclasses.replace(client, images=client.images * 100) if k in missing else client
        for k, client in enumerate(w.clients)
    ]
    assert missing
    assert same(run(method, World.create(others, w.training, 10, 0), 2), after)


def test_stacks_that_are_kept_from_round_to_round(monkeypatch):
    """As on a GPU, where whoever takes part next takes over a stack with its recorded steps."""
    stacked, plainly = (
        world(name, monkeypatch, sizes=(17,) * 4, participation=2) for name in ("stacked", "sequential")
    )
    ends = [run(FedAvg(), w, 12) for w in (stacked, plainly)]
    assert difference(*ends) < 1e-9
    assert len(stacked.executor.cached) == 1


# Clients A, B, C: F(y) = a / 2 (y - t)^2 with a = (1, 4, 2), t = (2, -1, 1); 3, 1 and 2 images in batches of
# two, so two, one and one steps of 0.1, from y = 0. A and C take part in round 1, B and C in round 2.


def trio(monkeypatch, **changes) -> World:
    monkeypatch.setattr(Method, "loss", quadratic)
    monkeypatch.setattr(federation, "draw", lambda *given: ((0, 2), (1, 2))[given[-1] - 1])
    parts = ([[1.0, 2.0]] * 3, [0] * 3), ([[4.0, -1.0]], [0]), ([[2.0, 1.0]] * 2, [0] * 2)
    return tiny_world(monkeypatch, *parts, dtype=DOUBLE, participation=2, **changes)


def test_fedavg_and_fednova_weigh_by_those_who_take_part(monkeypatch):
    w = trio(monkeypatch)
    first, second = (from_zero(FedAvg(), w, rounds) for rounds in (1, 2))
    close(y(first.model), (3 * 0.38 + 2 * 0.2) / 5)
    close(y(second.model), (-0.2152 + 2 * 0.4464) / 3)
    close(y(from_zero(FedAvg(), trio(monkeypatch, **UNIFORM), 1).model), (0.38 + 0.2) / 2)
    # A takes two steps and C one: tau_eff = 3/5 2 + 2/5 1.
    close(y(from_zero(FedNova(), trio(monkeypatch), 1).model), 1.6 * (3 / 5 * 0.38 / 2 + 2 / 5 * 0.2))


def test_scaffolds_control_moves_by_the_share_that_takes_part(monkeypatch):
    """c <- c + |S| / N mean_S (c_k^+ - c_k) (Karimireddy et al. 2020, Algorithm 1)."""
    w = trio(monkeypatch, **UNIFORM)
    state = from_zero(Scaffold(), w, 1)
    close(ys(state.controls), [-1.9, 0, -2])
    close([y(state.model), y(state.control)], [0.29, 2 / 3 * -1.95])
    state, trained = one_round(Scaffold(), state, w.at(2))
    close(ys(trained.models)[1:], [-0.096, 0.362])
    close(ys(state.controls), [-1.9, 5.16, -1.42])
    close([y(state.model), y(state.control)], [0.133, -1.3 + 2 / 3 * 2.87])
    # c <- c + sum_S n_k (c_k^+ - c_k) / n, n the samples of all clients.
    w = trio(monkeypatch)
    state = from_zero(Scaffold(), w, 1)
    c = -(3 * 1.9 + 2 * 2) / 6
    close([y(state.model), y(state.control)], [(3 * 0.38 + 2 * 0.2) / 5, c])
    x = y(state.model)
    after, trained = one_round(Scaffold(), state, w.at(2))
    b, c_gradient = 4 * (x + 1), 2 * (x - 1)  # gradients at x: one step each
    close(ys(trained.models)[1:], [x - 0.1 * (b + c), x - 0.1 * (c_gradient + 2 + c)])
    close(ys(after.controls), [-1.9, b, c_gradient])
    close(y(after.control), c + (b + 2 * (c_gradient + 2)) / 6)


def test_fednova_scales_by_the_steps_that_a_straggler_takes(monkeypatch):
    """A takes two of its four steps, C both of its two: 0.38 after two of A's, 0.36 after two of C's."""
    w = dataclasses.replace(trio(monkeypatch, local_epochs=2).at(1), work=(0.0, 1.0, 1.0))
    start = w.new_model()
    assert FedNova().lengths(w, start) == [2, 0, 2]
    state = State(model=zeros(start), change=zeros(start))
    close(y(FedNova().round(state, w).model), 2 * (3 / 5 * 0.38 / 2 + 2 / 5 * 0.36 / 2))


def test_feddyns_server_moves_by_the_share_that_takes_part(monkeypatch):
    """h <- h - alpha / m sum_P (y_k - x); x <- mean_P y_k - h / alpha (Acar et al. 2021, Algorithm 1)."""
    w, method = trio(monkeypatch, local_epochs=60, **UNIFORM), FedDyn(alpha=1.0)
    state = from_zero(method, w, 1)
    h = -(1 + 2 / 3) / 3
    close(y(state.model), (1 + 2 / 3) / 2 - h)
    x = y(state.model)
    state, trained = one_round(method, state, w.at(2))
    b, c = (-4 + x) / 5, (2 + x - 2 / 3) / 3  # where a (y - t) + y - (x - v_k) = 0
    close(ys(trained.models)[1:], [b, c])
    close(y(state.model), (b + c) / 2 - (h - (b - x + c - x) / 3))
    close(ys(state.drifts)[0], 1)


def newcomers(**changes) -> World:
    made = image_clients((14, 9), seed=5)
    made = [dataclasses.replace(client, name=f"new-{client.name}") for client in made]
    return World.create(made, training(**changes), 10, 0).at(3)


@pytest.mark.parametrize("method", LATE, ids=named)
def test_newcomers_change_nothing_and_get_a_model_each(method):
    state = run(method, image_world(), 2)
    before = [tensor.clone() for tensor in tensors_of(state)]
    models = method.adapted(state, newcomers())
    assert len(models) == 2
    assert all(map(torch.equal, before, tensors_of(state)))
    assert same(models, method.adapted(state, newcomers()))


@pytest.mark.parametrize("method", [FedAvg(), Scaffold(), FedDyn(alpha=0.1), Moon(), FedAdam()], ids=named)
def test_a_global_model_is_scored_as_it_is(method):
    state = run(method, image_world(), 2)
    assert all(model is state.model for model in method.adapted(state, newcomers(unseen=2, adaptation=3)))


@pytest.mark.parametrize("method", [FedPer(), FedRep(head_epochs=2)], ids=named)
def test_shared_features_stay_and_a_new_head_learns(method):
    state = run(method, image_world(), 2)
    first, second = method.adapted(state, w := newcomers())
    for model in (first, second):
        assert same(model.features, state.features)
        assert not same(model.head, w.new_model().head)
    assert not same(first.head, second.head)
    longer = newcomers(unseen=2, adaptation=3, local_epochs=3)
    alone = longer.everyone(state.features).joined(longer.new_models().heads)
    wanted = longer.local_epochs(alone, method.loss, options=LocalOptions("head", 3)).models
    assert same(method.adapted(state, longer), wanted)


def test_newcomers_of_ditto_and_perfedavg():
    state, w = run(Ditto(), image_world(), 2), newcomers(unseen=2, adaptation=5)
    start = w.everyone(state.model)
    trained = w.local_epochs(start, FedAvg().loss, options=LocalOptions(epochs=5)).models
    assert same(Ditto(lam=0).adapted(state, w), trained)
    pulled = Ditto(lam=5.0).adapted(state, w)
    assert 0 < difference(pulled, start) < difference(trained, start)
    method = PerFedAvg(alpha=0.05)
    state = run(method, image_world(), 1)
    w = newcomers(batch_size=20)  # all of a client's images are its batch
    for client, model in zip(w.clients, method.adapted(state, w), strict=True):
        network = w.network(0, state.model)
        loss = torch.nn.functional.cross_entropy(network(client.images), client.labels)
        tensors = dict(network.named_parameters())
        for name, gradient in zip(tensors, torch.autograd.grad(loss, list(tensors.values()))):
            close(model[name], state.model[name] - 0.05 * gradient, 1e-5)


def test_a_subclass_inherits_what_its_base_supports():
    class Child(FedAvg):
        pass

    assert Child().supports == FedAvg().supports
    assert not RESTRICTED.supports
    cannot = {name for name in methods.method_names() if not methods.load(name, {}, "here").supports}
    assert {"fedala", "fedcrl", "fedlsa", "fedccl", "rahfl", "fedpac", "fedbn"} <= cannot


CELLS = miniature_cells()
# Sizes of which the second has no batch: incomplete ones are dropped, or BatchNorm takes no single image.
CASES = {
    "an incomplete batch": ((5, 3, 9), {"batch_size": 4, "drop_last": True}),
    "a single image under BatchNorm": ((5, 1, 9), {"batch_size": 4, "model": Model("resnet10")}),
}
each_case = pytest.mark.parametrize("sizes, changes", CASES.values(), ids=CASES.keys())


@pytest.mark.parametrize("algorithm", CELLS)
def test_every_method_ends_where_it_does_if_the_client_has_no_data(algorithm):
    scenario, _, hyper = CELLS[algorithm].resolve()
    scenario = dataclasses.replace(
        scenario, training=dataclasses.replace(scenario.training, drop_last=True, participation=None)
    )
    method = methods.load(algorithm, hyper, "here")
    worlds = (miniature_world(scenario, 2, sizes=(9, 17, 5), empty=which) for which in ((), (2,)))
    assert same(*(run(method, world, 2) for world in worlds))


@each_case
def test_weights_and_counts(sizes, changes):
    world = image_world(sizes, **changes)
    assert world.weights == list(world.sizes) == [5, 0, 9]
    assert world.class_counts.sum(1).tolist() == [5, 0, 9]
    assert image_world(sizes, averaging="uniform", **changes).weights == [1, 0, 1]
    assert not world.class_means(world.everyone(world.new_model())).present[1].any()


def test_it_has_no_weight_is_never_drawn_and_may_predict_every_class():
    """(5 * 1 + 9 * 3) / 14, whatever the second client holds."""
    world = image_world((5, 3, 9), batch_size=4, drop_last=True)
    models = [params({"head.bias": [value]}) for value in (1.0, 100.0, 3.0)]
    close(world.average(models)["head.bias"], [32 / 14])
    close(world.average(models, uniform=True)["head.bias"], [2])
    world = image_world((5, 3, 9), batch_size=4, drop_last=True, participation=1)
    assert {world.at(number).participants for number in range(1, 30)} == {(0,), (2,)}
    with pytest.raises(TrainingError, match="round 1.*batches of 4"):
        run(FedAvg(), image_world((3, 2), batch_size=4, drop_last=True), 1)
    world = image_world((20, 3), batch_size=4, drop_last=True)
    owned = RESTRICTED.init(world).owned
    assert torch.equal(owned[0], world.class_counts[0] > 0)
    assert owned[1].all()


@pytest.mark.parametrize("variant, size", [("fo", 7), ("hf", 11)])
def test_perfedavg_needs_as_many_batches_as_a_step_takes(variant, size):
    """Two or three batches of four: a client with one image less is not averaged."""

    def end(clients):
        world = World.create(clients, training(batch_size=4, drop_last=True), 10, 0)
        return run(PerFedAvg(variant=variant), world, 2)

    three = image_clients((12, size, 24))
    assert same(end(three), end(Present(three, (0, 2))))
    assert not same(end(three), end(image_clients((12, 12, 24))))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_client_counts_the_samples_that_it_holds(executor, monkeypatch):
    """Labels 0, 0, 2, 1, 1 in their order, batches of four: the last sample, of class 1, is in none. Counted
    are the two of class 1 that the client holds; where a class was not seen at all, it has no mean."""
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    x = [[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [2.0, 2.0], [9.0, 9.0]]
    for labels, counts in (([0, 0, 2, 1, 1], [2, 2, 1]), ([0, 0, 1, 1, 2], [2, 2, 0])):
        world = tiny_world(monkeypatch, (x, labels), classes=3, batch_size=4, drop_last=True)
        start = Clients([params({"head.weight": [[0.0, 0.0]] * 2, "head.bias": [0.0, 0.0]})])

        def loss(model, batch, server_state, client_state):
            z = model.features(batch.images)
            return model(batch.images).sum() * 0, class_sums(z, batch.labels, 3)

        actual = logged_means(world.local_epochs(start, loss), world.class_counts)
        assert actual.counts.tolist() == [counts]
        close(actual.means[0, 0], torch.tensor([2.0, 0.0]), 1e-5)


@pytest.mark.parametrize(
    "key, batch_size, public",
    [("training", 1, None), ("public", 4, {"batch_size": 1}), ("public", 4, {"size": 1})],
    ids=repr,
)
def test_batches_of_one_image_under_batchnorm_are_refused(key, batch_size, public):
    """Every batch would be left out: of training, or of the public images."""
    clients = image_clients((5, 9), Model("cnn3_bn"))
    settings = None if public is None else Public("digits", **{"size": 3, "batch_size": 3, **public})
    world = World.create(
        clients,
        training(batch_size=batch_size),
        classes=10,
        seed=0,
        public=settings and (clients[0].images[: settings.size], settings),
    )
    with pytest.raises(ParamError, match=f"x.{key}.batch_size: BatchNorm"):
        loading._check_batches(world, "x")
    loading._check_batches(World.create(clients, training(batch_size=2), classes=10, seed=0), "x")


def made_when_read(clients, made: list[int], **changes) -> World:
    """A world of clients that are made when they are read; `made` gets their numbers."""

    def make(k: int):
        made.append(k)
        return clients[k]

    roster = Made([len(client.labels) for client in clients], [clients[0].model], make)
    return World.create(roster, training(**changes), 10, 0)


@pytest.mark.parametrize("changes", [{}, {"participation": 3}, {"participation": 4, "failing": 0.5}])
def test_clients_that_are_made_when_they_are_read_train_alike(changes):
    clients = image_clients((20, 33, 0, 7, 1, 12))
    eager = World.create(clients, training(**changes), 10, 0)
    lazy = made_when_read(clients, [], **changes)
    assert lazy.at(2).sizes == eager.at(2).sizes
    assert lazy.at(2).participants == eager.at(2).participants
    assert [len(c.labels) for c in lazy.at(2).clients] == list(eager.at(2).sizes)
    assert same(run(FedAvg(), lazy, 3), run(FedAvg(), eager, 3))
    assert lazy.scalars() == eager.scalars()


def test_a_round_makes_those_alone_who_take_part():
    made: list[int] = []
    world = made_when_read(image_clients((9,) * 40), made, participation=3)
    state = FedAvg().init(world)
    for number in (1, 2, 3):
        made.clear()
        now = world.at(number)
        state = FedAvg().round(state, now)
        assert made == list(now.participants)


def test_the_stacked_executor_has_all_clients_from_the_beginning(monkeypatch):
    monkeypatch.setenv("FEDREPRO_EXECUTOR", "stacked")
    made: list[int] = []
    world = made_when_read(image_clients((9,) * 5), made, participation=3)
    made.clear()
    run(FedAvg(), world, 3)
    assert not made
