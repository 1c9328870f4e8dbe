"""Write the scored models of a seed as files that plain PyTorch runs, with a README that has their accuracy.

If the extra `onnx` is installed, they are also written as ONNX.
"""

import contextlib
import dataclasses
import os
from importlib.util import find_spec
from pathlib import Path
from string import Template

import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline import files
from pipeline.cells import results
from pipeline.cells.experiment import Experiment
from pipeline.cells.loading import load
from pipeline.data import store
from pipeline.data.tensors import STATISTICS, Scale
from pipeline.engine.state import Clients, State
from pipeline.engine.world import World
from pipeline.errors import FedReproError
from pipeline.methods.base import Method
from pipeline.models import Network
from pipeline.provenance import identity
from pipeline.schema import Data, load_paper
from pipeline.training import evaluation, portable
from pipeline.training.checkpoint import FORCE
from pipeline.training.portable import scored
from pipeline.training.seeds import Job, SeedTraining, trained

# Which models a file holds, by the hook that scores them.
NAMES = {"pre": "deployed", "post": "trained"}
WHAT = {
    "pre": "what a client uses after the server's message",
    "post": "what a client holds after its local training",
}
# of each client, on which it is tried whether all clients predict alike
TRIED_IMAGES = 64
CARD = """# {label}, {title}

`{cell}`, seed {seed}, {rounds} rounds.

{headline} accuracy: **{accuracy:.2f} %** on the scenario's test images, measured with {scored} as the code
below loads it.
{note}
```python
from predict import classify

print(classify("{file}"))
```

`predict.py` needs {needs}, no code of FedRepro. A `.pt2` file is a graph of `torch.export`
that maps prepared {inputs} to scores of the classes, by the method's rule of prediction; `.safetensors` are
the weights alone, `.onnx` the same graph for other programs, where it can be written. `card.json` has
settings and accuracies.

| file | what it is | client | accuracy, % |
|---|---|---|--:|
{rows}
"""
# of `predict.py`, whatever a sample is
PREDICT = Template('''"""Classify $what by a model of this folder: `python predict.py $file [FILE.pt2]`."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
$more
FOLDER = Path(__file__).resolve().parent
CARD = json.loads((FOLDER / "card.json").read_text())
$prepare

def load(name=CARD["scored"]):
    """A function from prepared $inputs to scores (N, classes)."""
    model = torch.export.load(FOLDER / name).module()
    if CARD["files"][name]["any_number_of_images"]:
        return model
    return lambda images: torch.cat([model(image) for image in images.split(1)])

$classify

if __name__ == "__main__":
    print(classify(*sys.argv[1:]))
''')
OF_IMAGES = {
    "what": "a picture",
    "file": "mine.png",
    "inputs": "images (N, channels, side, side)",
    "more": "from PIL import Image\n",
    "prepare": '''# weights of red, green and blue in grey
GREY = (0.299, 0.587, 0.114)


def prepare(pixels):
    """Network inputs, float32 (N, channels, side, side), of pixels, uint8 (N, height, width, 1 or 3)."""
    given = CARD["prepare"]
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    if given["channels"] == 3 and images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    elif given["channels"] == 1 and images.shape[1] == 3:
        images = (images * torch.tensor(GREY).view(1, 3, 1, 1)).sum(1, keepdim=True)
    side = (given["side"], given["side"])
    if images.shape[-2:] != side:
        images = torch.nn.functional.interpolate(
            images, side, mode="bilinear", antialias=True, align_corners=False
        )
    mean, std = (torch.tensor(given[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    return (images - mean) / std
''',
    "classify": '''
def classify(picture, name=CARD["scored"]):
    """The class of a picture's file."""
    pixels = np.array(Image.open(picture).convert("RGB"))[None]
    with torch.no_grad():
        return CARD["classes"][int(load(name)(prepare(pixels)).argmax())]
''',
}
OF_NUMBERS = {
    "what": "samples",
    "file": "mine.npy",
    "inputs": "samples (N, ...)",
    "more": "",
    "prepare": '''

def prepare(samples):
    """Network inputs of samples (N, ...), as the data set has them."""
    given = CARD["prepare"]
    if "mean" in given:
        samples = (samples - np.array(given["mean"])) / np.array(given["std"])
    return torch.from_numpy(np.array(samples, given["dtype"]))
''',
    "classify": '''
def classify(samples, name=CARD["scored"]):
    """The classes of the samples in a file of NumPy, (N, ...)."""
    with torch.no_grad():
        scores = load(name)(prepare(np.load(samples)))
    return [CARD["classes"][best] for best in scores.argmax(1).tolist()]
''',
}


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
    """Write the scored models, what else the clients hold, and the card into an empty folder; returns
    card.json."""
    by_hook = {hook: models for hook in NAMES if (models := training.models(hook)) is not None}
    files_of = {
        hook: write_models(training.method, training.state, training.world.whole, models, folder, hook)
        for hook, models in by_hook.items()
    }
    if (vectors := training.method.vectors(training.state)) is not None:
        save_file({"vectors": vectors.cpu().contiguous()}, folder / "vectors.safetensors")
    measured = {hook: measure(training, by_hook[hook], folder, written) for hook, written in files_of.items()}
    card = _card(training, experiment, files_of, measured)
    files.write_json(folder / "card.json", card)
    files.write_text(folder / "README.md", _described(card))
    words = OF_IMAGES if experiment.scenario.data.of_images else OF_NUMBERS
    files.write_text(folder / "predict.py", PREDICT.substitute(words))
    return card


