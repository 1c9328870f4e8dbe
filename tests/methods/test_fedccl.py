"""FedCCL: local and global signals, their clusters and contrasts."""

import pytest
import torch
from federation import close, image_world, mlp, one_class_world, rows, run, same, tiny_world
from torch.nn.functional import cross_entropy
from written_out import by_hand, hand_world, info_nce, labels

from pipeline.clustering import by_class, class_averages
from pipeline.engine.state import Clients, Params, State
from pipeline.methods.fedccl import FedCCL


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize(
    "local, whole, scale", [(True, True, 1), (True, False, 1), (False, True, 1), (True, True, "sum")]
)
def test_fedccl_by_hand(local, whole, scale, exclude, monkeypatch):
    """Three samples of a class at most at a client, three signals of a class at most: one cluster each."""

    def objective(z, logits, y, memory, t, k):
        value = cross_entropy(logits, y)
        if memory is None:
            return value
        vectors, classes, owners = memory
        chosen = [i for i, owner in enumerate(owners) if not (exclude and owner == k)]
        times = len(y) if scale == "sum" else 1
        if local:
            mine = [vectors[i] for i in chosen], [classes[i] for i in chosen]
            value = value + times * info_nce(z, y, *mine, 0.2)
        if whole:
            means = [
                torch.stack([v for v, c in zip(vectors, classes) if c == wanted]).mean(0)
                for wanted in range(3)
            ]
            value = value + times * info_nce(z, y, means, range(3), 0.2)
        return value

    def collect(seen, memory):
        actual = [
            (z[y == c].mean(0), c, k) for k, (z, y) in enumerate(seen) for c in range(3) if (y == c).any()
        ]
        return tuple(zip(*actual))

    form = {"exclude_own": exclude, "reduction": "sum" if scale == "sum" else "mean"}
    method = FedCCL(tau=0.2, local_contrast=local, global_contrast=whole, **form)
    world = hand_world(monkeypatch)
    assert same(run(method, world).model, by_hand(world, 3, objective, collect), within=1e-12)


def test_the_numbers_of_signals_are_recorded():
    world = image_world((200, 150, 180))
    assert FedCCL().diagnostics(FedCCL().init(world)) == {}
    state = run(FedCCL(), world, 1)
    actual = FedCCL().diagnostics(state)
    assert actual["local_signals"] == len(state.signals.everyone.owners) > 30
    assert 10 < actual["global_clusters"] < actual["local_signals"]


def test_signals_of_classes_that_nobody_holds_stay():
    world = one_class_world()
    state = run(FedCCL(), world, 1)
    sets = state.signals.everyone
    sets["vectors"] = torch.cat([sets.vectors, torch.ones(2, sets.vectors.shape[1])])
    sets["classes"] = torch.cat([sets.classes, labels(7, 7)])
    sets["owners"] = torch.cat([sets.owners, labels(0, 3)])
    after = FedCCL().round(state, world.at(2)).signals
    kept = after.everyone
    assert (kept.classes == 7).sum() == 2
    assert kept.vectors[kept.classes == 7].eq(1).all()
    assert kept.owners[-2:].tolist() == [0, 3]
    assert after.balanced.known[7]
    assert after.balanced.vectors[7].eq(1).all()


def balanced(union, count, how="finch"):
    return class_averages(**by_class(union.vectors, union.classes, how), count=count)


def test_clusters_weigh_the_same_whatever_their_sizes():
    union = State(
        vectors=rows([1, 0.05], [1, 0.1], [0.05, 1], [0.1, 1], [0.2, 1]),
        classes=torch.zeros(5, dtype=torch.int64),
    )
    close(balanced(union, 1).vectors, [[0.558333, 0.5375]])
    close(balanced(union, 1, "mean").vectors, [[0.47, 0.63]])


def test_with_one_cluster_per_class_clustering_is_the_mean():
    """Three signals per class at most."""
    world = image_world((40, 33, 20))
    states = [run(FedCCL(local_signals="mean", global_signals=how), world, 2) for how in ("finch", "mean")]
    assert same(*states)


