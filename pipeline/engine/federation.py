"""Federation: the clients of a round, with the scenario's public, held-out and test images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Self

import torch
from torch import Tensor

from pipeline import keys
from pipeline.data import augmentations
from pipeline.data.tensors import Pixels
from pipeline.engine.environment import new_executor
from pipeline.engine.handle import Batch
from pipeline.engine.phase import (
    Client,
    Present,
    Roster,
    batches,
    draw,
    models_of,
    share_of_epochs,
    sizes_of,
)
from pipeline.engine.public import Public
from pipeline.engine.trained import Executor, streams
from pipeline.models import Network, build
from pipeline.schema import Data, Model, Training
from pipeline.schema import Public as PublicSettings

AUGMENTATIONS = {None: None, "crop_flip": augmentations.plain}


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """The clients of one seed of a cell in one round. `create` makes the first federation, `at` that of a
    round.

    Every method treats a client whose images give no usable batch as a client without data: it does not
    train, has weight 0 and has no class means. See `phase.batches`.

    clients: all clients; an absent one has no data
    training: the scenario's settings, with the learning rate of this round
    classes: number of classes
    seed: of the cell
    device: where clients' data and models are
    heldout: labelled images that no client has, if the scenario sets some aside
    test: test images under the scenario's corruption
    test_sets: name -> common test set on which clients are scored
    pixels: how the data set's pixels become network inputs
    participants: indices of the clients that take part in the round
    executor: runs local training: Sequential, Stacked, or a wrapper of one of them
    networks: one network of each architecture; it can hold the values of any client's model
    public_data, augmentation: None if the scenario has none
    round: 0 while the method makes its first state, then 1, 2, ...
    full: if some clients are absent, the same round with the data of all clients
    work: fraction of the local epochs that each client runs, rounded up to at least one epoch; None: all
        epochs
    planned: the scenario's settings; None before `at`
    """

    clients: Sequence[Client]
    training: Training
    classes: int
    seed: int
    device: torch.device
    heldout: Batch | None
    test: Batch | None
    test_sets: dict[str, Batch]
    pixels: Pixels
    participants: tuple[int, ...]
    executor: Any
    networks: dict[Model, Network]
    public_data: Public | None
    augmentation: Callable[[Tensor, torch.Generator], Tensor] | None
    round: int = 0
    full: Self | None = None
    work: tuple[float, ...] | None = None
    planned: Training | None = None

    @classmethod
    def create(
        cls,
        clients: Sequence[Client],
        training: Training,
        classes: int,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        data: Data | None = None,
        public: tuple[Tensor, PublicSettings] | None = None,
        heldout: Batch | None = None,
        test: Batch | None = None,
        test_sets: dict[str, Batch] | None = None,
    ) -> Self:
        """The federation before the first round. Environment variables choose executor and precision.

        clients: a sequence of them, or `phase.Made`, of which each is made when it is read
        data: how pixels are normalised and augmented; None: not at all
        public: the public images (N, C, H, W) as network inputs, and how a round uses them
        heldout, test, test_sets: as in the class
        """
        device, pixels = torch.device(device), Pixels() if data is None else Pixels(data.normalise)
        like = clients[0].images
        networks = {model: new_network(model, like, classes, device) for model in models_of(clients)}
        executor = new_executor(networks, training, device)
        if not streams(executor):
            clients = tuple(clients)
        clients = able(clients, training, networks)
        return cls(
            clients=clients,
            training=training,
            classes=classes,
            seed=seed,
            device=device,
            heldout=heldout,
            test=test,
            test_sets=test_sets or {},
            pixels=pixels,
            participants=tuple(range(len(clients))),
            executor=executor,
            networks=networks,
            public_data=None if public is None else Public(*public, pixels),
            augmentation=AUGMENTATIONS[None if data is None else data.augmentation],
        )

    def at(self, round: int, executor: Executor | None = None) -> Self:
        """The same federation in another round. The trainer calls this, methods do not.

        round: 1, 2, ...; 0 while the method makes its first state
        executor: a wrapper of this federation's executor; None: the same executor

        If the scenario has `participation` or `failing`, the participants, and those of them that fail, are
        drawn from the key (seed, round). All other clients have no data in this round: nothing trains, weighs
        or counts them, and each keeps the values that it had. `stragglers` are drawn from the remaining
        participants.
        """
        planned = self.planned or self.training
        training = replace(planned, optimiser=planned.optimiser.in_round(round))
        world = replace(
            self.whole,
            round=round,
            executor=executor or self.executor,
            training=training,
            planned=planned,
            work=None,
        )
        return world._with_those_present() if round else world

    def _with_those_present(self) -> Self:
        training, key = self.training, (self.seed, self.round)
        present = tuple(k for k, n in enumerate(self.sizes) if n)
        if training.participation is not None:
            present = draw(present, training.participation, len(self.clients), "participants", *key)
        if training.failing is not None:
            present = draw(present, 1 - training.failing, len(present), "failing", *key)
        work = None
        if training.stragglers is not None:
            late = frozenset(draw(present, training.stragglers, len(present), "stragglers", *key))
            work = tuple(
                float(torch.rand((), generator=keys.torch_generator("work", *key, client.name)))
                if k in late
                else 1.0
                for k, client in enumerate(self.clients)
            )
        if training.participation is None and training.failing is None:
            return replace(self, work=work)
        return replace(
            self, clients=Present(self.clients, present), participants=present, full=self, work=work
        )

    def epochs_of(self, k: int) -> int:
        """Number of local epochs of client k in this round."""
        return share_of_epochs(self.training.local_epochs, self.work, k)

    @property
    def whole(self) -> Self:
        """The same round with the data of all clients, for what a server knows about them and for scoring."""
        return self.full or self

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The number of training samples n_k of each client; 0 for an absent one."""
        return sizes_of(self.clients)

    @property
    def homogeneous(self) -> bool:
        """Whether all clients have the same network architecture."""
        return len(models_of(self.clients)) == 1

    @property
    def width(self) -> int:
        """Length d of a representation. It is the same for all clients if representations are compared."""
        return self.networks[self.clients[0].model].width


def new_network(model: Model, like: Tensor, classes: int, device: torch.device) -> Network:
    """A network for images like `like` (n, C, H, W), or other samples (n, ...); weights from torch's
    global generator."""
    channels, size = (like.shape[1], like.shape[-1]) if like.dim() > 1 else (1, 1)
    network = build(model, channels, size, classes, like)
    network = network.to(device, like.dtype if like.is_floating_point() else None)
    # a layout of convolutions over images
    return network.to(memory_format=torch.channels_last) if like.dim() == 4 else network


def able(
    clients: Sequence[Client],
    training: Training,
    networks: dict[Model, Network],
    batches_per_step: int = 1,
) -> Sequence[Client]:
    """The clients; one whose images do not suffice for a single step has no data."""

    @cache
    def steps(size: int, model: Model) -> bool:
        return bool(batches(size, training, networks[model], batches_per_step))

    sizes, models = sizes_of(clients), models_of(clients)
    present = [
        k for k, size in enumerate(sizes) if steps(size, models[0] if len(models) == 1 else clients[k].model)
    ]
    if len(present) < len(clients):
        return Present(clients, present)
    return clients if isinstance(clients, Roster) else tuple(clients)
