"""`fedrepro partition`, `fedrepro export partition`: show, import or export which client has which images."""

import csv
import io
import math
from pathlib import Path

import numpy as np

from pipeline import files
from pipeline.commands import run
from pipeline.commands.options import wrapped
from pipeline.data import histogram, partition, splits, store
from pipeline.data.listed import as_csv
from pipeline.data.parts import Parts
from pipeline.errors import FedReproError
from pipeline.schema import ROOT, Cell, find_scenario, shorten

# Signs for no, few, more and most images of a class.
BUBBLES = " ·•●"
# Bars of a histogram, from no image to the most.
BARS = " ▁▂▃▄▅▆▇█"


def table(what: str, root: Path = ROOT) -> int:
    """Print the images of each client and a histogram of its classes; returns the exit code.

    It reads the table in git, so that no data are needed.

    what  paper/scenario, or a cell of it
    root  folder of the repository

    Raises FedReproError if there is no table yet.
    """
    paper, name, _ = find_scenario("/".join(what.split("/")[:2]), root)
    path = Cell(paper, Cell(paper, name, "").partition, "x").folder(root).with_name("clients.csv")
    if not path.is_file():
        raise FedReproError(f"{shorten(path)}: not there yet: `fedrepro run {paper}/{name}`")
    print("\n".join(histograms(path)))
    return 0


def histograms(path: Path) -> list[str]:
    """The lines of `table`: for each client a bar for each class, whose height is the share of the largest.

    path  of a clients.csv
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    classes = [name for name in rows[0] if name not in histogram.OURS]
    counts = [[int(row[name]) for name in classes] for row in rows]
    domains = {row["domain"] for row in rows}
    names = [f"{row['client']} ({row['domain']})" if len(domains) > 1 else row["client"] for row in rows]
    width = max(len("client"), *map(len, names))
    most = max(1, *map(max, counts))
    lines = [f"{'client':<{width}}  training  test  classes  training images of each class"]
    for name, row, held in zip(names, rows, counts):
        bars = "".join(BARS[math.ceil(count / most * (len(BARS) - 1))] for count in held)
        present = sum(count > 0 for count in held)
        lines.append(f"{name:<{width}}  {row['train']:>8}  {row['test']:>4}  {present:>7}  {bars}")
    listed = ", ".join(classes)
    lines += wrapped(
        f"Classes from left to right: {listed}. {BARS[-1]} is {most:,} images, a gap none.", 2, 100
    )
    return lines


def show(what: str, seed: int | None) -> int:
    """Print how many images of each class each client trains on: the fuller the sign, the more.

    what  paper/scenario
    seed  whose partition is shown; None: the first

    Returns the exit code.
    """
    parts, stored = _stored(what, seed)
    counts = histogram.label_counts(parts, stored.labels, stored.meta["classes"])
    classes = list(counts.columns[len(histogram.OURS) :])
    table = counts[classes].to_numpy()
    width = max(map(len, counts["client"].astype(str)))
    levels = np.ceil(table / max(1, table.max()) * (len(BUBBLES) - 1)).astype(int)
    for (_, row), bubbles in zip(counts.iterrows(), levels):
        drawn = " ".join(BUBBLES[level] for level in bubbles)
        print(f"{row['client']!s:>{width}}  {drawn}  {row['train']:>6,} + {row['test']:,}")
    print(f"Clients by class ({', '.join(classes[:3])}, ...), training + test images; ● {table.max():,}")
    for warning in parts.warnings:
        print(warning)
    return 0


def export(what: str, folder: str, seed: int | None, form: str = "csv") -> int:
    """Write the clients of a scenario into a folder; returns the exit code.

    what    paper/scenario
    folder  where to write
    seed    whose partition is written; None: the first
    form    `csv` for clients.csv and clients.npz (train.<client>, test.<client>), indices into the arrays of
            data/<set>; `flower` for flower.json, flower-test.json; `pfllib` for the files of PFLlib
    """
    parts, stored = _stored(what, seed)
    target = Path(folder)
    if form == "flower":
        names, both_parts = splits.write_flower(
            parts.train, parts.client_test, stored, target / "flower.json"
        )
        end = ", then in its test part" if both_parts else ""
        print(f"{folder}: {', '.join(names)}; positions in the training part of {stored.meta['set']}{end}")
        return 0
    if form == "pfllib":
        splits.write_pfllib(parts.train, parts.client_test, stored, target)
        print(f"{folder}: config.json, train/ and test/; copy it to PFLlib's dataset/{stored.meta['set']}")
        return 0
    arrays = {f"train.{client}": indices for client, indices in enumerate(parts.train)}
    arrays |= {f"test.{client}": indices for client, indices in enumerate(parts.client_test)}
    files.write_text(target / "clients.csv", as_csv(parts.train, parts.client_test))
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]  # none is `allow_pickle`
    files.write_bytes(target / "clients.npz", content.getvalue())
    print(f"{folder}: clients.csv, clients.npz; indices into data/{stored.meta['set']}/images.npy")
    return 0


def import_split(source: str, what: str) -> int:
    """Write the split of another library as papers/<paper>/splits/<scenario>.csv, and print the lines of
    paper.yaml by which the scenario takes it.

    source  the file or folder of the other library
    what    paper/scenario

    Returns the exit code. Raises FedReproError if the split does not fit the scenario's data set.
    """
    paper, name, scenario = find_scenario(what)
    stored = store.verify(ROOT / "data" / scenario.data.set)
    train, test = splits.read(Path(source), stored)
    everything = np.concatenate([*train, *test])
    if len(np.unique(everything)) < len(everything) or everything.max(initial=0) >= len(stored):
        raise FedReproError(f"{source}: an image twice, or none of data/{scenario.data.set}")
    path = ROOT / "papers" / paper / "splits" / f"{name}.csv"
    files.write_text(path, as_csv(train, test))
    print(f"{shorten(path)}: written, {len(train)} clients, {len(everything)} images. In the scenario:")
    print(f"  partition: {{kind: listed, clients: {len(train)}, file: {shorten(path)},")
    print(f"              sha256: {files.sha256(path)}}}")
    return 0


def _stored(what: str, seed: int | None) -> tuple[Parts, store.Stored]:
    """The partition that a seed trains on, and the data set into which it has indices; both are verified.

    seed  None: the first of the scenario

    If the scenario has no partition here, as in a fresh clone, its stage makes it first.
    """
    paper, name, scenario = find_scenario(what)
    cell = Cell(paper, name, "")
    folder = ROOT / "papers" / paper / "partitions" / cell.partition
    run.bring_partition(cell)
    draw = scenario.draw(scenario.seeds[0] if seed is None else seed)
    parts, meta = partition.verify(partition.folder_of_draw(folder, draw))
    return parts, store.verify(ROOT / "data" / meta["data"]["set"])
