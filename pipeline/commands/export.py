"""`fedrepro export model CELL`: train a seed and write its final models as safetensors, with a model card."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.cells import arithmetic, provenance, results
from pipeline.cells.checks import check_environment, runnable
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs, verify
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import ROOT, Cell, load_paper, shorten

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


def model(name: str, seed: int | None, target: str | None, root: Path = ROOT) -> int:
    """Train a seed from its beginning and write its models into a new folder; returns the exit code.

    name: of the cell
    seed: one of its scenario; None: the first
    target: the folder; None: models/<paper>-<scenario>-<method>-<seed>
    """
    cell = Cell.parse(name)
    experiment = Experiment.of(cell, root)
    seeds = experiment.scenario.seeds
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ParamError(f"--seed: {seed} is not of {cell}, which has {', '.join(map(str, seeds))}")
    arithmetic.adopt(experiment.scenario.arithmetic)
    check_environment()
    runnable(experiment)
    verify(experiment)
    training = _trained(experiment, seed)
    folder = Path(target or root / "models" / f"{str(cell).replace('/', '-')}-{seed}")
    with files.replace_folder(folder) as new:
        card = _write(training, experiment, new)
    shutil.rmtree(training.job.experiment.root)
    same = {True: "the state of the result in git", False: "ANOTHER state than the result in git"}
    print(f"{shorten(folder)}: {len(card['files'])} models, {same.get(card['same_state'], 'no result')}")
    return int(card["same_state"] is False)


def _trained(experiment: Experiment, seed: int) -> Any:
    """The seed after its last round. An interrupted call goes on from its checkpoint."""
    from pipeline.cells.seeds import Job, trained  # seconds, for torch

    root, cell = experiment.root, experiment.cell
    digest = provenance.cell_digest(experiment, inputs(experiment, seed)["digest"])
    place = root / ".cells" / "models" / f"{digest}-{seed}"
    place.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        if path.name not in (".cells", ".git") and not (place / path.name).is_symlink():
            (place / path.name).symlink_to(path)

    def report(row: dict) -> None:
        print(f"{cell}, seed {seed}: round {row['round']}", flush=True)

    return trained(Job(dataclasses.replace(experiment, root=place), seed, digest), report)


def _write(training: Any, experiment: Experiment, folder: Path) -> dict:
    """Models and card into an empty folder; returns card.json."""
    from safetensors.torch import save_file

    world, written = training.world.whole, {}

    def save(name: str, values: dict, network: dict | None = None) -> None:
        save_file({key: value.cpu().contiguous() for key, value in values.items()}, folder / name)
        written[name] = {"sha256": files.sha256(folder / name), "network": network}

    networks = [dataclasses.asdict(client.model) for client in world.clients]
    hook, server = training.hook, training.state.get("model")
    if server is not None:
        save("server.safetensors", server, networks[0])
    models = training.models(hook)
    if all(values is server for values in models):  # the clients' are those that they trained last
        hook, models = "post", training.models("post")
    for k, (client, values) in enumerate(zip(world.clients, models)):
        save(f"client-{k}.safetensors", values, networks[k])
        written[f"client-{k}.safetensors"] |= {"client": client.name, "hook": hook}
    if (vectors := training.method.vectors(training.state)) is not None:
        save("vectors.safetensors", {"vectors": vectors})
    card = _card(training, experiment, written)
    files.write_json(folder / "card.json", card)
    files.write_text(folder / "README.md", _described(card))
    return card


def _card(training: Any, experiment: Experiment, written: dict) -> dict:
    """What is to be known of the models."""
    from pipeline.cells.evaluation import HEADLINE
    from pipeline.methods.base import Method

    job, world = training.job, training.world
    scenario, row = experiment.scenario, training.rows[-1]
    meta = json.loads((experiment.root / "data" / scenario.data.set / "meta.json").read_text("utf-8"))
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
    """README.md of the folder."""
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
