"""Findings: one row for each claim with direction, size, controls and looks.

All sentences on pages are made from findings (`sentences`), and reports/findings.csv lists them. A look is a
time at which results were seen; each further look asks for a smaller p.

A claim "holds" without reservation only if its direction is confirmed at the significance level of its looks,
its size is not a different one, and every control that it has agrees. Otherwise it says "direction holds",
and what is missing or speaks against it. If a direction contradicts a claim only because models are scored on
different sides of local training, the claim is open.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.cells.declarations import Declaration, declarations, level_of
from pipeline.cells.experiment import Experiment
from pipeline.errors import ParamError, unknown
from pipeline.findings_file import COLUMNS
from pipeline.provenance import identity
from pipeline.report import sizes
from pipeline.report.claims import Claim, PublishedNumbers
from pipeline.report.controls import HOOK, NETWORK, TUNED, Control, Controls
from pipeline.report.statistics import ALPHA
from pipeline.report.study import Study
from pipeline.report.verdicts import SHORTENED, Chip, Evidence, Source, Verdict, verdicts
from pipeline.report.words import method_words
from pipeline.schema import Cell

# Verdict -> what it says of the claimed direction, for findings.csv.
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
# How a verdict names a control that does not agree: (text after `open` or `not`, text if it was not run).
RESERVATIONS = {
    NETWORK: ("against {rivals} with the same network", "same network not run"),
    TUNED: ("against tuned {rivals}", "rivals tuned alike not run"),
    HOOK: ("with the same scored model", "same scored model not measured"),
}
# From so many seeds on, a direction counts only if the spread of the compared rows alone also decides it.
# With fewer seeds that spread has too few degrees of freedom.
ENOUGH_ALONE = 5
# Numbers of looks in words.
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class Finding:
    """What the results say of one claim.

    paper      key of the paper
    verdict    on the claim, after looks and controls
    controls   of the claim, see `controls.py`
    looks      how often the results were looked at
    level      significance level at which a direction is tested after so many looks
    planned    the experiment that declared it, as a table shows it; empty: exploratory
    own_stale  whether its number has results of earlier code or parameters
    stale      whether its number or one of its controls has
    cells      the cells that are compared
    undone     whether its looks leave a direction open that a single look would decide
    unequal    whether the claim fails as scored, but not if all models are scored after local training
    """

    paper: str
    verdict: Verdict
    controls: tuple[Control, ...] = ()
    looks: int = 1
    level: float = ALPHA
    planned: str = ""
    own_stale: bool = False
    stale: bool = False
    cells: tuple[Cell, ...] = ()
    undone: bool = False
    unequal: bool = False

    @property
    def claim(self) -> Claim:
        return self.verdict.claim

    @property
    def shortened(self) -> bool:
        """Whether its number is of a shortened run, which is no setting of the paper."""
        return self.verdict.point is None and self.verdict.shortened is not None

    @property
    def shown(self) -> Verdict:
        """The verdict that has a number: that of a shortened run if the paper's setting has not run."""
        short = self.verdict.shortened
        return short if self.shortened and short else self.verdict

    @property
    def direction(self) -> str:
        return DIRECTIONS[self.verdict.chip]

    @property
    def number(self) -> float | None:
        """The difference that the claim names, or else the one that the tables print; None if neither."""
        named = self.claim.expected.kind == "size"
        return self.claim.expected.number if named else self.verdict.printed

    @property
    def size(self) -> str:
        """How the size compares with the paper's: `smaller: about half the size`; empty if the paper prints
        nothing to compare with."""
        word = self.verdict.size
        if not word or self.number is None or self.verdict.point is None:
            return word
        if self.direction != "confirmed" or word not in (sizes.SMALLER, sizes.LARGER):
            return word
        share = sizes.times(self.verdict.point, self.number)
        return f"{word}: about {share}" if share else word

    @property
    def rivals(self) -> str:
        """The name of the rival, `FedAvg`; `rivals` if there are several."""
        tree = self.claim.tree
        if tree is None or tree.parts:
            return "rivals"
        names = [method_words(spot.method) for spot, weight in tree.weights if weight < 0]
        return names[0] if len(names) == 1 else "rivals"

    @property
    def reservations(self) -> list[str]:
        """Why a confirmed direction does not simply hold, or why an open one is open, in short texts."""
        if self.unequal:
            return ["fails as scored, open with the same scored model"]
        if self.undone and not self.other_spread:
            return [looks_ask(self.shown.p, self.looks, self.level)]
        if DIRECTIONS[self.shown.chip] != "confirmed":
            return [self.other_spread] if self.other_spread else []
        texts = []
        # An open size is a reservation only of a claim that names a size.
        size_counts = self.verdict.size in sizes.OTHER or self.claim.expected.kind == "size"
        if size_counts and self.verdict.size not in ("", sizes.AS_PRINTED):
            texts.append(_size_words(self.size))
        for control in self.controls:
            if control.agrees:
                continue
            where, missing = RESERVATIONS.get(control.kind, (control.kind, f"{control.kind} not run"))
            if not control.measured:
                text = missing
            elif control.is_open:
                text = f"open {where}"
            else:
                text = f"not {where}"
            texts.append(text.format(rivals=self.rivals))
        return texts

    @property
    def other_spread(self) -> str:
        """Both p values, if the spread of the compared rows alone decides differently than that of all rows
        of the table; empty if both agree, or if there are too few seeds for the former."""
        p = self.shown.p
        alone = self.shown.alone
        if p is None or alone is None or self.shown.seeds < ENOUGH_ALONE:
            return ""
        if (p < self.level) == (alone < self.level):
            return ""
        return f"p {p:.2g} by all rows of the table, {alone:.2g} by the compared rows alone"

    @property
    def words(self) -> str:
        """The verdict with its reservations: `direction holds; not against tuned FedAvg`."""
        chip = self.shown.chip.value
        return "; ".join([f"shortened: {chip}" if self.shortened else chip, *self.reservations])

    def control(self, kind: str) -> Control | None:
        """The control of a kind (see `controls.py`); None if the claim has none of it."""
        return next((control for control in self.controls if control.kind == kind), None)


