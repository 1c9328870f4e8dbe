"""How well clients' images can be reconstructed from what they send, for the page "Across papers".

`benchmarks/studies/leakage_stage.py` attacks what methods send in a miniature, and writes the files that this
module reads. A reconstruction is scored by its structural similarity (SSIM) with the client's image, and
compared with two guesses that need no attack: a random image, and the mean image of the class.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.data.pictures import size
from pipeline.data.reading import reading
from pipeline.report.comparison import Axis
from pipeline.report.study import Study
from pipeline.schema import ROOT

# The paper whose miniature is attacked: its methods send gradients, models and class means.
ATTACKED = "fedcrl"
# Where the study writes its files, from the root.
FOLDER = Path("reports", "leakage")
# Columns with the SSIM of the reconstruction, of a random image, and of the mean image of the class.
SCORES = ("ssim", "random", "mean")
# What a reconstruction is compared with -> in the words of the page.
TARGETS = {"batch": "the batch", "nearest": "nearest image", "class mean": "mean image"}
# Images of a class from which on their number is given as "10 or more".
MANY_IMAGES = 10


@dataclass(frozen=True)
class Leakage:
    """Attempts to reconstruct images.

    rounds   in which they were attacked
    axis     of SSIM
    rows     ((method, what was sent, number of images, compared with), scores by round). The scores of a
             round are the mean SSIM of the reconstruction (`ssim`), of the random image (`random`) and of the
             class mean (`mean`), and how many of the `attempts` are closer than both guesses (`above`); None
             for a round without attempts
    picture  (width, height) of leakage.png in pixels; None: there is none
    """

    rounds: list[int]
    axis: Axis
    rows: list[tuple[tuple[str, ...], list[Any]]]
    picture: tuple[int, int] | None

    @property
    def against_images(self) -> dict[str, list[tuple[str, list[Any]]]]:
        """What was sent -> (number of images, scores by round), of reconstructions that are compared with
        images and not with their mean."""
        groups: dict[str, list[tuple[str, list[Any]]]] = {}
        for (method, sent, images, target), scores in self.rows:
            if target != TARGETS["class mean"]:
                groups.setdefault(f"{method}, {sent}", []).append((images, scores))
        return groups

    def more(self, number: int) -> tuple[int, int]:
        """(number of kinds of attack of which most attempts are closer than both guesses, number of all
        kinds) in a round.

        number  of the round, one of `rounds`
        """
        place = self.rounds.index(number)
        scores = []
        for rows in self.against_images.values():
            scores += [by_round[place] for _, by_round in rows if by_round[place]]
        closer = sum(score.above > score.attempts / 2 for score in scores)
        return closer, len(scores)


def leakage(studies: dict[str, Study], root: Path = ROOT) -> Leakage | None:
    """Read what the study wrote.

    studies  paper -> its results, for the labels of methods
    root     folder of the repository

    Returns None if the study has not run. Raises ParamError for a malformed leakage.csv.
    """
    path = root / FOLDER / "leakage.csv"
    if not path.exists() or ATTACKED not in studies:
        return None
    with reading(path):
        table = pd.read_csv(path)
        guess = table[["random", "mean"]].max(axis=1)
        words = [*map(images_in_words, table["images"], table["target"])]
        table = table.assign(above=table["ssim"] > guess, size=words)
        # The mean of one image is that image.
        table = table[(table["size"] != "1") | (table["target"] != "class mean")]

        means = {name: (name, "mean") for name in SCORES}
        groups = table.groupby(["round", "method", "sent", "size", "target"])
        scores = groups.agg(**means, above=("above", "sum"), attempts=("above", "size"))
        known = {score.Index: score for score in scores.itertuples()}
        rounds = table["round"].unique().tolist()
        rows: list[tuple[tuple[str, ...], list[Any]]] = []
        for kind in sorted({index[1:] for index in known}, key=_order):
            method, sent, images, target = kind
            heads = (studies[ATTACKED].label(method), sent, images, TARGETS[target])
            rows.append((heads, [known.get((number, *kind)) for number in rounds]))
    picture_path = path.with_suffix(".png")
    picture = size(picture_path, "dvc repro reports/leakage/dvc.yaml") if picture_path.exists() else None
    return Leakage(rounds, Axis.over([0, 1]), rows, picture)


def _order(kind: tuple[str, str, str, str]) -> tuple:
    """A key to sort kinds of attack by: method, what was sent, compared with images or their mean, number of
    images."""
    method, sent, images, target = kind
    # `10 or more` comes behind `2 to 9`.
    return method, sent, target == "class mean", len(images), images


def images_in_words(images: int, target: str) -> str:
    """The number of images that were attacked together: that of a batch; roughly that of a class.

    images  their number
    target  what a reconstruction is compared with, a key of TARGETS
    """
    if target == "batch" or images == 1:
        return str(images)
    return "2 to 9" if images < MANY_IMAGES else "10 or more"
