"""FangXiuwen/Robust_FL, the authors' code of RHFL: the rounds of RHFL/HHF/HHF.py."""

from pathlib import Path
from typing import Any

import torch

from benchmarks.originals.federation import CLASSES, Feed, PublicFeed, Table, definitions, ours
from benchmarks.originals.script import SGD, Pair, Script, federation_of

REPOSITORY, MARK = "FangXiuwen/Robust_FL", "RHFL/HHF/HHF.py"
folder = Path()


def prepare(checkout: Path) -> None:
    global folder
    folder = checkout / "RHFL"


class Measured(Feed):
    """The loader of a round is read twice: first to measure the client's loss, on batches of its own."""

    calls = 0

    def twice(self, round: int) -> Feed:
        self.calls += 1
        if self.calls % 2 == 0:
            return self
        other = Feed(self.world, self.world.clients.index(self.client))
        other.plan.append(("confidence", round, 0))
        return other


def rhfl(table: Table) -> None:
    script, federation = Script(folder / "HHF" / "HHF.py"), federation_of()
    symmetric = definitions(folder / "loss.py", "SCELoss").SCELoss
    run, without = ours("rhfl", federation, public_optimiser="sgd"), ours("local", federation)
    nets, public = [Pair(model) for model in run.models[0]], PublicFeed(federation)
    feeds = [Measured(federation, k) for k in range(len(nets))]
    weights: list[Any] = []

    def noted(space: dict) -> None:
        if "weight_with_quality" in space:
            weights.append(space["weight_with_quality"].clone())

    space = {
        "Client_Confidence_Reweight_Loss": "SCE", "beta": 0.5, "Noise_type": None, "Noise_rate": 0,
        "SCELoss": lambda alpha, beta, num_classes: symmetric(alpha, beta, CLASSES),
        "current_mean_loss_list": [],
        "get_dataloader": lambda dataidxs, **_: (feeds[dataidxs].twice(public.round), None, range(10), None),
        "Pariticpant_Params": {"loss_funnction": "SCE", "optimizer_name": "Adam", "learning_rate": 0.01},
    }  # fmt: skip
    single, torch.Tensor.float = torch.Tensor.float, lambda self: self  # of the 1e-4 whose logarithm it takes
    theirs = script.run(federation, nets, feeds, public, noted, **space)
    torch.Tensor.float = single
    table.add("rhfl", "clients' models", run, theirs, without=without, remark=SGD)
    table.add("rhfl", "the clients' confidence weights", [s.weights for s in run.states[1:-1]], weights)


CASES = (rhfl,)
