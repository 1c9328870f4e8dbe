"""MediaBrain-SJTU/FedDG-GA, the authors' code: its adjustment of the weights."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.originals.federation import Table, definitions
from pipeline.methods.fedga import adjusted_weights

REPOSITORY, MARK = "MediaBrain-SJTU/FedDG-GA", "utils/weight_adjust.py"
code: Any = None


def prepare(checkout: Path) -> None:
    global code
    code = definitions(checkout / MARK, "refine_weight_dict_by_GA", "weight_clip")


def fedga(table: Table) -> None:
    rng, mine, theirs, starts = np.random.RandomState(0), [], [], []
    for fair, sign in (("loss", 1), ("acc", -1)) * 20:
        start, before, after = rng.dirichlet(np.ones(3)), rng.rand(3), rng.rand(3)
        sites = [{k: {fair: value} for k, value in enumerate(values)} for values in (before, after)]
        refined = code.refine_weight_dict_by_GA(dict(enumerate(start)), *sites, 0.2, fair)
        theirs.append(torch.tensor([refined[k] for k in range(3)]))
        mine.append(adjusted_weights(torch.tensor(start), torch.tensor(sign * (after - before)), 0.2))
        starts.append(torch.tensor(start))
    table.add(
        "fedga",
        "weights of three sites after an adjustment, 40 draws",
        mine,
        theirs,
        without=starts,
        remark="the local step is FedAvg's",
    )


CASES = (fedga,)
