"""Draw example images of every domain of a scenario (FCCL+ Fig. 5), and read the size of a stored image."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from pipeline.data import store
from pipeline.errors import FedReproError
from pipeline.files import write_bytes
from pipeline.schema import ROOT, Scenario, shorten

DPI = 100
STYLE: dict[Any, Any] = {"font.family": "DejaVu Sans", "font.size": 10.5, "text.color": "#24303c"}
GAP = 6  # pixels, as all below
EXAMPLE, MARGIN, MOST_CLASSES = 64, 120, 10


def size(path: Path, command: str) -> tuple[int, int]:
    """(width, height) of a picture; FedReproError, with the command that draws it, for a broken one."""
    try:
        with Image.open(path) as image:
            image.load()
            return image.size
    except (OSError, SyntaxError) as error:  # Pillow calls a broken PNG a SyntaxError
        raise FedReproError(f"{shorten(path)}: not a picture: {error}; run `{command}` again") from None


def examples_path(key: str, figure: str, scenario: str, root: Path = ROOT) -> Path:
    """papers/<paper>/figures/<figure>-<scenario>.png."""
    return root / "papers" / key / "figures" / f"{figure}-{scenario}.png"


def write_examples(path: Path, scenario: Scenario, root: Path = ROOT) -> Path:
    """Draw the first training image of every class, a row per domain. DataError without the data."""
    stored = store.verify(root / "data" / scenario.data.set)
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
