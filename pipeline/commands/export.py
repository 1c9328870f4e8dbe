"""`fedrepro export model CELL`: train a seed and write its scored models as files that plain PyTorch runs.

`deployed*` files hold what clients use before local training, `trained*` files what they hold after it.
pipeline/training/final_models.py writes them, with a README that has their accuracy.
"""

import dataclasses
import shutil
from pathlib import Path

from pipeline import arithmetic, files
from pipeline.cells.experiment import Experiment, link
from pipeline.cells.inputs import verify
from pipeline.commands import run
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, shorten
from pipeline.training.checks import check_environment


def model(name: str, seed: int | None, target: str | None, root: Path = ROOT) -> int:
    """Train a seed from the beginning and write its models into a folder.

    name: of the cell
    seed: one of the scenario's seeds; None: the first one
    target: the folder, which is replaced; None: models/<paper>-<scenario>-<method>-<seed>
    root: the project's folder

    Returns 0; 1 if the training ends in another state than the result in git. ParamError for a seed that the
    scenario does not have.
    """
    cell = Cell.parse(name)
    experiment = Experiment.of(cell, root)
    seeds = experiment.scenario.seeds
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ParamError(f"--seed: {seed} is not of {cell}, which has {', '.join(map(str, seeds))}")
    arithmetic.adopt(experiment.scenario.arithmetic)
    check_environment()
    if root == ROOT:
        run.bring_partition(cell)
    verify(experiment)
    from pipeline.training.final_models import write  # with torch: seconds
    from pipeline.training.seeds import trained
    from pipeline.training.trainer import plan

    job = next(job for job in plan(experiment).jobs if job.seed == seed)
    place = root / ".cells" / "models" / f"{job.digest}-{seed}"  # an interrupted call goes on from there
    link(root, place)
    job = dataclasses.replace(job, experiment=dataclasses.replace(experiment, root=place))
    training = trained(job, lambda row: print(f"{cell}, seed {seed}: round {row['round']}", flush=True))
    folder = Path(target or root / "models" / f"{str(cell).replace('/', '-')}-{seed}")
    with files.replace_folder(folder) as new:
        card = write(training, experiment, new)
    shutil.rmtree(place)
    same = {True: "the state of the result in git", False: "ANOTHER state than the result in git"}
    print(f"{shorten(folder)}: {len(card['files'])} models, {same.get(card['same_state'], 'no result')}")
    return int(card["same_state"] is False)
