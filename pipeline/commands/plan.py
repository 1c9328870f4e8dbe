"""`fedrepro plan HOURS [PAPER ...]`: choose the trainings that decide the most claims of papers in HOURS.

A claim is a statement of a paper that runs can confirm or refute, such as that a method beats another one.
A claim without results needs the cells that have not run (a cell is one method in one scenario). An undecided
claim needs more seeds; its verdict says how many. Several claims may need the same cell. The choice is
greedy: what decides the most claims per hour comes first.
"""

import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from pipeline import files
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import survey
from pipeline.commands import hours, status
from pipeline.commands.options import columns, wrapped
from pipeline.data import registry
from pipeline.provenance import identity
from pipeline.report.claims import PublishedNumbers, read_claims
from pipeline.report.study import studies
from pipeline.report.verdicts import MOST_SEEDS, POWER, Chip, Evidence, Verdict, judge
from pipeline.report.words import counted, hours_words
from pipeline.schema import MINIATURES, ROOT, Cell, Scenario, load_paper

# Probability that the proposed seeds decide a claim, if the printed difference exists and the spread of the
# seeds stays as it is; claims are counted by it.
CHANCE = POWER
# The cells of the last plan, a line each, from the root of the repository.
FILE = ".cells/plan.txt"
# What a scenario on extracted features needs to be downloaded besides its data.
WEIGHTS = "pretrained ViT-Ti/16 weights"
# Follows the name of a data set that a person has to download, as its address needs a browser.
HAND = " (by hand)"
# Why a claim is left out if its cells wait for a download.
DOWNLOAD = "their data are not here, see `--with-network`"
# Why a claim is left out if further seeds would not be compared by a test.
ONE_SEED = "judged by one seed, or by seeds that do not differ"
# Why a claim with this verdict is left out if it has no cells to train.
LEFT_OUT = {
    Chip.NOT_RUN: "figures, or further seeds of cells that have run, are missing",
    Chip.UNDECIDED: f"undecided; up to {MOST_SEEDS} seeds would hardly decide them",
    Chip.ONE_FOR: ONE_SEED,
    Chip.ONE_AGAINST: ONE_SEED,
}
# Hours that a training takes at least: claims are divided by hours, and none may be 0.
SMALLEST_HOURS = 1e-9

# One training: (cell, number of its seed in the order of the scenario, from 0).
Run = tuple[Cell, int]


@dataclass(frozen=True)
class Price:
    """What a cell costs.

    have   number of seeds that are finished
    hours  of one process, for one further seed
    """

    have: int
    hours: float


@dataclass(frozen=True)
class MissingRuns:
    """The trainings that a claim still needs.

    claim    in words
    runs     that are to be trained
    value    probability that these runs decide it, 0 to 1
    figures  the stages that compute its numbers from the runs; empty: the runs have them
    """

    claim: str
    runs: frozenset[Run]
    value: float = 1.0
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bundle:
    """Claims that are decided together, and what is trained for them.

    needs  the claims with their runs
    cells  to train for them, without those of earlier bundles
    hours  of one process, for these cells
    """

    needs: list[MissingRuns]
    cells: list[Cell]
    hours: float


@dataclass
class PlanInputs:
    """What a plan chooses from.

    needs    claims that trainings would decide
    prices   cell -> what it costs
    without  reason -> number of claims that are left out for it
    fetched  cell -> the downloads that it waits for
    waiting  missing download -> number of claims that are left out for it
    """

    needs: list[MissingRuns] = field(default_factory=list)
    prices: dict[Cell, Price] = field(default_factory=dict)
    without: Counter[str] = field(default_factory=Counter)
    fetched: dict[Cell, set[str]] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)


def runs_of(seeds: dict[Cell, int], prices: dict[Cell, Price]) -> frozenset[Run]:
    """The runs that are missing.

    seeds   cell -> number of seeds that it must have
    prices  of these cells, with the number of seeds that they have
    """
    missing = set[Run]()
    for cell, count in seeds.items():
        missing.update((cell, n) for n in range(prices[cell].have, count))
    return frozenset(missing)


def hours_of(runs: Iterable[Run], prices: dict[Cell, Price]) -> float:
    """Hours of one process for these runs.

    In a scenario all cells that are trained get as many seeds as the one that needs the most, since
    paper.yaml gives the seeds of a scenario and not of a cell.

    runs    that are to be trained
    prices  of their cells
    """
    runs = list(runs)
    seeds: dict[tuple[str, str], int] = {}
    for cell, seed in runs:
        scenario = (cell.paper, cell.scenario)
        seeds[scenario] = max(seeds.get(scenario, 0), seed + 1)
    hours_by_cell = []
    for cell in dict.fromkeys(cell for cell, _ in runs):
        price = prices[cell]
        hours_by_cell.append(price.hours * (seeds[cell.paper, cell.scenario] - price.have))
    return math.fsum(hours_by_cell)


