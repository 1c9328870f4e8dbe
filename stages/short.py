"""Train cells cut short and print what came out, value by value: `python -m stages.short PLAN.json`. For
`fedrepro certify`.

PLAN is a list of {cell, rounds, images, batch, executor, precision}: `rounds` are the numbers of the rounds
that are trained, one after the other (1, 2 and the last two, say, so that what depends on the round runs);
`images` is the share of each client's, each test set's and the public images that is used, at least two
batches and a bit; `batch` the largest size of a batch. All else is the scenario's. For every cell one line of
JSON: {cell, code, values} or {cell, error}; `values` are [where, what, value] in the order in which they
arose, tensors by their sha256. Every version of FedRepro has this file under this name, so that two versions
can be compared.
"""
import dataclasses
import hashlib
import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import methods
from pipeline.cells import evaluation, loading, provenance, seeds
from pipeline.cells.inputs import inputs
from pipeline.cells.seeds import Job
from pipeline.engine.environment import precision
from pipeline.engine.handle import Batch
from pipeline.engine.state import pack
from pipeline.engine.trained import Watch
from pipeline.schema import ROOT, Cell

REST = 3  # images after the last whole batch, so that there is an incomplete batch too


def main(plan: Path) -> None:
    """Run the plan, every cell in a process of its own that has torch imported already."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    for part in json.loads(plan.read_text()):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_answer, args=(part, sender))
        process.start()
        sender.close()
        try:
            answer = receiver.recv()
        except EOFError:
            answer = {"error": "the process ended without an answer"}
        process.join()
        print(json.dumps({"cell": part["cell"], **answer}), flush=True)


def _answer(part: dict, sender) -> None:
    os.environ |= {
        "FEDREPRO_EXECUTOR": part["executor"],
        "FEDREPRO_PRECISION": part["precision"],
        "FEDREPRO_DEVICE": "cpu",
    }
    try:
        cell = Cell.parse(part["cell"])
        code = provenance.digest_of(cell, executor=part["executor"])
        sender.send({"code": code, "values": short(cell, part)})
    except Exception as error:                   # the caller reports it with the cell's name
        sender.send({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})


def short(cell: Cell, part: dict) -> list[list]:
    """The values of a cell that is cut short, as the module says."""
    scenario, algorithm, hyper = cell.resolve()
    method = methods.load(algorithm, hyper, str(cell), cell.paper)
    scenario = _smaller(scenario, part["batch"])
    whole = loading.load
    loading.load = lambda *arguments: _cut(whole(*arguments), scenario, part["images"])
    seed = scenario.seeds[0]
    world, tests = loading.load_world(cell, scenario, seed, ROOT)
    executor = world.executor
    found: list[list] = []
    own: list[float | None] = []
    world = world.at(0, watch := Watch(executor))
    state = method.init(world)
    rows = [seeds._row(world, method, state, tests, scenario, watch.trained)[0]]
    for number in part["rounds"]:
        world = world.at(number, watch := Watch(executor))
        state = method.round(state, world)
        row, measured = seeds._row(world, method, state, tests, scenario, watch.trained)
        if number == scenario.training.rounds:
            row |= seeds._newcomers(Job(cell, seed, "", ROOT), scenario, method, state)
        rows.append(row)
        own = measured or own
        found += [[f"round {number}", f"state {at}", digest] for at, digest in _digests(pack(state))]
    world = world.whole
    for row in rows:
        found += [[f"round {row['round']}", name, value] for name, value in row.items()]
    hook = seeds.headline_hook(scenario, method)
    run = {
        "seed": seed,
        "rows": rows,
        "clients": own,
        "traffic": method.traffic(world, state),
        "hook": hook,
        "device": "cpu",
        "precision": precision(),
        "executor": part["executor"],
        "versions": {},
        "memory": {},
        "started": "",
        "seconds": 0.0,
    }
    settings = dataclasses.replace(scenario, seeds=[seed])
    result = seeds.summarise(cell, settings, algorithm, hyper, dataclasses.asdict(method), [run],
                                [inputs(cell, seed)], "", ROOT)
    shown = ("hook", "last", "headline", "measures", "final", "last3", "last5", "clients", "traffic")
    found += [
        ["the result", at, value]
        for at, value in _flat({key: result[key] for key in shown} | {"metrics": seeds.metrics(result)})
    ]
    models = seeds._models(hook, method, state, world, watch.trained)
    vectors = method.vectors(state)
    pictures: dict[str, Any] = {} if models is None else evaluation.representations(models, world, tests)
    pictures |= {} if vectors is None else {"vectors": vectors}
    return found + [["the representations", at, digest] for at, digest in _digests(pictures)]


def _smaller(scenario, batch: int):
    """The scenario with batches of at most so many images."""
    trained = dataclasses.replace(scenario.training, batch_size=min(scenario.training.batch_size, batch))
    public = scenario.public and dataclasses.replace(
        scenario.public, batch_size=min(scenario.public.batch_size, batch)
    )
    return dataclasses.replace(scenario, training=trained, public=public)


def _cut(federation, scenario, share: float):
    """The federation with a share of every set of images."""
    batch = scenario.training.batch_size
    changed: dict[str, Any] = {name: tuple(_fewer(owner, share, batch) for owner in getattr(federation, name))
                               for name in ("clients", "tests")}
    if federation.public is not None:
        changed["public"] = _chosen(
            federation.public, _places(len(federation.public), share, scenario.public.batch_size)
        )
    for name in ("heldout", "judged"):
        if getattr(federation, name) is not None:
            changed[name] = _fewer(getattr(federation, name), share, batch)
    return federation._replace(**changed)


def _fewer(owner, share: float, batch: int):
    """A client, a test set or a batch with fewer images."""
    places = _places(len(owner.labels), share, batch)
    changed = {"images": _chosen(owner.images, places), "labels": owner.labels[places]}
    return owner._replace(**changed) if isinstance(owner, Batch) else dataclasses.replace(owner, **changed)


def _places(n: int, share: float, batch: int) -> torch.Tensor:
    """Evenly spaced places, so that every class and domain stays."""
    return torch.from_numpy(
        np.unique(np.linspace(0, n - 1, min(n, max(round(share * n), 2 * batch + REST))).astype(np.int64))
    )


def _chosen(images: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    chosen = images[places]
    return chosen.contiguous(memory_format=torch.channels_last) if chosen.dim() == 4 else chosen


def _flat(value, at: str = ""):
    """(path, value) of every number and text in nested mappings and lists."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, (list, tuple))
        else None
    )
    if items is None:
        yield at, value
        return
    for key, inner in items:
        yield from _flat(inner, f"{at}.{key}" if at else str(key))


def _digests(value):
    """As `_flat`, arrays and tensors by a digest of type, shape and content."""
    for at, inner in _flat(value):
        if isinstance(inner, torch.Tensor):
            inner = inner.detach().cpu().contiguous()
            inner = np.asarray(inner.view(torch.uint8) if inner.dtype == torch.bfloat16 else inner)
        if isinstance(inner, np.ndarray):
            digest = hashlib.sha256(np.ascontiguousarray(inner).tobytes()).hexdigest()
            inner = f"{inner.dtype}{list(inner.shape)} {digest}"
        yield at, inner


if __name__ == "__main__":
    main(Path(sys.argv[1]))
