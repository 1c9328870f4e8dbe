"""Additional experiments for the page across papers: equal tuning, image leakage, rounding of processors."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells import choices
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import of_tuning, read, summarise
from pipeline.data.pictures import size
from pipeline.data.reading import reading
from pipeline.errors import FedReproError
from pipeline.provenance import identity
from pipeline.report.alike import Alike, compared, result_file
from pipeline.report.comparison import Axis, sums_up
from pipeline.report.measures import draws
from pipeline.report.study import SHORT, Study
from pipeline.report.words import counted
from pipeline.schema import MINIATURES, ROOT, Cell
from pipeline.schema.discovery import CEILING

# Of the attacks: the paper whose miniature is attacked, and the files.
PAPER, FOLDER = "fedcrl", Path("reports", "leakage")
SCORES = ("ssim", "random", "mean")
TARGETS = {"batch": "the batch", "nearest": "nearest image", "class mean": "mean image"}


# -- equal tuning --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """One method of a scenario.

    before, after   with the row's values and with the chosen ones: accuracy by seed, in percent on test
                    images; empty where the cell has not run
    same            whether the chosen values are the row's
    configurations  validation accuracy of each, the row's first; None: diverged
    older           whether either result is of other code or parameters than today's
    files           the two results, from the repository's root; empty where there is none
    measure         what `before` and `after` are
    hook            side of local training on which `after` is scored: `pre` or `post`; empty where both sides
                    have the same numbers
    """

    cell: Cell
    before: dict[int, float]
    after: dict[int, float]
    same: bool
    configurations: list[float | None]
    older: bool = False
    files: tuple[str, str] = ("", "")
    measure: str = ""
    hook: str = ""

    @classmethod
    def of(cls, cell: Cell, root: Path, measure: str = "") -> "Tuning":
        """From the files of a tuning.

        measure  in which the methods are compared; empty: each result's main one
        """
        document, results = choices.read(cell, root), of_tuning(cell, root)
        tuned, untuned = choices.tuned(cell, root), choices.published(cell, root)
        after, before = results.get(tuned), results.get(untuned)
        if before is None and after is not None:
            # The scenario's own cell will do where its seeds have the tuning's partitions.
            untuned, before = cell, _of_cell(cell, root)
        known = {untuned: before, tuned: after}
        older = any(one and not identity.current(one, Experiment.of(at, root)) for at, one in known.items())
        values, chosen = document["configurations"], document["configurations"][document["chosen"]]
        measure = measure or (after or before or {"headline": ""})["headline"]
        numbers = [by_block(one, measure) if one else {} for one in (before, after)]
        if all(numbers):
            # The same seed on another partition is no pair.
            numbers[0] = {
                block: value for block, value in numbers[0].items() if block[0] not in moved(*numbers)
            }
        return cls(
            cell,
            {seed: value for (seed, _), value in numbers[0].items()},
            {seed: value for (seed, _), value in numbers[1].items()},
            not chosen["changes"],
            choices.means(values),
            older,
            (result_file(untuned) if before else "", result_file(tuned) if after else ""),
            measure,
            _hook(after, measure) if after else "",
        )

    @property
    def file(self) -> str:
        """What was tried, from the repository's root."""
        return choices.path(self.cell, Path()).as_posix()

    @property
    def words(self) -> str:
        """What the choice was, where the two numbers do not tell it."""
        if self.configurations[0] is None and not self.before:
            return "diverged"
        if self.same:
            return "same values"
        return "" if self.before else "not run"


def _hook(result: dict, measure: str) -> str:
    """The side of local training on which a result is scored; empty where the other side is the same."""
    other = "pre" if result["hook"] == "post" else "post"
    measures = result["measures"]
    same = measures.get(f"{other}.{measure}") == measures.get(measure)
    return "" if same else result["hook"]


def by_block(result: dict, measure: str) -> dict[tuple[int, str], float]:
    """(seed, its partition) -> a measure of a result."""
    return dict(zip(draws(result).items(), result["measures"].get(measure, [])))


def moved(before: dict, after: dict) -> set[int]:
    """The seeds that two results have on different partitions."""
    partitions = {seed: draw for seed, draw in after}
    return {seed for seed, draw in before if seed in partitions and partitions[seed] != draw}


def _of_cell(cell: Cell, root: Path) -> dict | None:
    """The result of a scenario's cell; None where it has not run."""
    path = cell.folder(root) / "result.json"
    return read(path) if path.exists() else None


