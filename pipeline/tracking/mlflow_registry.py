"""Put the final models of cells whose scenario has `keep: models` into MLflow's model registry.

A registered model is a cell, named paper.scenario.method. A version of it is a seed of a result. Its files
are stored with the seed's run; they are those that `fedrepro export model` writes, including the README.
"""

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.cells import results
from pipeline.errors import warn
from pipeline.schema import Cell, shorten

# of the artifact in the run of a seed
ARTIFACT = "model"
# what predict.py imports
NEEDED = ("torch", "numpy", "pillow")


def register(
    client: Any,
    measured: Mapping[Cell, dict],
    runs: Callable[[str], Mapping[tuple[str, str], str]],
    root: Path,
) -> int:
    """Register the models that lie here and are not registered yet; returns how many versions are new.

    client: MLflow's, with the runs written
    measured: cell -> result.json
    runs: paper -> {(result, seed): the run's id}; asked only where there are models
    """
    new = 0
    for cell, result in measured.items():
        if not (folders := dict(_folders(cell, result, root))):
            continue
        name, known = f"{cell.paper}.{cell.scenario}.{cell.method}", set()
        for one in client.search_model_versions(f"name = '{name}'"):
            known.add((one.tags.get("fedrepro.result"), one.tags.get("seed")))
        ids = runs(cell.paper)
        for seed, folder in folders.items():
            key = result["self"], str(seed)
            if key not in known and key in ids:
                _register(client, name, folder, ids[key], cell, result)
                new += 1
    return new


def _folders(cell: Cell, result: dict, root: Path) -> Iterator[tuple[int, Path]]:
    """(seed, folder) of a result's models that are here and whole. One of another result is left out, whose
    state after the last round is another."""
    here = cell.final_models(root)
    if not here.exists():
        return
    history = results.history(cell, root)
    last = history[history["round"] == history["round"].max()]
    states = dict(zip(last["seed"], last.get(results.STATE, last["seed"])))
    for seed in result["seeds"]:
        folder = here / f"seed-{seed}"
        if not (folder / "card.json").exists():
            continue
        card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        if card["measures"][results.STATE] != states[seed]:
            continue
        kept = card["files"].items()
        changed = [name for name, entry in kept if not _whole(folder / name, entry["sha256"])]
        if changed:
            warn(f"{shorten(folder / changed[0])} is not what its card.json says: not registered in MLflow")
        else:
            yield seed, folder


def _whole(path: Path, digest: str) -> bool:
    """Whether a file is there, with these contents."""
    return path.exists() and files.sha256(path) == digest


def _register(client: Any, name: str, folder: Path, run: str, cell: Cell, result: dict) -> None:
    """A version of a cell's model, whose files are put into the run of its seed."""
    from mlflow.exceptions import MlflowException

    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        write(folder, card, Path(place) / ARTIFACT)
        client.log_artifacts(run, str(Path(place) / ARTIFACT), ARTIFACT)
    try:
        client.create_registered_model(name, {"cell": str(cell)}, f"{card['label']}, final models of {cell}")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    accuracy = card["measured"][card["hook"]][card["headline"]]
    tags = {
        "fedrepro.result": result["self"],
        "seed": str(card["seed"]),
        "file": card["scored"],
        "hook": card["hook"],
        card["headline"]: str(accuracy),
    }
    source = f"{client.get_run(run).info.artifact_uri}/{ARTIFACT}"
    text = (folder / "README.md").read_text(encoding="utf-8")
    made = client.create_model_version(name, source, run, tags, description=text)
    client.set_registered_model_alias(name, f"seed-{card['seed']}", made.version)


def write(folder: Path, card: dict, target: Path) -> None:
    """The models of a folder as MLflow's format has them, with code that loads them without this package.

    folder: of `export model`
    card: its card.json
    target: a folder that does not exist
    """
    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import ParamSchema, ParamSpec, Schema, TensorSpec

    from pipeline.tracking import mlflow_model

    pixels = "side" in card["prepare"] and card["data"]["features"] == "pixels"
    dtype = "uint8" if pixels else card["prepare"].get("dtype", "float32")
    shape = (-1, -1, -1, -1) if pixels else (-1, *card["input"])
    signature = ModelSignature(
        Schema([TensorSpec(np.dtype(dtype), shape)]),
        Schema([TensorSpec(np.dtype("float32"), (-1, len(card["classes"])))]),
        ParamSchema([ParamSpec("file", "string", card["scored"])]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.pyfunc.save_model(
            str(target),
            loader_module=Path(mlflow_model.__file__).stem,
            data_path=str(folder),
            code_paths=[mlflow_model.__file__],
            pip_requirements=[f"{package}=={version(package).partition('+')[0]}" for package in NEEDED],
            signature=signature,
            metadata={key: card[key] for key in ("cell", "seed", "hook", "scored")},
        )
