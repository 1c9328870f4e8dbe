"""Identities and worked numbers of FPL and FedCCL."""

import pytest
import torch
from by_hand import LOCAL_FORM, by_hand, hand_world, info_nce, labels
from federation import close, image_world, mlp, rows, run, same, tiny_world
from test_prototype_methods import one_class_world
from torch.nn.functional import cross_entropy

from pipeline.clustering import by_class, class_averages
from pipeline.engine.state import Clients, Params, State
from pipeline.methods.fedccl import FedCCL
from pipeline.methods.fedpcl import FedPCL
from pipeline.methods.fedproc import FedProc
from pipeline.methods.fpl import FPL
from pipeline.prototypes import aggregate_means


def test_fpl_by_hand(monkeypatch):
    """Three clients at most hold a class, so that its clusters are one."""

    def objective(z, logits, y, memory, t, k):
        if memory is None:
            return cross_entropy(logits, y)
        gap = torch.stack([(sample - memory[int(c)]).pow(2).mean() for sample, c in zip(z, y)]).mean()
        return cross_entropy(logits, y) + info_nce(z, y, list(memory.values()), list(memory), 0.1) + gap

    def collect(seen, memory):
        return {
            c: torch.stack([z[y == c].mean(0) for z, y in seen if (y == c).any()]).mean(0) for c in range(3)
        }

    world = hand_world(monkeypatch)
    assert same(run(FPL(tau=0.1), world).model, by_hand(world, 3, objective, collect), within=1e-12)


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


def test_fpls_clusters():
    # Six clients in two far groups: two prototypes per class, whose mean is unbiased by the groups'
    # sizes.
    right, left = rows([1, 0.05], [1, 0.1], [1, 0.2], [1, 0.13]), rows([-1, 0.3], [-1, 0.35])
    actual = by_class(torch.cat([right, left]), torch.zeros(6, dtype=torch.int64), "finch")
    close(actual.vectors, [[1, 0.12], [-1, 0.325]])
    close(FPL().message(actual, 1).unbiased.vectors, [[0, 0.2225]])
    order = [4, 0, 3, 5, 1, 2]
    shuffled = by_class(torch.cat([right, left])[order], torch.zeros(6, dtype=torch.int64), "finch")
    close(shuffled.vectors, [[-1, 0.325], [1, 0.12]])  # permuting clients permutes clusters only
    four = by_class(
        torch.cat([rows([1, 0.9]), rows([1, 0.95]), right, left]), torch.zeros(8, dtype=torch.int64), "first"
    )
    assert len(four.vectors) == 3  # the first level only


def test_fpls_running_means_are_of_what_one_epoch_saw():
    """One batch and one epoch: the representations before the step, in training mode."""
    world = image_world((12, 9, 0), batch_size=16)
    state = run(FPL(means="running"), world, 1)
    seen = world.class_means(world.new_models())
    wanted = aggregate_means(seen.means, seen.present)
    close(state.prototypes.vectors, wanted.vectors[wanted.known], 1e-5)
    assert not same(state.prototypes.vectors, run(FPL(), world, 1).prototypes.vectors, 1e-5)


def test_the_numbers_of_signals_can_be_followed():
    world = image_world((200, 150, 180))
    for method in (FPL(), FedCCL()):
        assert method.diagnostics(method.init(world)) == {}
    # three clients: one cluster per class
    assert FPL().diagnostics(run(FPL(), world, 1)) == {"prototypes": 10}
    state = run(FedCCL(), world, 1)
    actual = FedCCL().diagnostics(state)
    assert actual["local_signals"] == len(state.signals.everyone.owners) > 30
    assert 10 < actual["global_clusters"] < actual["local_signals"]


def test_fpl_and_fedccl_keep_the_vectors_of_classes_that_nobody_holds():
    world = one_class_world()
    for method, key in ((FPL(), "prototypes"), (FedCCL(), "signals")):
        state = run(method, world, 1)
        sets = state[key].everyone if key == "signals" else state[key]
        added = {
            "vectors": torch.ones(2, sets.vectors.shape[1]),
            "classes": labels(7, 7),
            "owners": labels(0, 3),
        }
        for name, value in added.items():
            if name in sets:
                sets[name] = torch.cat([sets[name], value])
        after = method.round(state, world.at(2))[key]
        sets = after.everyone if key == "signals" else after
        assert (sets.classes == 7).sum() == 2 and sets.vectors[sets.classes == 7].eq(1).all()
        if key == "signals":
            assert after.balanced.known[7]
            assert after.balanced.vectors[7].eq(1).all()
            assert sets.owners[-2:].tolist() == [0, 3]


