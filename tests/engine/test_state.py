"""States and models: weighted means."""

import torch
from federation import params, same

from pipeline.engine.state import Params, weighted_mean


def test_the_mean_of_one_model_is_a_copy():
    model = params({"features.w": [0.1, 1 / 3]})
    mean = weighted_mean([model], [7])
    assert same(mean, model)
    assert mean["features.w"] is not model["features.w"]


def test_the_mean_of_integers_is_the_first_of_the_largest_weight():
    models = [Params({"features.n": torch.tensor(n)}) for n in (3, 5, 9)]
    assert weighted_mean(models, [0, 1, 1])["features.n"].item() == 5
