"""Draw papers/rahfl/figures/corruptions.png: one bundled photograph under all corruptions and severities."""
import io
from pathlib import Path

from pipeline import files
from pipeline.data.corruptions.weather import find_ice
from pipeline.report.contact_sheet import bundled_image, contact_sheet
from pipeline.schema import ROOT
from stages._stage import stage

TARGET = Path("papers/rahfl/figures/corruptions.png")


def draw() -> None:
    """Draw 15 columns (corruptions) by 5 rows (severities)."""
    picture = io.BytesIO()
    contact_sheet(bundled_image(), picture)
    files.write_bytes(ROOT / TARGET, picture.getvalue())
    print(f"{TARGET}: frost from {find_ice().source}")


if __name__ == "__main__":
    stage(draw)
