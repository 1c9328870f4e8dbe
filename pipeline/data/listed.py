"""Read and write a partition as a CSV with one line per image: client, training or test, image index."""

import csv
import io
from pathlib import Path

import numpy as np

from pipeline import files
from pipeline.data.parts import Parts, Pool
from pipeline.errors import ParamError
from pipeline.schema import ROOT, shorten
from pipeline.schema.partitions import Listed

COLUMNS = ["client", "part", "index"]
PARTS = ("train", "test")


def listed(settings: Listed, pool: Pool, draw: int, where: str) -> Parts:
    """The clients of the file; without rows of the part `test` each has the official test images."""
    path = ROOT / settings.file
    if not path.is_file():
        raise ParamError(f"{where}.file: {settings.file}: no such file")
    if files.sha256(path) != settings.sha256:
        raise ParamError(f"{where}.sha256: not that of {settings.file}; the file was altered")
    train, test = read(path)
    if len(train) != settings.clients:
        raise ParamError(f"{where}.clients: {settings.clients}, {settings.file} lists {len(train)}")
    domain = pool.names[0] if len(pool.names) == 1 else "all"
    if any(map(len, test)):
        tests = {domain: np.sort(np.concatenate(test))}
    else:
        test = [np.flatnonzero((pool.domains >= 0) & pool.test)] * settings.clients
        tests = {name: pool.of_domain(i, test=True) for i, name in enumerate(pool.names)}
    return Parts([(name, domain) for name in settings.names], train, test, tests)


def read(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every client's training and test indices, in the order of first rows; ParamError names the line."""
    clients: dict[str, dict[str, list[int]]] = {}
    for line, row in files.read_csv(path, COLUMNS):
        if row["part"] not in PARTS or not row["index"].isdecimal():
            raise ParamError(f"{shorten(path)}:{line}: expected train or test, and a whole number")
        parts = clients.setdefault(row["client"], {part: [] for part in PARTS})
        parts[row["part"]].append(int(row["index"]))
    train, test = ([np.array(one[part], np.int64) for one in clients.values()] for part in PARTS)
    return train, test


def as_csv(train: list[np.ndarray], test: list[np.ndarray]) -> str:
    """The content of such a file; clients are numbered."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part, each in zip(PARTS, (train, test)):
        writer.writerows((client, part, index) for client, held in enumerate(each) for index in held.tolist())
    return text.getvalue()