def write_models(
    method: Method, state: State, world: World, models: Clients, folder: Path, hook: str
) -> dict[str, dict]:
    """Write the models that a hook scores, one file where all clients predict by the same; returns
    {name of a .pt2 file: {its entry in card.json}}.

    method, state: as after the last round
    world: with all clients
    models: every client's, of `deployed` or `after_training`
    folder: where to
    hook: `pre` or `post`
    """
    modules = [scored(method, state, world, k, model) for k, model in enumerate(models)]
    if _alike(modules, models, world):
        modules = modules[:1]
    written = {}
    for k, module in enumerate(modules):
        name = NAMES[hook] + f"-{k}" * (len(modules) > 1)
        program, any_number = portable.exported(module, world.clients[k].images)
        portable.save(program, folder / f"{name}.pt2")
        weights = {key: value.cpu().contiguous() for key, value in models[k].items()}
        save_file(weights, folder / f"{name}.safetensors")
        if find_spec("onnxscript"):  # the extra `onnx`
            _write_onnx(program, (folder / name).with_suffix(".onnx"))
        written[f"{name}.pt2"] = {
            "sha256": files.sha256(folder / f"{name}.pt2"),
            "weights": f"{name}.safetensors",
            "hook": hook,
            "client": world.clients[k].name if len(modules) > 1 else None,
            "network": dataclasses.asdict(world.clients[k].model),
            "any_number_of_images": any_number,
        }
    return written


@torch.inference_mode()
def _alike(modules: list[portable.Scored], models: Clients, world: World) -> bool:
    """Whether all clients have one model and predict alike by it; a rule may read a client's prototypes."""
    if any(model is not models[0] for model in models):
        return False
    if type(modules[0].method).scores is Method.scores:
        return True
    images = torch.cat([client.images[:TRIED_IMAGES].cpu() for client in world.clients])
    first, *others = [module(images) for module in modules]
    return all(torch.equal(first, other) for other in others)


def measure(training: SeedTraining, models: Clients, folder: Path, written: dict[str, dict]) -> dict:
    """The scenario's measures of what the files hold, in percent; `clients` are every client's accuracies.

    models: those in the files, of which the clients' own are told apart
    written: of `write_models`
    """
    loaded = [portable.load(folder / name, it["any_number_of_images"]) for name, it in written.items()]
    every = loaded * len(models) if len(loaded) == 1 else loaded
    protocol = training.job.experiment.scenario.evaluation

    def scores(network: Network, images: Tensor, client: int) -> Tensor:
        return every[client](images.cpu()).to(images.device)

    measures, clients = evaluation.measure(
        models,
        training.world.whole,
        training.tests,
        protocol.tests,
        scores,
        protocol.top,
        sample=training.sample,
    )
    named = {name: evaluation.rounded(value) for name, value in measures.items()}
    return {**named, "clients": [evaluation.rounded(value) for value in clients]}


