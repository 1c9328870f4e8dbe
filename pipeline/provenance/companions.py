"""Check the files next to the results: tables of clients, representations and sources.yaml.

`fedrepro status` and `fedrepro check` print the `problems` of each paper. Pandas is not loaded.
"""

import csv
import dataclasses
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.cells import plausible
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.errors import DAMAGED, FedReproError
from pipeline.provenance import identity
from pipeline.schema import Cell, shorten, visible
from pipeline.schema.loader import overlay

# The first columns of clients.csv; those of the classes follow.
HEADER = ("client", "domain", "train", "test")
# Bytes that the arrays of one archive of representations may unpack to: FedRepro never writes more.
LARGEST_ARRAYS = 8 * 2**30
# At most so many cells are named in a line.
NAMED = 3


def problems(key: str, results: Mapping[Cell, Result], root: Path) -> Iterator[str]:
    """A line for each file of a paper that is damaged or does not fit the results.

    key      of the paper
    results  of all papers; one that cannot be read is empty
    root     folder of the repository
    """
    for path in visible(root, f"papers/{key}/runs/*/clients.csv"):
        scenario = path.parts[-2]
        of_scenario = {
            cell: result for cell, result in results.items() if (cell.paper, cell.scenario) == (key, scenario)
        }
        yield from _error(check_clients, path, of_scenario)
    for path in sorted((root / "papers" / key).glob("representations/*/*.npz")):
        yield from _error(check_archive, path)
    yield from sources(key, results, root)


def _error(check: Callable[..., None], *arguments: object) -> Iterator[str]:
    """The error of a check, if there is one."""
    try:
        check(*arguments)
    except FedReproError as error:
        yield str(error)


def check_clients(path: Path, results: Mapping[Cell, Result]) -> None:
    """Check that clients.csv is a table of clients, and that of its scenario's results.

    path     of the table
    results  of the scenario's cells; one that cannot be read is empty

    Raises FedReproError if it is not.
    """
    again = "run the stage of its partition again"
    try:
        with open(path, encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        if tuple(header[: len(HEADER)]) != HEADER or not rows:
            raise ValueError("not a table of clients")
        # For each client: training images, test images, then training images of each class.
        counts = [[int(count) for count in row[2:]] for row in rows]
        if any(len(row) != len(header) for row in rows) or any(min(row) < 0 for row in counts):
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
    for cell, result in results.items():
        if not result:  # it cannot be read: `status` and `check` say so themselves
            continue
        holdings = result.get("holdings")
        held = holdings["images"] if holdings else None
        # Clients that come after the last round are in the table and hold nothing in the result.
        late = any(name.startswith("unseen.") for name in result["final"])
        if not held or late:
            continue
        held_by_first_seed = held[0]
        in_table = [train for train, *_ in counts]
        if len(held_by_first_seed) != len(in_table) or not all(
            map(plausible.is_held, held_by_first_seed, in_table)
        ):
            raise FedReproError(f"{shorten(path)}: not the clients on which {cell} was trained; {again}")
        last = {name: by_seed[0] for name, by_seed in result["final"].items()}
        kind = plausible.kind_of(result["measures"])
        # An accuracy of another kind is over other images than a client's own test images.
        own = clients if kind == "clients" else dataclasses.replace(clients, tests=())
        accuracies = result["clients"][0]
        if "sample" in result:
            # Which clients are drawn is left to `fedrepro check`, which loads torch.
            known = [accuracy is not None for accuracy in accuracies]
            if sum(known) != result["sample"]:
                wrong = f"{sum(known)} clients have an accuracy, {result['sample']} are scored"
                raise FedReproError(f"{shorten(path)}: not what {cell} has of these clients: {wrong}")
            tests = [count if scored else 0 for count, scored in zip(own.tests, known)]
            own = dataclasses.replace(own, tests=tests)
        wrong = plausible.of_clients_last(last, accuracies, kind, own)
        if wrong:
            raise FedReproError(f"{shorten(path)}: not what {cell} has of these clients: {wrong}")


def check_archive(path: Path) -> None:
    """Check that representations are an archive that does not unpack to more than LARGEST_ARRAYS.

    Raises FedReproError if they are not. Nothing is unpacked.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(file.file_size for file in archive.infolist())
    except DAMAGED as problem:
        raise FedReproError(f"{shorten(path)}: cannot be read ({problem}); run the cell again") from None
    if size > LARGEST_ARRAYS:
        raise FedReproError(f"{shorten(path)}: unpacks to more than {LARGEST_ARRAYS >> 30} GiB")


def sources(key: str, results: Mapping[Cell, Result], root: Path) -> Iterator[str]:
    """A line if sources.yaml does not have the digests that today's code, results and stamps give.

    DVC would then train cells that are current, or not train cells that are stale. Nothing is said of a paper
    whose values params.yaml changes.

    key      of the paper
    results  of all papers; one that cannot be read is empty
    root     folder of the repository
    """
    if overlay(key, root):
        return
    noted = identity.noted(key, root)
    wrong: list[str] = []
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
