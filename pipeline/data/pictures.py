"""Pictures of images, for inspection by eye: a photograph under all corruptions, where a wrong direction or
scale is obvious, and examples of every domain of a scenario (FCCL+ Fig. 5)."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_sample_image

from pipeline.data import store
from pipeline.data.corruptions import KINDS, SEVERITIES, corrupt
from pipeline.data.corruptions.tools import SIDE
from pipeline.data.corruptions.weather import find_ice
from pipeline.errors import FedReproError
from pipeline.files import write_bytes
from pipeline.schema import ROOT, Scenario, shorten

FROST = "Frost"  # a text of the PNG: where the photographs of ice come from
DPI = 100
STYLE: dict[Any, Any] = {"font.family": "DejaVu Sans", "font.size": 10.5, "text.color": "#24303c"}
CELL, GAP = 3 * SIDE, 6  # pixels, as all below
LEFT, ABOVE, BELOW = 136, 46, 30
SQUARE = (150, 0, 570, 420)  # of the photograph: the flower and what is around it
EXAMPLE, MARGIN, MOST_CLASSES = 64, 120, 10


def size_and_text(path: Path, command: str) -> tuple[tuple[int, int], dict]:
    """(width and height in pixels, texts) of a picture; FedReproError, with the command that draws it, for a
    broken one."""
    try:
        with Image.open(path) as image:
            image.load()
            return image.size, image.info
    except (OSError, SyntaxError) as error:  # Pillow calls a broken PNG a SyntaxError
        raise FedReproError(f"{shorten(path)}: not a picture: {error}; run `{command}` again") from None


# -- corruptions ---------------------------------------------------------------------------------------------


def bundled_image() -> np.ndarray:
    """uint8 (32, 32, 3): a square of scikit-learn's photograph of a flower, made smaller."""
    photo = Image.fromarray(load_sample_image("flower.jpg"))
    return np.asarray(photo.resize((SIDE, SIDE), Image.Resampling.LANCZOS, box=SQUARE))


def variants(image: np.ndarray, seed: int = 0) -> np.ndarray:
    """uint8 (5, 15, 32, 32, 3): all corruptions of one image, severities 1 to 5, with the same key at every
    severity."""
    levels = range(1, SEVERITIES + 1)
    return np.stack(
        [np.concatenate([corrupt(image[None], name, level, seed) for name in KINDS]) for level in levels]
    )


def contact_sheet(image: np.ndarray, target: Any, seed: int = 0) -> None:
    """Write a PNG to `target`, a path or a binary file: a column per corruption, a row per severity, the
    clean image at the left."""
    height, width = ABOVE + SEVERITIES * (CELL + GAP) + BELOW, LEFT + len(KINDS) * (CELL + GAP)
    page = np.full((height, width, 3), 255, np.uint8)
    for row, images in enumerate(variants(image, seed)):
        for column, changed in enumerate(images):
            _paste(page, changed, *_corner(row, column))
    middle = _corner(SEVERITIES // 2, 0)[0]
    _paste(page, image, middle, 0)
    with rc_context(STYLE):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(page, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        for column, name in enumerate(KINDS):
            place, words = (_corner(0, column)[1] + CELL / 2, ABOVE - 8), name.replace("_", "\n")
            axes.text(*place, words, ha="center", va="bottom", linespacing=1.05)
        for row in range(SEVERITIES):
            axes.text(LEFT - 12, _corner(row, 0)[0] + CELL / 2, str(row + 1), ha="right", va="center")
        axes.text(LEFT - 12, ABOVE - 8, "severity", ha="right", va="bottom")
        axes.text(CELL / 2, middle - 8, "clean", ha="center", va="bottom")
        axes.text(LEFT, height - 10, f"frost: {find_ice().source}", va="bottom", fontsize=8.5)
        figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None, FROST: find_ice().source})


def _corner(row: int, column: int) -> tuple[int, int]:
    return ABOVE + row * (CELL + GAP), LEFT + column * (CELL + GAP)


def _paste(page: np.ndarray, image: np.ndarray, top: int, left: int) -> None:
    page[top : top + CELL, left : left + CELL] = image.repeat(CELL // SIDE, 0).repeat(CELL // SIDE, 1)


# -- examples ------------------------------------------------------------------------------------------------


def examples_path(key: str, figure: str, scenario: str, root: Path = ROOT) -> Path:
    """papers/<paper>/figures/<figure>-<scenario>.png."""
    return root / "papers" / key / "figures" / f"{figure}-{scenario}.png"


def write_examples(path: Path, scenario: Scenario, root: Path = ROOT) -> Path:
    """Draw and store the first training image of every class of every domain, a row per domain. DataError
    where the data are not there."""
    stored = store.read(root / "data" / scenario.data.set)
    domains, classes = stored.meta["domains"], range(len(stored.meta["classes"]))
    named, step = scenario.data.domains or dict(zip(domains, domains)), EXAMPLE + GAP
    width, height = MARGIN + MOST_CLASSES * step, len(named) * step
    with rc_context(STYLE):
        figure, drawn = Figure((width / DPI, height / DPI), dpi=DPI), io.BytesIO()
        for i, (name, domain) in enumerate(named.items()):
            middle = 1 - (i + 0.5) * step / height
            figure.text((MARGIN - 12) / width, middle, name, ha="right", va="center")
            here = (stored.domains == domains.index(domain)) & (stored.split == store.TRAIN)
            of_class = [np.flatnonzero(here & (stored.labels == label)) for label in classes]
            for j, at in enumerate([rows[0] for rows in of_class if len(rows)][:MOST_CLASSES]):
                corner = (MARGIN + j * step) / width, (height - (i + 1) * step) / height
                axes = figure.add_axes((*corner, EXAMPLE / width, EXAMPLE / height))
                image = stored.images[at].squeeze()
                axes.imshow(image, interpolation="nearest", cmap="gray", vmin=0, vmax=255)
                axes.set_axis_off()
        figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, drawn.getvalue())
    return path
