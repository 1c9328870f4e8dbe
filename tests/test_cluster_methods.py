"""Rounds of FedProc, FedPCL, FPL and FedCCL written out by hand, their identities and worked numbers."""

import math

import pytest
import torch
from federation import close, image_world, known, mlp, rows, run, same, tiny_world, watched
from test_prototype_methods import one_class_world
from torch.func import functional_call
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from pipeline.clustering import by_class, class_averages
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Clients, Params, State, weighted_mean
from pipeline.losses import supervised_contrast
from pipeline.methods.fedccl import FedCCL
from pipeline.methods.fedpcl import FedPCL, prototype_sets_contrast
from pipeline.methods.fedproc import FedProc
from pipeline.methods.fpl import FPL
from pipeline.prototypes import aggregate_means
from pipeline.schema import Optimiser

LOCAL_FORM = FedPCL(averaging=False, ce=False, inference="local_prototype", normalise_head=True)


def labels(*values):
    return torch.tensor(values)


CLIENTS = (
    [[[1.0, 2.0], [-1.0, 0.5], [2.0, 0.3], [0.4, 1.5], [0.2, 0.9]], [0, 1, 1, 0, 0]],
    [[[0.5, -1.0], [2.0, 1.0], [1.2, 0.8]], [1, 1, 1]],
    [[[0.7, 0.1], [0.1, 0.6], [-0.3, 1.1], [1.5, 0.2]], [0, 2, 2, 1]],
)
LR = 0.1


def hand_world(monkeypatch):
    return tiny_world(
        monkeypatch,
        *CLIENTS,
        network=mlp3,
        dtype=torch.float64,
        classes=4,
        batch_size=8,
        optimiser=Optimiser(lr=LR),
    )


def mlp3():
    network = mlp()
    network.head = torch.nn.Linear(2, 4)  # nobody holds the fourth class
    return network


def features(network, model, images):
    inside = {
        name.removeprefix("features."): value for name, value in model.items() if name.startswith("features.")
    }
    return functional_call(network.features, inside, images)


def by_hand(world, rounds, objective, collect):
    """FedAvg with one full-batch step per client: objective(z, logits, labels, memory, t, k) per client, and
    what the server keeps, collect([(z, labels)], memory), from the trained local models."""
    network, model, memory = mlp3().double(), world.new_model(), None
    for t in range(rounds):
        trained, seen = [], []
        for k, client in enumerate(world.clients):
            moving = {name: value.clone().requires_grad_() for name, value in model.items()}
            z = features(network, moving, client.images)
            logits = z @ moving["head.weight"].T + moving["head.bias"]
            value = objective(z, logits, client.labels, memory, t, k)
            slopes = torch.autograd.grad(value, list(moving.values()))
            trained.append(
                Params((name, (p - LR * g).detach()) for (name, p), g in zip(moving.items(), slopes))
            )
            seen.append((features(network, trained[-1], client.images), client.labels))
        memory = collect(seen, memory)
        model = weighted_mean(trained, world.sizes)
    return model


def info_nce(z, y, vectors, classes, tau, similarity=lambda z, p: cosine_similarity(z, p, dim=0, eps=1e-8)):
    """Sample by sample, with exponentials, for tests only."""
    values = []
    for sample, label in zip(z, y):
        terms = [torch.exp(similarity(sample, p) / tau) for p in vectors]
        positive = [term for term, c in zip(terms, classes) if c == label]
        values.append(-torch.log(sum(positive) / sum(terms)) if positive else torch.zeros((), dtype=z.dtype))
    return sum(values) / len(values)


def unit_means(seen, weighted):
    """{class: mean of unit representations} over samples, or over clients' means."""
    actual = {}
    for c in range(4):
        mine = [normalize(z, dim=1)[y == c] for z, y in seen if (y == c).any()]
        if mine:
            actual[c] = (
                torch.cat(mine).mean(0) if weighted else torch.stack([part.mean(0) for part in mine]).mean(0)
            )
    return actual


