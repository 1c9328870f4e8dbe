"""The Jinja environment of the templates in reports/templates/, with its filters."""

from typing import Any

import jinja2

from pipeline.report.citations import address
from pipeline.report.study import result_file
from pipeline.report.words import hours_words, interval_words, minus, ordinal, signed, tick
from pipeline.schema import ROOT


def fixed(number: float, digits: int) -> str:
    """`68.40`: with so many decimals, and a minus sign that is as wide as a plus."""
    return minus(f"{number:.{digits}f}")


def thousands(number: float) -> str:
    """`12,000`."""
    return f"{number:,}"


def interval(ends: tuple[float, float]) -> str:
    """`[−4.4, 4.6]`."""
    return interval_words(*ends)


def p_value(p: float) -> str:
    """`0.013`, `< 0.0001`."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


# Name in a template -> function.
FILTERS = {
    "address": address,
    "tick": tick,
    "ordinal": ordinal,
    "file": result_file,
    "fixed": fixed,
    "signed": signed,
    "thousands": thousands,
    "interval": interval,
    "p": p_value,
    "hours": hours_words,
}


def templates(**options: Any) -> jinja2.Environment:
    """The environment of reports/templates/, in which a missing value is an error.

    options: further ones of jinja2.Environment, such as autoescape
    """
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "reports" / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    made.filters |= FILTERS
    return made
