"""`fedrepro compare A B ...`: how many points of accuracy one cell is ahead of another, with a 95 % interval.

A cell is one method in one scenario of a paper. Two cells are compared by their differences on the seeds that
both have (a paired t test). Results that are in git are used as they are. Seeds that are missing, and cells
with changed values (`--set`), are trained first; they change no table of a page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline import files
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import (
    as_csv,
    check_plausible,
    checked_history,
    history,
    of_cell,
    partitions,
    read,
    summarise,
)
from pipeline.commands import archive, variants
from pipeline.commands.bring import other_checkout
from pipeline.commands.options import columns
from pipeline.errors import FedReproError, ParamError
from pipeline.provenance import identity
from pipeline.report.statistics import Estimate, one_sample
from pipeline.schema import ROOT, Cell, load_paper
from pipeline.schema.cell import Changes, ExtraSeeds, Variant

# What separates the file of an archive from the name of a cell in it: theirs.zip:paper/scenario/method.
INSIDE = ".zip:"
# Widest output, in characters: longer lines are hard to read in a wide terminal.
WIDTH = 100
# Widths of columns in the printed table, in characters: `57.20 ± 0.31` with its margins, then one seed.
MEAN_WIDTH = 18
SEED_WIDTH = 8
# Differences below this many points count as none: numbers are recorded with four decimals.
SAME_POINTS = 1e-4
# Endings of the pictures that `draw` can write.
PICTURES = (".svg", ".pdf", ".png")
# Width and height of a picture, in inches.
PICTURE_INCHES = (6, 4)
# Columns of `--csv`; one for each seed follows. Means are in percent, differences and intervals in points.
COLUMNS = [
    "first",
    "second",
    "measure",
    "seeds",
    "first_mean",
    "second_mean",
    "difference",
    "low",
    "high",
    "p",
]


@dataclass(frozen=True)
class Contestant:
    """One side of a comparison: a cell, as it is or with changed values, and what was measured of it.

    cell     the cell in paper.yaml
    changes  values that differ from paper.yaml; empty: none
    label    its method, with what tells it from the other contestants
    measure  the main measure of its scenario, such as `average`
    by_seed  seed -> accuracy in percent
    curve    round -> accuracy in percent, mean over these seeds
    stale    whether other code or parameters than today's made the result in git
    drawn    seed -> digest of the images that each of its clients holds
    """

    cell: Cell
    changes: Changes
    label: str
    measure: str
    by_seed: dict[int, float]
    curve: dict[int, float] = field(default_factory=dict)
    stale: bool = False
    drawn: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """How far `first` is ahead of `second`, in points, on the seeds that both have."""

    first: Contestant
    second: Contestant

    @property
    def by_seed(self) -> dict[int, float]:
        """Seed -> accuracy of `first` minus that of `second`, in points."""
        common = [seed for seed in self.first.by_seed if seed in self.second.by_seed]
        return {seed: self.first.by_seed[seed] - self.second.by_seed[seed] for seed in common}

    @property
    def paired(self) -> bool:
        """Whether clients hold the same images in both, for every common seed."""
        return all(self.first.drawn.get(seed) == self.second.drawn.get(seed) for seed in self.by_seed)

    @property
    def estimate(self) -> Estimate:
        """Mean difference with its standard error, as the paired t test takes it."""
        return one_sample(np.array([*self.by_seed.values()]))

    @property
    def words(self) -> str:
        """The difference as a sentence."""
        return sentence(self.first.label, self.second.label, self.estimate)


def sentence(first: str, second: str, estimate: Estimate) -> str:
    """What a paired difference says, in plain words.

    first     name of one side
    second    name of the other side
    estimate  of first minus second, in points
    """
    noun = "seeds" if estimate.n > 1 else "seed"
    seeds = f"{estimate.n} {noun}"
    size = f"{abs(estimate.d):.1f} points"
    better, worse = (first, second) if estimate.d > 0 else (second, first)
    if estimate.n < 2:
        return f"{better} is {size} better than {worse} with one seed; how far seeds spread is not known"
    if abs(estimate.d) < SAME_POINTS and estimate.se < SAME_POINTS:
        return f"{first} and {second} have the same accuracy ({seeds})"

    low, high = estimate.interval()
    if low <= 0 <= high:
        between = f"95 % interval {low:.1f} to {high:.1f}, {seeds}"
        return f"Whether {first} beats {second} is open: {estimate.d:+.1f} points ({between})"
    # The size of the lead, whichever side has it.
    low, high = sorted((abs(low), abs(high)))
    return f"{better} beats {worse} by {size} (95 % interval {low:.1f} to {high:.1f}, {seeds})"


def compare(
    names: Sequence[str],
    seeds: str = "",
    settings: Sequence[str] = (),
    csv: str | None = None,
    latex: str | None = None,
    plot: str | None = None,
    jobs: int | None = None,
) -> int:
    """Compare the first cell with every other one, and each cell with itself under changed values; print a
    table and a sentence for each difference.

    names     cells, `paper/scenario/method`; after the first one also `theirs.zip:paper/scenario/method`, a
              cell in a file that `fedrepro archive` wrote
    seeds     seeds to compare on, such as `7,8`; empty: those of the results in git
    settings  changed values, such as `training.local_epochs=5,method.mu=0.1`, one text for each variant
    csv       file for the differences as a table; None: none
    latex     file for the same as a LaTeX table; None: none
    plot      file for a picture of the curves, .svg, .pdf or .png; None: none
    jobs      trainings that run at once; None: one for each core

    Returns the exit code. Raises ParamError for names, seeds or values that cannot be read, and FedReproError
    for cells without a result, without a common seed, or with different main measures.
    """
    if names and INSIDE in names[0]:
        raise ParamError("compare: the first cell is one of this checkout; name that of an archive after it")
    packed = [name for name in dict.fromkeys(names) if INSIDE in name]
    cells = [*dict.fromkeys(Cell.parse(name) for name in names if name not in packed)]
    # () stands for the values of paper.yaml.
    variants_of_values = [(), *map(parse_changes, settings)]
    if not cells or len(cells) * len(variants_of_values) + len(packed) < 2:
        raise ParamError("compare: name two cells or more, or one with --set training.local_epochs=5")
    wanted = variants.parse_seeds(seeds) if seeds else None

    theirs = [archived(name, wanted) for name in packed]
    measured = contestants(cells, variants_of_values, wanted, jobs)
    differences = pairs(measured, cells, variants_of_values)
    differences += [Difference(measured[cells[0], ()], other) for other in theirs]
    check_comparable(differences)

    shown = [*measured.values(), *theirs]
    show(shown, differences)
    if csv:
        files.write_text(Path(csv), as_csv(table(differences)))
        print(f"{csv}: written")
    if latex:
        files.write_text(Path(latex), as_latex(differences))
        print(f"{latex}: written")
    if plot:
        draw(shown, Path(plot))
        print(f"{plot}: written")
    return 0


# -- what is compared ----------------------------------------------------------------------------------------


def contestants(
    cells: Sequence[Cell], changed: Sequence[Changes], seeds: tuple[int, ...] | None, jobs: int | None
) -> dict[tuple[Cell, Changes], Contestant]:
    """Every cell with every list of changes; trains what is missing.

    cells    of paper.yaml
    changed  lists of changed values, of which () is none
    seeds    that count; None: those of the results in git, else those of the scenario
    jobs     trainings that run at once; None: one for each core

    Returns (cell, changes) -> contestant. Raises ParamError for a cell that no paper has, and FedReproError
    where a cell without a result is named without seeds.
    """
    documents: dict[tuple[Cell, Changes], Result] = {}
    missing: dict[tuple[Cell, Changes], ExtraSeeds | Variant] = {}
    for changes in changed:
        for cell in cells:
            experiment = Experiment.of(cell)  # ParamError for a cell that no paper has
            known = of_cell(cell)
            has_seeds = known is not None and (seeds is None or {*seeds} <= {*known["seeds"]})
            if known is not None and has_seeds and not changes:
                documents[cell, changes] = known
                continue
            if seeds is None and not changes:
                raise FedReproError(f"{cell}: has no result: `fedrepro run {cell}`, or name --seeds")

            declared = known["seeds"] if known else experiment.scenario.seeds
            wanted = seeds or tuple(declared)
            if changes:
                missing[cell, changes] = Variant.of(cell, changes, seeds=wanted)
            else:
                missing[cell, changes] = ExtraSeeds(cell.paper, cell.scenario, cell.method, wanted)

    trained = variants.train([*missing.values()], jobs)
    documents |= dict(zip(missing, trained, strict=True))

    several = len({(cell.paper, cell.scenario) for cell in cells}) > 1
    found = {}
    for changes in changed:
        for cell in cells:
            key = (cell, changes)
            trained_in = missing.get(key, cell)
            found[key] = _contestant(cell, changes, documents[key], trained_in, seeds, several)
    return found


def _contestant(
    cell: Cell, changes: Changes, result: Result, place: Cell, seeds: tuple[int, ...] | None, several: bool
) -> Contestant:
    """A contestant from the result of a cell of this checkout.

    result   of the cell with the changes
    place    the cell, or the variant or further seeds of it, in whose folder the result is
    seeds    that count; None: all of the result
    several  whether the cells are of more than one scenario, which the labels have to name
    """
    label = load_paper(cell.paper).label(cell.method)
    if changes:
        values = [f"{key.removeprefix('method.')} {value}" for key, value in changes]
        label += f" ({', '.join(values)})"
    if several:
        label += f" [{cell.paper}/{cell.scenario}]"
    stale = place == cell and not identity.current(result, Experiment.of(cell))
    return _of_result(cell, label, result, history(place), seeds, changes=changes, stale=stale)


def _of_result(
    cell: Cell,
    label: str,
    result: Result,
    rounds: pd.DataFrame,
    seeds: tuple[int, ...] | None,
    changes: Changes = (),
    stale: bool = False,
) -> Contestant:
    """A contestant from a result and its history.

    rounds  the history: a row for each seed and scored round
    seeds   that count; None: all of the result
    """
    measure = result["headline"]
    measured = dict(zip(result["seeds"], result["measures"][measure]))
    chosen = {seed: measured[seed] for seed in seeds} if seeds else measured

    means = rounds[rounds["seed"].isin(chosen)].groupby("round")[measure].mean().dropna()
    curve = {int(number): float(value) for number, value in means.items()}
    drawn = dict(zip(result["seeds"], partitions(result)))
    return Contestant(cell, changes, label, measure, chosen, curve, stale, drawn)


def archived(name: str, seeds: tuple[int, ...] | None, root: Path = ROOT) -> Contestant:
    """A cell of an archive: its result is checked as by `fedrepro import`, and none of its code runs.

    name   `theirs.zip:paper/scenario/method`
    seeds  that count; None: all of the result
    root   folder of the repository

    Raises ParamError for a cell of another paper than the archive's, and FedReproError for a result that
    cannot be trusted or lacks a seed.
    """
    before, _, inside = name.rpartition(INSIDE)
    file = Path(before + INSIDE.rstrip(":")).expanduser()
    cell = Cell.parse(inside)
    key = archive.paper_of(file)
    if cell.paper != key:
        raise ParamError(f"{name}: the archive has the paper {key!r}, not {cell.paper!r}")

    with other_checkout(root) as checkout:
        archive.unpack(file, checkout / "papers" / key)
        Experiment.of(cell, checkout)
        folder = cell.folder(checkout)
        if not (folder / "result.json").exists():
            raise FedReproError(f"{name}: the archive has no result of it")
        result = read(folder / "result.json")
        rounds = checked_history(cell, result, checkout)
        check_plausible(result, rounds, folder / "history.csv")
        label = f"{load_paper(key, checkout).label(cell.method)} [{file.name}]"

    lacking = sorted(set(seeds or ()) - set(result["seeds"]))
    if lacking:
        raise FedReproError(f"{name}: has no seed {lacking[0]}, but {', '.join(map(str, result['seeds']))}")
    return _of_result(cell, label, result, rounds, seeds)


def pairs(
    measured: dict[tuple[Cell, Changes], Contestant], cells: Sequence[Cell], changed: Sequence[Changes]
) -> list[Difference]:
    """Which contestants are compared: the first cell with every other one under the same values, then each
    cell under changed values with itself under those of paper.yaml.

    measured  (cell, changes) -> contestant
    cells     in the order in which they were named
    changed   lists of changed values, of which () is none
    """
    differences = []
    for changes in changed:
        first = measured[cells[0], changes]
        differences += [Difference(first, measured[cell, changes]) for cell in cells[1:]]
    for changes in changed:
        if changes:
            differences += [Difference(measured[cell, changes], measured[cell, ()]) for cell in cells]
    return differences


def check_comparable(differences: Iterable[Difference]) -> None:
    """Raise FedReproError where two contestants have no common seed, or different main measures."""
    for difference in differences:
        first = difference.first
        second = difference.second
        if not difference.by_seed:
            raise FedReproError(
                f"{first.label} and {second.label} have no common seed: name some by --seeds 7,8,9"
            )
        if first.measure != second.measure:
            raise FedReproError(
                f"{first.label} is scored by {first.measure!r}, {second.label} by "
                f"{second.measure!r}: they cannot be compared"
            )


def parse_changes(text: str) -> Changes:
    """Read changed values, such as `training.local_epochs=5,method.mu=0.1`.

    Returns pairs (key, value) in the order of the text. Raises ParamError for a text that is no such list, or
    has a key twice.
    """
    changes = []
    for item in text.split(","):
        key, _, value = (part.strip() for part in item.partition("="))
        if "." not in key or not value:
            raise ParamError(f"--set {text!r:.80}: expected KEY=VALUE, such as training.local_epochs=5")
        changes.append((key, variants.parse_value(value)))
    if len(dict(changes)) < len(changes):
        raise ParamError(f"--set {text!r:.80}: a key twice")
    return tuple(changes)


# -- how it is shown -----------------------------------------------------------------------------------------


def show(measured: Iterable[Contestant], differences: Sequence[Difference]) -> None:
    """Print a table with a column for each seed, then a sentence for each difference.

    measured     rows of the table
    differences  between them
    """
    rows = [*measured]
    seeds = sorted({seed for row in rows for seed in row.by_seed})
    names = [f"{row.label} (stale)" if row.stale else row.label for row in rows]
    name_width = max(map(len, names))
    print(f"{rows[0].measure} accuracy in %, mean ± standard deviation, then each seed")

    # The columns of seeds are left out where the terminal is too narrow for them.
    if name_width + MEAN_WIDTH + SEED_WIDTH * len(seeds) > columns(WIDTH):
        seeds = []
    if seeds:
        heads = "".join(f"{seed:>{SEED_WIDTH}}" for seed in seeds)
        print(" " * (name_width + MEAN_WIDTH) + heads)
    for name, row in zip(names, rows):
        mean = str(summarise([*row.by_seed.values()])).removesuffix(" %")
        line = f"{name:<{name_width}}  {mean:<{MEAN_WIDTH - 2}}"
        for seed in seeds:
            number = f"{row.by_seed[seed]:.2f}" if seed in row.by_seed else ""
            line += f"{number:>{SEED_WIDTH}}"
        print(line)
    print()

    for difference in differences:
        print(difference.words)
        by_seed = ", ".join(f"{seed}: {value:+.2f}" for seed, value in difference.by_seed.items())
        print(f"  by seed {by_seed}")
        if not difference.paired:
            print("  clients have other data in each: equal seeds are no pairs, as the interval takes them")
    if any(row.stale for row in rows):
        print("(stale): measured with other code or parameters than today's")


def table(differences: Sequence[Difference]) -> pd.DataFrame:
    """A row for each difference, with COLUMNS and a column for the difference of each seed, in points.

    The interval and the p value are empty with one seed.
    """
    rows = []
    every_seed = set[int]()
    for difference in differences:
        estimate = difference.estimate
        by_seed = difference.by_seed
        low = high = p = None
        if estimate.n > 1:
            low, high = estimate.interval()
            p = estimate.p()
        row = {
            "first": difference.first.label,
            "second": difference.second.label,
            "measure": difference.first.measure,
            "seeds": " ".join(map(str, by_seed)),
            "first_mean": _mean(difference.first, by_seed),
            "second_mean": _mean(difference.second, by_seed),
            "difference": estimate.d,
            "low": low,
            "high": high,
            "p": p,
        }
        rows.append(row | {f"seed {seed}": value for seed, value in by_seed.items()})
        every_seed.update(by_seed)
    of_seeds = [f"seed {seed}" for seed in sorted(every_seed)]
    return pd.DataFrame(rows, columns=COLUMNS + of_seeds)


def _mean(contestant: Contestant, seeds: Iterable[int]) -> float:
    """Accuracy in percent over these seeds."""
    return float(np.mean([contestant.by_seed[seed] for seed in seeds]))


def as_latex(differences: Sequence[Difference]) -> str:
    """The differences as a LaTeX table (package booktabs), for \\input."""
    from pipeline.report.latex import tex

    lines = ["% Needs \\usepackage{booktabs}.", "\\begin{tabular}{llrrr}", "\\toprule"]
    lines += ["first & second & difference & 95 \\% interval & seeds \\\\", "\\midrule"]
    for difference in differences:
        estimate = difference.estimate
        interval = ""
        if estimate.n > 1:
            low, high = estimate.interval()
            interval = f"${low:.1f}$ to ${high:.1f}$"
        sides = []
        for side in (difference.first, difference.second):
            sides.append(f"{tex(side.label)} {_mean(side, difference.by_seed):.1f}")
        lines.append(" & ".join([*sides, f"${estimate.d:+.1f}$", interval, str(estimate.n)]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join(lines) + "\n"


def draw(measured: Iterable[Contestant], path: Path) -> None:
    """Write a picture of accuracy over rounds: a line for each contestant, the mean over its seeds.

    measured  what is drawn
    path      of the picture; its folder is made if it is missing

    Raises ParamError for a file that does not end with one of PICTURES.
    """
    from matplotlib.figure import Figure

    if path.suffix not in PICTURES:
        raise ParamError(f"--plot {path}: expected a name that ends with {', '.join(PICTURES)}")
    figure = Figure(figsize=PICTURE_INCHES, layout="constrained")
    axes = figure.subplots()
    for contestant in measured:
        seeds = len(contestant.by_seed)
        noun = "seed" if seeds == 1 else "seeds"
        axes.plot(
            [*contestant.curve],
            [*contestant.curve.values()],
            label=f"{contestant.label} ({seeds} {noun})",
        )
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy, %")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
