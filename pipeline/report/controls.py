"""Controls of a claim: the same comparison with one thing made equal, or in another setting.

A lead may come from the network, from the rate at which the rivals train, or from the model that is scored. A
control gives both sides the same and judges the claim again, over the seeds that its runs share. Which
controls a claim has follows from its runs; paper.yaml names the rows with the same network
(`findings.same_network`) and what is tuned (`tuning`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from pipeline.cells import choices
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import of_tuning
from pipeline.errors import FedReproError
from pipeline.report import measures
from pipeline.report.claims import Claim, Printed, Spot
from pipeline.report.verdicts import SHORTENED, Chip, Evidence, Source, Verdict, judge, variants
from pipeline.schema import MINIATURES, Cell

NETWORK = "same network"
TUNED = "tuned alike"
HOOK = "same scored model"
# Ends the name of the scenario in which a tuning's chosen values are trained.
TUNED_SUFFIX = "-tuned"


@dataclass(frozen=True)
class Control:
    """One control of a claim.

    kind     NETWORK, TUNED, HOOK, or the heading of another setting
    verdict  of the claim under this control; None: its runs are not there
    place    of several rivals: the place of the claim's method by the means, and among how many; else None
    sources  its runs and their measures
    planned  name of the file in experiments/ that declared it; empty: exploratory
    """

    kind: str
    verdict: Verdict | None = None
    place: tuple[int, int] | None = None
    sources: tuple[Source, ...] = ()
    planned: str = ""

    @property
    def agrees(self) -> bool:
        return self.verdict is not None and self.verdict.chip == Chip.HOLDS

    @property
    def measured(self) -> bool:
        return self.verdict is not None and self.verdict.point is not None

    @property
    def text(self) -> str:
        """`+2.9 [0.5, 5.3], 5 seeds`; `not run`."""
        if self.verdict is None or self.verdict.point is None:
            return "not run"
        numbers = " ".join(filter(None, [self.verdict.text(self.verdict.point), self.verdict.interval]))
        seeds = self.verdict.seeds
        return f"{numbers}, {seeds} seed{'s' if seeds != 1 else ''}"


class Controlled(Evidence):
    """The evidence of a claim with other runs in the place of its own.

    change   the run that takes the place of another; None: there is none
    results  where they are, if not among the paper's
    paired   whether only the compared runs give the spread, and not their table
    """

    def __init__(
        self,
        printed: Printed,
        change: Callable[[Source], Source | None],
        results: dict[Cell, dict] | None = None,
        paired: bool = True,
    ):
        super().__init__(printed)
        self.change, self.paired = change, paired
        if results is not None:
            self.results = results

    def source(self, spot: Spot) -> Source | None:
        run = super().source(spot)
        return self.change(run) if run else None

    def pool(self, spot: Spot) -> tuple[Source, ...]:
        return () if self.paired else super().pool(spot)

    def classes(self, cell: Cell) -> int:
        scenario = cell.scenario.removesuffix(TUNED_SUFFIX)
        return super().classes(Cell(cell.paper, scenario, cell.method))


class Controls:
    """The controls of a paper's claims."""

    def __init__(self, printed: Printed):
        self.printed, self.study = printed, printed.study
        self.paper = self.study.paper
        self.plain = Evidence(printed)

    def of(self, verdict: Verdict) -> tuple[Control, ...]:
        """Every control that the comparison of a claim has, those without runs included."""
        claim = verdict.claim
        runs = list(filter(None, map(self.plain.source, claim.spots)))
        if not self._compares(claim, runs):
            return ()
        cells = list(dict.fromkeys(cell for cell, _ in runs))
        found = []
        if self._differ(cells, self._networks):
            found.append(self._same_network(claim, cells))
        if len({self.paper.algorithm(cell.method) for cell in cells}) > 1:
            found.append(self._tuned_alike(claim, cells))
        if self._differ(cells, self._hook):
            found.append(self._control(HOOK, claim, Controlled(self.printed, self._locally_trained)))
        settings = ((name, one) for name, one in verdict.elsewhere.items() if name in self.other_settings)
        return (*found, *(Control(name, one) for name, one in settings if one.chip != Chip.NOT_RUN))

    def in_scenario(self, claim: Claim, scenario: str) -> Verdict:
        """The comparison of a claim in another scenario of the paper."""
        moved = Controlled(
            self.printed, lambda run: (self.study.cell(scenario, run[0].method), run[1]), paired=False
        )
        return judge(claim, moved)

    @cached_property
    def other_settings(self) -> set[str]:
        """Headings of the tables that measure the same printed numbers in other scenarios."""
        tables = self.paper.tables
        headings = set()
        for key, (base, _) in variants(self.paper).items():
            here, there = ({block.scenario for block in tables[one].blocks.values()} for one in (key, base))
            if not here <= there:
                number = tables[key].number
                headings.add(number.partition(", ")[2] or f"Table {number}")
        return headings - {SHORTENED}

    def _compares(self, claim: Claim, runs: list[Source]) -> bool:
        """Whether a claim compares the accuracy of methods that all have runs in one scenario."""
        if not claim.tree or len(runs) < len(claim.spots) or not claim.expected.sign:
            return False
        cells = {cell for cell, _ in runs}
        accuracy = all(measures.in_points(measure) for _, measure in runs)
        return accuracy and len(cells) > 1 and len({cell.scenario for cell in cells}) == 1

    def _differ(self, cells: list[Cell], what: Callable[[Cell], object]) -> bool:
        values = [what(cell) for cell in cells]
        return any(value != values[0] for value in values)

    def _networks(self, cell: Cell) -> object:
        return Experiment.of(cell, self.study.root).scenario.networks

    def _hook(self, cell: Cell) -> object:
        return self.study.results.get(cell, {}).get("hook", "")

    def _same_network(self, claim: Claim, cells: list[Cell]) -> Control:
        known = self.paper.findings.same_network
        moved = [self.study.cell(cell.scenario, known.get(cell.method, cell.method)) for cell in cells]
        if len(set(moved)) < len(cells) or self._differ(moved, self._networks):
            return Control(NETWORK)

        def change(run: Source) -> Source:
            cell, measure = run
            return self.study.cell(cell.scenario, known.get(cell.method, cell.method)), measure

        return self._control(NETWORK, claim, Controlled(self.printed, change))

    def _tuned_alike(self, claim: Claim, cells: list[Cell]) -> Control:
        tuning = self.paper.tuning.get(cells[0].scenario)
        if cells[0].scenario in MINIATURES or not tuning or {c.method for c in cells} - {*tuning.methods}:
            return Control(TUNED)
        results = {_tuned(cell): result for cell in cells if (result := self._chosen(cell))}

        def change(run: Source) -> Source | None:
            cell, measure = run
            result = results.get(_tuned(cell))
            return (_tuned(cell), measure) if result and measure in result["measures"] else None

        return self._control(TUNED, claim, Controlled(self.printed, change, results))

    def _chosen(self, cell: Cell) -> dict | None:
        """The result of a cell with the values that tuning chose."""
        try:
            return of_tuning(cell, self.study.root).get(choices.tuned(cell, self.study.root))
        except FedReproError:  # not tuned yet, or to be tuned again
            return None

    def _locally_trained(self, run: Source) -> Source | None:
        """The number of the clients' models after local training."""
        cell, measure = run
        if self._hook(cell) == "post":
            return run
        result, name = self.study.results.get(cell), f"post.{measure}"
        return (cell, name) if result and name in result["measures"] else None

    def _control(self, kind: str, claim: Claim, evidence: Controlled) -> Control:
        verdict = judge(claim, evidence)
        if verdict.point is None:
            return Control(kind)
        runs = tuple(filter(None, map(evidence.source, claim.spots)))
        return Control(kind, verdict, self._place(claim, evidence), runs)

    def _place(self, claim: Claim, evidence: Controlled) -> tuple[int, int] | None:
        """(place by the means over the common seeds, methods) of a method against several rivals."""
        if claim.expected.kind == "rank" or claim.tree is None:
            return None
        parts = claim.tree.parts
        if len(parts) < 2 or any(part.parts for part in parts):
            return None
        sources = {spot: source for spot in claim.spots if (source := evidence.source(spot))}
        tree = claim.tree.renamed(sources.__getitem__)
        if tree is None:
            return None
        estimates = [evidence.estimate(leaf, ()) for leaf in tree.leaves()]
        behind = [one is not None and one.d < 0 for one in estimates]
        return 1 + sum(behind), 1 + len(behind)


def _tuned(cell: Cell) -> Cell:
    return Cell(cell.paper, cell.scenario + TUNED_SUFFIX, cell.method)
