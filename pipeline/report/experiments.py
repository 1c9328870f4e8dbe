"""The experiments of the page across papers: every tuned method with the values of its row and after equal
tuning, of the same seeds; what was reconstructed of the clients' images from what methods send
(reports/leakage/leakage.csv of the stage `leakage`; pipeline/cells/leakage.py says what the server knows);
and how far rounding alone moves an accuracy (reports/noise.csv of benchmarks/rounding.py)."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, Any

from pipeline import files
from pipeline.cells import choices, provenance
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import Summary, of_tuning, summarise
from pipeline.data.pictures import size_and_text
from pipeline.errors import FedReproError, ParamError
from pipeline.report.comparison import Axis
from pipeline.report.statistics import replicates
from pipeline.report.study import Study
from pipeline.report.words import signed
from pipeline.schema import MINIATURES, ROOT, Cell, load_paper, shorten

if TYPE_CHECKING:  # needs torch, which pages do without
    from pipeline.cells.leakage import Attempt

PAPER, FOLDER = "fedcrl", Path("reports", "leakage")
SCORES = ("ssim", "random", "mean")
COLUMNS = ["method", "sent", "seed", "round", "client", "images", "target", *SCORES]
TARGETS = {"batch": "the batch", "nearest": "nearest image", "class mean": "mean image"}
NOISE = ["cell", "setting", "accuracy"]
# Pixels of the picture.
SIDE, GAP, LEFT, ABOVE = 64, 8, 110, 58


# -- equal tuning --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """One method of a scenario. before, after: percent on test images (None where the cell has not run);
    kept: whether the chosen values are the row's own; configurations: validation accuracy of each, the row's
    own first (None: diverged); older: whether either is of other code or parameters than today's."""

    cell: Cell
    before: Summary | None
    after: Summary | None
    kept: bool
    configurations: list[float | None]
    older: bool = False

    @property
    def change(self) -> float | None:
        return self.after.mean - self.before.mean if self.before and self.after else None

    @property
    def gain(self) -> str:
        return "kept" if self.kept else "" if self.change is None else signed(self.change, 1)


def tunings(root: Path = ROOT, cells: Iterable[Cell] | None = None) -> tuple[list[Tuning], list[str]]:
    """Every method that was tuned, of all cells or of these, in the order of the paths, and a line for each
    file that was altered."""
    found, problems = [], []
    for cell in choices.found(root) if cells is None else cells:
        try:
            found.append(_tuning(cell, root))
        except FedReproError as error:
            problems.append(str(error))
    return found, problems


def _tuning(cell: Cell, root: Path) -> Tuning:
    document, results = choices.read(cell, root), of_tuning(cell, root)
    chosen = document["configurations"][document["chosen"]]
    pair = [find(cell, root) for find in (choices.published, choices.tuned)]
    before, after = map(results.get, pair)
    if before and after and before["seeds"] != after["seeds"]:
        # One is from before a change of the seeds.
        after = None
    return Tuning(
        cell,
        _headline(before),
        _headline(after),
        not chosen["changes"],
        choices.means(document["configurations"]),
        any(
            one in results and not provenance.current(results[one], Experiment.of(one, root)) for one in pair
        ),
    )


def _headline(result: dict | None) -> Summary | None:
    return None if result is None else summarise(result["measures"][result["headline"]])


@dataclass(frozen=True)
class Tab:
    """A scenario's methods on one axis, the best after tuning first: (name, whether it is the paper's own,
    numbers, what was tried and chosen)."""

    key: str
    label: str
    title: str
    axis: Axis
    rows: list[tuple[str, bool, Tuning, str]]

    @property
    def first(self) -> tuple[str, Summary] | None:
        """Who leads before tuning."""
        before = [(name, one.before) for name, _, one, _ in self.rows if one.before]
        return max(before, key=lambda pair: pair[1].mean, default=None)


@dataclass(frozen=True)
class Tuned:
    """changes: points of every pair of numbers, and their mean; kept: methods that keep their values."""

    tabs: list[Tab]
    changes: list[float]
    mean: str
    kept: int
    older: list[str]


def tuned(studies: dict[str, Study], labels: dict[str, str], found: Iterable[Tuning]) -> Tuned | None:
    """None where nothing was tuned and then trained; scenarios of the papers come before the miniatures.

    labels: algorithm -> name
    """
    columns: dict[tuple[str, str], list[Tuning]] = {}
    for one in found:
        if one.after and one.cell.paper in studies:
            scenario = "" if one.cell.scenario in MINIATURES else one.cell.scenario
            columns.setdefault((one.cell.paper, scenario), []).append(one)
    order = sorted(columns, key=lambda at: (not at[1], [*studies].index(at[0])))
    shown = [one for at in order for one in columns[at]]
    changes = [one.change for one in shown if one.change is not None]
    return (
        Tuned(
            [_tab(studies[key], scenario, columns[key, scenario], labels) for key, scenario in order],
            changes,
            signed(fmean(changes), 1) if changes else "",
            sum(one.kept for one in shown if one.before),
            [str(one.cell) for one in shown if one.older],
        )
        if shown
        else None
    )


