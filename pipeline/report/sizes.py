"""Compare a measured difference with the paper's: as printed, smaller, larger, opposite or open.

The 95 % interval of the measured difference decides. The paper's number is rounded, so it stands for a range
as wide as its last digit.
"""

import re

AS_PRINTED = "as printed"
SMALLER = "smaller"
LARGER = "larger"
OPPOSITE = "opposite"
OPEN = "open"

# Sizes that the interval tells apart from the printed one.
OTHER = (SMALLER, LARGER, OPPOSITE)
# An interval that holds the printed difference pins it down where it ends within these shares of it.
FEWEST_TIMES = 0.5
MOST_TIMES = 1.5
# The last digit of a difference of two numbers with two decimals, in points.
ROUNDING = 0.01

# Shares of the printed difference that a text names: the nearest one is taken.
TIMES = {
    0.1: "a tenth of the size",
    0.25: "a quarter of the size",
    0.33: "a third of the size",
    0.5: "half the size",
    0.67: "two thirds of the size",
    0.8: "four fifths of the size",
    1.0: "the same size",
    1.25: "a quarter larger",
    1.5: "half as large again",
    2.0: "twice the size",
    3.0: "three times the size",
    4.0: "four times the size",
    5.0: "five times the size",
}
# Beyond it a text says no more than that.
MOST_NAMED = 6.0


def size(low: float | None, high: float | None, printed: float, rounding: float = ROUNDING) -> str:
    """How a measured difference compares with a printed one.

    low, high  its 95 % interval; None: there is none
    printed    not 0
    rounding   half the last digit of the print, in the same unit

    Returns one of the five words above.
    """
    if low is None or high is None:
        return OPEN
    if printed < 0:
        low, high, printed = -high, -low, -printed
    if high < 0:
        return OPPOSITE
    if high < printed - rounding:
        return SMALLER
    if low > printed + rounding:
        return LARGER
    near = low >= FEWEST_TIMES * printed and high <= MOST_TIMES * printed
    return AS_PRINTED if near else OPEN


def times(measured: float, printed: float) -> str:
    """`half the size`: the measured difference as a share of the printed one in words; empty where it has the
    other sign or is next to nothing."""
    share = measured / printed
    if share < min(TIMES) / 2:
        return ""
    if share > MOST_NAMED:
        return f"more than {MOST_NAMED:.0f} times the size"
    return TIMES[min(TIMES, key=lambda known: abs(known - share))]


def rounding_of(text: str) -> float:
    """Half the last digit of the number in an expectation: `=7.02` 0.005, `~2` 0.5."""
    number = re.search(r"\d+(?:\.(\d+))?", text)
    decimals = len(number[1] or "") if number else 0
    return 0.5 * 10.0**-decimals
