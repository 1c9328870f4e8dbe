"""States and models: attributes, copies, weighted means."""

import copy
import pickle
import weakref

import pytest
import torch
from federation import params, same

from pipeline.engine.state import (
    Clients,
    Params,
    State,
    combine,
    interpolated,
    mix,
    pack,
    unpack,
    weighted_mean,
)
from pipeline.errors import TrainingError


def test_the_mean_of_one_model_is_a_copy():
    model = params({"features.w": [0.1, 1 / 3]})
    mean = weighted_mean([model], [7])
    assert same(mean, model)
    assert mean["features.w"] is not model["features.w"]


def test_the_mean_of_integers_is_the_first_of_the_largest_weight():
    models = [Params({"features.n": torch.tensor(n)}) for n in (3, 5, 9)]
    assert weighted_mean(models, [0, 1, 1])["features.n"].item() == 5


def drawn_models(count: int) -> Clients:
    numbers = torch.Generator().manual_seed(0)
    return Clients(
        Params({"features.w": torch.randn(7, 3, generator=numbers), "features.n": torch.tensor(k)})
        for k in range(count)
    )


def test_a_mean_is_summed_in_float64_in_the_order_of_the_models():
    """Bit for bit as written out, each weight first divided by their sum."""
    models, weights = drawn_models(5), [3, 0, 1, 7, 2]
    total = torch.zeros(7, 3, dtype=torch.float64)
    for model, weight in zip(models, weights):
        if weight:
            total.add_(model["features.w"], alpha=weight / 13)
    assert torch.equal(weighted_mean(models, weights)["features.w"], total.float())
    assert not torch.equal(weighted_mean(models, weights)["features.w"], sum(m["features.w"] for m in models))


def test_a_mean_holds_one_model_after_the_other():
    alive: weakref.WeakSet = weakref.WeakSet()
    most = 0

    def made():
        nonlocal most
        for _ in range(20):
            model = params({"features.w": [1.0, 2.0]})
            alive.add(model["features.w"])
            most = max(most, len(alive))
            yield model
            del model

    assert weighted_mean(made(), range(20))["features.w"].tolist() == [1, 2]
    assert most <= 3  # the first one gives the entries' types


def test_a_mean_of_fewer_models_than_weights_is_refused():
    with pytest.raises(ValueError, match="zip"):
        weighted_mean(drawn_models(2), [1, 1, 1])
    with pytest.raises(ValueError, match="at least one model"):
        combine([], [])


def test_a_mix_is_one_combination_for_each_client():
    models = drawn_models(4)
    weights = torch.rand(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert same(mix(models, weights), [combine(models, row) for row in weights.tolist()])


def test_an_interpolation_lies_between_each_model_and_the_other():
    models, shares = drawn_models(3), [0.0, 0.25, 1.0]
    between = interpolated(models, models[0], shares)
    assert same(between, [combine((mine, models[0]), (s, 1 - s)) for mine, s in zip(models, shares)])
    assert torch.equal(between[2]["features.w"], models[2]["features.w"])
    assert [model["features.n"].item() for model in between] == [0, 1, 2]


def test_a_state_behaves_as_an_object_does():
    state = State(model=params({"head.weight": [1.0]}), rounds=3)
    assert state.rounds == state["rounds"] == 3
    assert not hasattr(state, "old")
    assert getattr(state, "old", 5) == 5
    with pytest.raises(AttributeError, match="the state has no 'old'; it has model, rounds"):
        state.old  # noqa: B018
    with pytest.raises(AttributeError):
        state.rounds = 4
    assert "rounds" in dir(state)
    for again in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), unpack(pack(state))):
        assert type(again) is State
        assert same(again, state)
    assert copy.deepcopy(state).model["head.weight"] is not state.model["head.weight"]


@pytest.mark.parametrize("name", ["values", "items", "update", "copy"])
def test_an_entry_of_a_state_cannot_be_hidden_by_a_method_of_dict(name):
    with pytest.raises(ValueError, match=f"'{name}' is a method of every dict"):
        State({name: 1})


def test_an_entry_that_a_network_lacks_is_one_line():
    with pytest.raises(TrainingError, match="the network has no 'head.weight'"):
        params({"head.0.weight": [1.0]})["head.weight"]
    assert params({}).get("head.weight") is None
    assert "head.weight" not in params({})
