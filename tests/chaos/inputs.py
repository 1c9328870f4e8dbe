"""What is read is changed at random, and whatever reads it is called: parameters, papers, data, partitions,
what seeds leave, results, tunings, marks of jobs, what a cluster's worker sends. Wrong is anything but one
line of refusal or, where a change may mean something (a parameter, a printed number), pages that show it: a
traceback, ten seconds of computing without an end, an altered number that is taken as it stands, a file
written outside.

Readers run in forks of a process that has imported all of them, so that a change costs no imports.
"""

import contextlib
import gc
import hashlib
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import traceback
from collections.abc import Callable
from functools import _lru_cache_wrapper, cache
from pathlib import Path
from typing import Any, NamedTuple

import mutate
import numpy as np
import project
import torch

from pipeline import locks
from pipeline.cells import choices, stamps
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import verify
from pipeline.clusters.cluster import Mark
from pipeline.clusters.node import Keeper
from pipeline.commands import bring, status, sync
from pipeline.data import listed, partition, store
from pipeline.engine.state import pack
from pipeline.errors import FedReproError
from pipeline.provenance import identity
from pipeline.report import geometry
from pipeline.report.writing import render
from pipeline.schema import Cell, load_paper, load_params
from pipeline.schema.documents import check_files
from pipeline.sealing import seal
from pipeline.training.checkpoint import SeedFiles, fingerprint
from pipeline.training.progress import event
from pipeline.training.trainer import plan

CELL = Cell("tiny", "mini", "fedavg")
CPU = torch.device("cpu")
CHANGES = 50  # of one repository
SECONDS = 10  # of computing
VISITOR = "reproduction/visitor"  # a paper's folder that is imported
MARKUP = "<img src=x>"  # of mutate.TEXTS


class Kind(NamedTuple):
    """Files of a pattern, and the readers that take them.

    free: a change may be accepted, since the file is the user's to write
    sealed: half of the changes are sealed again, and may then be accepted
    """

    pattern: str
    readers: tuple[str, ...]
    free: bool = False
    sealed: bool = False


KINDS = [
    Kind("params.yaml", ("parameters", "pages"), free=True),
    Kind("papers/*/paper.yaml", ("parameters", "status", "pages"), free=True),
    Kind("papers/*/published/*.csv", ("status", "pages"), free=True),
    Kind("papers/*/claims.csv", ("status", "pages"), free=True),
    Kind("papers/*/representations/mini/*.npz", ("points",), free=True),
    Kind("reports/processors.csv", ("pages",), free=True),
    Kind("papers/*/verified.yaml", ("status", "pages"), free=True, sealed=True),
    Kind("papers/*/runs/mini/fedavg/result.json", ("status", "pages"), sealed=True),
    Kind("papers/*/runs/mini/fedavg/history.csv", ("status", "pages"), free=True),
    Kind("tuned/papers/tiny/tuning/mini/*.json", ("tuning",), sealed=True),
    Kind("papers/tiny/partitions/mini/**/*.*", ("data",)),
    Kind("data/digits/*.npy", ("data",)),
    Kind("data/digits/meta.json", ("data",), sealed=True),
    Kind(".cells/*/seed-*.json", ("seeds",), sealed=True),
    Kind(".cells/*/seed-*.npz", ("seeds",)),
    Kind(".cells/*/seed-*.pt", ("checkpoints",)),
    Kind(".cells/*/error.json", ("status",), free=True),
    Kind("papers/*/runs/mini/clients.csv", ("status", "pages"), free=True),
    Kind("papers/*/sources.yaml", ("status", "pages"), free=True),
    Kind("papers/tiny/params.yaml", ("parameters", "status", "pages"), free=True),
    Kind("papers/*/dvc.lock", ("locks", "status"), free=True),
    Kind("reproduction/clients.csv", ("listed",), free=True),
    Kind(".cells/jobs/*.json", ("jobs",), free=True),
    Kind(".cells/logs/*.events", ("jobs",), free=True),
]


