"""`fedrepro export model CELL`: train a seed and write its final models as safetensors, with a model card."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.cells import arithmetic, provenance
from pipeline.cells.checks import check_environment, runnable
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import inputs, verify
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, shorten


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
    from pipeline.cells.final_models import write  # with torch: seconds

    training = _trained(experiment, seed)
    folder = Path(target or root / "models" / f"{str(cell).replace('/', '-')}-{seed}")
    with files.replace_folder(folder) as new:
        card = write(training, experiment, new)
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
