"""FedRep: features are shared, heads stay at the client; the head is trained first, then the features
(Collins et al. 2021, Algorithm 1)."""

from dataclasses import dataclass

from pipeline.engine import LocalOptions, State, World
from pipeline.methods.fedper import FedPer
from pipeline.schema import Whole


@dataclass(frozen=True)
class FedRep(FedPer):
    """tau_h epochs on the head, the features frozen, then tau_b on the features, the head frozen."""

    head_epochs: Whole = 10  # tau_h, as in the authors' commands for CIFAR-10 and CIFAR-100
    # tau_b: the authors' commands have 1 for CIFAR-10 and 5 for CIFAR-100; None: the scenario's local epochs.
    feature_epochs: Whole | None = None
    uniform: bool = False  # the paper's mean over clients; False: weighted by samples, as PFLlib

    def round(self, state: State, world: World) -> State:
        models = self.deployed(state, world)
        for options in (
            LocalOptions("head", self.head_epochs, stream="head"),
            LocalOptions("features", self.feature_epochs),
        ):
            models = world.local_epochs(models, self.loss, options=options).models
        return State(features=world.average(models.features, self.uniform), heads=models.heads)

    def adaptation_epochs(self, world: World) -> int:
        return world.training.adaptation or self.head_epochs
