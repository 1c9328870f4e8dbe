"""FangXiuwen/AugHFL, the authors' code: the rounds of HHF/AugHFL.py."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.originals.federation import Table, World, ours
from benchmarks.originals.script import SGD, Pair, Script, ViewFeed, federation_of, noise
from pipeline.methods.aughfl import AugHFL

REPOSITORY, MARK = "FangXiuwen/AugHFL", "HHF/AugHFL.py"
TRAINED = "clients' models"
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
    without, released = (
        ours("local", federation),
        ours("aughfl", federation, public_optimiser="sgd", released_bug=True),
    )
    nets = [Pair(model) for model in released.models[0]]
    feeds = [ViewFeed(federation, k, views) for k in range(len(nets))]
    public = OwnViews(federation, lambda pixels, numbers: views(pixels, numbers)[1:])
    loader = {"get_augmix_private_dataloader": lambda dataidxs, **_: (feeds[dataidxs], None, range(10), None)}
    nothing = {"Corruption_Type": None, "Corrupt_rate": 0, "test_dataset": None, "Test_Corrupt_rate": 0}
    theirs = script.run(federation, nets, feeds, public, **loader, **nothing)
    same = f"{SGD}; noise in AugMix's place"
    why = (
        f"{same}; ours by default has the paper's weighted KL; theirs cuts a client's log-probabilities to "
        "[1e-7, 1], where none lies, so that its public loss has no gradient"
    )
    table.add("aughfl", TRAINED, released, theirs, without=without, remark=same, released_bug=True)
    run = ours("aughfl", federation, public_optimiser="sgd")
    table.add("aughfl", TRAINED, run, theirs, without=without, differs="their error", remark=why)


CASES = (aughfl,)
