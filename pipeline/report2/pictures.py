"""Image files that another stage has drawn and that a page shows unchanged."""
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from pipeline.errors import FedReproError
from pipeline.schema import ROOT, shorten

FROST = "Frost"  # the PNG's own text: where the photographs of ice come from


@dataclass(frozen=True)
class Picture:
    """An image file and its text alternative."""
    path: str                                         # from reports/
    alt: str
    caption: str
    size: tuple[int, int]                             # pixels

    @property
    def inside(self) -> str:
        """From the repository's root."""
        return self.path.removeprefix("../")


def corruptions(key: str, root: Path = ROOT) -> Picture | None:
    """papers/<paper>/figures/corruptions.png, None where the paper has none; FedReproError for a file that is
    no picture."""
    path = Path("papers", key, "figures", "corruptions.png")
    if not (root / path).exists():
        return None
    size, info = _opened(root / path, "fedrepro run contact_sheet")
    frost = info.get(FROST, "")
    source = (
        f"The frost comes from {frost}."
        if frost
        else "Where the frost comes from stands in the picture, below its columns."
    )
    return Picture(
        f"../{path.as_posix()}",
        "One photograph of a flower under each of 15 corruptions, a column each, at severities 1 to 5 from "
        "top to bottom; "
        "the clean one at the left",
        "The corruptions that the clients' images suffer, on a photograph of scikit-learn's at 32 × 32 "
        "pixels: a column per "
        f"corruption, a row per severity. {source}",
        size,
    )


def examples_path(key: str, figure: str, scenario: str, root: Path = ROOT) -> Path:
    """papers/<paper>/figures/<figure>-<scenario>.png."""
    return root / "papers" / key / "figures" / f"{figure}-{scenario}.png"


def examples_of(key: str, figure: str, scenario: str, what: str, root: Path = ROOT) -> Picture | None:
    """Example images of every domain, None where none are kept; FedReproError for a file that is no
    picture."""
    path = examples_path(key, figure, scenario, root)
    if not path.exists():
        return None
    size, _ = _opened(path, f"python -m stages.figures {key}")
    return Picture(
        f"../{path.relative_to(root).as_posix()}",
        f"Example images of {what}, a row per domain, a column per class",
        f"Images of {what}: the first training image of every class, ten classes at most; a row per domain.",
        size,
    )


def leaked(root: Path = ROOT) -> Picture | None:
    """reports/leakage/leakage.png, None without it; FedReproError for a file that is no picture."""
    path = root / "reports" / "leakage" / "leakage.png"
    if not path.exists():
        return None
    size, _ = _opened(path, "dvc repro reports/leakage/dvc.yaml")
    return Picture(
        "leakage/leakage.png",
        "Images of clients, what the attacks make of them, and the mean image of the class over the others",
        "A column for each kind of attack of the first round, of its attempts the one of median success: an "
        "image of the client, the reconstruction, and the class's mean image over the other clients, which "
        "needs no attack.",
        size,
    )


def _opened(path: Path, command: str) -> tuple[tuple[int, int], dict]:
    """(size in pixels, texts) of a picture."""
    try:
        with Image.open(path) as image:
            image.load()
            return image.size, image.info
    except (OSError, SyntaxError) as error:           # Pillow calls a broken PNG a SyntaxError
        raise FedReproError(f"{shorten(path)}: not a picture: {error}; run `{command}` again") from None