def choose(needs: Sequence[MissingRuns], prices: dict[Cell, Price], budget: float) -> list[Bundle]:
    """The bundles to train within the budget, the one with the most claims per hour first.

    A step adds the runs that one claim needs, or those that all claims about one scenario need, since these
    claims share cells.

    needs   claims with their runs
    prices  of all cells of these
    budget  hours of one process
    """
    options = _options(needs, prices, budget)
    chosen_runs = frozenset[Run]()
    spent = 0.0
    bundles: list[Bundle] = []
    while True:
        open_needs = [need for need in needs if not need.runs <= chosen_runs]
        best: tuple[float, float, frozenset[Run]] | None = None
        for runs in options:
            cost = hours_of(chosen_runs | runs, prices) - spent
            if runs <= chosen_runs or spent + cost > budget:
                continue
            settled = sum(need.value for need in open_needs if need.runs <= chosen_runs | runs)
            value = settled / max(cost, SMALLEST_HOURS)
            # Of equal values the cheaper one.
            if best is None or (value, -cost) > (best[0], -best[1]):
                best = (value, cost, runs)
        if best is None:
            return bundles

        _, cost, runs = best
        cells = sorted({cell for cell, _ in runs - chosen_runs}, key=str)
        chosen_runs |= runs
        spent += cost
        bundles.append(Bundle([need for need in open_needs if need.runs <= chosen_runs], cells, cost))


def _options(needs: Sequence[MissingRuns], prices: dict[Cell, Price], budget: float) -> list[frozenset[Run]]:
    """What could be trained in one step, in a fixed order.

    These are the runs of each claim that fits the budget, and for each scenario the runs of all these claims
    that are about it alone.
    """
    options = {need.runs for need in needs if hours_of(need.runs, prices) <= budget}
    by_scenario: dict[tuple[str, str], frozenset[Run]] = {}
    for runs in options:
        scenario, *others = {(cell.paper, cell.scenario) for cell, _ in runs}
        if not others:
            by_scenario[scenario] = by_scenario.get(scenario, frozenset()) | runs
    return sorted(options.union(by_scenario.values()), key=lambda runs: sorted(map(str, runs)))


# -- what claims need ----------------------------------------------------------------------------------------


def plan_inputs(
    wanted: Sequence[str] = (), root: Path = ROOT, network: bool = False, device: str | None = None
) -> PlanInputs:
    """Look for the claims that trainings would decide, and what these cost.

    wanted   keys of papers; empty: all
    root     folder of the repository
    network  whether claims whose cells wait for a download are included
    device   the device that is to train, as in `status.Board`; None: any
    """
    total = PlanInputs()
    results, problems = survey(root)
    board = status.Board(root, device)
    for key, study in studies(results, root, problems).items():
        if wanted and key not in wanted:
            continue
        evidence = Evidence(PublishedNumbers(study))
        cells = board.overview(key, tunings=False).cells
        for claim in read_claims(evidence.printed):
            why = _left_out(total, judge(claim, evidence), evidence, cells, network, board)
            if why:
                total.without[why] += 1
    return total


def _left_out(
    total: PlanInputs,
    verdict: Verdict,
    evidence: Evidence,
    cells: dict[Cell, status.Status],
    network: bool,
    board: status.Board,
) -> str:
    """Add what a claim needs to `total`.

    total    to which the claim, its prices and its downloads are added
    verdict  on the claim
    cells    cell -> its state
    network  whether the claim counts if its cells wait for a download

    Returns why the claim is left out; empty if it was added, or is decided already.
    """
    claim = verdict.claim
    root = board.root
    sources = list(filter(None, map(evidence.source, claim.spots)))

    # Cell -> number of seeds that it must have.
    seeds: dict[Cell, int] = {}
    value = 1.0
    if verdict.chip == Chip.NOT_RUN:
        for cell in dict.fromkeys(cell for cell, _ in sources):
            if cell not in cells or cells[cell].state != status.DONE:
                seeds[cell] = len(Experiment.of(cell, root).scenario.seeds)
    elif verdict.chip in (Chip.UNDECIDED, Chip.CONTRADICTED) and verdict.needed:
        seeds = dict.fromkeys(evidence.compared(claim.spots), verdict.needed)
        value = CHANCE

    for cell in seeds:
        state = cells.get(cell)
        if state is None or not state.stage:
            return "no grid of paper.yaml holds their cells"
        price = _price(cell, state, evidence, board)
        if price is None:
            return "how long their cells take is not known"
        total.prices[cell] = price
        total.fetched[cell] = _downloads(Experiment.of(cell, root).scenario, root)
    if not seeds:
        return LEFT_OUT.get(verdict.chip, "")

    downloads = set[str]()
    for cell in seeds:
        downloads |= total.fetched[cell]
    if downloads and not network:
        total.waiting.update(downloads)
        return DOWNLOAD

    runs = runs_of(seeds, total.prices)
    if not runs:
        return "their cells have seeds enough, but not in common"
    figures = dict.fromkeys(filter(None, (_figure(cell, measure) for cell, measure in sources)))
    place = f"{evidence.paper.name} {claim.id}"
    if claim.where:
        place += f", {claim.where}"
    total.needs.append(MissingRuns(f"{place}: {claim.text}", runs, value, tuple(figures)))
    return ""


