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
from pipeline.cells.documents import Result
from pipeline.errors import warn
from pipeline.schema import Cell, shorten

# Name of the artifact in the run of a seed.
ARTIFACT = "model"
# Packages that predict.py imports.
NEEDED = ("torch", "numpy", "pillow")


def register(
    client: Any,
    measured: Mapping[Cell, Result],
    runs: Callable[[str], Mapping[tuple[str, str], str]],
    root: Path,
) -> int:
    """Register the models on this machine that are not registered yet; returns how many versions are new.

    client    MLflow's; the runs of the results are written already
    measured  cell -> result.json
    runs      paper -> (`self` of a result, seed) -> id of the run; it is called only if there are models
    root      folder of the repository
    """
    new = 0
    for cell, result in measured.items():
        folders = dict(_folders(cell, result, root))
        if not folders:
            continue
        name = f"{cell.paper}.{cell.scenario}.{cell.method}"
        known = set()
        for registered in client.search_model_versions(f"name = '{name}'"):
            known.add((registered.tags.get("fedrepro.result"), registered.tags.get("seed")))
        ids = runs(cell.paper)
        for seed, folder in folders.items():
            key = (result["self"], str(seed))
            if key not in known and key in ids:
                _register(client, name, folder, ids[key], cell, result)
                new += 1
    return new


def _folders(cell: Cell, result: Result, root: Path) -> Iterator[tuple[int, Path]]:
    """(seed, folder) of a result's models that are on this machine and undamaged.

    Models of another result are left out: their state after the last round is not that of the history.
    """
    models = cell.final_models(root)
    if not models.exists():
        return
    history = results.history(cell, root)
    last = history[history["round"] == history["round"].max()]
    states = dict(zip(last["seed"], last.get(results.STATE, last["seed"])))
    for seed in result["seeds"]:
        folder = models / f"seed-{seed}"
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
    """Whether a file exists and has this SHA-256."""
    return path.exists() and files.sha256(path) == digest


def _register(client: Any, name: str, folder: Path, run: str, cell: Cell, result: Result) -> None:
    """Add a version to a cell's model, and put its files into the run of the seed.

    client  MLflow's
    name    of the registered model
    folder  of the seed's models
    run     id of the seed's run
    cell    and its `result`
    """
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
    """Write models in MLflow's format, with code that loads them without this package.

    folder  of `fedrepro export model`
    card    its card.json
    target  a folder that does not exist yet
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
