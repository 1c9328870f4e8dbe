"""Additional experiments for the page across papers: equal tuning, image leakage, rounding of processors."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import choices, provenance
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import Summary, of_tuning, summarise
from pipeline.data.pictures import size
from pipeline.data.reading import reading
from pipeline.errors import FedReproError
from pipeline.report.comparison import Axis
from pipeline.report.study import Study
from pipeline.report.words import signed
from pipeline.schema import MINIATURES, ROOT, Cell

# Of the attacks: the paper whose miniature is attacked, and the files.
PAPER, FOLDER = "fedcrl", Path("reports", "leakage")
SCORES = ("ssim", "random", "mean")
TARGETS = {"batch": "the batch", "nearest": "nearest image", "class mean": "mean image"}


# -- equal tuning --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """One method of a scenario.

    before, after   percent on test images; None where the cell has not run
    same            whether the chosen values are the row's
    configurations  validation accuracy of each, the row's first; None: diverged
    older           whether either result is of other code or parameters than today's
    """

    cell: Cell
    before: Summary | None
    after: Summary | None
    same: bool
    configurations: list[float | None]
    older: bool = False

    @property
    def change(self) -> float | None:
        return self.after.mean - self.before.mean if self.before and self.after else None

    @property
    def gain(self) -> str:
        return "same values" if self.same else "" if self.change is None else signed(self.change, 1)


def tunings(root: Path = ROOT) -> tuple[list[Tuning], list[str]]:
    """Every method that was tuned, in the order of the paths, and a line for each file that was altered."""
    done, problems = [], []
    for cell in choices.tuned_cells(root):
        try:
            done.append(_tuning(cell, root))
        except FedReproError as error:
            problems.append(str(error))
    return done, problems


def _tuning(cell: Cell, root: Path) -> Tuning:
    document, results = choices.read(cell, root), of_tuning(cell, root)
    pair = [cell_of(cell, root) for cell_of in (choices.published, choices.tuned)]
    before, after = map(results.get, pair)
    if before and after and before["seeds"] != after["seeds"]:
        # One is from before a change of the seeds.
        after = None
    return Tuning(
        cell,
        _headline(before),
        _headline(after),
        not document["configurations"][document["chosen"]]["changes"],
        choices.means(document["configurations"]),
        any(
            one in results and not provenance.current(results[one], Experiment.of(one, root)) for one in pair
        ),
    )


def _headline(result: dict | None) -> Summary | None:
    return None if result is None else summarise(result["measures"][result["headline"]])


class TuningTab:
    """A scenario's methods on one axis, the best after tuning first.

    scenario    empty: the miniature
    rows        (name, whether it is the paper's, numbers, file of what was tried)
    first       who leads before tuning, None where nothing of it has run
    """

    def __init__(self, study: Study, scenario: str, several: list[Tuning], labels: dict[str, str]):
        self.key = f"{study.key}-{scenario or 'mini'}"
        self.title = study.title(scenario) if scenario else "miniature"
        self.label = f"{study.name}, {self.title.partition(', ')[0]}"
        self.axis = Axis.of_summaries([n for one in several for n in (one.before, one.after) if n])
        self.rows = []
        for one in sorted(several, key=lambda one: -one.after.mean if one.after else 0):
            name = labels[study.paper.algorithm(one.cell.method)]
            self.rows.append((name, name == study.name, one, choices.path(one.cell, Path()).as_posix()))
        before = [(name, one.before) for name, _, one, _ in self.rows if one.before]
        self.first = max(before, key=lambda pair: pair[1].mean, default=None)


def tuning_tabs(studies: dict[str, Study], labels: dict[str, str], done: Iterable[Tuning]) -> list[TuningTab]:
    """Of methods that were tuned and then trained; scenarios of the papers come before the miniatures.

    labels: algorithm -> name
    """
    groups: dict[tuple[str, str], list[Tuning]] = {}
    for one in done:
        if one.after and one.cell.paper in studies:
            scenario = "" if one.cell.scenario in MINIATURES else one.cell.scenario
            groups.setdefault((one.cell.paper, scenario), []).append(one)
    order = sorted(groups, key=lambda at: (not at[1], [*studies].index(at[0])))
    return [TuningTab(studies[key], scenario, groups[key, scenario], labels) for key, scenario in order]


# -- reconstruction ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leakage:
    """Attempts to reconstruct images.

    rows     (method, what was sent, images, compared with), and per round the mean SSIM of reconstruction
             (ssim), random image and class mean, and how many of the attempts are closer than both (above);
             None without any
    picture  width and height of leakage.png, None without it
    """

    rounds: list[int]
    axis: Axis
    rows: list[tuple[tuple[str, ...], list[Any]]]
    picture: tuple[int, int] | None

    @property
    def against_images(self) -> dict[str, list[tuple[str, list[Any]]]]:
        """Rows of the picture, which are compared with images and not with their mean: what was sent ->
        (images, a score per round)."""
        groups: dict[str, list[tuple[str, list[Any]]]] = {}
        for (method, sent, images, target), scores in self.rows:
            if target != TARGETS["class mean"]:
                groups.setdefault(f"{method}, {sent}", []).append((images, scores))
        return groups

    def more(self, number: int) -> tuple[int, int]:
        """(kinds of attack of which most come closer than both guesses, kinds) of a round."""
        at = self.rounds.index(number)
        scores = [score for rows in self.against_images.values() for _, row in rows if (score := row[at])]
        return sum(score.above > score.attempts / 2 for score in scores), len(scores)


def leakage(studies: dict[str, Study], root: Path = ROOT) -> Leakage | None:
    """None where the stage has not run."""
    path = root / FOLDER / "leakage.csv"
    if not path.exists() or PAPER not in studies:
        return None
    with reading(path):
        table = pd.read_csv(path)
        guess = table[["random", "mean"]].max(axis=1)
        table = table.assign(
            above=table["ssim"] > guess, size=[*map(images_in_words, table["images"], table["target"])]
        )
        # Of one image the mean is that image.
        table = table[(table["size"] != "1") | (table["target"] != "class mean")]
        kinds: dict[tuple[str, ...], dict[int, Any]] = {}
        means = {name: (name, "mean") for name in SCORES}
        groups = table.groupby(["round", "method", "sent", "size", "target"])
        for score in groups.agg(**means, above=("above", "sum"), attempts=("above", "size")).itertuples():
            number, *kind = score.Index
            kinds.setdefault(tuple(kind), {})[number] = score
        rounds = table["round"].unique().tolist()
        order = sorted(kinds, key=lambda kind: (*kind[:2], kind[3] == "class mean", len(kind[2]), kind[2]))
        rows = [
            ((studies[PAPER].label(kind[0]), *kind[1:3], TARGETS[kind[3]]), [*map(kinds[kind].get, rounds)])
            for kind in order
        ]
    path = path.with_suffix(".png")
    picture = size(path, "dvc repro reports/leakage/dvc.yaml") if path.exists() else None
    return Leakage(rounds, Axis.over([0, 1]), rows, picture)


def images_in_words(images: int, target: str) -> str:
    """The size of a batch; of a class roughly its number of images."""
    return str(images) if target == "batch" or images == 1 else "2 to 9" if images < 10 else "10 or more"


def processors(root: Path = ROOT) -> dict | None:
    """Of reports/processors.csv: cells compared on two processors, and how many of them have the same numbers
    in every round; None without the file."""
    path = root / "reports" / "processors.csv"
    if not path.exists():
        return None
    with reading(path):
        table = pd.read_csv(path)
        makers = [re.split(r"\W", table.loc[0, at])[0] for at in ("first", "second")]
        return {"cells": len(table), "same": int((table["different"] == 0).sum()), "makers": makers}
