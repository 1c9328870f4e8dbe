"""`fedrepro plan HOURS [PAPER ...]`: choose the training runs that decide the most paper claims in HOURS.

A claim that waits needs the cells that have not run; an undecided one needs more seeds, as many as its
verdict's outlook names. Cells are shared between claims; the choice is greedy, the most claims an hour first.
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
from pipeline.report.claims import Printed, read_claims
from pipeline.report.study import studies
from pipeline.report.verdicts import MOST_SEEDS, POWER, Chip, Evidence, Verdict, judge
from pipeline.report.words import counted, hours_words
from pipeline.schema import MINIATURES, ROOT, Cell, Scenario, load_paper

# chance that the needed seeds show the printed difference, if it is there and the spread stays
CHANCE = POWER
# the cells of the last plan, a line each
FILE = ".cells/plan.txt"
WEIGHTS = "pretrained ViT-Ti/16 weights"
# of a folder with data sets
MIRROR = "FEDREPRO_MIRROR"
HAND = " (by hand)"  # no address that a program can follow
DOWNLOAD = "their data are not here, see `--with-network`"
# why a claim with this verdict is left out where it has no cells to train
ONE_SEED = "judged by one seed, or by seeds that do not differ"
LEFT_OUT = {
    Chip.NOT_RUN: "figures, or further seeds of cells that have run, are missing",
    Chip.UNDECIDED: f"undecided; up to {MOST_SEEDS} seeds would hardly decide them",
    **dict.fromkeys((Chip.ONE_FOR, Chip.ONE_AGAINST), ONE_SEED),
}
Run = tuple[Cell, int]  # the n-th seed of a cell, from 0


@dataclass(frozen=True)
class Price:
    """What a cell costs: the seeds that are finished, and the hours of one process for one more."""

    have: int
    hours: float


@dataclass(frozen=True)
class Need:
    """A claim, in words, and what it still needs; `value` is the chance that these runs settle it, `figures`
    the stages that compute its numbers from the runs."""

    claim: str
    runs: frozenset[Run]
    value: float = 1.0
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bundle:
    """Claims that are worth settling together, and the cells for it that no earlier bundle has."""

    needs: list[Need]
    cells: list[Cell]
    hours: float


@dataclass
class Outlay:
    """What is still to be had: claims with what they need, the prices, and why other claims are left out.

    fetched: the downloads that a cell waits for. waiting: those for want of which claims are left out.
    """

    needs: list[Need] = field(default_factory=list)
    prices: dict[Cell, Price] = field(default_factory=dict)
    without: Counter[str] = field(default_factory=Counter)
    fetched: dict[Cell, set[str]] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)


def runs_of(seeds: dict[Cell, int], prices: dict[Cell, Price]) -> frozenset[Run]:
    """What is missing where each cell must have that many seeds."""
    return frozenset((cell, n) for cell, count in seeds.items() for n in range(prices[cell].have, count))


def hours_of(runs: Iterable[Run], prices: dict[Cell, Price]) -> float:
    """Of one process. All cells of a scenario that are trained have as many seeds as the one with the most,
    since `seeds` is the scenario's."""
    most: dict[tuple[str, str], int] = {}
    cells = {}
    for cell, seed in runs:
        cells[cell] = name = cell.paper, cell.scenario
        most[name] = max(most.get(name, 0), seed + 1)
    return math.fsum(prices[cell].hours * (most[name] - prices[cell].have) for cell, name in cells.items())


def choose(needs: Sequence[Need], prices: dict[Cell, Price], budget: float) -> list[Bundle]:
    """The bundles to train within the budget, the most claims an hour first: the runs that one claim needs,
    or all that the claims about one scenario need, since they share cells."""
    options = {need.runs for need in needs if hours_of(need.runs, prices) <= budget}
    scenarios: dict[tuple[str, str], frozenset[Run]] = {}
    for runs in options:
        name, *others = {(cell.paper, cell.scenario) for cell, _ in runs}
        if not others:
            scenarios[name] = scenarios.get(name, frozenset()) | runs
    sets = sorted(options.union(scenarios.values()), key=lambda runs: sorted(map(str, runs)))
    have, spent, bundles = frozenset[Run](), 0.0, list[Bundle]()
    while True:
        left = [need for need in needs if not need.runs <= have]
        best = None
        for runs in sets:
            cost = hours_of(have | runs, prices) - spent
            if runs <= have or spent + cost > budget:
                continue
            value = sum(need.value for need in left if need.runs <= have | runs) / max(cost, 1e-9)
            if best is None or (value, -cost) > best[:2]:
                best = value, -cost, runs
        if best is None:
            return bundles
        settled = have | best[2]
        cells = sorted({cell for cell, _ in best[2] - have}, key=str)
        bundles.append(Bundle([need for need in left if need.runs <= settled], cells, -best[1]))
        have, spent = settled, spent - best[1]


