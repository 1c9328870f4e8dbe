"""FedBN: normalisation stays at home."""

import pytest
from federation import BN, image_world, run, same, watched

from pipeline.engine.state import Params
from pipeline.errors import TrainingError
from pipeline.methods._server_steps import part
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedbn import FedBN

SIZED = (20, 33, 9)


def kinds(model: Params) -> set[str]:
    return {key.rpartition(".")[2] for key in model}


@pytest.fixture(scope="module")
def first():
    """After a round of FedBN: its world, state and trained models; FedAvg's model after the same round."""
    world = image_world(SIZED, **BN)
    state, trained = watched(FedBN(), world, 1)
    return world, state, trained, run(FedAvg(), image_world(SIZED, **BN), 1).model


def test_statistics_and_affine_terms_stay_at_home(first):
    _, state, _, average = first
    assert kinds(state.norms[0]) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert {**state.shared, **state.norms[0]}.keys() == average.keys()
    assert len(state.norms[0]) == 15
    assert not same(state.norms[0], state.norms[1])


def test_what_is_shared_is_fedavgs_in_the_first_round(first):
    _, state, _, average = first
    assert same(state.shared, part(average, state.shared))


def test_a_client_is_scored_with_its_norms(first):
    world, state, trained, _ = first
    for model, mine, norms in zip(FedBN().deployed(state, world), trained.models, state.norms):
        assert same(norms, part(mine, norms))
        assert same(norms, part(model, norms))


def test_from_the_second_round_on_it_is_not_fedavg():
    two, average = (run(kind, image_world(SIZED, **BN), 2) for kind in (FedBN(), FedAvg()))
    assert not same(two.shared, part(average.model, two.shared))


def test_statistics_alone_may_stay_at_home(first):
    state = run(FedBN(local="statistics"), image_world(SIZED, **BN), 1)
    assert kinds(state.norms[0]) == {"running_mean", "running_var", "num_batches_tracked"}
    assert same(state.shared, part(first[3], state.shared))


def test_a_network_without_batchnorm_is_refused():
    with pytest.raises(TrainingError, match="fedbn: cnn4 has no BatchNorm.*`model` that has, or `allow_"):
        FedBN().init(image_world())


def test_where_it_is_allowed_a_network_without_batchnorm_gives_fedavg():
    assert same(run(FedBN(allow_plain=True), image_world()).shared, run(FedAvg(), image_world()).model)


def test_it_sends_a_model_without_what_stays_at_home():
    world = image_world(**BN)
    affine = 2 * (16 + 32 + 64)  # as many running statistics
    assert FedBN().traffic(world) == (world.scalars() - 2 * affine,) * 2
    assert FedBN(local="statistics").traffic(world) == (world.scalars() - affine,) * 2


def test_a_client_alone_has_norms():
    state = FedBN().init(image_world((8,), **BN))
    assert len(state.norms) == 1
    assert len(state.norms[0]) == 15
