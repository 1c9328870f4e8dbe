"""Reasons why the runs of a claim cannot test it, however many seeds they have.

There are four: the claim is about rounds that the runs do not have; it asks for fewer than so many rounds,
and the runs are not longer; a curve has too few points; times were measured on several machines. Each check
returns a reason as text, or an empty text.
"""

from collections.abc import Iterable
from typing import Protocol

from pipeline.cells.documents import Result
from pipeline.report.claims import Claim
from pipeline.report.measures import window
from pipeline.report.study import Study
from pipeline.schema import Cell

# Evaluated rounds from which on a curve shows how unsteady it is: two rounds have a single change.
CURVE_ROUNDS = 5
# Up to so many seeds, a verdict by the residual of all rows counts only if the spread of the compared rows
# alone bears it out: the difference of two rows then has one degree of freedom.
PAIRED_SEEDS = 2

# (a run, the name of one of its measures)
Source = tuple[Cell, str]


class Runs(Protocol):
    """Where results are looked up.

    study    the results of the paper, with their histories
    results  cell -> result, of the runs that the claim is judged by
    """

    study: Study
    results: dict[Cell, Result]


def untestable(claim: Claim, sources: Iterable[Source], evidence: Runs) -> str:
    """Why these runs cannot test a claim; empty if they can.

    claim     of claims.csv
    sources   the finished runs that it compares, each with its measure
    evidence  where their results are looked up
    """
    sources = list(sources)
    return (
        _window(sources, evidence)
        or _pace(claim, sources, evidence)
        or _few_rounds(sources, evidence)
        or _machines(sources, evidence)
    )


def _window(sources: list[Source], evidence: Runs) -> str:
    """The reason of a mean over rounds that the runs do not have."""
    for cell, measure in sources:
        rounds = evidence.results[cell]["rounds"]
        span = window(measure)
        if span is None:
            continue
        first, last = span
        if last > rounds:
            return f"asks for rounds {first} to {last}, the runs have {rounds}"
    return ""


def _pace(claim: Claim, sources: list[Source], evidence: Runs) -> str:
    """The reason of "fewer than so many rounds", which runs that are not longer always confirm."""
    lengths = [evidence.results[cell]["rounds"] for cell, measure in sources if measure.startswith("pace.")]
    if lengths and claim.expected.sign.startswith("<") and claim.expected.bound >= max(lengths):
        return f"asks for fewer than {claim.expected.bound:g} rounds, the runs have {max(lengths)}"
    return ""


def _few_rounds(sources: list[Source], evidence: Runs) -> str:
    """The reason of the unsteadiness of a curve that was evaluated in too few rounds."""
    for cell, measure in sources:
        if measure.startswith("changes."):
            table = evidence.study.history(cell)
            column = measure.partition(".")[2]
            scored = table.loc[table["round"] > 0].dropna(subset=[column])["round"].nunique()
            if scored < CURVE_ROUNDS:
                return f"{scored} scored rounds show no unsteadiness"
    return ""


def _machines(sources: list[Source], evidence: Runs) -> str:
    """The reason of wall times that were measured on several kinds of processor."""
    processors = set[str]()
    for cell, measure in sources:
        if measure == "run.seconds":
            result = evidence.results[cell]
            for machine in result.get("machines", [result["versions"]]):
                processors.add(machine.get("processor", "unknown"))
    if len(processors) < 2:
        return ""
    return f"wall times of {len(processors)} kinds of processor do not compare"