def _figure(cell: Cell, measure: str) -> str:
    """The stage that computes a figure's number; empty for what training itself measures."""
    if not measure.startswith("figure"):
        return ""
    figure = measure.partition(".")[0]
    return f"papers/{cell.paper}/grids/dvc.yaml:{figure}@{cell.scenario}-{cell.method}"


def _price(cell: Cell, state: status.Status, evidence: Evidence, board: status.Board) -> Price | None:
    """What a cell costs, by its own seconds on this device or else by the estimate of `hours`; None if there
    is no estimate."""
    experiment = Experiment.of(cell, board.root)
    scenario = experiment.scenario
    result = evidence.results.get(cell)
    have = 0
    left = state.hours
    if result and identity.current(result, experiment) and not identity.redrawn(result, scenario):
        have = len(result["seeds"])
        if hours.on_device(result, board.device):
            return Price(have, fmean(result["seconds"]) / 3600)
        left = hours.estimate(cell, board.rates, board.root)
    return None if left is None else Price(have, left / len(scenario.seeds))


def _downloads(scenario: Scenario, root: Path = ROOT) -> set[str]:
    """Names of the data sets, and the weights, that must be downloaded before a scenario can be trained.

    What a local mirror (FEDREPRO_MIRROR) or scikit-learn has is not among them.
    """
    names = set(_sets(scenario.data.set, root))
    if scenario.public:
        names.update(_sets(scenario.public.set, root))
    if scenario.data.features == "pixels":
        return names
    extracted = root / "data" / f"{scenario.data.set}-{scenario.data.features}"
    return set() if extracted.is_dir() else names | {WEIGHTS}


def _sets(name: str, root: Path) -> Iterator[str]:
    """The data sets that must be downloaded for the one of this name: its parts, if it is put together from
    others, else itself."""
    entry = registry.find(name)
    if (root / "data" / name).is_dir() or entry.bundled or _mirror_has(entry):
        return
    if entry.parts:
        for part in entry.parts:
            yield from _sets(part, root)
    else:
        yield name if entry.canonical and entry.canonical.base else name + HAND


def _mirror_has(entry: registry.DataSet) -> bool:
    """Whether a data set is in the local mirror that FEDREPRO_MIRROR names."""
    if not os.environ.get("FEDREPRO_MIRROR"):
        return False
    from pipeline.data import sources  # and scikit-learn, which takes a second

    return sources.mirror_has(entry)


# -- what is printed -----------------------------------------------------------------------------------------


def plan(
    budget: float,
    wanted: Sequence[str] = (),
    jobs: int | None = None,
    root: Path = ROOT,
    network: bool = False,
    device: str | None = None,
) -> int:
    """Print the plan and write its cells to FILE.

    budget   hours that each process may take
    wanted   keys of papers; empty: all
    jobs     processes that train at once; None: one
    root     folder of the repository
    network  whether claims whose cells wait for a download are included
    device   the device that is to train, as in `status.Board`; None: any

    Returns the exit code. Raises ParamError for an unknown paper.
    """
    for name in wanted:
        load_paper(name, root)  # reports a wrong name before anything is read
    total = plan_inputs(wanted, root, network, device)
    bundles = chosen(total, budget, jobs)
    print("\n".join(lines(total, bundles, budget, jobs, root)))
    if bundles:
        names = [str(cell) for bundle in bundles for cell in bundle.cells]
        names += [stage for bundle in bundles for need in bundle.needs for stage in need.figures]
        files.write_text(root / FILE, "".join(f"{name}\n" for name in dict.fromkeys(names)))
        at_once = f" --jobs {jobs}" if jobs else ""
        print(f"\nTo train exactly these: xargs fedrepro run{at_once} < {FILE}")
    return 0