def _tab(study: Study, scenario: str, several: list[Tuning], labels: dict[str, str]) -> Tab:
    ends = [
        n.mean + sign * (n.std or 0)
        for one in several
        for n in (one.before, one.after)
        if n
        for sign in (-1, 1)
    ]
    rows = []
    for one in several:
        name = labels[study.paper.algorithm(one.cell.method)]
        rows.append((name, name == study.name, one, choices.path(one.cell, Path()).as_posix()))
    rows.sort(key=lambda row: -row[2].after.mean if row[2].after else 0)
    title = study.title(scenario) if scenario else "miniature"
    return Tab(
        f"{study.key}-{scenario or 'mini'}",
        f"{study.name}, {title.partition(', ')[0]}",
        title,
        Axis.over(ends),
        rows,
    )


# -- reconstruction ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """What is attacked, and what the reconstruction is compared with."""

    method: str
    sent: str
    images: str
    target: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> Key:
        many = int(row["images"])
        size = str(many) if row["target"] == "batch" or many == 1 else "2 to 9" if many < 10 else "10 or more"
        return cls(row["method"], row["sent"], size, row["target"])

    @property
    def order(self) -> tuple:
        return self.method, self.sent, self.target == "class mean", len(self.images), self.images


@dataclass(frozen=True)
class Score:
    """Attempts of one kind in one round: mean SSIM of reconstruction, random image and class mean, and how
    many reconstructions are closer than both guesses."""

    ssim: float
    random: float
    mean: float
    above: int
    attempts: int

    @classmethod
    def of(cls, attempts: list[dict]) -> Score | None:
        if not attempts:
            return None
        above = sum(row["ssim"] > max(row["random"], row["mean"]) for row in attempts)
        ssim, random, mean = (fmean(row[name] for row in attempts) for name in SCORES)
        return cls(ssim, random, mean, above, len(attempts))


@dataclass(frozen=True)
class Leakage:
    """rows: (method, what was sent, images, compared with) -> a score per round; picture: width and height of
    leakage.png, None without it."""

    rounds: list[int]
    axis: Axis
    rows: list[tuple[tuple[str, str, str, str], list[Score | None]]]
    picture: tuple[int, int] | None

    @property
    def shown(self) -> dict[str, list[tuple[str, list[Score | None]]]]:
        """Rows of the picture, which are compared with images and not with their mean: what was sent ->
        (images, a score per round)."""
        groups: dict[str, list[tuple[str, list[Score | None]]]] = {}
        for (method, sent, images, target), scores in self.rows:
            if target != TARGETS["class mean"]:
                groups.setdefault(f"{method}, {sent}", []).append((images, scores))
        return groups

    def more(self, number: int) -> tuple[int, int]:
        """(kinds of attack of which most come closer than both guesses, kinds) of a round."""
        at = self.rounds.index(number)
        scores = [score for rows in self.shown.values() for _, row in rows if (score := row[at])]
        return sum(score.above > score.attempts / 2 for score in scores), len(scores)


def leakage(studies: dict[str, Study], root: Path = ROOT) -> Leakage | None:
    """None where the stage has not run."""
    rounds, rows = read(root), []
    if not rounds or PAPER not in studies:
        return None
    for key in dict.fromkeys(key for kinds in rounds.values() for key in kinds):
        # Of one image the mean is that image.
        if key.target != "class mean" or key.images != "1":
            words = studies[PAPER].label(key.method), key.sent, key.images, TARGETS[key.target]
            rows.append((words, [Score.of(kinds.get(key, [])) for kinds in rounds.values()]))
    path = root / FOLDER / "leakage.png"
    size = size_and_text(path, "dvc repro reports/leakage/dvc.yaml")[0] if path.exists() else None
    return Leakage([*rounds], Axis.over([0, 1]), rows, size)


def read(root: Path = ROOT) -> dict[int, dict[Key, list[dict]]]:
    """{round: {kind of attack: scores of its attempts}}, empty without the file; ParamError names the line
    that is wrong."""
    path = root / FOLDER / "leakage.csv"
    if not path.exists():
        return {}
    rounds: dict[int, dict[Key, list[dict]]] = {}
    for line, row in files.read_csv(path, COLUMNS):
        try:
            scores = {score: float(row[score]) for score in SCORES}
            number, key = int(row["round"]), Key.of(row)
        except ValueError as error:
            raise ParamError(f"{shorten(path)}:{line}: {error}") from None
        if key.target not in TARGETS or not all(-1 <= score <= 1 for score in scores.values()):
            wrong = f"target not one of {', '.join(TARGETS)}, or a similarity outside [-1, 1]"
            raise ParamError(f"{shorten(path)}:{line}: {wrong}")
        rounds.setdefault(number, {}).setdefault(key, []).append(scores)
    return {
        number: dict(sorted(kinds.items(), key=lambda item: item[0].order))
        for number, kinds in rounds.items()
    }