class TuningTab:
    """A scenario's methods on one axis.

    alike   the rows, the best afterwards first, over the seeds that all results have
    files   name -> what was tried
    scenario  empty: the miniature
    best    the row that leads before tuning, None where nothing of it has run
    changes of the methods that ran with both values
    """

    def __init__(self, study: Study, scenario: str, several: list[Tuning], labels: dict[str, str]):
        self.key, self.name, self.scenario = f"{study.key}-{scenario or 'mini'}", study.name, scenario
        self.title = study.title(scenario) if scenario else "miniature"
        self.label = f"{study.name}, {self.title.partition(', ')[0]}"
        self.tunings = {labels[study.paper.algorithm(one.cell.method)]: one for one in several}
        self.files = {name: one.file for name, one in self.tunings.items()}
        tried = sorted({len(one.configurations) for one in several})
        self.configurations = " or ".join(map(str, tried))
        self.alike = self._alike(study, scenario)
        self.axis = self.alike.axis
        before = {row.name: row.before.mean for row in self.alike.rows if row.before}
        self.best = max(before, key=before.__getitem__, default=None)
        self.before = before
        self.changes = [row.number.mean - row.before.mean for row in self.alike.rows if row.before]

    def _alike(self, study: Study, scenario: str) -> Alike:
        runs = {name: one.after for name, one in self.tunings.items()}
        earlier = {name: one.before for name, one in self.tunings.items() if one.before}
        shared = sorted(set[int]().union(*runs.values()).intersection(*runs.values(), *earlier.values()))
        if shared:
            runs = {name: {seed: by_seed[seed] for seed in shared} for name, by_seed in runs.items()}
            earlier = {name: {seed: by_seed[seed] for seed in shared} for name, by_seed in earlier.items()}
        rows = []
        for row in compared(runs, self.name):
            one = self.tunings[row.name]
            before = summarise([*earlier[row.name].values()]) if row.name in earlier else None
            before_file, file = one.files
            row = replace(row, before=before, words=one.words, before_file=before_file, file=file)
            chance = study.chance_level(one.cell) if scenario else 0.0
            rows.append(replace(row, chance=chance, stale=one.older))
        about = (
            f"Every method chose among {self.configurations} configurations, the paper’s values among them, "
            "by its clients’ validation images."
        )
        notes = tuple(self._notes(study, scenario, shared))
        title = f"{self.title}, tuned alike"
        return Alike(f"tuned-{scenario or 'mini'}", title, about, "tuned", "paper’s values", rows, notes)

    def _notes(self, study: Study, scenario: str, shared: list[int]) -> Iterator[str]:
        """Whose seeds were left out, and which methods were not tuned."""
        tuned = sorted(set[int]().union(*(one.after for one in self.tunings.values())))
        table = sorted(set[int]().union(*(one.before for one in self.tunings.values())))
        if shared and (tuned != shared or set(table) - set(shared)):
            yield (
                f"Tuned with {counted(len(tuned), 'seed')}, the table has {len(table)}: "
                f"shown and compared are the {len(shared)} in common."
            )
        if missing := [name for name, one in self.tunings.items() if not one.before]:
            yield f"Without a result for the paper’s values: {', '.join(missing)}."
        if scenario:
            rows = {study.label(cell.method): cell.method for cell in study.runs.get(scenario, {})}
            algorithms = {study.paper.algorithm(one.cell.method) for one in self.tunings.values()}
            others = [
                name for name, row in rows.items() if study.paper.algorithm(row) not in algorithms | {CEILING}
            ]
            if others:
                yield f"Not tuned: {', '.join(others)}."
        hooks = {one.hook for one in self.tunings.values() if one.hook}
        if len(hooks) > 1:
            later = [name for name, one in self.tunings.items() if one.hook == "post"]
            yield f"Scored after local training: {', '.join(later)}; the others before it."


def tuned_settings(study: Study) -> list[TuningTab]:
    """The paper's own scenarios in which methods were tuned, without its miniature."""
    cells = [cell for cell in choices.tuned_cells(study.root) if cell.paper == study.key]
    done, _ = tunings(study.root, {study.key: study}, [c for c in cells if c.scenario not in MINIATURES])
    labels = {study.paper.algorithm(one.cell.method): study.label(one.cell.method) for one in done}
    return tuning_tabs({study.key: study}, labels, done)


def tunings(
    root: Path = ROOT, studies: Mapping[str, Study] = {}, cells: Iterable[Cell] | None = None
) -> tuple[list[Tuning], list[str]]:
    """Every method that was tuned, in the order of the paths, and a line for each file that was altered.

    studies  papers whose tables say in which measure their scenarios are compared
    cells    those that are read; None: all
    """
    done, problems = [], []
    for cell in choices.tuned_cells(root) if cells is None else cells:
        study = studies.get(cell.paper)
        try:
            done.append(Tuning.of(cell, root, table_measure(study, cell.scenario) if study else ""))
        except FedReproError as error:
            problems.append(str(error))
    return done, problems


def table_measure(study: Study, scenario: str) -> str:
    """The average that the paper's tables have of a scenario, or of the one that it shortens; empty where no
    table has it."""
    known = scenario.removesuffix(SHORT)
    for table in study.paper.tables.values():
        if known in {block.scenario for block in table.blocks.values()}:
            for measure in table.columns.values():
                if measure and sums_up(measure):
                    return measure
    return ""


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
    """Of reports/processors.csv: cells compared on two processors, how many of them have the same numbers in
    every round, and in how many the compared setting is not today's; None without the file."""
    path = root / "reports" / "processors.csv"
    if not path.exists():
        return None
    with reading(path):
        table = pd.read_csv(path)
        makers = [re.split(r"\W", table.loc[0, at])[0] for at in ("first", "second")]
        same = int((table["different"] == 0).sum())
        earlier = int((table["setting"] == "an earlier one").sum())
        return {"cells": len(table), "same": same, "earlier": earlier, "makers": makers}
