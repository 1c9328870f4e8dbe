"""States and models: attributes, copies, weighted means."""

import copy
import pickle

import pytest
import torch
from federation import params, same

from pipeline.engine.state import Params, State, pack, unpack, weighted_mean
from pipeline.errors import TrainingError


def test_the_mean_of_one_model_is_a_copy():
    model = params({"features.w": [0.1, 1 / 3]})
    mean = weighted_mean([model], [7])
    assert same(mean, model)
    assert mean["features.w"] is not model["features.w"]


def test_the_mean_of_integers_is_the_first_of_the_largest_weight():
    models = [Params({"features.n": torch.tensor(n)}) for n in (3, 5, 9)]
    assert weighted_mean(models, [0, 1, 1])["features.n"].item() == 5


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
