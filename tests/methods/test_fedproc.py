"""FedProc: the contrast with global prototypes, and less of it from round to round."""

import pytest
import torch
from federation import image_world, one_class_world, run, same
from torch.nn.functional import cross_entropy
from written_out import by_hand, hand_world, info_nce, unit_means

from pipeline.engine.state import State
from pipeline.methods.fedproc import FedProc


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


def test_a_class_that_nobody_holds_keeps_its_prototype():
    method, world = FedProc(), one_class_world()
    state = run(method, world, 1)
    assert state.prototypes.known.tolist() == [True] * 4 + [False] * 6
    added = State(vectors=state.prototypes.vectors.clone(), known=state.prototypes.known.clone())
    added.vectors[7], added.known[7] = 1.0, True
    after = method.round(State(model=state.model, prototypes=added), world.at(2))
    assert after.prototypes.known.tolist() == [True] * 4 + [False] * 3 + [True] + [False] * 2
    assert after.prototypes.vectors[7].eq(1).all()
    assert not torch.equal(after.prototypes.vectors[0], added.vectors[0])


def test_it_sends_means_and_counts_of_classes_at_home_and_receives_a_vector_for_every_class():
    world = image_world((40, 33, 0, 20))
    p, d, n = world.scalars(), world.width, 4
    held = sum(len(client.labels.unique()) for client in world.clients)
    assert FedProc().traffic(world) == pytest.approx((p + held * (d + 1) / n, p + 10 * d))