def looks_ask(p: float | None, looks: int, level: float) -> str:
    """What several looks require, in words: `p 0.029; after three looks it must be below 0.022`.

    p      of the direction
    looks  how often the results were looked at
    level  significance level after so many looks
    """
    times = COUNTS[looks] if looks < len(COUNTS) else str(looks)
    return f"p {p:.2g}; after {times} look{'s' if looks != 1 else ''} it must be below {level:.2g}"


def decisive(verdict: Verdict) -> float | None:
    """The p value that decides a direction; None if the verdict has no direction.

    With enough seeds it is the larger one of two: by the spread of all rows of the table, and by that of the
    compared rows alone.
    """
    if verdict.p is None or verdict.alone is None or verdict.seeds < ENOUGH_ALONE:
        return verdict.p
    return max(verdict.p, verdict.alone)


def _size_words(size: str) -> str:
    """`smaller: about half the size` -> `about half the size`; `size open`."""
    word, _, share = size.partition(": ")
    return share or (f"size {word}" if word == sizes.OPEN else f"{word} size")


# -- from results --------------------------------------------------------------------------------------------


class Findings:
    """The findings of a paper: a row per claim, in the order of claims.csv.

    rows    id of the claim -> its finding
    """

    def __init__(self, study: Study):
        self.study = study
        printed = PublishedNumbers(study)
        self.evidence = Evidence(printed)
        self.controls = Controls(printed)
        self.short_evidence = Evidence(printed, SHORTENED)
        self.short_controls = Controls(printed, SHORTENED)
        self.declared = declarations(study.key, study.root)
        self.current: dict[Cell, bool] = {}
        self.rows = {verdict.claim.id: self._finding(verdict) for verdict in verdicts(study)}
        self._check_answers()

    def _check_answers(self) -> None:
        """Raise ParamError if paper.yaml asks for a claim or an experiment that does not exist."""
        study = self.study
        for number, answer in enumerate(study.paper.findings.answers):
            where = f"papers/{study.key}/paper.yaml: findings.answers[{number}]"
            if answer.claim not in self.rows:
                raise ParamError(f"{where}.claim: {unknown('claim', answer.claim, self.rows)}")
            if answer.experiment and answer.experiment not in self.declared:
                named = unknown("experiment", answer.experiment, self.declared)
                raise ParamError(f"{where}.experiment: {named}")

    def _finding(self, verdict: Verdict) -> Finding:
        """The finding of a claim: its verdict after looks and controls, and what declared it."""
        short = verdict.shortened if verdict.point is None else None
        evidence = self.short_evidence if short else self.evidence
        judged = short or verdict
        sources = [*filter(None, map(evidence.source, verdict.claim.spots))]
        cells = tuple(dict.fromkeys(cell for cell, _ in sources if cell in self.study.results))
        stale = any(not self._is_current(cell) for cell in cells)
        if judged.point is None:
            return Finding(self.study.key, verdict, own_stale=stale, stale=stale, cells=cells)

        planned, declaration = self._planned(judged, sources)
        looks, level = self._looks({cell.scenario for cell in cells}, judged.seeds, declaration)
        if short:
            controls = self.short_controls.of(judged)
        else:
            controls = (*self.controls.of(judged), *self._asked(verdict.claim))
        checked = tuple(map(self._checked, controls))

        decided = judged.chip in (Chip.HOLDS, Chip.FAILS)
        p = decisive(judged)
        undone = decided and p is not None and p >= level
        hook = next((control for control in checked if control.kind == HOOK), None)
        same_or_open = hook is not None and (hook.agrees or hook.is_open)
        unequal = judged.chip == Chip.FAILS and same_or_open
        if undone or unequal:
            judged = replace(judged, chip=Chip.UNDECIDED)
        found = Finding(
            paper=self.study.key,
            verdict=_with_judged(verdict, judged),
            controls=checked,
            looks=looks,
            level=level,
            planned=planned,
            own_stale=stale,
            stale=stale or any(control.stale for control in checked),
            cells=cells,
            undone=undone,
            unequal=unequal,
        )
        if judged.chip == Chip.HOLDS and found.reservations:
            return replace(found, verdict=_with_judged(verdict, replace(judged, chip=Chip.DIRECTION)))
        return found

    def _asked(self, claim: Claim) -> Iterator[Control]:
        """The controls that questions of paper.yaml ask for: the claim in another scenario, or in a declared
        experiment."""
        for answer in self.study.paper.findings.answers:
            if answer.claim == claim.id and answer.scenario:
                yield self.controls.in_scenario(claim, answer.scenario)
            if answer.claim == claim.id and answer.experiment in self.declared:
                declared = self.declared[answer.experiment]
                yield self.controls.in_experiment(claim, answer.experiment, declared)

    def _checked(self, control: Control) -> Control:
        """A control with the experiment that declared it; its verdict is open if its looks require a smaller
        p."""
        verdict = control.verdict
        if verdict is None or not control.sources:
            return control
        planned, declaration = self._planned(verdict, control.sources)
        control = replace(control, planned=planned)
        scenarios = {cell.scenario for cell, _ in control.sources}
        looks, level = self._looks(scenarios, verdict.seeds, declaration)
        decided = verdict.chip in (Chip.HOLDS, Chip.FAILS)
        p = decisive(verdict)
        if not decided or p is None or p < level:
            return control
        text = looks_ask(p, looks, level)
        return replace(control, verdict=replace(verdict, chip=Chip.UNDECIDED), looks=text)

    def _looks(self, scenarios: Collection[str], seeds: int, plan: Declaration | None) -> tuple[int, float]:
        """(number of looks, significance level of each): the stricter of what paper.yaml lists and what an
        experiment declares.

        scenarios  whose results are used
        seeds      only looks at results with up to so many seeds count
        plan       the experiment; None: exploratory
        """
        looks = plan.looks if plan else 1
        for scenario in scenarios:
            known = self.study.paper.findings.looks.get(scenario, [])
            looks = max(looks, 1, sum(count <= seeds for count in known))
        return looks, min(level_of(looks), plan.level if plan else ALPHA)

    def _planned(self, verdict: Verdict, sources: Sequence[Source]) -> tuple[str, Declaration | None]:
        """The experiment that declared a comparison, and its declaration; ("", None) if there is none.

        It covers the rows, the measure and all seeds. Its name is followed by `, 7 of 12 seeds new` if
        results of the other seeds had been seen, on both sides, before it was declared. Without a new seed it
        does not count.
        """
        compared = {(cell.scenario, measure) for cell, measure in sources}
        if len(compared) != 1:
            return "", None
        [(scenario, measure)] = compared
        methods = {cell.method for cell, _ in sources}
        for name, declaration in self.declared.items():
            if not declaration.covers(scenario, methods, measure):
                continue
            if not set(verdict.by_seed) >= set(declaration.seeds):
                continue
            new = len(declaration.new_seeds(methods))
            declared = len(declaration.seeds)
            if new == declared:
                return name, declaration
            if new:
                return f"{name}, {new} of {declared} seeds new", declaration
        return "", None

    def _is_current(self, cell: Cell) -> bool:
        """Whether a result is of today's code and parameters; each is asked for once."""
        if cell not in self.current:
            result = self.study.results[cell]
            self.current[cell] = identity.current(result, Experiment.of(cell, self.study.root))
        return self.current[cell]


