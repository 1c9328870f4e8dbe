"""FedTGP: prototypes that a server network is trained to keep apart."""

import math

import pytest
import torch
import torch.nn.functional as F
from federation import close, image_world, rows, run

from pipeline import methods
from pipeline.engine.handle import Batch, Handle
from pipeline.errors import ParamError
from pipeline.losses import cross_entropy
from pipeline.methods._server_network import class_vectors
from pipeline.methods.fedlsa import FedLSA
from pipeline.methods.fedtgp import FedTGP, class_gaps
from pipeline.prototypes import aggregate_means, prototype_scores
from pipeline.schema import check

CENTRES = aggregate_means(
    torch.tensor([[[0.0, 0], [3, 4], [0, 0]], [[0, 2], [0, 0], [0, 0]]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
)


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


G = rows([0, 1], [3, 3], [-2, 0])


@pytest.mark.parametrize("known", [[0, 0, 0], [0, 1, 0]])
@pytest.mark.parametrize("to", ["nearest", "farthest"])
def test_fewer_than_two_classes_have_no_gap(known, to):
    assert class_gaps(G, torch.tensor(known) > 0, to).isinf().all()


def margins(monkeypatch, method, world) -> list[float]:
    """The margins of a round's server steps."""
    seen = []
    monkeypatch.setattr(
        "pipeline.methods.fedtgp.margin_gradient",
        lambda *given: seen.append(given[3]) or torch.zeros(10, 128),
    )
    run(method, world, 1)
    return seen


def test_the_margin_is_the_cap_with_fewer_than_two_classes(monkeypatch):
    seen = margins(monkeypatch, FedTGP(server_epochs=1, cap=7.0), image_world((20, 0), one_class=True))
    assert seen == [7.0] * len(seen)
    assert seen


def test_the_margin_is_at_most_the_cap(monkeypatch):
    assert set(margins(monkeypatch, FedTGP(server_epochs=1, cap=1e-3), image_world((20, 30)))) == {1e-3}


FEDTGP, FEDLSA = FedTGP(server_epochs=20), FedLSA(server_epochs=20)


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


AVERAGED = FedTGP(averaging=True, server_epochs=20)


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
        assert max(map(len, batches)) == size
        assert len(batches) == 3 * math.ceil(11 / size)
        assert torch.cat(batches).bincount().tolist() == [3] * 11
    assert list(FedTGP().batches(0, world)) == []


def test_lambda_is_ten_and_one_where_models_are_averaged():
    assert FedTGP().lam == 10
    assert FedTGP(averaging=True).lam == 1
    assert check(FedTGP, {"averaging": True, "server_epochs": 500}, "paper.yaml: methods.fedtgp").lam == 1


def test_a_given_lambda_stays():
    assert FedTGP(averaging=True, lam=10.0).lam == 10


def test_a_misspelt_key_is_refused_with_the_nearest():
    with pytest.raises(ParamError, match="server_epoch'.*nearest: 'server_epochs'"):
        check(FedTGP, {"server_epoch": 500}, "paper.yaml: methods.fedtgp")


def test_own_candidates_need_a_model_for_each_client():
    with pytest.raises(ParamError, match="x: 'candidates: .*' needs a model"):
        methods.load("fedtgp", {"averaging": True, "candidates": "own"}, "f: methods.x")


def test_it_sends_the_means_of_classes_at_home_and_receives_a_vector_for_every_class():
    """Clients 0 to 2 hold 20, 33 and 7 images of ten classes."""
    world = image_world()
    p, d, held = world.scalars(), 128, sum(len(c.labels.unique()) for c in world.clients) / 3
    assert FedTGP().traffic(world) == (held * d, 10 * d)
    assert FedTGP(averaging=True).traffic(world) == (p + held * d, p + 10 * d)


def test_the_servers_batches_are_drawn_by_seed_and_round():
    world = image_world().at(3)
    method = FedTGP(server_epochs=1, server_batch=4)
    once, again = (torch.cat(list(method.batches(20, world))).tolist() for _ in range(2))
    assert once == again
    assert once != torch.cat(list(method.batches(20, world.at(4)))).tolist()
