"""One photograph under all corruptions and severities, for inspection by eye: a wrong direction or scale is
obvious there."""
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_image

from pipeline.data.corruptions import KINDS, SEVERITIES, corrupt
from pipeline.data.corruptions.tools import SIDE
from pipeline.data.corruptions.weather import find_ice
from pipeline.report2.pictures import FROST

SCALE = 3                                             # pixels of the page per pixel of an image
CELL, GAP = SIDE * SCALE, 6                           # pixels, as all below
LEFT, ABOVE, BELOW = 136, 46, 30
DPI = 100
STYLE: dict[Any, Any] = {"font.family": "DejaVu Sans", "font.size": 10.5, "text.color": "#24303c"}
SQUARE = (150, 0, 570, 420)                           # of the photograph: the flower and what is around it


def bundled_image() -> np.ndarray:
    """uint8 (32, 32, 3): a square of scikit-learn's photograph of a flower, made smaller."""
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    return np.asarray(photo.resize((SIDE, SIDE), Image.Resampling.LANCZOS, box=SQUARE))


def variants(image: np.ndarray, seed: int = 0) -> np.ndarray:
    """uint8 (5, 15, 32, 32, 3): all corruptions of one image, severities 1 to 5, with the same key at every
    severity."""
    return np.stack([np.concatenate([corrupt(image[None], name, severity, seed) for name in KINDS])
                     for severity in range(1, SEVERITIES + 1)])


def contact_sheet(image: np.ndarray, target, seed: int = 0) -> None:
    """Write a PNG to `target`, a path or a binary file: a column per corruption, a row per severity, the
    clean image at the left."""
    page = np.full(
        (ABOVE + SEVERITIES * (CELL + GAP) + BELOW, LEFT + len(KINDS) * (CELL + GAP), 3), 255, np.uint8
    )
    for row, images in enumerate(variants(image, seed)):
        for column, changed in enumerate(images):
            _paste(page, changed, *_corner(row, column))
    middle = _corner(SEVERITIES // 2, 0)[0]
    _paste(page, image, middle, 0)
    with rc_context(STYLE):
        figure = Figure(figsize=(page.shape[1] / DPI, page.shape[0] / DPI), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(page, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        for column, name in enumerate(KINDS):
            axes.text(
                _corner(0, column)[1] + CELL / 2,
                ABOVE - 8,
                name.replace("_", "\n"),
                ha="center",
                va="bottom",
                linespacing=1.05,
            )
        for row in range(SEVERITIES):
            axes.text(LEFT - 12, _corner(row, 0)[0] + CELL / 2, str(row + 1), ha="right", va="center")
        axes.text(LEFT - 12, ABOVE - 8, "severity", ha="right", va="bottom")
        axes.text(CELL / 2, middle - 8, "clean", ha="center", va="bottom")
        axes.text(LEFT, page.shape[0] - 10, f"frost: {find_ice().source}", va="bottom", fontsize=8.5)
        figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None, FROST: find_ice().source})


def _corner(row: int, column: int) -> tuple[int, int]:
    return ABOVE + row * (CELL + GAP), LEFT + column * (CELL + GAP)


def _paste(page: np.ndarray, image: np.ndarray, top: int, left: int) -> None:
    page[top:top + CELL, left:left + CELL] = image.repeat(SCALE, 0).repeat(SCALE, 1)