def test_with_several_clusters_per_class_clustering_is_not_the_mean():
    world = image_world((200, 150, 180))
    more = [run(FedCCL(global_signals=how), world, 1) for how in ("finch", "mean")]
    assert not same(more[0].signals.balanced, more[1].signals.balanced)


def identity():
    network = mlp()
    network.features = torch.nn.Flatten(1)
    return network


def grouped(monkeypatch):
    """Two far groups in a class of one client, a lone sample of another, and a client without data."""
    group = [[5, 0.1], [5, 0.2], [5, 0.3], [0.1, 4], [0.2, 4], [0.3, 4], [2, 2]]
    clients = (group, [0] * 6 + [1]), ([], []), ([[3, 3], [1, 1]], [1, 1])
    world = tiny_world(monkeypatch, *clients, network=identity, batch_size=8)
    return Clients([Params({**world.new_model()})] * 3), world


def test_local_signals_are_means_of_clusters_of_raw_representations(monkeypatch):
    start, world = grouped(monkeypatch)
    actual = FedCCL().signals(start, None, world)
    close(actual.everyone.vectors, [[5, 0.2], [0.2, 4], [2, 2], [2, 2]])
    assert actual.everyone.classes.tolist() == [0, 0, 1, 1]
    assert actual.everyone.owners.tolist() == [0, 0, 0, 2]
    close(actual.balanced.vectors, [[2.6, 2.1], [2, 2]])


def test_local_signals_may_be_one_mean_per_class(monkeypatch):
    start, world = grouped(monkeypatch)
    mean = FedCCL(local_signals="mean").signals(start, None, world)
    close(mean.everyone.vectors, [[2.6, 2.1], [2, 2], [2, 2]])


def test_without_contrasts_there_are_no_signals(monkeypatch):
    start, world = grouped(monkeypatch)
    assert FedCCL(local_contrast=False, global_contrast=False).signals(start, None, world) is None


def test_a_clients_signals_can_be_left_out():
    world, method = image_world((20, 33, 0, 1)), FedCCL(exclude_own=True)
    state = run(method, world, 1)
    usable, owners = method.usable(state, world), state.signals.everyone.owners
    assert usable.shape == (4, len(owners))
    assert 2 not in owners.tolist()
    assert all(usable[k].tolist() == [owner != k for owner in owners.tolist()] for k in range(4))


def test_by_default_all_signals_are_usable():
    world = image_world((20, 33, 0, 1))
    assert FedCCL().usable(run(FedCCL(), world, 1), world) is None


def test_before_the_first_round_there_is_nothing_to_leave_out():
    world, method = image_world((20, 33, 0, 1)), FedCCL(exclude_own=True)
    assert method.usable(method.init(world), world) is None


@pytest.fixture(scope="module")
def two_rounds():
    world = image_world((40, 33, 0, 20))
    return world, run(FedCCL(), world, 2)


def test_some_classes_have_several_signals_at_a_client(two_rounds):
    world, state = two_rounds
    held = sum(len(client.labels.unique()) for client in world.clients)
    assert len(state.signals.everyone.classes) > held


@pytest.mark.parametrize(
    "options", [{}, {"global_contrast": False}, {"local_contrast": False}], ids=["both", "local", "global"]
)
def test_it_sends_its_signals_and_receives_those_of_its_contrasts(options, two_rounds):
    world, state = two_rounds
    p, d, n = world.scalars(), world.width, 4
    classes = state.signals.everyone.classes
    local, whole = len(classes), len(classes.unique())
    received = local * options.get("local_contrast", True) + whole * options.get("global_contrast", True)
    close(FedCCL(**options).traffic(world, state), (p + d * local / n, p + d * received))


def test_before_the_first_round_it_receives_the_model_alone():
    world = image_world((40, 33, 0, 20))
    assert FedCCL().traffic(world, FedCCL().init(world))[1] == world.scalars()