@pytest.mark.parametrize(
    "method", [FedProc(), FedProc(alpha=0.3, tau=0.5, weighted=False)], ids=["schedule", "constant"]
)
def test_fedproc_by_hand(method, monkeypatch):
    def objective(z, logits, y, memory, t, k):
        fit = cross_entropy(logits, y)
        if memory is None:
            return fit
        share = t / 3 if method.alpha is None else method.alpha
        return share * fit + (1 - share) * info_nce(z, y, list(memory.values()), list(memory), method.tau)

    world = hand_world(monkeypatch)
    wanted = by_hand(world, 3, objective, lambda seen, memory: unit_means(seen, method.weighted))
    assert same(run(method, world).model, wanted, within=1e-12)


def test_fedpcl_by_hand(monkeypatch):
    def dot(z, p):
        return normalize(z, dim=0) @ p

    def objective(z, logits, y, memory, t, k):
        if memory is None:
            return cross_entropy(logits, y)
        average, sets = memory
        padded = [{**average, **mine} for mine in sets]
        each = [info_nce(z, y, list(p.values()), list(p), 0.5, dot) for p in padded]
        return (
            cross_entropy(logits, y)
            + info_nce(z, y, list(average.values()), list(average), 0.5, dot)
            + sum(each) / 3
        )

    world = hand_world(monkeypatch)
    wanted = by_hand(
        world,
        3,
        objective,
        lambda seen, memory: (unit_means(seen, False), [unit_means([one], True) for one in seen]),
    )
    assert same(run(FedPCL(tau=0.5), world).model, wanted, within=1e-12)


def test_a_class_that_nobody_holds_keeps_its_prototype_in_fedproc():
    method, world = FedProc(), one_class_world()
    state = run(method, world, 1)
    assert state.prototypes.known.tolist() == [True] * 4 + [False] * 6
    added = State(vectors=state.prototypes.vectors.clone(), known=state.prototypes.known.clone())
    added.vectors[7], added.known[7] = 1.0, True
    after = method.round(State(model=state.model, prototypes=added), world.at(2))
    assert after.prototypes.known.tolist() == [True] * 4 + [False] * 3 + [True] + [False] * 2
    assert after.prototypes.vectors[7].eq(1).all()
    assert not torch.equal(after.prototypes.vectors[0], added.vectors[0])


Z, Y = rows([0.6, 0.8], [1, 0]), labels(0, 1)
SETS = torch.tensor([[[0.5, 0.7], [0.9, 0.1]], [[0.7, 0.7], [0, 0]]])
HELD = torch.tensor([[True, True], [True, False]])


def test_fedpcls_terms_of_the_worked_example():
    state = State(prototypes=aggregate_means(SETS, HELD), means=SETS.clone(), present=HELD)
    message = FedPCL().message(state, State(sizes=[2, 2]))
    close(message.prototypes.vectors, [[0.6, 0.7], [0.9, 0.1]])
    close(message.sets[1], [[0.7, 0.7], [0.9, 0.1]])
    assert torch.equal(state.means, SETS)  # the server's sets are not padded
    for exclude, wanted in ((False, 0.440596), (True, -0.6)):
        close(prototype_sets_contrast(Z, Y, message.sets, 0.5, exclude_positive=exclude), wanted)


def test_fedpcls_terms_skip_what_has_no_vector_or_no_rival():
    z, y = rows([0.6, 0.8], [1, 0]).requires_grad_(), labels(0, 1)
    both = prototype_sets_contrast(z, y, SETS[:1], 0.5, known(1, 0))
    assert both.item() == 0 and not torch.autograd.grad(both, z)[0].any()  # class 0 alone, class 1 unknown
    alone = prototype_sets_contrast(z, y, SETS[:1], 0.5, known(1, 0), exclude_positive=True)
    assert alone.item() == 0 and not torch.autograd.grad(alone, z)[0].any()
    vectors = SETS.clone().requires_grad_()
    prototype_sets_contrast(z, y, vectors, 0.5).backward()
    assert vectors.grad is None and z.grad.abs().sum() > 0
    three = torch.cat([SETS[:1], rows([5, 5])[None]], 1)
    halved, only = (prototype_sets_contrast(Z[:n], Y[:n], three, 0.5, known(1, 0, 1)).item() for n in (2, 1))
    close(halved, only / 2)  # the missing class counts in the mean


