"""What stays in an estimate whose weights do not cancel."""

import numpy as np
import pytest

from pipeline.report.statistics import Design, Estimate

ROWS = {
    "A": {0: 70.0, 1: 61.0, 2: 82.0},
    "B": {0: 69.0, 1: 58.5, 2: 80.0},
    "C": {0: 66.0, 1: 57.0, 2: 79.5},
}


@pytest.mark.parametrize("weights", [{"A": 1.0}, {"A": 0.5, "B": 0.5}], ids=["a level", "a mean of levels"])
def test_a_level_has_the_spread_of_its_blocks_and_not_that_of_differences(weights):
    estimate = Design(ROWS, ROWS).estimate(weights)
    values = sum(weight * np.array([*ROWS[name].values()]) for name, weight in weights.items())
    assert estimate.route == "unpooled"
    assert estimate.d == pytest.approx(values.mean())
    assert estimate.se == pytest.approx(values.std(ddof=1) / 3**0.5)


def test_a_difference_has_the_residual_of_all_rows():
    assert Design(ROWS, ROWS).estimate({"A": 1.0, "B": -1.0}).route == "pooled"


def test_a_difference_from_a_copy_is_known_exactly():
    same = Design(ROWS | {"D": ROWS["A"]}, "ABCD").estimate({"A": 1.0, "D": -1.0})
    assert same == Estimate(d=0.0, se=0.0, df=2, v=0.0, n=3, route="identical")