def changes(folder: Path, draw: random.Random, expected: dict[str, str]) -> tuple[int, str]:
    """(changes, what was wrong with the first that was)."""
    _prepare(folder)
    whole = _read(folder, READERS)  # what code a cell has is read here, once for all changes
    if not isinstance(whole, dict) or None in whole.values():
        return 0, f"without any change: {whole}"
    around, _ = sorted(folder.parent.iterdir()), _remembering()
    for number in range(1, CHANGES + 1):
        acts = (_change, _import, _write_through_a_mapping, _plant, _send)
        act = draw.choices(acts, (77, 8, 5, 5, 5))[0]
        what, wrong = act(folder, draw, whole)
        if sorted(folder.parent.iterdir()) != around or list(folder.glob("PWNED*")):
            wrong = wrong or "a file outside, or a command that was run"
        if wrong:
            return number, f"{what}: {wrong}"
    return CHANGES, ""


def _prepare(folder: Path) -> None:
    """What a plain run does not leave: a stranger's paper with its result, a tuning, marks of jobs."""
    _foreign_paper(folder, folder / "papers/stranger")
    _foreign_paper(folder, folder / VISITOR)
    (folder / "reproduction/clients.csv").write_text("client,part,index\n0,train,0\n1,train,7\n0,test,9\n")
    rounds = load_paper("tiny", folder).scenarios["mini"].training.rounds
    overlay = f"settings: {{mini: {{training: {{rounds: {rounds}}}}}}}\n"
    (folder / "papers/tiny/params.yaml").write_text(overlay)
    one = {"changes": {}, "values": {}, "accuracy": [50.0, 60.0], "seconds": [1.0, 2.0], "digest": "d"}
    tuning = {"cell": str(CELL), "seeds": [0, 1], "chosen": 0, "configurations": [one, one]}
    mark = {"cell": str(CELL), "title": "slurm", "id": "1", "name": "n", "digests": {"x": {"0": "d"}}}
    round_ = {"cell": str(CELL), "seed": 0, "round": 1, "rounds": 3, "accuracy": 50.0, "left": 1.5}
    claim = "A,high,table=1|setting=label skew|dataset=Digits|column=Acc.|method=FedAvg,,>=50,Table 1,\n"
    header = "id,claim,left,right,expected,where,slip\n"
    (folder / "papers/tiny/claims.csv").write_text(header + claim)
    cell = next(folder.glob(".cells/*/seed-0.json")).parent
    error = {"cell": str(CELL), "error": "x", "precision": "fp32", "executor": "sequential"}
    state = pack({"weights": torch.arange(6.0)})
    SeedFiles(cell, 7).save({"state": state, "rows": [{"round": 0}], "own": [50.0], "seconds": 1.0})
    for name, document in {
        "tuned/papers/tiny/tuning/mini/fedavg.json": seal(tuning),
        ".cells/jobs/x.json": mark,
        ".cells/logs/x.events": round_,
        f"{cell.relative_to(folder)}/error.json": error,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(document) + "\n")


def _foreign_paper(folder: Path, paper: Path) -> None:
    """A copy of the paper with its result under another name."""
    shutil.copytree(folder / "papers/tiny", paper, ignore=shutil.ignore_patterns("partitions"))
    for path in (*paper.glob("published/*.csv"), paper / "verified.yaml"):
        path.write_text(path.read_text().replace("tiny", paper.name))
    path = paper / "runs/mini/fedavg/result.json"
    result = json.loads(path.read_text())
    changed = result | {"cell": f"{paper.name}/mini/fedavg", "paper": paper.name}
    path.write_text(json.dumps(seal({key: value for key, value in changed.items() if key != "self"})))


# -- changes -------------------------------------------------------------------------------------------------