# -- the stage's files ---------------------------------------------------------------------------------------


def write(attempts: list[Attempt], root: Path = ROOT) -> None:
    """reports/leakage/leakage.csv, and of every kind of attack of the first round the one of median success
    in leakage.png."""
    rows = [{name: value for name, value in vars(one).items() if name != "shown"} for one in attempts]
    lines = ([f"{row[name]:.4f}" if name in SCORES else row[name] for name in COLUMNS] for row in rows)
    files.write_csv(root / FOLDER / "leakage.csv", COLUMNS, lines)
    kinds: dict[Key, list[Attempt]] = {}
    for one, row in zip(attempts, rows, strict=True):
        if one.round == 1 and one.target != "class mean":
            kinds.setdefault(Key.of(row), []).append(one)
    chosen = {
        key: next(one for one in several if one.ssim == median_low(one.ssim for one in several))
        for key, several in kinds.items()
    }
    files.write_bytes(root / FOLDER / "leakage.png", _drawn(chosen, root))


def _drawn(chosen: dict[Key, Attempt], root: Path) -> bytes:
    """A PNG: a column for each kind of attack; the client's image, the reconstruction, the class's mean."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from pipeline.data.pictures import DPI, STYLE

    label, target = load_paper(PAPER, root).label, io.BytesIO()
    width, height = LEFT + len(chosen) * (SIDE + GAP), ABOVE + 3 * (SIDE + GAP)
    with rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        for i, name in enumerate(("client's image", "reconstruction", "class mean\nof the others")):
            place = (LEFT - 8) / width, 1 - (ABOVE + (i + 0.5) * (SIDE + GAP)) / height
            figure.text(*place, name, ha="right", va="center")
        for j, (key, one) in enumerate(chosen.items()):
            left = LEFT + j * (SIDE + GAP)
            words = f"{label(key.method)}\n{key.sent.replace(' ', chr(10))}\n{key.images}"
            figure.text((left + SIDE / 2) / width, 1 - 4 / height, words, ha="center", va="top")
            for i, image in enumerate(one.shown):
                bottom = height - ABOVE - (i + 1) * (SIDE + GAP)
                axes = figure.add_axes((left / width, bottom / height, SIDE / width, SIDE / height))
                axes.imshow(image.numpy(), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
                axes.set_axis_off()
        figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None})
    return target.getvalue()


# -- rounding ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise:
    """rows: (cell, accuracy per setting, their deviations from the cell's mean, largest difference), the
    largest first; two: standard deviation of the difference of two numbers, pooled over cells."""

    settings: list[str]
    axis: Axis
    rows: list[tuple[str, list[float | None], list[float], float]]
    two: float

    @property
    def median(self) -> float:
        return median(span for *_, span in self.rows)


def noise(studies: dict[str, Study], root: Path = ROOT) -> Noise | None:
    """None without the file, or where no cell was run under two settings."""
    cells, rows = {cell: runs for cell, runs in read_noise(root).items() if len(runs) > 1}, []
    pooled = replicates([*runs.values()] for runs in cells.values())
    if pooled is None:
        return None
    settings = list(dict.fromkeys(setting for runs in cells.values() for setting in runs))
    for cell, runs in cells.items():
        name, numbers = f"{studies[cell.paper].name}: {studies[cell.paper].label(cell.method)}", runs.values()
        moves = [number - fmean(numbers) for number in numbers]
        rows.append((name, [*map(runs.get, settings)], moves, max(numbers) - min(numbers)))
    reach = max(abs(move) for _, _, moves, _ in rows for move in moves) or 1.0
    rows.sort(key=lambda row: -row[3])
    return Noise(settings, Axis.over([-reach, reach]), rows, pooled[0] * math.sqrt(2))


def read_noise(root: Path = ROOT) -> dict[Cell, dict[str, float]]:
    """{cell: {setting: accuracy}} in the order of the file, empty without it; ParamError names the line that
    is wrong."""
    path = root / "reports" / "noise.csv"
    if not path.exists():
        return {}
    cells: dict[Cell, dict[str, float]] = {}
    for line, row in files.read_csv(path, NOISE):
        try:
            cell, accuracy = Cell.parse(row["cell"]), float(row["accuracy"])
            Experiment.of(cell, root)
        except (ValueError, ParamError) as error:
            raise ParamError(f"{shorten(path)}:{line}: {error}") from None
        if row["setting"] in cells.setdefault(cell, {}) or not 0 <= accuracy <= 100:
            what = f"{row['cell']} under {row['setting']!r}"
            raise ParamError(f"{shorten(path)}:{line}: {what}: given twice, or not a percentage")
        cells[cell][row["setting"]] = accuracy
    return cells
