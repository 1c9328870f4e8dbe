"""Sizes: the interval of the measured difference decides, against the print with its rounding."""

import pytest

from pipeline.report import sizes


@pytest.mark.parametrize(
    "low, high, printed, word",
    [
        (2.0, 5.5, 7.02, "smaller"),
        (-4.4, 4.6, 7.02, "smaller"),
        (7.5, 9.0, 7.02, "larger"),
        (6.0, 8.0, 7.02, "as printed"),
        (1.1, 13.4, 2.37, "open"),
        (-3.0, -1.0, 7.02, "opposite"),
        (1.0, 3.0, -7.02, "opposite"),
        (-5.5, -2.0, -7.02, "smaller"),
        (-9.0, -7.5, -7.02, "larger"),
    ],
)
def test_the_interval_decides(low, high, printed, word):
    assert sizes.size(low, high, printed) == word


def test_without_an_interval_the_size_is_open():
    assert sizes.size(None, None, 7.02) == "open"


def test_the_rounding_of_the_print_is_its_margin():
    assert sizes.size(1.9, 2.4, 2.5, rounding=0.05) == "smaller"
    assert sizes.size(1.9, 2.4, 2.5, rounding=0.5) == "as printed"


@pytest.mark.parametrize("text, rounding", [("=7.02", 0.005), ("~2", 0.5), ("=1.4", 0.05)])
def test_the_rounding_is_half_of_the_last_digit(text, rounding):
    assert sizes.rounding_of(text) == pytest.approx(rounding)


@pytest.mark.parametrize(
    "measured, printed, words",
    [
        (3.8, 7.02, "half the size"),
        (7.3, 2.37, "three times the size"),
        (0.1, 7.02, ""),
        (-3.0, 7.02, ""),
        (20.0, 2.0, "more than 6 times the size"),
    ],
)
def test_a_share_in_words(measured, printed, words):
    assert sizes.times(measured, printed) == words
