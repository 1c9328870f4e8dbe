"""Example images of every domain of a scenario (FCCL+ Fig. 5), kept as one small picture that any clone can
show."""
import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from pipeline import files
from pipeline.data import store
from pipeline.report2.contact_sheet import DPI, STYLE
from pipeline.schema import ROOT, Scenario

SIDE, GAP, LEFT = 64, 6, 120                          # pixels of the page
MOST = 10                                             # classes shown


def write(path: Path, scenario: Scenario, root: Path = ROOT) -> Path:
    """Draw and keep the first training image of every class of every domain, a row per domain. DataError
    where the data are not there."""
    stored = store.read(root / "data" / scenario.data.set)
    domains = stored.meta["domains"]
    names = scenario.data.domains or dict(zip(domains, domains))
    rows = {name: _first_of_each_class(stored, domains.index(domain)) for name, domain in names.items()}
    width, height = (LEFT + MOST * (SIDE + GAP)), len(rows) * (SIDE + GAP)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        for i, (name, images) in enumerate(rows.items()):
            middle = 1 - (i + 0.5) * (SIDE + GAP) / height
            figure.text((LEFT - 12) / width, middle, name, ha="right", va="center")
            for j, image in enumerate(images):
                left, bottom = LEFT + j * (SIDE + GAP), height - (i + 1) * (SIDE + GAP)
                axes = figure.add_axes((left / width, bottom / height, SIDE / width, SIDE / height))
                axes.imshow(image.squeeze(), interpolation="nearest", cmap="gray", vmin=0, vmax=255)
                axes.set_axis_off()
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    files.write_bytes(path, drawn.getvalue())
    return path


def _first_of_each_class(stored: store.Stored, domain: int) -> list[np.ndarray]:
    here = (stored.domains == domain) & (stored.split == store.TRAIN)
    found = [np.flatnonzero(here & (stored.labels == label)) for label in range(len(stored.meta["classes"]))]
    return [stored.images[at[0]] for at in found if len(at)][:MOST]
