"""Reasons why the runs of a claim cannot test it, however many seeds they have.

These are rounds that the runs do not have, times measured on several machines, and curves of a few points.
Each reason is a text; it is empty if there is none.
"""

from collections.abc import Iterable
from typing import Protocol

from pipeline.cells.documents import Result
from pipeline.report.claims import Claim
from pipeline.report.measures import window
from pipeline.report.study import Study
from pipeline.schema import Cell

# Fewer evaluated rounds show no unsteadiness of a curve: of two rounds there is a single change.
CURVE_ROUNDS = 5
# With so many seeds the residual of all rows says nothing that the difference of the pair does not bear out:
# a difference has one degree of freedom.
PAIRED_SEEDS = 2

# a run and one of its measures
Source = tuple[Cell, str]


class Runs(Protocol):
    """Where results are looked up."""

    study: Study
    results: dict[Cell, Result]


def untestable(claim: Claim, sources: Iterable[Source], evidence: Runs) -> str:
    """Why these runs cannot test a claim.

    claim    as the paper has it
    sources  the finished runs that it compares, and in which measure
    evidence their results
    """
    sources = list(sources)
    return (
        _window(sources, evidence)
        or _pace(claim, sources, evidence)
        or _few_rounds(sources, evidence)
        or _machines(sources, evidence)
    )


def _window(sources: list[Source], evidence: Runs) -> str:
    """Of a mean over rounds that a shorter run does not have."""
    for cell, measure in sources:
        rounds = evidence.results[cell]["rounds"]
        span = window(measure)
        if span and span[1] > rounds:
            return f"asks for rounds {span[0]} to {span[1]}, the runs have {rounds}"
    return ""


def _pace(claim: Claim, sources: list[Source], evidence: Runs) -> str:
    """Of a number of rounds that no shorter run can exceed."""
    lengths = [evidence.results[cell]["rounds"] for cell, measure in sources if measure.startswith("pace.")]
    if lengths and claim.expected.sign.startswith("<") and claim.expected.bound >= max(lengths):
        return f"asks for fewer than {claim.expected.bound:g} rounds, the runs have {max(lengths)}"
    return ""


def _few_rounds(sources: list[Source], evidence: Runs) -> str:
    """Of the unsteadiness of a curve that was scored only a few times."""
    for cell, measure in sources:
        if measure.startswith("changes."):
            table = evidence.study.history(cell)
            column = measure.partition(".")[2]
            scored = table.loc[table["round"] > 0].dropna(subset=[column])["round"].nunique()
            if scored < CURVE_ROUNDS:
                return f"{scored} scored rounds show no unsteadiness"
    return ""


def _machines(sources: list[Source], evidence: Runs) -> str:
    """Of wall times that several kinds of processor took."""
    timed = [evidence.results[cell] for cell, measure in sources if measure == "run.seconds"]
    machines = {
        machine.get("processor", "unknown")
        for result in timed
        for machine in result.get("machines", [result["versions"]])
    }
    if len(machines) < 2:
        return ""
    return f"wall times of {len(machines)} kinds of processor do not compare"