def balanced(union, count, how="finch"):
    return class_averages(**by_class(union.vectors, union.classes, how), count=count)


def test_clusters_weigh_the_same_and_one_is_the_average():
    union = State(
        vectors=rows([1, 0.05], [1, 0.1], [0.05, 1], [0.1, 1], [0.2, 1]),
        classes=torch.zeros(5, dtype=torch.int64),
    )
    close(by_class(union.vectors, union.classes, "finch").vectors, [[1, 0.075], [0.116667, 1]])
    close(balanced(union, 1).vectors, [[0.558333, 0.5375]])
    close(balanced(union, 1, "mean").vectors, [[0.47, 0.63]])
    world = image_world((40, 33, 20))  # three signals per class at most
    states = [run(FedCCL(local_signals="mean", global_signals=how), world) for how in ("finch", "mean")]
    assert same(*states)
    more = [run(FedCCL(global_signals=how), image_world((200, 150, 180))) for how in ("finch", "mean")]
    assert not same(more[0].signals.balanced, more[1].signals.balanced)


def test_fedccls_local_signals_are_means_of_clusters_of_raw_representations(monkeypatch):
    """Two far groups in a class of one client, a lone sample of another, and a client without data."""
    group = [[5, 0.1], [5, 0.2], [5, 0.3], [0.1, 4], [0.2, 4], [0.3, 4], [2, 2]]
    clients = (group, [0] * 6 + [1]), ([], []), ([[3, 3], [1, 1]], [1, 1])
    world = tiny_world(monkeypatch, *clients, network=identity, batch_size=8)
    start = Clients([Params({**world.new_model()})] * 3)
    actual = FedCCL().signals(start, None, world)
    close(actual.everyone.vectors, [[5, 0.2], [0.2, 4], [2, 2], [2, 2]])
    assert actual.everyone.classes.tolist() == [0, 0, 1, 1]
    assert actual.everyone.owners.tolist() == [0, 0, 0, 2]
    close(actual.balanced.vectors, [[2.6, 2.1], [2, 2]])
    mean = FedCCL(local_signals="mean").signals(start, None, world)
    close(mean.everyone.vectors, [[2.6, 2.1], [2, 2], [2, 2]])
    assert FedCCL(local_contrast=False, global_contrast=False).signals(start, None, world) is None


def identity():
    network = mlp()
    network.features = torch.nn.Flatten(1)
    return network


def test_a_clients_signals_can_be_left_out():
    world, method = image_world((20, 33, 0, 1)), FedCCL(exclude_own=True)
    state = run(method, world, 1)
    usable = method.usable(state, world)
    owners = state.signals.everyone.owners
    assert usable.shape == (4, len(owners)) and 2 not in owners.tolist()
    assert all(usable[k].tolist() == [owner != k for owner in owners.tolist()] for k in range(4))
    assert FedCCL().usable(state, world) is None and method.usable(method.init(world), world) is None


def test_traffic_counts_models_means_and_signals():
    world = image_world((40, 33, 0, 20))
    p, d, n = world.scalars(), world.width, 4
    held = [len(client.labels.unique()) for client in world.clients]
    assert FedProc().traffic(world) == pytest.approx((p + sum(held) * (d + 1) / n, p + 10 * d))
    assert FedPCL().traffic(world) == pytest.approx((p + sum(held) * d / n, p + 10 * d + sum(held) * d))
    assert LOCAL_FORM.traffic(world) == pytest.approx((sum(held) * d / n, 10 * d + sum(held) * d))
    state = run(FPL(), world, 2)
    close(FPL().traffic(world, state), (p + sum(held) * d / n, p + d * len(state.prototypes.classes)))
    state = run(FedCCL(), world, 2)
    local, known_classes = len(state.signals.everyone.classes), len(state.signals.everyone.classes.unique())
    assert local > sum(held)  # some classes have several clusters at a client
    for options, sent in (
        ({}, local + known_classes),
        ({"global_contrast": False}, local),
        ({"local_contrast": False}, known_classes),
    ):
        close(FedCCL(**options).traffic(world, state), (p + d * local / n, p + d * sent))
    for method in (FPL(), FedCCL()):
        start = method.init(world)
        assert method.traffic(world, start)[1] == p
