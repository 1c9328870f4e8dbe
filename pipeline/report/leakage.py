"""What a server can reconstruct of clients' images, for the page "Across papers".

`benchmarks/studies/leakage_stage.py` attacks what methods send in a miniature, and writes the files that this
module reads.
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
FOLDER = Path("reports", "leakage")
# Structural similarity (SSIM) with the client's image: of the reconstruction, of a random image, and of the
# mean image of the class.
SCORES = ("ssim", "random", "mean")
# What a reconstruction is compared with, in the words of the page.
TARGETS = {"batch": "the batch", "nearest": "nearest image", "class mean": "mean image"}


@dataclass(frozen=True)
class Leakage:
    """Attempts to reconstruct images.

    rounds   in which they were attacked
    axis     of SSIM
    rows     (method, what was sent, images, compared with), and for every round the mean SSIM of
             reconstruction (ssim), random image and class mean, and how many of the attempts are closer than
             both (above); None for a round without attempts
    picture  width and height of leakage.png in pixels; None without it
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
        place = self.rounds.index(number)
        scores = []
        for rows in self.against_images.values():
            scores += [by_round[place] for _, by_round in rows if by_round[place]]
        return sum(score.above > score.attempts / 2 for score in scores), len(scores)


def leakage(studies: dict[str, Study], root: Path = ROOT) -> Leakage | None:
    """Of reports/leakage/; None where the stage has not run. ParamError for a malformed leakage.csv."""
    path = root / FOLDER / "leakage.csv"
    if not path.exists() or ATTACKED not in studies:
        return None
    with reading(path):
        table = pd.read_csv(path)
        guess = table[["random", "mean"]].max(axis=1)
        words = [*map(images_in_words, table["images"], table["target"])]
        table = table.assign(above=table["ssim"] > guess, size=words)
        # Of one image the mean is that image.
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
    """To sort attacks by: method, what was sent, what it is compared with, number of images."""
    method, sent, images, target = kind
    # `10 or more` comes behind `2 to 9`.
    return method, sent, target == "class mean", len(images), images


def images_in_words(images: int, target: str) -> str:
    """The size of a batch; of a class roughly its number of images."""
    if target == "batch" or images == 1:
        return str(images)
    return "2 to 9" if images < 10 else "10 or more"
