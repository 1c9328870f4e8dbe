"""What was reconstructed of the clients' images from what methods send: reports/leakage/, which the stage
`leakage` writes (pipeline/cells/leakage.py says what the server knows)."""
from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median_low
from typing import TYPE_CHECKING, Any

from pipeline import files
from pipeline.cells.results import summarise
from pipeline.errors import ParamError
from pipeline.report.panels import Panel, Row, Value, merge_heads
from pipeline.report.pictures import Picture, leaked
from pipeline.report.study import Study
from pipeline.report.words import listed
from pipeline.schema import ROOT, load_paper, shorten

if TYPE_CHECKING:                                     # needs torch, which pages do without
    from pipeline.cells.leakage import Attempt

PAPER, FOLDER = "fedcrl", Path("reports", "leakage")
SCORES = ("ssim", "random", "mean")
COLUMNS = ["method", "sent", "seed", "round", "client", "images", "target", *SCORES]
TARGETS = {"batch": "the batch", "nearest": "nearest image", "class mean": "mean image"}
FACTS = ("reconstruction", "random image", "class mean", "above both")
LEAD = (
    "A curious server attacks what one client of FedCRL's miniature sends. Two guesses need no attack: a "
    "random image of the class from another client, and the mean image of the class over the others. In "
    "parentheses: how like the client's images (SSIM, 1: the same) the reconstructions are on average, and "
    "these mean images."
)
ABOUT = (
    "FedCCL says that its signals are “more privacy-friendly, and it is difficult to recover the raw data "
    "from them”, FedCRL that averaged representations “will not intrude privacy” and that not sending the "
    "last layers avoids reverse engineering. Here a curious server attacks what one client of FedCRL's "
    "miniature sends. Behind a gradient, of one SGD step without dropout, it looks for the batch by cosine "
    "distance and total variation (Geiping et al. 2020) and knows the labels; that of one image it infers "
    "(iDLG, Zhao et al. 2020). Behind a mean of representations it looks for an image that is represented "
    "so, by the client's own extractor where that is sent (FedCRL, FedCCL), by the initial one where not "
    "(FedProto). Either way it knows that images are enlarged scans of 8 × 8 pixels, and begins at the "
    "class's mean image over the other clients. SSIM (Wang et al. 2004) says how like the result is to the "
    "batch, or to the client's nearest image of the class and to their mean. A random image of the class "
    "from another client, and the mean image of the others, need no attack: what was sent tells more only "
    "where the result is above both. Images are counted in the batch, or in the client's whole class. "
    "Limits: the attack's steps and weight were chosen on a model of another seed but partly the same "
    "images, and its start after a look at the first seed's results, which favours it; easy images, a small "
    "network; an attack that fails proves no safety, as a stronger one may succeed; whole updates, of many "
    "steps of Adam, are not attacked, though FedCCL sends its model besides its signals, and FedCRL its "
    "features."
)
SIDE, GAP, LEFT, ABOVE = 64, 8, 110, 58               # pixels of the picture


@dataclass(frozen=True)
class Key:
    """A row of the table: what is attacked, and what the reconstruction is compared with."""
    method: str
    sent: str
    images: str
    target: str

    @classmethod
    def of(cls, row: dict[str, Any]) -> Key:
        many = int(row["images"])
        size = str(many) if row["target"] == "batch" or many == 1 else "2 to 9" if many < 10 else "10 or more"
        return cls(row["method"], row["sent"], size, row["target"])


@dataclass(frozen=True)
class Leakage:
    """What a page shows."""
    lead: str
    findings: list[str]                   # of a round each
    about: str
    panel: Panel
    picture: Picture | None


def leakage(studies: dict[str, Study], root: Path = ROOT) -> Leakage | None:
    """None where the stage has not run."""
    rounds = read(root)
    if not rounds or PAPER not in studies:
        return None
    label = studies[PAPER].label
    rows = []
    for key in dict.fromkeys(key for found in rounds.values() for key in found):
        if key.target == "class mean" and key.images == "1":
            continue                                  # which is that nearest image
        stub = [label(key.method), key.sent, key.images, TARGETS[key.target]]
        values = [value for found in rounds.values() for value in _values(found.get(key, []))]
        rows.append(Row(", ".join(stub), stub, values))
    heads = merge_heads([[f"round {number}", fact] for number in rounds for fact in FACTS])
    panel = Panel("", ["method", "sent", "images", "compared with"], heads, rows)
    findings = [_finding(number, found, label) for number, found in rounds.items()]
    return Leakage(LEAD, findings, ABOUT, panel, leaked(root))