def test_fedpcls_local_form_keeps_models_and_heads_at_home():
    world = image_world((20, 33, 7))
    start = world.new_models()
    (first, trained) = watched(LOCAL_FORM, world, 1)
    third = run(LOCAL_FORM, world, 3)
    # the first round only collects
    assert all(same(a, b) for a, b in zip(start, first.models)) and trained is None
    assert all(same(a.head, b.head) and not same(a.features, b.features) for a, b in zip(start, third.models))
    assert not same(third.models[0].features, third.models[1].features)


@pytest.mark.parametrize(
    "method", [LOCAL_FORM, FedPCL(inference="local_prototype")], ids=["local form", "averaged"]
)
def test_fedpcls_prediction_by_the_nearest_local_prototype(method):
    world = image_world((20, 33, 0))
    state = run(method, world, 2)
    images = world.clients[1].images
    for k, model in enumerate(method.deployed(state, world)):
        handle = Handle(world.network(k, model), client=k)
        z = normalize(handle.features(images))
        vectors = state.means[k] if world.sizes[k] else state.prototypes.vectors
        present = state.present[k] if world.sizes[k] else state.prototypes.known
        distance = torch.full((33, 10), 100.0)
        for c in present.nonzero()[:, 0].tolist():
            distance[:, c] = (z - vectors[c]).pow(2).mean(1)
        assert torch.equal(method.scores(handle, images, state).argmax(1), distance.argmin(1))
    begin = method.init(world)  # before there are prototypes the classifier predicts
    handle = Handle(world.network(0, method.deployed(begin, world)[0]), client=0)
    z = handle.features(images)
    close(
        method.scores(handle, images, begin), handle.head(normalize(z) if method.normalise_head else z), 1e-5
    )


def test_fedpcls_released_loss():
    generator = torch.Generator().manual_seed(0)
    z = normalize(torch.randn(6, 4, generator=generator))
    y = labels(0, 1, 0, 0, 1, 0)
    prototypes = torch.randn(2, 4, generator=generator)
    values = []
    for i in range(6):
        s = [(prototypes[y[i]] @ z[a] / 0.5).item() for a in range(6)]
        total = math.log(sum(math.exp(s[a]) for a in range(6) if a != i))
        positive = [s[p] - total for p in range(6) if p != i and y[p] == y[i]]
        values.append(-sum(positive) / len(positive))
    close(supervised_contrast(z, y, 0.5, prototypes[y]), sum(values) / 6)
    three = labels(0, 1, 1)
    lone = supervised_contrast(z[:3], three, 0.5, prototypes[three])  # the first has no other of its class
    assert lone.isfinite() and supervised_contrast(z[:1], y[:1], 0.5, prototypes[y[:1]]).item() == 0
    world, method = image_world((8, 9)), FedPCL(contrast="official", ce=False, tau=0.5)
    state = run(method, world, 1)
    handle = Handle(world.network(0, state.model))
    (images, y) = (world.clients[0].images, world.clients[0].labels)
    message = method.message(state, world)
    for views in ((), (images.flip(3),)):
        z = normalize(handle.features(torch.cat([images, *(views or (images,))])))
        wanted = sum(supervised_contrast(z, y.repeat(2), 0.5, mine[y.repeat(2)]) for mine in message.sets)
        close(method.loss(handle, Batch(images, y, views), message, None), wanted, 1e-5)


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
    close(balanced(union, 1).vectors, [[0.558333, 0.5375]])
    close(balanced(union, 1, "mean").vectors, [[0.47, 0.63]])
    world = image_world((40, 33, 20))  # three signals per class at most
    states = [run(FedCCL(local_signals="mean", global_signals=how), world, 2) for how in ("finch", "mean")]
    assert same(*states)
    more = [run(FedCCL(global_signals=how), image_world((200, 150, 180)), 1) for how in ("finch", "mean")]
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
