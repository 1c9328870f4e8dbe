"""FangXiuwen/AugHFL, the authors' code: the rounds of HHF/AugHFL.py."""
from collections.abc import Callable
from pathlib import Path

from benchmarks.originals.federation import Table, World, ours
from benchmarks.originals.script import SGD, Pair, Script, ViewFeed, federation_of, noise
from pipeline.methods.aughfl import AugHFL

REPOSITORY, MARK = "FangXiuwen/AugHFL", "HHF/AugHFL.py"
folder = Path()


def prepare(checkout: Path) -> None:
    global folder
    folder = checkout


class OwnViews:
    """Stands for its loader of public images: for every client its own (clean, view, view)."""

    def __init__(self, world: World, views: Callable):
        self.world, self.views, self.round = world, views, 1

    def __iter__(self):
        for batch in self.world.at(self.round).public_batches(views=self.views):
            yield batch.images, None


def aughfl(table: Table) -> None:
    script, views = Script(folder / "HHF" / "AugHFL.py"), noise(3)
    AugHFL.mixed = lambda self, pixels, numbers: views(pixels, numbers)[1:]
    AugHFL.views = lambda self, pixels, numbers: views(pixels, numbers)
    federation = federation_of()
    without, theirs = ours("local", federation), None
    for options, differs, remark in (
        ({"released_bug": True}, "", ""),
        ({}, "their error", "ours by default has the paper's weighted KL; theirs cuts a client's log-probabilities to "
         "[1e-7, 1], where none lies, so that its public loss has no gradient"),
    ):
        run = ours("aughfl", federation, public_optimiser="sgd", **options)
        if theirs is None:
            nets = [Pair(model) for model in run.models[0]]
            feeds = [ViewFeed(federation, k, views) for k in range(len(nets))]
            public = OwnViews(federation, lambda pixels, numbers: views(pixels, numbers)[1:])
            theirs = script.run(
                federation, nets, feeds, public, Corruption_Type=None, Corrupt_rate=0, test_dataset=None,
                Test_Corrupt_rate=0,
                get_augmix_private_dataloader=lambda dataidxs=None, **_: (feeds[dataidxs], None, range(10), None),
            )
        table.add("aughfl", "clients' models", run.models[1:], theirs, without=without.models[1:], differs=differs,
                  remark="; ".join(filter(None, [SGD, "noise in AugMix's place", remark])), **options)


CASES = (aughfl,)
