"""Controls of a claim: the same comparison with one thing made equal, or in another setting.

A method may lead because of its network, because of the learning rates with which its rivals train, or
because other models of it are scored than of its rivals. A control makes one of these the same for both sides
and judges the claim again, over the seeds that its runs share. Only the spread of these runs counts, since
the other rows of the table are not under the control. In another setting all rows are, so that the claim is
judged there as in the paper's setting.

Which controls a claim has follows from its runs. paper.yaml names the rows with the same network
(`findings.same_network`) and what is tuned (`tuning`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from pipeline.cells import choices
from pipeline.cells.declarations import Declaration
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import lower_is_better, of_tuning
from pipeline.errors import FedReproError
from pipeline.provenance import identity
from pipeline.report import measures
from pipeline.report.claims import Claim, Difference, PublishedNumbers, Spot, parse_expected
from pipeline.report.verdicts import SHORTENED, Chip, Evidence, Source, Verdict, judge, variants
from pipeline.report.words import counted, ordinal
from pipeline.schema import MINIATURES, Cell

# Kinds of controls: both sides have the same network, were tuned alike, or are scored after local training.
NETWORK = "same network"
TUNED = "tuned alike"
HOOK = "same scored model"
# How the scenario of cells with tuned values is called here: the name of the untuned one and this.
TUNED_SUFFIX = "-tuned"


@dataclass(frozen=True)
class Control:
    """One control of a claim.

    kind      NETWORK, TUNED, HOOK, the heading of another setting, or the name of a declared experiment
    verdict   on the claim under this control; None: its runs are missing
    place     (rank of the claim's method by the means, number of methods); None: there is only one rival
    sources   its runs, each with its measure
    planned   the experiment that declared it, as a table shows it; empty: no experiment did (exploratory)
    left_out  number of rivals without runs under this control
    looks     the stricter level that several looks at the results require, if it leaves open what a single
              look would decide; else empty
    stale     whether other code or parameters than today's made one of its runs
    """

    kind: str
    verdict: Verdict | None = None
    place: tuple[int, int] | None = None
    sources: tuple[Source, ...] = ()
    planned: str = ""
    left_out: int = 0
    looks: str = ""
    stale: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the claim also holds under this control."""
        return self.verdict is not None and self.verdict.chip == Chip.HOLDS

    @property
    def is_open(self) -> bool:
        """Whether it leaves the claim open."""
        return self.verdict is not None and self.verdict.chip == Chip.UNDECIDED

    @property
    def measured(self) -> bool:
        """Whether its runs give a number."""
        return self.verdict is not None and self.verdict.point is not None

    @property
    def text(self) -> str:
        """Its number in words.

        `+2.9 [0.5, 5.3], 5 seeds`; `−1.6 [−4.5, 1.3], 3 seeds, 3rd of 13, 3 rivals left out`; or `not run`.
        """
        if self.verdict is None or self.verdict.point is None:
            return "not run"
        numbers = " ".join(filter(None, [self.verdict.text(self.verdict.point), self.verdict.interval]))
        parts = [numbers, counted(self.verdict.seeds, "seed")]
        if self.place:
            place, methods = self.place
            parts.append(f"{ordinal(place)} of {methods}")
        if self.left_out:
            parts.append(f"{counted(self.left_out, 'rival')} left out")
        return ", ".join(parts)


class Controlled(Evidence):
    """The evidence of a claim with other runs in place of its own.

    printed  the paper's numbers
    change   run -> the run that takes its place; None: there is none
    results  of the runs that take the place; None: they are among the paper's results
    paired   whether only the compared runs give the spread; else all rows of their table do
    variant  as in `Evidence`, for the runs that are replaced
    """

    def __init__(
        self,
        printed: PublishedNumbers,
        change: Callable[[Source], Source | None],
        results: dict[Cell, Result] | None = None,
        paired: bool = True,
        variant: str = "",
    ):
        super().__init__(printed, variant)
        self.change = change
        self.paired = paired
        if results is not None:
            self.results = results

    def source(self, spot: Spot) -> Source | None:
        """The run that takes the place of the one at a spot; None if there is none."""
        run = super().source(spot)
        return self.change(run) if run else None

    def pool(self, spot: Spot) -> tuple[Source, ...]:
        """The runs whose spread is used besides that of the compared ones."""
        return () if self.paired else super().pool(spot)

    def classes(self, cell: Cell) -> int:
        """The number of classes of a cell's data set; 0 if it has none."""
        # The scenario of tuned values is not in paper.yaml, but the untuned one is.
        scenario = cell.scenario.removesuffix(TUNED_SUFFIX)
        return super().classes(Cell(cell.paper, scenario, cell.method))


class Controls:
    """The controls of a paper's claims.

    printed   the paper's numbers
    variant   SHORTENED: for the verdicts of shortened runs; empty: for those of the paper's setting
    plain     the evidence without a control
    outdated  cells with tuned values whose results other code or parameters than today's made
    """

    def __init__(self, printed: PublishedNumbers, variant: str = ""):
        self.printed = printed
        self.study = printed.study
        self.variant = variant
        self.paper = self.study.paper
        self.plain = Evidence(printed, variant)
        self.outdated: set[Cell] = set()

    def of(self, verdict: Verdict) -> tuple[Control, ...]:
        """All controls of a claim, also those without runs; none if it compares no methods.

        verdict  on the claim
        """
        claim = verdict.claim
        runs = list(filter(None, map(self.plain.source, claim.spots)))
        if not self._compares(claim, runs):
            return ()

        cells = list(dict.fromkeys(cell for cell, _ in runs))
        found = []
        if self._differ(cells, self._networks):
            found.append(self._same_network(claim, cells))
        algorithms = {self.paper.algorithm(cell.method) for cell in cells}
        if len(algorithms) > 1:
            found.append(self._tuned_alike(claim, cells))
        if self._differ(cells, self._hook):
            found.append(self._control(HOOK, claim, self._changed(self._locally_trained)))
        for heading, other in verdict.elsewhere.items():
            if heading in self.other_settings and other.chip != Chip.NOT_RUN:
                found.append(self._elsewhere(heading, other))
        return tuple(found)

    def in_scenario(self, claim: Claim, scenario: str) -> Control:
        """The control that tests the direction of a claim in another scenario of the paper.

        The paper prints other numbers for it, so that the size is not compared.

        claim     that is tested
        scenario  of the paper
        """
        if claim.expected.kind == "size":
            claim = replace(claim, expected=parse_expected(f"{claim.expected.sign}0"))

        def change(run: Source) -> Source:
            """The run of the same method in the other scenario."""
            cell, measure = run
            return self.study.cell(scenario, cell.method), measure

        moved = Controlled(self.printed, change, paired=False)
        control = self._control(in_words(self.study.title(scenario)), claim, moved)
        if control.verdict is None:
            return control
        return replace(control, verdict=replace(control.verdict, printed=None, size=""))

    def in_experiment(self, claim: Claim, name: str, declared: Declaration) -> Control:
        """The control that asks whether the first row of a declared experiment leads its other rows.

        claim     that the experiment is about
        name      of the experiment
        declared  its declaration; rows without all declared seeds are left out
        """
        spots = []
        for method in (declared.rows[0], *declared.controls):
            label = self.study.label(method)
            spots.append(Spot(label, scenario=declared.scenario, measure=declared.measure))
        lead, *rivals = spots

        whole = [spot for spot in rivals if self._has_seeds(spot, declared)]
        kind = declared_words(name)
        if not whole or not self._has_seeds(lead, declared):
            return Control(kind, left_out=len(rivals) - len(whole))

        # The smallest of the leads over the rivals must be above 0.
        sign = -1.0 if lower_is_better(declared.measure) else 1.0
        parts = tuple(Difference(((lead, sign), (spot, -sign))) for spot in whole)
        asked = replace(claim, tree=Difference((), 0, parts), expected=parse_expected(">0"))
        control = self._control(kind, asked, self._changed(lambda run: run))
        return replace(control, left_out=len(rivals) - len(whole))

    def _has_seeds(self, spot: Spot, declared: Declaration) -> bool:
        """Whether the run of a spot has all declared seeds."""
        run = self.plain.source(spot)
        return run is not None and {seed for seed, _ in self.plain.values(run)} >= set(declared.seeds)

    @cached_property
    def other_settings(self) -> dict[str, Evidence]:
        """Heading -> the evidence of a table that measures the printed numbers in other scenarios."""
        tables = self.paper.tables
        found = {}
        for key, (base, name) in variants(self.paper).items():
            own_scenarios = {block.scenario for block in tables[key].blocks.values()}
            base_scenarios = {block.scenario for block in tables[base].blocks.values()}
            if not own_scenarios <= base_scenarios:
                number = tables[key].number
                found[number.partition(", ")[2] or f"Table {number}"] = Evidence(self.printed, name)
        found.pop(SHORTENED, None)
        return found

    def _elsewhere(self, heading: str, verdict: Verdict) -> Control:
        """The control of another setting, whose verdict is known already."""
        evidence = self.other_settings[heading]
        runs = tuple(filter(None, map(evidence.source, verdict.claim.spots)))
        stale = any(self._is_stale(cell) for cell, _ in runs)
        return Control(heading, verdict, sources=runs, stale=stale)

    def _changed(
        self, change: Callable[[Source], Source | None], results: dict[Cell, Result] | None = None
    ) -> Controlled:
        """The evidence with other runs; change, results: as in `Controlled`."""
        return Controlled(self.printed, change, results, variant=self.variant)

    def _compares(self, claim: Claim, runs: list[Source]) -> bool:
        """Whether a claim compares the accuracy of methods that all have runs in one scenario."""
        if not claim.tree or len(runs) < len(claim.spots) or not claim.expected.sign:
            return False
        accuracy = all(measures.in_points(measure) for _, measure in runs)
        cells = {cell for cell, _ in runs}
        scenarios = {cell.scenario for cell in cells}
        return accuracy and len(cells) > 1 and len(scenarios) == 1

    def _differ(self, cells: list[Cell], property_of: Callable[[Cell], object]) -> bool:
        """Whether a property is not the same for all of these cells."""
        values = [property_of(cell) for cell in cells]
        return any(value != values[0] for value in values)

    def _networks(self, cell: Cell) -> object:
        """The networks that a cell trains."""
        return Experiment.of(cell, self.study.root).scenario.networks

    def _hook(self, cell: Cell) -> object:
        """Which models of a cell are scored, `pre` or `post` local training; empty if it has not run."""
        result = self.study.results.get(cell)
        return result["hook"] if result else ""

    def _same_network(self, claim: Claim, cells: list[Cell]) -> Control:
        """The claim about the rows of `findings.same_network`, which all have one network."""
        known = self.paper.findings.same_network
        moved = [self.study.cell(cell.scenario, known.get(cell.method, cell.method)) for cell in cells]
        if len(set(moved)) < len(cells) or self._differ(moved, self._networks):
            return Control(NETWORK)

        def change(run: Source) -> Source:
            """The run of the row with the same network."""
            cell, measure = run
            return self.study.cell(cell.scenario, known.get(cell.method, cell.method)), measure

        return self._control(NETWORK, claim, self._changed(change))

    def _tuned_alike(self, claim: Claim, cells: list[Cell]) -> Control:
        """The claim about the same methods with tuned values; rivals that were not tuned are left out."""
        tuning = self.paper.tuning.get(cells[0].scenario)
        if cells[0].scenario in MINIATURES or not tuning:
            return Control(TUNED)
        chosen = {_tuned(cell): self._chosen(cell) for cell in cells}
        results = {cell: result for cell, result in chosen.items() if result}
        known = {cell.method for cell in cells if _tuned(cell) in results}
        compared = self._of_methods(claim, known)
        if compared is None:
            return Control(TUNED)

        def change(run: Source) -> Source | None:
            """The run of the same method with tuned values."""
            cell, measure = run
            tuned = _tuned(cell)
            if tuned not in results or measure not in results[tuned]["measures"]:
                return None
            return tuned, measure

        rivals = len(_alternatives(claim)) - len(_alternatives(compared))
        control = self._control(TUNED, compared, self._changed(change, results))
        return replace(control, left_out=rivals)

    def _of_methods(self, claim: Claim, known: set[str]) -> Claim | None:
        """The claim about known methods alone.

        A claim about one method against several leaves out the unknown rivals. None if nothing is left to
        claim, or if the claim needs all its methods.

        known  methods of paper.yaml
        """

        def has(part: Difference) -> bool:
            """Whether all methods of a comparison are known."""
            runs = [self.plain.source(spot) for spot in part.spots()]
            return all(run and run[0].method in known for run in runs)

        parts = _alternatives(claim)
        if claim.tree is None or all(map(has, parts)):
            return claim
        left = tuple(filter(has, parts))
        against_all = claim.tree.parts and claim.tree.place == 0 and claim.expected.kind != "rank"
        if not against_all or not left:
            return None
        return replace(claim, tree=replace(claim.tree, parts=left))

    def _chosen(self, cell: Cell) -> Result | None:
        """The result of a cell with the values that tuning chose; None if there is none."""
        root = self.study.root
        try:
            tuned = choices.tuned(cell, root)
            result = of_tuning(cell, root).get(tuned)
        except FedReproError:  # not tuned yet, or to be tuned again
            return None
        if result and not identity.current(result, Experiment.of(tuned, root)):
            self.outdated.add(_tuned(cell))
        return result

    def _is_stale(self, cell: Cell) -> bool:
        """Whether other code or parameters than today's made a result, which may be one with tuned values."""
        if cell in self.study.results:
            return self.study.is_stale(cell)
        return cell in self.outdated

    def _locally_trained(self, run: Source) -> Source | None:
        """The same run with its measure of the models after local training; None if that was not measured."""
        cell, measure = run
        if self._hook(cell) == "post":
            return run
        result = self.study.results.get(cell)
        name = measures.locally_trained(measure)
        if result and measures.numbers(cell, result, name, self.study.root):
            return cell, name
        return None

    def _control(self, kind: str, claim: Claim, evidence: Controlled) -> Control:
        """The claim judged by other runs.

        kind      of the control
        evidence  the runs that it is judged by; if they give no number, the control has no verdict
        """
        verdict = judge(claim, evidence)
        if verdict.point is None:
            return Control(kind)
        runs = tuple(filter(None, map(evidence.source, claim.spots)))
        stale = any(self._is_stale(cell) for cell, _ in runs)
        return Control(kind, verdict, self._place(claim, evidence), runs, stale=stale)

    def _place(self, claim: Claim, evidence: Controlled) -> tuple[int, int] | None:
        """(rank by the means over the common seeds, number of methods) of a method that is compared with
        several rivals; None for another claim."""
        if claim.expected.kind == "rank" or claim.tree is None:
            return None
        parts = claim.tree.parts
        if len(parts) < 2 or any(part.parts for part in parts):
            return None
        sources = {spot: evidence.source(spot) for spot in claim.spots}
        tree = claim.tree.renamed(sources.__getitem__)
        if tree is None:
            return None
        estimates = [evidence.estimate(leaf, ()) for leaf in tree.leaves()]
        ahead = sum(estimate is not None and estimate.d < 0 for estimate in estimates)
        return 1 + ahead, 1 + len(estimates)


def in_words(title: str) -> str:
    """What another scenario is called as a control: `on PACS, 64 px`."""
    return f"on {title}"


def declared_words(name: str) -> str:
    """What a declared experiment is called as a control: `declared in office-caltech-controls`."""
    return f"declared in {name}"


def _alternatives(claim: Claim) -> tuple[Difference, ...]:
    """The comparisons of a claim, one for each rival; none if it compares nothing."""
    if claim.tree is None:
        return ()
    return claim.tree.parts or (claim.tree,)


def _tuned(cell: Cell) -> Cell:
    """The name here of a cell with the values that tuning chose."""
    return Cell(cell.paper, cell.scenario + TUNED_SUFFIX, cell.method)
