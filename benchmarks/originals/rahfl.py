"""FangXiuwen/RAHFL, the authors' code: the rounds of HHF/RAHFL.py and the losses of loss.py."""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.originals.federation import PublicFeed, Table, ours
from benchmarks.originals.script import SGD, Pair, Script, ViewFeed, federation_of, noise, test_images
from pipeline.engine.handle import Batch
from pipeline.losses import supervised_contrast
from pipeline.methods.rahfl import RAHFL, view_distillation

REPOSITORY, MARK = "FangXiuwen/RAHFL", "HHF/RAHFL.py"
folder = Path()


def prepare(checkout: Path) -> None:
    global folder
    folder = checkout
    sys.path.insert(0, str(checkout))


def rahfl(table: Table) -> None:
    loss, script, views = importlib.import_module("loss"), Script(folder / "HHF" / "RAHFL.py"), noise(4)
    RAHFL.views = lambda self, pixels, numbers: views(pixels, numbers)[: 4 if self.contrast == "dcl" else 3]
    for collaborate, contrast, options, remark in (
        ("asymhfl", "dcl", {"acc_source": "test"}, "teachers by the test file, as theirs"),
        ("hfl", None, {"acc_source": "test", "contrast": "none", "asymmetric": False}, "its row HFL"),
    ):
        test = test_images()
        federation = federation_of(test=Batch(*test))
        run = ours("rahfl", federation, public_optimiser="sgd", **options)
        without, nets = ours("local", federation), [Pair(model) for model in run.models[0]]
        feeds = [
            ViewFeed(federation, k, lambda *given, count=4 if contrast else 3: views(*given)[:count])
            for k in range(len(nets))
        ]

        def measured(space: dict, nets: list = nets, test: Any = test) -> None:
            space["matrix_update_acc_list"] = [
                space["evaluate_network"](net, [test], space["logger"]) for net in nets
            ]

        theirs = script.run(
            federation,
            nets,
            feeds,
            PublicFeed(federation),
            measured,
            AugMix_Module="jsd",
            CL_Module=contrast,
            Col_Module=collaborate,
            Matrix_Update_Epoch=1,
            Private_Corrupt_Rate=0,
            Public_Corrupt_Rate=0,
            DCLLoss=loss.DCLLoss,
            SupConLoss=loss.SupConLoss,
        )
        table.add(
            "rahfl",
            "clients' models",
            run,
            theirs,
            without=without,
            remark=f"{SGD}; noise in AugMix's place; {remark}",
            **options,
        )


def losses(table: Table) -> None:
    """Values and gradients on equal tensors."""
    loss, rng = importlib.import_module("loss"), torch.Generator().manual_seed(2)
    labels = torch.randint(0, 3, (10,), generator=rng)
    given = [torch.randn(10, 6, generator=rng).requires_grad_() for _ in range(3)]
    a, b, c = (F.normalize(one, dim=1) for one in given)
    mine = 0.2 / 0.07 * supervised_contrast(torch.cat([a, b]), labels, 0.2) + 0.7 * view_distillation(
        a, b, c, 0.2
    )
    rows = (one[:, None] for one in (a, b, c))
    theirs = loss.DCLLoss(temperature=0.2, device="cpu", beta=0.7, ddm_temperature=0.2)(*rows, labels)
    both = [[value, *torch.autograd.grad(value, given, retain_graph=True)] for value in (mine, theirs)]
    table.add("rahfl", "the loss DCL and its gradients on equal tensors", *both)


CASES = (rahfl, losses)
