"""FPL: cluster prototypes and their unbiased mean."""

import pytest
import torch
from federation import close, image_world, one_class_world, rows, run, same
from torch.nn.functional import cross_entropy
from written_out import LR, by_hand, features, hand_world, info_nce, labels, mlp3

from pipeline.clustering import by_class
from pipeline.methods.fpl import FPL


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


@pytest.mark.parametrize("means, epochs", [("running", slice(None)), ("last_epoch", slice(2, None))])
def test_prototypes_may_be_means_over_the_training_batches(means, epochs, monkeypatch):
    """Of representations before each of three full-batch steps; the first round is cross-entropy alone."""
    world, network, seen = hand_world(monkeypatch, local_epochs=3), mlp3().double(), []
    for client in world.clients:
        model, passed = world.new_model(), []
        for _ in range(3):
            moving = {name: value.clone().requires_grad_() for name, value in model.items()}
            passed.append(features(network, moving, client.images))
            logits = passed[-1] @ moving["head.weight"].T + moving["head.bias"]
            slopes = torch.autograd.grad(cross_entropy(logits, client.labels), list(moving.values()))
            model = {name: (p - LR * g).detach() for (name, p), g in zip(moving.items(), slopes)}
        seen.append((torch.stack(passed[epochs]).mean(0).detach(), client.labels))
    state = run(FPL(means=means), world, 1)
    assert state.prototypes.classes.tolist() == [0, 1, 2]
    for c, vector in enumerate(state.prototypes.vectors):
        close(vector, torch.stack([z[y == c].mean(0) for z, y in seen if (y == c).any()]).mean(0), 1e-12)


def test_fpls_clusters():
    # Six clients in two far groups: two prototypes per class, whose mean is unbiased by the groups'
    # sizes.
    right, left = rows([1, 0.05], [1, 0.1], [1, 0.2], [1, 0.13]), rows([-1, 0.3], [-1, 0.35])
    actual = by_class(torch.cat([right, left]), torch.zeros(6, dtype=torch.int64), "finch")
    close(actual.vectors, [[1, 0.12], [-1, 0.325]])
    close(FPL().message(actual, 1).unbiased.vectors, [[0, 0.2225]])


def test_the_number_of_prototypes_is_recorded():
    """Three clients: one cluster per class."""
    world = image_world((200, 150, 180))
    assert FPL().diagnostics(FPL().init(world)) == {}
    assert FPL().diagnostics(run(FPL(), world, 1)) == {"prototypes": 10}


def test_vectors_of_classes_that_nobody_holds_stay():
    world = one_class_world()
    state = run(FPL(), world, 1)
    sets = state.prototypes
    sets["vectors"] = torch.cat([sets.vectors, torch.ones(2, sets.vectors.shape[1])])
    sets["classes"] = torch.cat([sets.classes, labels(7, 7)])
    after = FPL().round(state, world.at(2)).prototypes
    assert (after.classes == 7).sum() == 2
    assert after.vectors[after.classes == 7].eq(1).all()


def test_it_sends_means_of_classes_at_home_and_receives_the_clusters():
    world = image_world((40, 33, 0, 20))
    p, d, n = world.scalars(), world.width, 4
    held = sum(len(client.labels.unique()) for client in world.clients)
    state = run(FPL(), world, 2)
    close(FPL().traffic(world, state), (p + held * d / n, p + d * len(state.prototypes.classes)))


def test_before_the_first_round_it_receives_the_model_alone():
    world = image_world((40, 33, 0, 20))
    assert FPL().traffic(world, FPL().init(world))[1] == world.scalars()
