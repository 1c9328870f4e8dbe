"""A file that is read is changed at random, and everything is read: parameters, the paper, data, partition,
what seeds keep, results, pages. Wrong is anything but one line of refusal or, where a change is allowed to
mean something (a parameter, a printed number), pages that show it: a traceback, ten seconds of computing
without an end, an altered number in data, partition, result or kept seed that is taken as it stands."""

import os
import pickle
import random
import resource
import signal
import traceback
from pathlib import Path

import mutate

from pipeline.cells import stamps
from pipeline.cells.checkpoint import SeedFiles
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import verify
from pipeline.data import partition, store
from pipeline.errors import FedReproError
from pipeline.report import render
from pipeline.schema import Cell, load_paper, load_params

CELL = Cell("tiny", "mini", "fedavg")
CHANGES = 25  # of one repository
SECONDS = 10  # of computing
# What may change without being refused: it is the user's to write.
OURS = ("params.yaml", "paper.yaml", "verified.yaml", "table1.csv", "claims.csv", "history.csv")
FILES = (
    "params.yaml papers/tiny/verified.yaml papers/tiny/paper.yaml papers/tiny/published/*.csv "
    "papers/tiny/claims.csv papers/tiny/runs/mini/fedavg/* papers/tiny/partitions/mini/* data/digits/* "
    ".cells/*/seed-*"
).split()


def changes(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(changes, what was wrong with the first that was)."""
    actual = [path for pattern in FILES for path in sorted(folder.glob(pattern)) if path.is_file()]
    whole = _in_a_child(folder)
    if not isinstance(whole, dict):
        return 0, f"without any change: {whole}"
    for number in range(1, CHANGES + 1):
        path = draw.choice(actual)
        content = path.read_bytes()
        changed = _changed(path, content, draw)
        path.unlink()  # a file from DVC's cache may be linked
        path.write_bytes(changed)
        answer = _in_a_child(folder)
        for aside in folder.glob(".cells/*/*.damaged"):
            aside.rename(aside.with_suffix(""))
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        if isinstance(answer, dict) and (path.name in OURS or changed == content):
            continue
        wrong = answer
        if isinstance(answer, dict):
            wrong = ", ".join(name for name in whole if answer.get(name) not in (whole[name], None))
        if wrong:
            saved = folder.parent / f"changed-{number}-{path.name}"
            saved.write_bytes(changed)
            return number, f"{path.relative_to(folder)} changed: {wrong} ({len(changed)} bytes)"
    return CHANGES, ""


def _changed(path: Path, content: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.4:
        return mutate.damaged(content, draw)
    if path.suffix == ".yaml":
        return mutate.altered_yaml(content, draw)
    if path.suffix == ".json":
        return mutate.altered_json(content, draw)
    return mutate.altered_csv(content, draw) if path.suffix == ".csv" else mutate.damaged(content, draw)


def _in_a_child(folder: Path) -> dict[str, object] | str:
    """What is read, in another process: {what: content}, None where refused; or what went wrong."""
    receiver, sender = os.pipe()
    if not (child := os.fork()):
        os.close(receiver)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        with os.fdopen(sender, "wb") as file:
            pickle.dump(_read(folder), file)
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        content = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"no end after {SECONDS} seconds" if name == "SIGXCPU" else f"ended by {name}"
    return pickle.loads(content) if content else "ended without a word"  # of this process


def _read(folder: Path) -> dict[str, object] | str:
    os.environ.pop("FEDREPRO_MIRROR", None)
    try:
        return {what: _refusable(read, folder) for what, read in READERS.items()}
    except Exception:  # noqa: BLE001  # what is looked for here
        return " ".join(traceback.format_exc().split())[-600:]


def _refusable(read, folder: Path) -> object:
    try:
        return read(folder)
    except FedReproError as error:
        if "\n" in str(error):
            raise ValueError(f"a refusal of several lines: {error}") from None
        return None


def _parameters(folder: Path) -> str:
    return repr((load_params(folder), load_paper("tiny", folder)))


def _data(folder: Path) -> list[bytes]:
    verify(Experiment.of(CELL, folder))
    stored = store.verify(folder / "data/digits")
    parts, _ = partition.verify(folder / "papers/tiny/partitions/mini")
    arrays = partition.to_arrays(parts)
    every = [stored.images, stored.labels, stored.split, *(arrays[name] for name in sorted(arrays))]
    return [array.tobytes() for array in every]


def _kept(folder: Path) -> list | None:
    actual = [
        SeedFiles(path.parent, int(path.stem.removeprefix("seed-"))).run()
        for path in sorted(folder.glob(".cells/*/seed-*.json"))
    ]
    return None if None in actual or not actual else actual


def _pages(folder: Path) -> str:
    stamps.read("tiny", folder)
    render(root=folder)
    return (folder / "reports" / "measured.csv").read_text()


READERS = {"parameters": _parameters, "data": _data, "kept seeds": _kept, "results": _pages}
