"""Findings: one row per claim with direction, size, controls and looks; all that is said comes from it.

A claim "holds" without a reservation only where its direction is confirmed at the level of its looks, its
size is not another one, and every control that it has agrees. Else its chip says "direction holds" and what
is missing or against.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.cells import provenance
from pipeline.cells.declarations import declarations, level_of
from pipeline.cells.experiment import Experiment
from pipeline.errors import ParamError, unknown
from pipeline.findings_file import COLUMNS
from pipeline.report import sizes
from pipeline.report.claims import Claim, Printed
from pipeline.report.controls import HOOK, NETWORK, TUNED, Control, Controls
from pipeline.report.statistics import ALPHA
from pipeline.report.study import Study
from pipeline.report.verdicts import SHORTENED, Chip, Evidence, Source, Verdict, verdicts
from pipeline.report.words import method_words
from pipeline.schema import Cell

DIRECTIONS = {
    Chip.HOLDS: "confirmed",
    Chip.DIRECTION: "confirmed",
    Chip.FAILS: "contradicted",
    Chip.CONTRADICTED: "open",
    Chip.UNDECIDED: "open",
    Chip.ONE_FOR: "one seed for",
    Chip.ONE_AGAINST: "one seed against",
    Chip.NOT_RUN: "not run",
    Chip.NOT_TESTABLE: "not testable",
}
# What a chip says of a control: (it does not agree, it was not run).
RESERVATIONS = {
    NETWORK: ("not against {rivals} with the same network", "same network not run"),
    TUNED: ("not against tuned {rivals}", "rivals tuned alike not run"),
    HOOK: ("not with the same scored model", "same scored model not measured"),
}
# Looks in words.
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Finding:
    """What the results say of one claim.

    paper       key of its folder
    verdict     its chip counts looks and controls
    controls    see `controls.py`
    looks       how often the results were looked at; level: at which a direction is tested then
    planned     name of the file in experiments/ that declared it; empty: exploratory
    stale       whether results of earlier code or parameters are in it
    cells       that are compared
    undone      whether a direction that one look would decide is open at the level of its looks
    """

    paper: str
    verdict: Verdict
    controls: tuple[Control, ...] = ()
    looks: int = 1
    level: float = ALPHA
    planned: str = ""
    stale: bool = False
    cells: tuple[Cell, ...] = ()
    undone: bool = False

    @property
    def claim(self) -> Claim:
        return self.verdict.claim

    @property
    def shortened(self) -> bool:
        """Whether its number is of a shortened run, which is no setting of the paper."""
        return self.verdict.point is None and self.verdict.shortened is not None

    @property
    def shown(self) -> Verdict:
        """The verdict with a number: of a shortened run where the paper's setting has not run."""
        short = self.verdict.shortened
        return short if self.shortened and short else self.verdict

    @property
    def direction(self) -> str:
        return DIRECTIONS[self.verdict.chip]

    @property
    def number(self) -> float | None:
        """The difference that the claim names, or else that the tables print."""
        named = self.claim.expected.kind == "size"
        return self.claim.expected.number if named else self.verdict.printed

    @property
    def size(self) -> str:
        """`smaller: about half the size`; empty where nothing is printed to compare with."""
        word = self.verdict.size
        if not word or self.number is None or self.verdict.point is None:
            return word
        share = sizes.times(self.verdict.point, self.number)
        told = {sizes.AS_PRINTED: False, sizes.OPPOSITE: False, sizes.OPEN: self.leans}.get(word, True)
        if not share or not told or self.direction != "confirmed":
            return word
        lean = "larger, " if self.verdict.point / self.number > 1 else "smaller, "
        return f"{word}: {lean if word == sizes.OPEN else ''}about {share}"

    @property
    def leans(self) -> bool:
        """Whether the measured difference is far from the print, although the interval holds the print."""
        if self.verdict.point is None or not self.number:
            return False
        share = self.verdict.point / self.number
        return not sizes.FEWEST_TIMES <= share <= sizes.MOST_TIMES

    @property
    def rivals(self) -> str:
        """`FedAvg`; `rivals` of several."""
        tree = self.claim.tree
        if tree is None or tree.parts:
            return "rivals"
        names = [method_words(spot.method) for spot, weight in tree.weights if weight < 0]
        return names[0] if len(names) == 1 else "rivals"

    @property
    def reservations(self) -> list[str]:
        """What keeps a confirmed direction from holding without a word, or an open one open."""
        if self.undone:
            times = COUNTS[self.looks] if self.looks < len(COUNTS) else str(self.looks)
            return [f"p {self.verdict.p:.2g}, {times} looks ask for {self.level:.2g}"]
        if self.direction != "confirmed":
            return []
        texts = []
        if self.verdict.size in sizes.OTHER or (self.claim.expected.kind == "size" and self.verdict.size):
            texts += [] if self.verdict.size == sizes.AS_PRINTED else [_size_words(self.size)]
        for control in self.controls:
            against, missing = RESERVATIONS.get(
                control.kind, (f"not {control.kind}", f"{control.kind} not run")
            )
            if not control.agrees:
                texts.append((against if control.measured else missing).format(rivals=self.rivals))
        return texts

    @property
    def words(self) -> str:
        """The verdict with what is missing or against: `direction holds; not against tuned FedAvg`."""
        return "; ".join([self.verdict.chip.value, *self.reservations])

    def control(self, kind: str) -> Control | None:
        return next((one for one in self.controls if one.kind == kind), None)


