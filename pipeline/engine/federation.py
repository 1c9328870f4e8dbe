"""Federation: the clients of a round, and the public, held-out and test images of its scenario."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from pipeline import keys
from pipeline.data import augmentations
from pipeline.data.tensors import Pixels
from pipeline.engine.environment import new_executor
from pipeline.engine.handle import Batch
from pipeline.engine.phase import Client, batches, draw, only, share_of_epochs
from pipeline.engine.public import Public
from pipeline.models import Network, build
from pipeline.schema import Data, Model, Training
from pipeline.schema import Public as PublicSettings

AUGMENTATIONS = {None: None, "crop_flip": augmentations.plain}


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """The clients of one seed of a cell as they are in one round. `create` makes the first one, `at` that of
    another round.

    A client with images but no usable batch cannot train, and is a client without data to every method: it
    has no weight and no class mean. See `phase.batches`.

    clients: every client, an absent one without data
    training: the scenario's settings, with the round's learning rate
    round: 0 while a method initialises, then 1, 2, ...
    heldout: labelled images that no client has, where a scenario sets some aside
    test: test images under the scenario's corruption
    test_sets: the common test sets by which clients are scored, by name
    pixels: how the data set's pixels become network inputs
    participants: numbers of the clients that take part in the round
    executor: carries out local phases, Sequential, Stacked, or a wrapper of one
    networks: one of each architecture, for any client's values
    public_data, augmentation: None where the scenario has none
    full: the round with all clients' data, where some are absent
    work: share of its epochs that every client does, of which the rest of one counts as one; None: all
    planned: the scenario's settings; None before `at`
    """

    clients: tuple[Client, ...]
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
        """The federation before the first round. The environment chooses executor and precision.

        data: how pixels are normalised and augmented; None: neither
        public: images (N, C, H, W) as network inputs, and how a round goes through them
        """
        device, pixels = torch.device(device), Pixels() if data is None else Pixels(data.normalise)
        models = dict.fromkeys(client.model for client in clients)
        networks = {model: new_network(model, clients[0].images, classes, device) for model in models}
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
            executor=new_executor(networks, training, device),
            networks=networks,
            public_data=None if public is None else Public(*public, pixels),
            augmentation=AUGMENTATIONS[None if data is None else data.augmentation],
        )

    def at(self, round: int, executor: Any = None) -> Self:
        """The same federation in another round, for the trainer.

        round: 1, 2, ...; 0 initialises a method
        executor: a wrapper of the world's; None: as it is

        Where the scenario has `participation` or `failing`, the clients that take part are drawn from the key
        (seed, round), and those of them that do not fail. The others are clients without data in it: no verb
        trains, weighs or counts them, and each keeps the values that a verb was given for it. `stragglers`
        are drawn from those who are left.
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
            late = draw(present, training.stragglers, len(present), "stragglers", *key)
            work = tuple(
                float(torch.rand((), generator=keys.torch_generator("work", *key, client.name)))
                if k in late
                else 1.0
                for k, client in enumerate(self.clients)
            )
        if training.participation is None and training.failing is None:
            return replace(self, work=work)
        return replace(self, clients=only(self.clients, present), participants=present, full=self, work=work)

    def epochs_of(self, k: int) -> int:
        """Local epochs of client k in the round."""
        return share_of_epochs(self.training.local_epochs, self.work, k)

    @property
    def whole(self) -> Self:
        """The round with everyone's data: what a server knows of all clients, and for scoring them."""
        return self.full or self

    @property
    def sizes(self) -> tuple[int, ...]:
        """The clients' numbers of training samples n_k, 0 for an absent one."""
        return tuple(len(client.labels) for client in self.clients)

    @property
    def homogeneous(self) -> bool:
        """Do all clients hold one architecture?"""
        return len({client.model for client in self.clients}) == 1

    @property
    def width(self) -> int:
        """Length d of a representation; the same for all clients wherever representations are compared."""
        return self.networks[self.clients[0].model].width


def new_network(model: Model, like: Tensor, classes: int, device: torch.device) -> Network:
    """A network for images as in `like` (n, C, H, W), or other samples (n, ...), drawn from torch's global
    generator."""
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
) -> tuple[Client, ...]:
    """The clients, those whose images do not make one step without data."""
    present = [
        k
        for k, client in enumerate(clients)
        if batches(len(client.labels), training, networks[client.model], batches_per_step)
    ]
    return only(clients, present)