def _change(folder: Path, draw: random.Random, whole: dict) -> tuple[str, str]:
    """One file in another form."""
    kind = draw.choice(KINDS)
    path = draw.choice(sorted(folder.glob(kind.pattern)))
    content = path.read_bytes()
    sealed = kind.sealed and draw.random() < 0.5
    changed = _changed(path, content, draw, seal if sealed else None)
    with _instead(path, changed):
        answer = _in_a_child(folder, {name: READERS[name] for name in kind.readers})
        for aside in folder.glob(".cells/*/*.damaged"):
            aside.rename(aside.with_suffix(""))
    at = max(len(os.path.commonprefix([content, changed])) - 40, 0)
    what = f"{path.relative_to(folder)} changed{' and sealed' * sealed}: {changed[at : at + 99]!r}"
    if isinstance(answer, str):
        return what, answer
    numbers = [name for name in kind.readers if name != "status"]  # which says that a cell is to run again
    taken = [name for name in numbers if answer[name] not in (whole[name], None)]
    return what, "" if kind.free or sealed or changed == content else ", ".join(taken)


def _import(folder: Path, draw: random.Random, whole: dict) -> tuple[str, str]:
    """One file of another group's paper in another form, then the paper is imported."""
    ours = [kind for kind in KINDS if kind.pattern.startswith("papers/*/")]
    found = {kind: sorted((folder / VISITOR).glob(kind.pattern.removeprefix("papers/*/"))) for kind in ours}
    kind = draw.choice([kind for kind in ours if found[kind]])
    path = draw.choice(found[kind])
    content = path.read_bytes()
    sealed = kind.sealed and draw.random() < 0.5
    changed = _changed(path, content, draw, seal if sealed else None)
    with _instead(path, changed):
        answer = _in_a_child(folder, {"imported": _imported})
    what = f"{path.relative_to(folder)} changed{' and sealed' * sealed}, imported"
    if isinstance(answer, str):
        return what, answer
    left = [*folder.glob("papers/.import*"), *folder.glob("papers/visitor*")]
    numbers = path.name in ("result.json", "history.csv") and not sealed and changed != content
    taken = "taken" if numbers and answer["imported"] is not None else ""
    return what, f"{left[0].name} is left" if left else taken


def _write_through_a_mapping(folder: Path, draw: random.Random, whole: dict) -> tuple[str, str]:
    """Numbers of an array written where it is mapped, after it was read once, its times as before."""
    path = draw.choice(sorted(folder.glob("data/digits/*.npy")))
    content, stat = path.read_bytes(), path.stat()
    with _instead(path, content):

        def act(folder: Path) -> None:
            before = _data(folder)
            mapped = np.load(path, mmap_mode="r+").reshape(-1)
            place = draw.randrange(len(mapped))
            mapped[place] = mapped[place] ^ 1
            mapped.flush()
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            try:
                after = _data(folder)
            except FedReproError:
                return
            if after != before:
                raise AssertionError("altered numbers were taken")

        answer = _in_a_child(folder, {"mapping": act})
    return f"{path.relative_to(folder)} written through a mapping", answer if isinstance(answer, str) else ""


def _plant(folder: Path, draw: random.Random, whole: dict) -> tuple[str, str]:
    """What no paper's folder may hold: a further dvc.yaml, a link that leads out, a pipe, a device."""
    papers = folder / "papers/stranger"
    path = draw.choice([papers, papers / "methods", papers / "a/b", folder / ".cells/x"]) / draw.choice("xyz")
    path.parent.mkdir(parents=True, exist_ok=True)
    what = draw.choice(["dvc.yaml", "link", "pipe", "device"])
    if what == "dvc.yaml" and folder / "papers" in path.parents:
        path = path.with_name(draw.choice(["dvc.yaml", "x.dvc"]) if path.parent != papers else "x.dvc")
        path.write_text("stages: {x: {cmd: touch PWNED}}\n")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if what == "device" else draw.choice(["/tmp", "../" * 9 + "etc"]))
    answer = _in_a_child(folder, {"refused": _checked})
    path.unlink()
    taken = answer if isinstance(answer, str) else "" if answer["refused"] is None else "taken"
    return f"{path.relative_to(folder)} planted ({what})", taken


