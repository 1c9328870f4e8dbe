"""What the runs say about each claim of a paper: one Verdict a claim, and the one function that counts them.

First version: the judging itself is still that of pipeline.report.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pipeline.report import verdicts as old
from pipeline.report.claims import Claim, Printed, read_claims
from pipeline.report.evidence import Evidence
from pipeline.report.judging import judge
from pipeline.report2.study import Study
from pipeline.schema import Paper


class Chip(StrEnum):
    """The verdict on a claim in a word, in the order of the pages."""

    HOLDS = "holds"
    FAILS = "fails"
    CONTRADICTED = "size contradicted"
    UNDECIDED = "undecided"
    ONE_FOR = "one seed, for"
    ONE_AGAINST = "one seed, against"
    NOT_RUN = "not run"
    NOT_TESTABLE = "not testable"


@dataclass(frozen=True)
class Verdict:
    """What the runs say about one claim."""

    claim: Claim
    chip: Chip
    # the measured difference, level or rank and its 95 % interval
    point: float | None = None
    low: float | None = None
    high: float | None = None
    # the same of the published numbers
    printed: float | None = None
    # whether it is in percent points
    points: bool = False
    # of the run that has the fewest
    seeds: int = 0
    p: float | None = None
    by_seed: tuple[tuple[int, float], ...] = ()
    # confirmed, contradicted, open; empty: the claim names no size
    size: str = ""
    # of several comparisons, the one that decides
    rival: str = ""
    # how it was computed
    method: str = ""
    # why not run or not testable
    reason: str = ""
    # seeds that would decide an undecided claim, and the hours of the further ones
    needed: int | None = None
    hours: float | None = None
    # (heading, verdict) of the tables that measure the same printed numbers in another setting
    elsewhere: tuple[tuple[str, "Verdict"], ...] = ()


def verdicts(study: Study) -> list[Verdict]:
    """Of every claim of a paper, in the order of claims.csv."""
    printed: Any = Printed(study)
    again = variants(study.paper)
    evidence = {name: Evidence(printed, name) for name in ("", *(name for _, name in again.values()))}
    found = []
    for claim in read_claims(printed):
        elsewhere = []
        for key, (base, name) in again.items():
            if claim.table == base:
                verdict = _verdict(judge(claim, evidence[name]))
                if verdict.chip != Chip.NOT_TESTABLE:
                    elsewhere.append((f"Table {study.paper.tables[key].number}", verdict))
        found.append(replace(_verdict(judge(claim, evidence[""])), elsewhere=tuple(elsewhere)))
    return found


def count(verdicts: Iterable[Verdict]) -> dict[Chip, int]:
    """How many claims have each verdict; every chip is there, in order."""
    counts = Counter(verdict.chip for verdict in verdicts)
    return {chip: counts[chip] for chip in Chip}


def variants(paper: Paper) -> dict[str, tuple[str, str]]:
    """{`table2-full`: (`table2`, `full`)}: tables that measure the same printed numbers in other
    scenarios."""
    split = {key: key.partition("-")[::2] for key in paper.tables}
    return {
        key: (base, name)
        for key, (base, name) in split.items()
        if name and base in paper.tables and paper.tables[base].published == paper.tables[key].published
    }


def _verdict(verdict: old.Verdict) -> Verdict:
    one, several, look = verdict.deciding, len(verdict.members) > 1, verdict.outlook
    method = f"{one.estimate.route}, {one.estimate.df:.3g} df, {verdict.way}".strip(", ") if one else ""
    return Verdict(
        verdict.claim,
        _chip(verdict),
        verdict.point,
        verdict.low,
        verdict.high,
        verdict.printed,
        verdict.scaled,
        verdict.seeds,
        verdict.p,
        verdict.by_seed,
        verdict.size,
        one.name if one and several else "",
        method,
        verdict.reason,
        look.needed if look else None,
        look.hours if look else None,
    )


def _chip(verdict: old.Verdict) -> Chip:
    if verdict.word == old.WAITS:
        return Chip.NOT_RUN
    if verdict.word == old.UNTESTED:
        return Chip.NOT_TESTABLE
    if verdict.indicative:
        return Chip.ONE_FOR if verdict.word == old.HOLDS else Chip.ONE_AGAINST
    if verdict.size == old.CONTRADICTED and verdict.word != old.FAILS:
        return Chip.CONTRADICTED
    return Chip(verdict.word)