def chosen(total: PlanInputs, budget: float, jobs: int | None = None) -> list[Bundle]:
    """The bundles that several processes can train within the budget.

    total   what is chosen from
    budget  hours that each process may take; a claim with a longer seed is left out, since one process
            trains a seed
    jobs    processes that train at once; None: one
    """
    possible = []
    for need in total.needs:
        if all(total.prices[cell].hours <= budget for cell, _ in need.runs):
            possible.append(need)
    return choose(possible, total.prices, budget * (jobs or 1))


def lines(
    total: PlanInputs, bundles: list[Bundle], budget: float, jobs: int | None = None, root: Path = ROOT
) -> list[str]:
    """The plan as text, and what it leaves out.

    total    what was chosen from
    bundles  that were chosen
    budget   hours that each process may take
    jobs     processes that train at once; None: one
    root     folder of the repository
    """
    if bundles:
        text = [*_chosen(bundles, budget, jobs), *_more_seeds(bundles, root)]
    else:
        text = ["Nothing to plan: no claim could be settled in this time."]

    others = len(total.needs) - sum(len(bundle.needs) for bundle in bundles)
    if others:
        least = min(hours_of(need.runs, total.prices) for need in total.needs)
        cheapest = "" if bundles else f"; the cheapest takes {hours_words(least)}"
        text.append(f"{counted(others, 'other claim').capitalize()} would take more hours{cheapest}.")

    downloads = set[str]()
    for bundle in bundles:
        for cell in bundle.cells:
            downloads.update(total.fetched.get(cell, ()))
    if downloads:
        text += wrapped(f"To be downloaded: {', '.join(sorted(downloads))}.")

    for why, count in total.without.items():
        text += wrapped(f"Left out, {counted(count, 'claim')}: {why}.")
    missing = ", ".join(f"{name} for {count}" for name, count in total.waiting.most_common())
    if missing:
        text += wrapped(f"To be downloaded: {missing}.")
    return text


def _chosen(bundles: list[Bundle], budget: float, jobs: int | None) -> list[str]:
    """The chosen bundles with their claims, a line each."""
    claims = sum(len(bundle.needs) for bundle in bundles)
    spent = sum(bundle.hours for bundle in bundles)
    most = budget * (jobs or 1)
    count = counted(claims, "claim").capitalize()
    text = [f"{count} for about {hours_words(spent)} of one process, of {hours_words(most)}:"]
    for number, bundle in enumerate(bundles, 1):
        text += ["", f"{number:>2}. {hours_words(bundle.hours)}, {counted(len(bundle.needs), 'claim')}"]
        for need in bundle.needs:
            chance = f" ({need.value:.0%})" if need.value < 1 else ""
            room = columns() - len(chance) - 4
            text.append(f"    {textwrap.shorten(need.claim, room, placeholder=' ...')}{chance}")
    notes = (
        f"A claim that waits may stay undecided. ({CHANCE:.0%}): the chance that so many seeds show the "
        "printed difference, if it is there. Fetching, partitions and features come on top."
    )
    return [*text, "", *wrapped(notes)]


def _more_seeds(bundles: list[Bundle], root: Path) -> list[str]:
    """Which seeds to add to paper.yaml or params.yaml before the plan is trained; no lines if none."""
    runs = set[Run]()
    for bundle in bundles:
        for need in bundle.needs:
            runs |= need.runs

    # Key of paper.yaml -> the seeds to write there.
    seeds: dict[str, list[int]] = {}
    for cell, last in sorted(runs, key=str):
        declared = list(Experiment.of(cell, root).scenario.seeds)
        lacking = last + 1 - len(declared)
        if lacking <= 0:
            continue
        fresh = [seed for seed in range(last + 1 + len(declared)) if seed not in declared]
        key = f"papers/{cell.paper}/paper.yaml: scenarios.{cell.scenario}.seeds"
        if cell.scenario in MINIATURES:
            key = "params.yaml: miniature.seeds"
        seeds[key] = max(seeds.get(key, []), declared + fresh[:lacking], key=len)
    if not seeds:
        return []
    about = "First write more seeds. Other cells of the scenario count as stale until they have them."
    text = ["", *wrapped(about)]
    for key, numbers in seeds.items():
        text += wrapped(f"  {key}: {numbers}", 4)
    return text
