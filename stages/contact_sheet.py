"""Draw papers/rahfl/figures/corruptions.png: one bundled photograph under all corruptions and severities."""
import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline import files
from pipeline.cli import stage
from pipeline.data.corruptions.weather import find_ice
from pipeline.params import ROOT
from pipeline.report.contact_sheet import bundled_image, contact_sheet

TARGET = Path("papers/rahfl/figures/corruptions.png")


def draw() -> None:
    """Draw 15 columns (corruptions) by 5 rows (severities)."""
    picture = io.BytesIO()
    contact_sheet(bundled_image(), picture)
    files.write_bytes(ROOT / TARGET, picture.getvalue())
    print(f"{TARGET}: frost from {find_ice().source}")


if __name__ == "__main__":
    stage(draw)