def _with_judged(verdict: Verdict, judged: Verdict) -> Verdict:
    """A claim's verdict after looks and controls.

    verdict  before
    judged   takes its place, or that of its shortened runs if the paper's setting has not run
    """
    if verdict.point is not None:
        return judged
    return replace(verdict, elsewhere={**verdict.elsewhere, SHORTENED: judged})


def discoveries(findings: Iterable[Finding]) -> tuple[set[tuple[str, str]], int]:
    """Which tested claims stay at a false discovery rate of ALPHA, after Benjamini and Hochberg (1995).

    findings  of all papers

    Returns (paper, id) of these claims, and how many claims are tested.
    """
    known = ((decisive(finding.verdict), finding.paper, finding.claim.id) for finding in findings)
    tested = sorted((p, paper, name) for p, paper, name in known if p is not None)
    kept = 0
    for place, (p, _, _) in enumerate(tested, 1):
        if p <= place * ALPHA / len(tested):
            kept = place
    return {(paper, name) for _, paper, name in tested[:kept]}, len(tested)


# -- as a file -----------------------------------------------------------------------------------------------


def as_rows(findings: Iterable[Finding]) -> list[dict[str, str]]:
    """The rows of findings.csv: name of a column -> text, in the order of the findings."""
    findings = list(findings)
    kept, _ = discoveries(findings)
    return [_row(finding, kept) for finding in findings]


