"""Reconstruct images from what clients send, and write reports/leakage/ (see the dvc.yaml there)."""

import io
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

import pandas as pd

from pipeline import arithmetic, files
from pipeline.cells.results import as_csv
from pipeline.report.leakage import ATTACKED, FOLDER, SCORES, images_in_words
from pipeline.schema import MINIATURE, ROOT, load_paper
from stages._stage import stage

if TYPE_CHECKING:
    from benchmarks.studies.leakage import Attempt

COLUMNS = ["method", "sent", "seed", "round", "client", "images", "target", *SCORES]


def main() -> None:
    """Attack what methods send in FedCRL's miniature, and write reports/leakage/."""
    arithmetic.adopt(load_paper(ATTACKED).scenarios[MINIATURE].arithmetic)  # before torch is imported
    from benchmarks.studies.leakage import measure

    write(measure())


def write(attempts: "list[Attempt]", root: Path = ROOT) -> None:
    """leakage.csv, and of every kind of attack of the first round the one of median success in
    leakage.png."""
    rows = (
        [f"{value:.4f}" if name in SCORES else value for name in COLUMNS for value in [getattr(one, name)]]
        for one in attempts
    )
    files.write_text(root / FOLDER / "leakage.csv", as_csv(pd.DataFrame(rows, columns=COLUMNS)))
    kinds: dict[tuple[str, str, str], list[Attempt]] = {}
    for one in attempts:
        if one.round == 1 and one.target != "class mean":
            kinds.setdefault((one.method, one.sent, images_in_words(one.images, one.target)), []).append(one)
    order = sorted(kinds, key=lambda kind: (*kind[:2], len(kind[2]), kind[2]))
    chosen = [
        (kind, next(one for one in kinds[kind] if one.ssim == median_low(one.ssim for one in kinds[kind])))
        for kind in order
    ]
    files.write_bytes(root / FOLDER / "leakage.png", _drawn(chosen, root))


def _drawn(chosen: "list[tuple[tuple[str, str, str], Attempt]]", root: Path) -> bytes:
    """A PNG: a column for each kind of attack; the client's image, the reconstruction, the class's mean."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from pipeline.data.pictures import DPI, STYLE

    label, target = load_paper(ATTACKED, root).label, io.BytesIO()
    with rc_context(STYLE | {"font.size": 8}):
        size = (110 + 72 * len(chosen)) / DPI, 280 / DPI
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        grid = figure.subplots(3, len(chosen), squeeze=False)
        for column, ((method, sent, images), one) in zip(grid.T, chosen, strict=True):
            column[0].set_title("\n".join([label(method), *sent.split(), images]), fontsize=8)
            for axes, image in zip(column, one.shown, strict=True):
                axes.imshow(image.numpy(), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
                axes.set(xticks=[], yticks=[])
        for axes, words in zip(grid[:, 0], ("client's image", "reconstruction", "class mean\nof the others")):
            axes.set_ylabel(words, rotation=0, ha="right", va="center")
        figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None})
    return target.getvalue()


if __name__ == "__main__":
    stage(main)
