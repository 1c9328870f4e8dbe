"""cugzj/KT-pFL, the authors' code: its update of the knowledge coefficients."""

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.originals.federation import Table, definitions
from pipeline.methods.ktpfl import released_coefficients

REPOSITORY, MARK = "cugzj/KT-pFL", "src/engine_kt_pfl.py"
code: Any = None


class Writable:
    """torch whose zeros ask for no gradient: theirs writes into some that do, which torch now refuses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*shape: Any, requires_grad: bool = False, **more: Any) -> torch.Tensor:
        return torch.zeros(*shape, **more)


def prepare(checkout: Path) -> None:
    global code
    code = definitions(checkout / MARK, "get_models_logits", torch=Writable())


def ktpfl(table: Table) -> None:
    rng = torch.Generator().manual_seed(4)
    predictions = F.softmax(torch.randn(4, 20, 5, generator=rng), dim=2)
    c, mine, theirs, start = torch.full((4, 4), 0.25), [], [], []
    for _ in range(3):
        start.append(c)
        targets, logits = code.get_models_logits(
            [p.numpy() for p in predictions], c.clone().requires_grad_(), 4, 0.7
        )
        c = released_coefficients(c, predictions, 0.7)
        mine += [c, torch.einsum("km,mnc->knc", c, predictions)]
        theirs += [logits, targets]
    table.add(
        "ktpfl",
        "coefficients and targets, three updates",
        mine,
        theirs,
        update="code",
        remark="by default ours has the paper's update of the coefficients",
    )


CASES = (ktpfl,)