def _row(finding: Finding, kept: set[tuple[str, str]]) -> dict[str, str]:
    """One row of findings.csv; kept: (paper, id) of the claims that stay at the false discovery rate."""
    shown = finding.shown
    setting = "shortened" if finding.shortened else "paper"
    others = [control for control in finding.controls if control.kind not in RESERVATIONS]
    values = {
        "paper": finding.paper,
        "id": finding.claim.id,
        "claim": shown.title,
        "setting": setting if shown.point is not None else "",
        "printed": _fixed(finding.number),
        "difference": _fixed(shown.point, shown.points),
        "low": _fixed(shown.low, shown.points),
        "high": _fixed(shown.high, shown.points),
        "unit": _unit(shown),
        "seeds": str(shown.seeds or ""),
        "p": "" if shown.p is None else f"{shown.p:.2g}",
        "p_rows_alone": "" if shown.alone is None else f"{shown.alone:.2g}",
        "looks": str(finding.looks) if shown.p is not None else "",
        "level": f"{finding.level:.2g}" if shown.p is not None else "",
        "direction": DIRECTIONS[shown.chip],
        "size": finding.size if setting == "paper" else "",
        "verdict": finding.words,
        "same_network": _control(finding, NETWORK),
        "tuned_alike": _control(finding, TUNED),
        "same_hook": _control(finding, HOOK),
        "other_settings": "; ".join(f"{control.kind}: {_outcome(control)}" for control in others),
        "planned": finding.planned or ("exploratory" if shown.point is not None else ""),
        "false_discovery": _kept(finding, kept),
        "stale": "yes" if finding.stale else "",
        "cells": " ".join(map(str, finding.cells)),
    }
    return {name: values[name] for name in COLUMNS}


def _fixed(number: float | None, points: bool = True) -> str:
    """A number as text: a difference in percent points with two decimals, any other with four digits."""
    if number is None:
        return ""
    text = f"{number:.2f}" if points else f"{number:.4g}"
    return text.removeprefix("-") if float(text) == 0 else text


def _unit(verdict: Verdict) -> str:
    """The unit of a verdict's number; empty for a rank, and for a number without unit."""
    if verdict.point is None:
        return ""
    return "points" if verdict.points else verdict.text(verdict.point).partition(" ")[2]


def _control(finding: Finding, kind: str) -> str:
    """The outcome of the control of a kind; empty if the claim has none."""
    control = finding.control(kind)
    return _outcome(control) if control else ""


def _outcome(control: Control) -> str:
    """A control in words: `+2.9 [0.5, 5.3], 5 seeds: holds`; `not run`."""
    if control.verdict is None:
        return control.text
    plan = f" (planned: {control.planned})" if control.planned else ""
    looks = f" ({control.looks})" if control.looks else ""
    stale = " (stale)" if control.stale else ""
    return f"{control.text}: {control.verdict.chip.value}{looks}{plan}{stale}"


def _kept(finding: Finding, kept: set[tuple[str, str]]) -> str:
    """Whether a claim stays at the false discovery rate, in words; empty if it is not tested."""
    if finding.verdict.p is None:
        return ""
    return "kept" if (finding.paper, finding.claim.id) in kept else "not kept"