# -- what claims need ----------------------------------------------------------------------------------------


def outlay(
    wanted: Sequence[str] = (), root: Path = ROOT, network: bool = False, device: str | None = None
) -> Outlay:
    """Of the papers named, or of all. network: also claims whose cells wait for a download. device: what is
    to train, as of `status.Board`."""
    total = Outlay()
    results, problems = survey(root)
    board = status.Board(root, device)
    for key, study in studies(results, root, problems).items():
        if key in wanted or not wanted:
            evidence = Evidence(Printed(study))
            cells = board.overview(key, tunings=False).cells
            for claim in read_claims(evidence.printed):
                if why := _left_out(total, judge(claim, evidence), evidence, cells, network, board):
                    total.without[why] += 1
    return total


def _left_out(
    total: Outlay,
    verdict: Verdict,
    evidence: Evidence,
    cells: dict[Cell, status.Status],
    network: bool,
    board: status.Board,
) -> str:
    """Why a claim is left out; else "", and what it needs is added, where it is not settled."""
    claim, seeds, value, root = verdict.claim, dict[Cell, int](), 1.0, board.root
    sources = [source for spot in claim.spots if (source := evidence.source(spot))]
    if verdict.chip == Chip.NOT_RUN:
        for cell in dict.fromkeys(cell for cell, _ in sources):
            if cell not in cells or cells[cell].state != status.DONE:
                seeds[cell] = len(Experiment.of(cell, root).scenario.seeds)
    elif verdict.chip in (Chip.UNDECIDED, Chip.CONTRADICTED) and verdict.needed:
        seeds, value = dict.fromkeys(evidence.compared(claim.spots), verdict.needed), CHANCE
    for cell in seeds:
        state = cells.get(cell)
        if state is None or not state.stage:
            return "no grid of paper.yaml holds their cells"
        if (price := _price(cell, state, evidence, board)) is None:
            return "how long their cells take is not known"
        total.prices[cell] = price
        total.fetched[cell] = _downloads(Experiment.of(cell, root).scenario, root)
    if not seeds:
        return LEFT_OUT.get(verdict.chip, "")
    if not network and (names := set().union(*(total.fetched[cell] for cell in seeds))):
        total.waiting.update(names)
        return DOWNLOAD
    if not (runs := runs_of(seeds, total.prices)):
        return "their cells have seeds enough, but not in common"
    figures = dict.fromkeys(filter(None, (_figure(*source) for source in sources)))
    place = ", ".join(filter(None, (f"{evidence.paper.name} {claim.id}", claim.where)))
    total.needs.append(Need(f"{place}: {claim.text}", runs, value, tuple(figures)))
    return ""


def _figure(cell: Cell, measure: str) -> str:
    """The stage that computes a figure's number; empty for what training itself measures."""
    name = f"papers/{cell.paper}/grids/dvc.yaml:{measure.partition('.')[0]}@{cell.scenario}-{cell.method}"
    return name if measure.startswith("figure") else ""


def _price(cell: Cell, state: status.Status, evidence: Evidence, board: status.Board) -> Price | None:
    """None where no estimate is possible."""
    experiment, result = Experiment.of(cell, board.root), evidence.results.get(cell)
    if result and identity.current(result, experiment) and not identity.redrawn(result, experiment.scenario):
        if hours.on_device(result, board.device):
            return Price(len(result["seeds"]), fmean(result["seconds"]) / 3600)
        left = hours.estimate(cell, board.rates, board.root)
        return None if left is None else Price(len(result["seeds"]), left / len(experiment.scenario.seeds))
    return None if state.hours is None else Price(0, state.hours / len(experiment.scenario.seeds))


def _downloads(scenario: Scenario, root: Path = ROOT) -> set[str]:
    """Names of the data sets, and the weights, that must be downloaded before a scenario can be trained; not
    what a mirror (FEDREPRO_MIRROR) or scikit-learn has."""
    sets = [scenario.data.set] + ([scenario.public.set] if scenario.public else [])
    names = {name for one in sets for name in _sets(one, root)}
    extracted = root / "data" / f"{scenario.data.set}-{scenario.data.features}"
    if scenario.data.features != "pixels":
        return set() if extracted.is_dir() else names | {WEIGHTS}
    return names


def _sets(name: str, root: Path) -> Iterator[str]:
    entry = registry.find(name)
    if (root / "data" / name).is_dir() or entry.bundled or _mirror_has(entry):
        return
    if entry.parts:
        for part in entry.parts:
            yield from _sets(part, root)
    else:
        yield name if entry.canonical and entry.canonical.base else name + HAND


