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

    @classmethod
    def of(cls, cell: Cell, root: Path) -> "Tuning":
        document, results = choices.read(cell, root), of_tuning(cell, root)
        pair = {one: results.get(one) for one in (choices.published(cell, root), choices.tuned(cell, root))}
        before, after = (
            summarise(one["measures"][one["headline"]]) if one else None for one in pair.values()
        )
        if len({tuple(one["seeds"]) for one in pair.values() if one}) > 1:
            # One is from before a change of the seeds.
            after = None
        older = any(one and not provenance.current(one, Experiment.of(at, root)) for at, one in pair.items())
        values, chosen = document["configurations"], document["configurations"][document["chosen"]]
        return cls(cell, before, after, not chosen["changes"], choices.means(values), older)

    @property
    def change(self) -> float | None:
        return self.after.mean - self.before.mean if self.before and self.after else None

    @property
    def file(self) -> str:
        """What was tried, from the repository's root."""
        return choices.path(self.cell, Path()).as_posix()


class TuningTab:
    """A scenario's methods on one axis: name -> tuning, the best afterwards first.

    name    of the paper's method; scenario: empty for the miniature
    best    the name that leads before tuning, None where nothing of it has run
    """

    def __init__(self, study: Study, scenario: str, several: list[Tuning], labels: dict[str, str]):
        self.key, self.name = f"{study.key}-{scenario or 'mini'}", study.name
        self.title = study.title(scenario) if scenario else "miniature"
        self.label = f"{study.name}, {self.title.partition(', ')[0]}"
        self.axis = Axis.of_summaries([n for one in several for n in (one.before, one.after) if n])
        order = sorted(several, key=lambda one: -one.after.mean if one.after else 0)
        self.rows = {labels[study.paper.algorithm(one.cell.method)]: one for one in order}
        before = {name: one.before.mean for name, one in self.rows.items() if one.before}
        self.best = max(before, key=before.__getitem__, default=None)


def tunings(root: Path = ROOT) -> tuple[list[Tuning], list[str]]:
    """Every method that was tuned, in the order of the paths, and a line for each file that was altered."""
    done, problems = [], []
    for cell in choices.tuned_cells(root):
        try:
            done.append(Tuning.of(cell, root))
        except FedReproError as error:
            problems.append(str(error))
    return done, problems


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
        means = {name: (name, "mean") for name in SCORES}
        groups = table.groupby(["round", "method", "sent", "size", "target"])
        scores = groups.agg(**means, above=("above", "sum"), attempts=("above", "size"))
        known = {score.Index: score for score in scores.itertuples()}
        rounds = table["round"].unique().tolist()
        order = sorted(
            {kind[1:] for kind in known},
            key=lambda kind: (*kind[:2], kind[3] == "class mean", len(kind[2]), kind[2]),
        )
        rows = [
            (
                (studies[PAPER].label(kind[0]), *kind[1:3], TARGETS[kind[3]]),
                [known.get((n, *kind)) for n in rounds],
            )
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