def _write_onnx(program: torch.export.ExportedProgram, path: Path) -> None:
    """`images` (B, C, H, W), as the network takes them, to `scores` (B, classes). No file for a rule of which
    ONNX has no operator."""
    with contextlib.suppress(torch.onnx.errors.OnnxExporterError):
        torch.onnx.export(
            program,
            f=path,
            input_names=["images"],
            output_names=["scores"],
            external_data=False,
            verbose=False,
        )


def _card(
    training: SeedTraining, experiment: Experiment, files_of: dict[str, dict], measured: dict[str, dict]
) -> dict:
    """card.json. files_of, measured: by hook"""
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
        "headline": scenario.evaluation.measure,
        "measures": row,
        "by_classifier": type(training.method).scores is Method.scores,
        "classes": meta["classes"],
        "data": dataclasses.asdict(scenario.data),
        "input": list(world.clients[0].images.shape[1:]),
        "prepare": _preparation(scenario.data, world.clients[0].images, load(experiment, job.seed).scale),
        "files": {name: entry for written in files_of.values() for name, entry in written.items()},
        "scored": next(iter(files_of[training.hook])),
        "measured": measured,
        "versions": identity.machine(),
        "git": identity.git_state(experiment.root, experiment.cell.paper),
    }


def _preparation(data: Data, inputs: Tensor, scale: Scale | None) -> dict:
    """How a sample becomes what the networks take, for `predict.py`."""
    if not data.of_images:
        normal = {} if scale is None else {"mean": scale.mean.tolist(), "std": scale.deviation.tolist()}
        return {"dtype": str(inputs.dtype).removeprefix("torch."), **normal}
    mean, std = (values[: data.channels] for values in STATISTICS[data.normalise])
    return {"channels": data.channels, "side": data.size, "mean": mean, "std": std}


def _described(card: dict) -> str:
    """README.md."""
    hook, headline = card["hook"], card["headline"]
    of_hook = [name for name, entry in card["files"].items() if entry["hook"] == hook]
    accuracy, trained = card["measured"][hook][headline], card["measures"][headline]
    sample = card["scenario"]["evaluation"]["sample"]
    drawn = f"{sample} clients of {len(card['clients'])}"
    notes = {
        f"It is over {drawn}, drawn once for every seed.\n": sample is not None,
        f"While it trained, {trained} % were measured: the method's rule draws numbers, here others.\n": (
            accuracy != trained
        ),
        "The method predicts by a rule of its own, which is in the `.pt2` files; the classifier of the "
        "weights alone may do worse.\n": not card["by_classifier"],
        "The input is the frozen features of an image, not the image.\n": card["data"]["features"]
        != "pixels",
    }
    words = OF_IMAGES if "side" in card["prepare"] else OF_NUMBERS
    return CARD.format(
        file=words["file"],
        needs="torch, numpy and Pillow" if words is OF_IMAGES else "torch and numpy",
        inputs="images" if words is OF_IMAGES else "samples",
        **{key: card[key] for key in ("label", "cell", "seed", "headline")},
        title=card["data"]["set"],
        rounds=card["measures"]["round"],
        accuracy=accuracy,
        scored=f"`{of_hook[0]}`" if len(of_hook) == 1 else f"the {len(of_hook)} files `{NAMES[hook]}-*.pt2`",
        note="".join(f"\n{text}" for text, needed in notes.items() if needed),
        rows="\n".join(_row(name, entry, card) for name, entry in card["files"].items()),
    )


def _row(name: str, entry: dict, card: dict) -> str:
    """A file's line of the table in README.md."""
    measured = card["measured"][entry["hook"]]
    if entry["client"] is None:
        client, accuracy = "all", measured[card["headline"]]
    else:
        number = [other for other in card["files"] if card["files"][other]["hook"] == entry["hook"]].index(
            name
        )
        client, accuracy = entry["client"], measured["clients"][number]
    shown = "" if accuracy is None else f"{accuracy:.2f}"
    return f"| `{name}` | {WHAT[entry['hook']]} | {client} | {shown} |"