def _send(folder: Path, draw: random.Random, whole: dict) -> tuple[str, str]:
    """Names and lines that a worker of a cluster may send."""
    name = draw.choice([*mutate.NAMES, "a/seed-0.json", "../x", "/tmp/x", "a/../../x", "logs/x"])

    def act(folder: Path) -> None:
        keeper = Keeper(str(folder))
        with contextlib.suppress(ValueError):
            keeper.save(name, b"x")
        with contextlib.suppress(ValueError, OSError):
            keeper.tell(str(folder / ".cells/logs" / name), b"x")
        with contextlib.suppress(ValueError):
            keeper.begin("x", "y", [name])

    answer = _in_a_child(folder, {"keeper": act})
    shutil.rmtree(folder / ".cells/a", ignore_errors=True)  # what it may save
    return f"a worker sends {name!r}", answer if isinstance(answer, str) else ""


@contextlib.contextmanager
def _instead(path: Path, changed: bytes):
    """The file with another content; a file from DVC's cache may be linked, and stays as it is."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        path.write_bytes(content)


def _changed(path: Path, content: bytes, draw: random.Random, seal: Callable | None) -> bytes:
    if path.suffix == ".json" and (seal or draw.random() < 0.6):
        return mutate.altered_json(content, draw, seal)
    if draw.random() < 0.4:
        return mutate.damaged(content, draw)
    if path.suffix == ".yaml":
        return mutate.altered_yaml(content, draw)
    if path.suffix == ".events":
        return mutate.altered_json(content, draw) + b"\n"
    return mutate.altered_csv(content, draw) if path.suffix == ".csv" else mutate.damaged(content, draw)


# -- readers -------------------------------------------------------------------------------------------------


def _in_a_child(folder: Path, readers: dict[str, Callable]) -> dict[str, str | None] | str:
    """What is read, in a separate process: {reader: digest of it}, None where it was refused; or what went
    wrong."""

    def call() -> dict[str, str | None] | str:
        for one in _remembering():
            one.cache_clear()
        return _read(folder, readers)

    return in_a_child(call)


def in_a_child(call: Callable[[], Any]) -> Any:
    """What a call in a separate process returns, or a text: how the process ended without returning."""
    receiver, sender = os.pipe()
    if not (child := os.fork()):
        os.close(receiver)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        answer = call()
        with os.fdopen(sender, "wb") as file:
            pickle.dump(answer, file)
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as file:
        content = file.read()
    _, exit_status = os.waitpid(child, 0)
    if os.WIFSIGNALED(exit_status):
        name = signal.Signals(os.WTERMSIG(exit_status)).name
        return f"no end after {SECONDS} seconds" if name == "SIGXCPU" else f"ended by {name}"
    return pickle.loads(content) if content else "ended without a word"  # of our process


@cache
def _remembering() -> list[_lru_cache_wrapper]:
    """Functions that remember what files held; digests of code stay, since no change is of code."""
    code = (identity._code, identity._aside)
    known = [one for one in gc.get_objects() if type(one) is _lru_cache_wrapper and one not in code]
    return [one for one in known if one.__module__.startswith("pipeline")]


def _read(folder: Path, readers: dict[str, Callable]) -> dict[str, str | None] | str:
    os.environ.pop("FEDREPRO_MIRROR", None)
    try:
        return {what: _refusable(read, folder) for what, read in readers.items()}
    except Exception:  # noqa: BLE001  # what is looked for here
        return " ".join(traceback.format_exc().split())[-600:]


def _refusable(read: Callable, folder: Path) -> Any:
    try:
        content = read(folder)
        return content and hashlib.sha256(repr(content).encode()).hexdigest()
    except FedReproError as error:
        if "\n" in str(error):
            raise ValueError(f"a refusal of several lines: {error}") from None
        return None


def _parameters(folder: Path) -> str:
    sync.written(folder)
    return repr((load_params(folder), load_paper("tiny", folder)))


def _data(folder: Path) -> list[bytes]:
    verify(Experiment.of(CELL, folder))
    stored = store.verify(folder / "data/digits")
    parts, meta = partition.verify(folder / "papers/tiny/partitions/mini")
    arrays = partition.to_arrays(parts)
    used = {key: stored.meta.get(key) for key in (*store.KINDS, "official_split")}
    return [
        repr((meta, used)).encode(),
        stored.images.tobytes(),
        stored.labels.tobytes(),
        stored.split.tobytes(),
        *(arrays[name].tobytes() for name in sorted(arrays)),
    ]


def _checked(folder: Path) -> list[Path]:
    """As every command begins."""
    check_files(folder / ".cells")
    return sync.sync(folder, check=True)


def _seeds(folder: Path) -> list | None:
    """The finished seeds, and the result that is made of them."""
    runs = [
        SeedFiles(path.parent, int(path.stem.removeprefix("seed-"))).run()
        for path in sorted(folder.glob(".cells/*/seed-*.json"))
    ]
    if None in runs or not runs:
        return None
    result = plan(Experiment.of(CELL, folder)).result()
    return [runs, {key: value for key, value in result.items() if key not in project.VOLATILE}]


def _checkpoints(folder: Path) -> list | None:
    paths = sorted(folder.glob(".cells/*/seed-*.pt"))
    saved = [SeedFiles(path.parent, int(path.stem.removeprefix("seed-"))).resume(CPU) for path in paths]
    return None if None in saved or not saved else [fingerprint(one) for one in saved]


def _pages(folder: Path) -> str:
    stamps.read("tiny", folder)
    render(root=folder)
    for page in folder.glob("reports/*.*"):
        if MARKUP in page.read_text(encoding="utf-8", errors="replace").replace(f"`{MARKUP}`", ""):
            raise ValueError(f"{page.name}: {MARKUP}")
    return (folder / "reports" / "measured.csv").read_text()


def _status(folder: Path) -> str:
    with contextlib.redirect_stdout(text := io.StringIO()):
        status.status(["tiny", "stranger"], root=folder)
    return text.getvalue()


def _tuning(folder: Path) -> dict:
    return choices.read(CELL, folder / "tuned")


def _locks(folder: Path) -> str:
    return repr([locks.damage(path.read_bytes()) for path in sorted(folder.glob("papers/*/dvc.lock"))])


def _listed(folder: Path) -> str:
    return repr(listed.read(folder / "reproduction/clients.csv"))


def _imported(folder: Path) -> str:
    """That a paper from outside is taken; it goes away again."""
    with contextlib.redirect_stdout(text := io.StringIO()):
        bring.bring(str(folder / VISITOR), None, folder)
    shutil.rmtree(folder / "papers" / Path(VISITOR).name)
    sync.sync(folder)
    return text.getvalue()


def _jobs(folder: Path) -> str:
    marks = [Mark.read(path) for path in sorted(folder.glob(".cells/jobs/*.json"))]
    lines = [line for path in folder.glob(".cells/logs/*.events") for line in path.read_bytes().split(b"\n")]
    return repr((marks, list(map(event, lines))))


READERS = {
    "parameters": _parameters,
    "data": _data,
    "seeds": _seeds,
    "checkpoints": _checkpoints,
    "pages": _pages,
    "status": _status,
    "tuning": _tuning,
    "points": lambda folder: geometry.compute("sphere", CELL, folder).to_csv(),
    "jobs": _jobs,
    "locks": _locks,
    "listed": _listed,
}
