"""Write a seed's final models: safetensors, ONNX if installed, and a card with code that loads them."""

import dataclasses
import os
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file

from pipeline import files
from pipeline.cells import provenance, results
from pipeline.cells.checkpoint import FORCE
from pipeline.cells.evaluation import HEADLINE
from pipeline.cells.experiment import Experiment
from pipeline.cells.seeds import Job, SeedTraining, trained
from pipeline.data import store
from pipeline.engine.state import Params
from pipeline.engine.world import World
from pipeline.errors import FedReproError
from pipeline.methods.base import Method
from pipeline.schema import load_paper

CARD = """# {label}, {title}

`{cell}`, seed {seed}, {rounds} rounds: {headline} {accuracy} %. `card.json` has settings and accuracies.
{note}
```python
import json, numpy
from PIL import Image
from safetensors.torch import load_file
from pipeline.data.tensors import to_tensor
from pipeline.models import build
from pipeline.schema import Data, Model

name, card = "{first}", json.load(open("card.json"))
network = build(Model(**card["files"][name]["network"]), *card["input"], len(card["classes"])).eval()
network.load_state_dict(load_file(name))
pixels = numpy.array(Image.open("mine.png").convert("RGB"))[None]
print(card["classes"][network(to_tensor(pixels, Data(**card["data"]))).argmax()])
```
"""


def write_all(experiment: Experiment, jobs: list[Job]) -> None:
    """Write a folder for every seed of a finished cell whose scenario has `keep: models`. The last round is
    trained again, from the checkpoint that `cache.first_rounds` names."""
    # whatever lies in .cells is of this run
    os.environ.pop(FORCE, None)
    with files.replace_folder(experiment.cell.final_models(experiment.root)) as new:
        for job in jobs:
            (folder := new / f"seed-{job.seed}").mkdir()
            write(trained(job), experiment, folder)


def write(training: SeedTraining, experiment: Experiment, folder: Path) -> dict:
    """Write models and card into an empty folder; returns card.json."""
    world, written = training.world.whole, {}

    def save(name: str, values: Params, client: int | None = None) -> None:
        save_file({key: value.cpu().contiguous() for key, value in values.items()}, folder / name)
        network = None if client is None else dataclasses.asdict(world.clients[client].model)
        written[name] = {"sha256": files.sha256(folder / name), "network": network}
        if client is not None and find_spec("onnxscript"):  # the extra `onnx`
            _write_onnx(world, client, values, (folder / name).with_suffix(".onnx"))

    hook, server = training.hook, training.state.get("model")
    if server is not None:
        save("server.safetensors", server, 0)
    models = training.models(hook)
    assert models is not None  # after a round
    if all(values is server for values in models):  # the clients' are those that they trained last
        hook, models = "post", training.models("post")
    assert models is not None
    for k, (client, values) in enumerate(zip(world.clients, models)):
        save(f"client-{k}.safetensors", values, k)
        written[f"client-{k}.safetensors"] |= {"client": client.name, "hook": hook}
    if (vectors := training.method.vectors(training.state)) is not None:
        save("vectors.safetensors", Params(vectors=vectors))
    card = _card(training, experiment, written)
    files.write_json(folder / "card.json", card)
    files.write_text(folder / "README.md", _described(card))
    return card


def _write_onnx(world: World, client: int, values: Params, path: Path) -> None:
    """`images` (B, C, H, W), as the network takes them, to `scores` (B, classes)."""
    torch.onnx.export(
        world.network(client, values).cpu(),
        (torch.zeros(2, *world.clients[client].images.shape[1:]),),
        path,
        input_names=["images"],
        output_names=["scores"],
        dynamic_shapes=({0: torch.export.Dim("images")},),
        external_data=False,
        verbose=False,
    )


def _card(training: SeedTraining, experiment: Experiment, written: dict) -> dict:
    job, world = training.job, training.world
    scenario, row = experiment.scenario, training.rows[-1]
    meta = store.read_meta(experiment.root / "data" / scenario.data.set)
    try:
        history = results.history(experiment.cell, experiment.root)
        past = history[(history["seed"] == job.seed) & (history["round"] == row["round"])]
        same = None if past.empty else bool(past.iloc[0].get(results.STATE) == row[results.STATE])
    except FedReproError:  # no result yet
        same = None
    return {
        "cell": str(experiment.cell),
        "label": load_paper(experiment.cell.paper, experiment.root).label(experiment.cell.method),
        "seed": job.seed,
        "digest": job.digest,
        "same_state": same,
        "scenario": dataclasses.asdict(scenario),
        "algorithm": experiment.algorithm,
        "hyper": dataclasses.asdict(training.method),
        "hook": training.hook,
        "clients": training.clients,
        "headline": HEADLINE[scenario.evaluation.tests],
        "measures": row,
        "by_classifier": type(training.method).scores is Method.scores,
        "classes": meta["classes"],
        "data": dataclasses.asdict(scenario.data),
        "input": [world.clients[0].images.shape[1], world.clients[0].images.shape[-1]],
        "files": written,
        "versions": provenance.machine(),
        "git": provenance.git_state(experiment.root, experiment.cell.paper),
    }


def _described(card: dict) -> str:
    notes = {
        "The accuracy is by the method's rule, not by the classifier.": not card["by_classifier"],
        "The input is the frozen features, not an image.": card["data"]["features"] != "pixels",
    }
    return CARD.format(
        **{key: card[key] for key in ("label", "cell", "seed", "headline")},
        title=card["data"]["set"],
        rounds=card["measures"]["round"],
        accuracy=card["measures"][card["headline"]],
        first=next(name for name in card["files"] if card["files"][name]["network"]),
        note="".join(f"{text}\n" for text, needed in notes.items() if needed),
    )