def _size_words(size: str) -> str:
    """`smaller: about half the size` -> `about half the size`; `size open`."""
    word, _, share = size.partition(": ")
    if word == sizes.OPEN:
        return f"size open, {share}" if share else "size open"
    return share or f"{word} size"


# -- from results --------------------------------------------------------------------------------------------


class Findings:
    """The findings of a paper: a row per claim, in the order of claims.csv.

    rows    id of the claim -> its finding
    """

    def __init__(self, study: Study):
        self.study, printed = study, Printed(study)
        self.controls, self.evidence = Controls(printed), Evidence(printed)
        self.short = Evidence(printed, SHORTENED)
        self.declared = declarations(study.key, study.root)
        self.current: dict[Cell, bool] = {}
        self.rows = {one.claim.id: self._finding(one) for one in verdicts(study)}
        for at, answer in enumerate(study.paper.findings.answers):
            if answer.claim not in self.rows:
                where = f"papers/{study.key}/paper.yaml: findings.answers[{at}].claim"
                raise ParamError(f"{where}: {unknown('claim', answer.claim, self.rows)}")

    def _finding(self, verdict: Verdict) -> Finding:
        evidence = self.evidence if verdict.point is not None or not verdict.shortened else self.short
        sources = [source for spot in verdict.claim.spots if (source := evidence.source(spot))]
        cells = tuple(dict.fromkeys(cell for cell, _ in sources if cell in self.study.results))
        stale = any(not self._is_current(cell) for cell in cells)
        if verdict.point is None:
            return Finding(self.study.key, verdict, stale=stale, cells=cells)
        looks = max((self._looks(cell.scenario, verdict.seeds) for cell in cells), default=1)
        level = level_of(looks)
        decided = verdict.chip in (Chip.HOLDS, Chip.FAILS)
        undone = decided and verdict.p is not None and verdict.p >= level
        found = Finding(
            paper=self.study.key,
            verdict=replace(verdict, chip=Chip.UNDECIDED) if undone else verdict,
            controls=tuple(map(self._with_plan, self.controls.of(verdict))),
            looks=looks,
            level=level,
            planned=self._planned(verdict, sources),
            stale=stale,
            cells=cells,
            undone=undone,
        )
        if verdict.chip == Chip.HOLDS and found.reservations and not undone:
            return replace(found, verdict=replace(verdict, chip=Chip.DIRECTION))
        return found

    def _with_plan(self, control: Control) -> Control:
        if control.verdict is None or not control.sources:
            return control
        return replace(control, planned=self._planned(control.verdict, control.sources))

    def _looks(self, scenario: str, seeds: int) -> int:
        """How often results with up to so many seeds were looked at."""
        counts = self.study.paper.findings.looks.get(scenario, [])
        return max(1, sum(count <= seeds for count in counts))

    def _planned(self, verdict: Verdict, sources: Sequence[Source]) -> str:
        """The experiment that has the claim's rows, measure and seeds."""
        compared = {(cell.scenario, measure) for cell, measure in sources}
        if len(compared) != 1:
            return ""
        [(scenario, measure)] = compared
        methods = {cell.method for cell, _ in sources}
        for name, one in self.declared.items():
            if one.covers(scenario, methods, measure) and set(verdict.by_seed) >= set(one.seeds):
                return name
        return ""

    def _is_current(self, cell: Cell) -> bool:
        if cell not in self.current:
            result = self.study.results[cell]
            self.current[cell] = provenance.current(result, Experiment.of(cell, self.study.root))
        return self.current[cell]


