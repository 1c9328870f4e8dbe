"""Files next to the results: tables of clients, representations and sources.yaml, read without pandas."""

import csv
import dataclasses
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.cells import plausible
from pipeline.cells.experiment import Experiment
from pipeline.errors import DAMAGED, FedReproError
from pipeline.provenance import identity
from pipeline.schema import Cell, shorten, visible
from pipeline.schema.loader import overlay

# Columns of clients.csv before those of the classes.
NAMES, COUNTS = ("client", "domain"), ("train", "test")
# Bytes that arrays of one archive unpack to at most: nothing here writes more.
LARGEST_ARRAYS = 8 * 2**30
# Cells that a line names at most.
NAMED = 3


def problems(key: str, results: Mapping[Cell, dict], root: Path) -> Iterator[str]:
    """A line for each such file of a paper that is damaged or not that of the results."""
    for path in visible(root, f"papers/{key}/runs/*/clients.csv"):
        of_scenario = {cell: one for cell, one in results.items() if cell.scenario == path.parts[-2]}
        yield from _line(check_clients, path, {c: r for c, r in of_scenario.items() if c.paper == key})
    for path in sorted((root / "papers" / key).glob("representations/*/*.npz")):
        yield from _line(check_archive, path)
    yield from sources(key, results, root)


def _line(look: Callable[..., None], *arguments: object) -> Iterator[str]:
    try:
        look(*arguments)
    except FedReproError as error:
        yield str(error)


def check_clients(path: Path, results: Mapping[Cell, dict]) -> None:
    """FedReproError where clients.csv is no table of clients, or not that of its scenario's results."""
    again = "run the stage of its partition again"
    try:
        with open(path, encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        if tuple(header[:4]) != NAMES + COUNTS or not rows:
            raise ValueError("not a table of clients")
        counts = [[int(count) for count in row[2:]] for row in rows]
        if any(len(row) != len(header) for row in rows) or any(min(each) < 0 for each in counts):
            raise ValueError("not counts of images")
    except DAMAGED as problem:
        raise FedReproError(f"{shorten(path)}: {problem}; {again}") from None
    clients = plausible.Clients(
        [name for name, *_ in rows],
        [domain for _, domain, *_ in rows],
        tests=[test for _, test, *_ in counts],
    )
    for (client, *_), (train, _, *of_classes) in zip(rows, counts, strict=True):
        if sum(of_classes) != train:
            raise FedReproError(
                f"{shorten(path)}: client {client}: {train} images, {sum(of_classes)} by class"
            )
    # One that cannot be read is empty: `status` and `check` say so themselves.
    for cell, result in results.items():
        if not result:
            continue
        held = (result.get("holdings") or {}).get("images")
        # Clients that come after the last round are in the table and hold nothing in the result.
        late = any(name.startswith("unseen.") for name in result["final"])
        if not held or late:
            continue
        dealt = [train for train, *_ in counts]
        if len(held[0]) != len(dealt) or not all(map(plausible.is_held, held[0], dealt)):
            raise FedReproError(f"{shorten(path)}: not the clients on which {cell} was trained; {again}")
        last = {name: each[0] for name, each in result["final"].items()}
        kind = plausible.kind_of(result["measures"])
        # of another kind an accuracy is over other images than a client's own
        own = clients if kind == "clients" else dataclasses.replace(clients, tests=())
        if wrong := plausible.of_clients_last(last, result["clients"][0], kind, own):
            raise FedReproError(f"{shorten(path)}: not what {cell} has of these clients: {wrong}")


def check_archive(path: Path) -> None:
    """FedReproError where representations are no archive, or unpack to more than is ever written."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(one.file_size for one in archive.infolist())
    except DAMAGED as problem:
        raise FedReproError(f"{shorten(path)}: cannot be read ({problem}); run the cell again") from None
    if size > LARGEST_ARRAYS:
        raise FedReproError(f"{shorten(path)}: unpacks to more than {LARGEST_ARRAYS >> 30} GiB")


def sources(key: str, results: Mapping[Cell, dict], root: Path) -> Iterator[str]:
    """A line where sources.yaml has other digests of measured cells than today's code, results and stamps
    give: DVC would train, or not train, what it should not. Nothing for a paper whose values params.yaml
    varies."""
    if overlay(key, root):
        return
    noted, wrong = identity.noted(key, root), list[str]()
    for cell, result in results.items():
        if cell.paper != key or not result or str(cell) not in noted:
            continue
        try:
            if noted[str(cell)] != identity.code_of(Experiment.of(cell, root), result=result):
                wrong.append(str(cell))
        except FedReproError:
            continue
    if wrong:
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        which = f"{', '.join(wrong[:NAMED])}{more}"
        yield f"papers/{key}/sources.yaml: not of today's code for {which}: python -m stages.sources {key}"