def _mirror_has(entry: registry.DataSet) -> bool:
    if not os.environ.get(MIRROR):
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
    """Print the plan and write its cells to `FILE`; returns the exit code. budget: hours, of `jobs` processes
    each. network, device: as of `outlay`."""
    for name in wanted:
        load_paper(name, root)  # reports a wrong name before anything is read
    total = outlay(wanted, root, network, device)
    bundles = chosen(total, budget, jobs)
    print("\n".join(lines(total, bundles, budget, jobs, root)))
    if bundles:
        names = [str(cell) for bundle in bundles for cell in bundle.cells]
        names += [stage for bundle in bundles for need in bundle.needs for stage in need.figures]
        files.write_text(root / FILE, "".join(f"{name}\n" for name in dict.fromkeys(names)))
        at_once = f" --jobs {jobs}" if jobs else ""
        print(f"\nTo train exactly these: xargs fedrepro run{at_once} < {FILE}")
    return 0


def chosen(total: Outlay, budget: float, jobs: int | None = None) -> list[Bundle]:
    """The bundles within the budget; a seed is trained by one process, which has its hours alone."""
    whole = [need for need in total.needs if all(total.prices[cell].hours <= budget for cell, _ in need.runs)]
    return choose(whole, total.prices, budget * (jobs or 1))


def lines(
    total: Outlay, bundles: list[Bundle], budget: float, jobs: int | None = None, root: Path = ROOT
) -> list[str]:
    """The plan, and what it leaves out."""
    text = [*_chosen(bundles, budget, jobs), *_more_seeds(bundles, root)]
    text = text if bundles else ["Nothing to plan: no claim could be settled in this time."]
    if rest := len(total.needs) - sum(len(bundle.needs) for bundle in bundles):
        least = min(hours_of(need.runs, total.prices) for need in total.needs)
        cheapest = "" if bundles else f"; the cheapest takes {hours_words(least)}"
        text.append(f"{counted(rest, 'other claim').capitalize()} would take more hours{cheapest}.")
    cells = (cell for bundle in bundles for cell in bundle.cells)
    if names := sorted(set().union(*(total.fetched.get(cell, ()) for cell in cells))):
        text += wrapped(f"To be downloaded: {', '.join(names)}.")
    for why, count in total.without.items():
        text += wrapped(f"Left out, {counted(count, 'claim')}: {why}.")
    missing = ", ".join(f"{name} for {count}" for name, count in total.waiting.most_common())
    return text + wrapped(f"To be downloaded: {missing}.") * bool(missing)


def _chosen(bundles: list[Bundle], budget: float, jobs: int | None) -> list[str]:
    needs = [need for bundle in bundles for need in bundle.needs]
    spent, most = sum(bundle.hours for bundle in bundles), budget * (jobs or 1)
    count = counted(len(needs), "claim").capitalize()
    text = [f"{count} for about {hours_words(spent)} of one process, of {hours_words(most)}:"]
    for number, bundle in enumerate(bundles, 1):
        text += ["", f"{number:>2}. {hours_words(bundle.hours)}, {counted(len(bundle.needs), 'claim')}"]
        for need in bundle.needs:
            chance = f" ({need.value:.0%})" * (need.value < 1)
            room = columns() - len(chance) - 4
            text.append(f"    {textwrap.shorten(need.claim, room, placeholder=' ...')}{chance}")
    notes = (
        f"A claim that waits may stay undecided. ({CHANCE:.0%}): the chance that so many seeds show the "
        "printed difference, if it is there. Fetching, partitions and features come on top."
    )
    return [*text, "", *wrapped(notes)]


def _more_seeds(bundles: list[Bundle], root: Path) -> list[str]:
    """Which `seeds` to write before; empty where all have enough."""
    seeds: dict[str, list[int]] = {}
    runs = {run for bundle in bundles for need in bundle.needs for run in need.runs}
    for cell, last in sorted(runs, key=str):
        mine = list(Experiment.of(cell, root).scenario.seeds)
        fresh = [seed for seed in range(last + 1 + len(mine)) if seed not in mine]
        at = f"papers/{cell.paper}/paper.yaml: scenarios.{cell.scenario}.seeds"
        key = "params.yaml: miniature.seeds" if cell.scenario in MINIATURES else at
        if last >= len(mine):
            seeds[key] = max(seeds.get(key, []), mine + fresh[: last + 1 - len(mine)], key=len)
    lists = [wrapped(f"  {key}: {numbers}", 4) for key, numbers in seeds.items()]
    about = "First write more seeds. Other cells of the scenario count as stale until they have them."
    return ["", *wrapped(about), *sum(lists, [])] if lists else []
