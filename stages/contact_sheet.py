"""Draw papers/<paper>/figures/corruptions.png: one bundled photograph under all corruptions and
severities."""

import io

from pipeline import files
from pipeline.data.corruptions.weather import find_ice
from pipeline.data.pictures import bundled_image, contact_sheet
from pipeline.schema import ROOT, load_paper
from stages._stage import stage


def draw(paper: str) -> None:
    """Draw 15 columns (corruptions) by 5 rows (severities)."""
    load_paper(paper)
    target, picture = f"papers/{paper}/figures/corruptions.png", io.BytesIO()
    contact_sheet(bundled_image(), picture)
    files.write_bytes(ROOT / target, picture.getvalue())
    print(f"{target}: frost from {find_ice().source}")


if __name__ == "__main__":
    stage(draw, "paper")