def discoveries(findings: Iterable[Finding]) -> tuple[set[tuple[str, str]], int]:
    """((paper, id) of the tested claims whose verdict stays at a false discovery rate of ALPHA over all of
    them, how many claims are tested), after Benjamini and Hochberg (1995)."""
    tested = sorted((one.verdict.p, one.paper, one.claim.id) for one in findings if one.verdict.p is not None)
    kept = 0
    for place, (p, _, _) in enumerate(tested, 1):
        if p <= place * ALPHA / len(tested):
            kept = place
    return {(paper, name) for _, paper, name in tested[:kept]}, len(tested)


# -- as a file -----------------------------------------------------------------------------------------------


def as_rows(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The rows of findings.csv: text, in the order given."""
    findings = list(findings)
    kept, _ = discoveries(findings)
    return [_row(one, kept) for one in findings]


def _row(one: Finding, kept: set[tuple[str, str]]) -> dict[str, str]:
    shown = one.shown
    setting = "shortened" if one.shortened else "paper"
    others = [control for control in one.controls if control.kind not in RESERVATIONS]
    values = {
        "paper": one.paper,
        "id": one.claim.id,
        "claim": shown.title,
        "setting": setting if shown.point is not None else "",
        "printed": _fixed(one.number),
        "difference": _fixed(shown.point, shown.points),
        "low": _fixed(shown.low, shown.points),
        "high": _fixed(shown.high, shown.points),
        "unit": _unit(shown),
        "seeds": str(shown.seeds or ""),
        "p": "" if shown.p is None else f"{shown.p:.2g}",
        "looks": str(one.looks) if one.verdict.p is not None else "",
        "level": f"{one.level:.2g}" if one.verdict.p is not None else "",
        "direction": DIRECTIONS[shown.chip],
        "size": one.size if setting == "paper" else "",
        "verdict": one.words if setting == "paper" else f"shortened: {shown.chip.value}",
        "same_network": _control(one, NETWORK),
        "tuned_alike": _control(one, TUNED),
        "same_hook": _control(one, HOOK),
        "other_settings": "; ".join(f"{control.kind}: {_outcome(control)}" for control in others),
        "planned": one.planned or ("exploratory" if shown.point is not None else ""),
        "false_discovery": _kept(one, kept),
        "stale": "yes" if one.stale else "",
        "cells": " ".join(map(str, one.cells)),
    }
    return {name: values[name] for name in COLUMNS}


def _fixed(number: float | None, points: bool = True) -> str:
    """With two decimals, or, where it is no difference of points, with four digits."""
    if number is None:
        return ""
    text = f"{number:.2f}" if points else f"{number:.4g}"
    return text.removeprefix("-") if float(text) == 0 else text


def _unit(verdict: Verdict) -> str:
    """Of the difference; empty for a rank, or for a number of its own kind."""
    if verdict.point is None:
        return ""
    return "points" if verdict.points else verdict.text(verdict.point).partition(" ")[2]


def _control(finding: Finding, kind: str) -> str:
    control = finding.control(kind)
    return _outcome(control) if control else ""


def _outcome(control: Control) -> str:
    """`+2.9 [0.5, 5.3], 5 seeds: holds`; `not run`."""
    if control.verdict is None:
        return control.text
    plan = f" (planned: {control.planned})" if control.planned else ""
    return f"{control.text}: {control.verdict.chip.value}{plan}"


def _kept(finding: Finding, kept: set[tuple[str, str]]) -> str:
    if finding.verdict.p is None:
        return ""
    return "kept" if (finding.paper, finding.claim.id) in kept else "not kept"
