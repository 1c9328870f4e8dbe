"""FedGA: weights that follow what averaging costs each client."""

import pytest
import torch
import torch.nn.functional as F
from federation import close, image_world, same, watched

from pipeline.engine.state import Params
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedga import FedGA, adjusted_weights


def weights(*values):
    return torch.tensor(values, dtype=torch.float64)


def step_of(r, **changes):
    world = image_world(rounds=changes.pop("rounds"))
    return FedGA(**changes).step_size(world.at(r + 1))


ACCURACY_GAPS = [0.9 - 0.6, 0.8 - 0.8, 0.7 - 0.75]  # before less after
LOSS_GAPS = [0.2 - 1, 1.1 - 1, 1.4 - 1]


@pytest.mark.parametrize(
    "before, gaps, r, options, wanted",
    [
        ([1 / 3] * 3, ACCURACY_GAPS, 0, {"step": 0.2, "rounds": 40}, [0.380026, 0.315375, 0.304599]),
        ([1 / 3] * 3, ACCURACY_GAPS, 1, {"step": 0.2, "rounds": 40}, [0.378947, 0.315789, 0.305263]),
        ([0.02, 0.95, 0.03], LOSS_GAPS, 1, {"step": 0.9, "rounds": 10}, [0, 0.845824, 0.154176]),
    ],
    ids=["round 0", "round 1", "clipped"],
)
def test_adjusted_weights_of_the_worked_example(before, gaps, r, options, wanted):
    close(adjusted_weights(weights(*before), weights(*gaps), step_of(r, **options)), wanted)


def test_without_gaps_the_weights_stay():
    before = weights(0.2, 0.5, 0.3)
    assert torch.equal(adjusted_weights(before, torch.zeros_like(before), 1.0), before)


def test_weights_that_would_all_be_clipped_to_nothing_stay():
    assert adjusted_weights(weights(1), weights(-1), 5.0).tolist() == [1.0]


def test_the_step_shrinks_from_round_to_round():
    assert [step_of(r, rounds=40) for r in (0, 1, 40)] == pytest.approx([0.2 * (1 + 1 / 40), 0.2, 0.2 / 40])


def test_the_papers_schedule_is_a_round_ahead():
    steps = [step_of(r, rounds=40, schedule="paper") for r in (0, 1, 39)]
    assert steps == pytest.approx([0.2, 0.2 * 39 / 40, 0.2 / 40])


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


HELD = torch.tensor([0, 1, 3])  # clients with images


@pytest.fixture(scope="module")
def after_one():
    """A round of FedGA: its world, state and trained models; the third client has no images."""
    world = image_world((20, 33, 0, 7))
    state, trained = watched(FedGA(), world, 1)
    return world.at(1), state, trained.models


def test_the_first_average_is_uniform_over_clients_with_images(after_one):
    _, state, models = after_one
    start = weights(1, 1, 0, 1) / 3
    mean = Params(
        (name, sum(float(a) * model[name] for a, model in zip(start, models))) for name in models[0]
    )
    assert same(state.model, mean, within=1e-6)


def test_the_client_that_loses_most_by_averaging_gets_more_weight(after_one):
    world, state, models = after_one
    gaps = FedGA().measure(world.everyone(state.model), world) - FedGA().measure(models, world)
    assert int(state.weights[HELD].argmax()) == int(gaps[HELD].argmax())
    start = weights(1, 1, 1) / 3
    close(state.weights[HELD], adjusted_weights(start, gaps[HELD], 0.2 * (1 + 1 / 3)).tolist())


def test_a_client_without_images_has_no_weight(after_one):
    assert after_one[1].weights[2] == 0


def test_it_records_the_largest_weight(after_one):
    state = after_one[1]
    assert FedGA().diagnostics(state) == {"largest_weight": float(state.weights.max())}


def test_it_sends_two_numbers_more():
    world = image_world()
    assert FedGA().traffic(world) == (world.scalars() + 2, world.scalars())


def test_a_largest_gap_of_one_moves_the_weights():
    close(adjusted_weights(weights(0.5, 0.5), weights(0, 1), 1.0), [1 / 3, 2 / 3])