def _values(found: list[dict]) -> list[Value]:
    if not found:
        return [Value("outside") for _ in FACTS]
    above = sum(map(_above, found))
    return [*(Value("measured", summarise([row[score] for row in found])) for score in SCORES),
            Value("text", text=f"{above} of {len(found)}", order=above / len(found))]


def _above(row: dict) -> bool:
    return row["ssim"] > max(row["random"], row["mean"])


def _finding(number: int, found: dict[Key, list[dict]], label: Callable[[str], str]) -> str:
    """From which things sent most reconstructions are nearer than what needs no attack, in words."""
    said: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    for key, rows in found.items():
        if key.target != "class mean":
            ssim, guess = (fmean(row[score] for row in rows) for score in ("ssim", "mean"))
            which = said[sum(map(_above, rows)) > len(rows) / 2]
            which.setdefault(f"{label(key.method)}'s {key.sent}", []).append(
                f"{key.images} ({ssim:.2f}, {guess:.2f})")
    told, silent = (
        "; ".join(f"{what}, images {listed(sizes)}" for what, sizes in which.items()) or "none"
        for which in said.values()
    )
    return (
        f"Round {number}: most reconstructions come closer to the client's images than both guesses from "
        f"{told}. Most do not from {silent}."
    )


def read(root: Path = ROOT) -> dict[int, dict[Key, list[dict]]]:
    """{round: {row of the table: attempts}}, empty without the file; ParamError names the line that is
    wrong."""
    path = root / FOLDER / "leakage.csv"
    if not path.exists():
        return {}
    rounds: dict[int, dict[Key, list[dict]]] = {}
    for line, row in files.read_csv(path, COLUMNS):
        try:
            scores = {score: float(row[score]) for score in SCORES}
            number, key = int(row["round"]), Key.of(row)
        except ValueError as error:
            raise ParamError(f"{shorten(path)}:{line}: {error}") from None
        if key.target not in TARGETS or not all(-1 <= score <= 1 for score in scores.values()):
            wrong = f"a target other than {listed(TARGETS)}, or a similarity outside [-1, 1]"
            raise ParamError(f"{shorten(path)}:{line}: {wrong}")
        rounds.setdefault(number, {}).setdefault(key, []).append(scores)
    return {number: dict(sorted(found.items(), key=_order)) for number, found in rounds.items()}


def _order(item: tuple[Key, list[dict]]) -> tuple:
    key = item[0]
    return key.method, key.sent, key.target == "class mean", len(key.images), key.images


def write(attempts: list[Attempt], root: Path = ROOT) -> None:
    """reports/leakage/leakage.csv, and of every kind of attack of the first round the one of median success
    in leakage.png."""
    rows = [{name: value for name, value in vars(one).items() if name != "shown"} for one in attempts]
    files.write_csv(root / FOLDER / "leakage.csv", COLUMNS, (
        [f"{row[name]:.4f}" if name in SCORES else row[name] for name in COLUMNS] for row in rows))
    kinds: dict[Key, list[Attempt]] = {}
    for one, row in zip(attempts, rows):
        if one.round == 1 and one.target != "class mean":
            kinds.setdefault(Key.of(row), []).append(one)
    files.write_bytes(root / FOLDER / "leakage.png", _drawn(
        {key: next(one for one in found if one.ssim == median_low(one.ssim for one in found))
         for key, found in kinds.items()}, root))


def _drawn(chosen: dict[Key, Attempt], root: Path) -> bytes:
    """A PNG: a column for each kind of attack; the client's image, the reconstruction, the class's mean."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from pipeline.report.contact_sheet import DPI, STYLE
    label, target = load_paper(PAPER, root).label, io.BytesIO()
    width, height = LEFT + len(chosen) * (SIDE + GAP), ABOVE + 3 * (SIDE + GAP)
    with rc_context(STYLE | {"font.size": 8}):
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        for i, name in enumerate(("client's image", "reconstruction", "class mean\nof the others")):
            figure.text((LEFT - 8) / width, 1 - (ABOVE + (i + 0.5) * (SIDE + GAP)) / height, name, ha="right",
                        va="center")
        for j, (key, one) in enumerate(chosen.items()):
            left = LEFT + j * (SIDE + GAP)
            words = f"{label(key.method)}\n{key.sent.replace(' ', chr(10))}\n{key.images}"
            figure.text((left + SIDE / 2) / width, 1 - 4 / height, words, ha="center", va="top")
            for i, image in enumerate(one.shown):
                bottom = height - ABOVE - (i + 1) * (SIDE + GAP)
                axes = figure.add_axes((left / width, bottom / height, SIDE / width, SIDE / height))
                axes.imshow(image.numpy(), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
                axes.set_axis_off()
        figure.savefig(target, format="png", dpi=DPI, metadata={"Software": None})
    return target.getvalue()
