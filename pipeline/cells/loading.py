"""Build one seed's federation as tensors on a device: clients, newcomers, test sets, public images."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.cells import inputs
from pipeline.cells.evaluation import TestSet
from pipeline.cells.experiment import Experiment
from pipeline.data import partition
from pipeline.data.tensors import to_tensor
from pipeline.engine.environment import default_device
from pipeline.engine.handle import Batch
from pipeline.engine.phase import Client, draw, least_batch
from pipeline.engine.world import World
from pipeline.errors import ParamError, unknown
from pipeline.schema import Cell, Model, Scenario


class Federation(NamedTuple):
    """The data that all seeds with the same draw of a cell's partition share."""

    clients: tuple[Client, ...]
    tests: tuple[TestSet, ...]
    classes: int
    public: Tensor | None
    heldout: Batch | None
    judged: Batch | None  # the test images under the scenario's corruption (RAHFL's literal reading)
    digest: str  # of what they were loaded from


def load_world(experiment: Experiment, seed: int) -> tuple[World, tuple[TestSet, ...]]:
    """The federation of one seed and its test sets, on the device of FEDREPRO_DEVICE (default: a GPU if there
    is one). Clients that the scenario keeps unseen are not in it."""
    cell, scenario, federation = experiment.cell, experiment.scenario, load(experiment, seed)
    if late := _unseen(cell, scenario, seed, federation):
        federation = _only(federation, [k for k in range(len(federation.clients)) if k not in late])
    world = _world(scenario, federation, seed)
    _check_batches(world, f"papers/{cell.paper}/paper.yaml: scenarios.{cell.scenario}")
    return world, federation.tests


def _check_batches(world: World, where: str) -> None:
    """ParamError where nobody would train, or public data would have no batch."""
    least, size = least_batch(*world.networks.values()), world.training.batch_size
    if size < least:
        raise ParamError(f"{where}.training.batch_size: BatchNorm needs batches of at least {least} images")
    if not any(world.sizes):
        raise ParamError(f"{where}.training.batch_size: seed {world.seed}: no client has a batch of {size}")
    if world.public_data is not None and not world.public_data.cuts(least):
        raise ParamError(f"{where}.public.batch_size: BatchNorm needs batches of at least {least} images")


def load_newcomers(experiment: Experiment, seed: int) -> tuple[World, tuple[TestSet, ...]] | None:
    """The clients that come after the last round, as another federation in that round and
    whose local epochs are the scenario's `adaptation`; None where there are none."""
    scenario, federation = experiment.scenario, load(experiment, seed)
    training = scenario.training
    if not (late := _unseen(experiment.cell, scenario, seed, federation)):
        return None
    federation = _only(federation, late)
    training = dataclasses.replace(
        training,
        participation=None,
        failing=None,
        stragglers=None,
        local_epochs=training.adaptation or training.local_epochs,
    )
    world = _world(dataclasses.replace(scenario, training=training), federation, seed)
    return world.at(training.rounds), federation.tests


def _unseen(cell: Cell, scenario: Scenario, seed: int, federation: Federation) -> Sequence[int]:
    """Which clients come after the last round: those named, or a draw of the seed's."""
    wanted, names = scenario.training.unseen, [client.name for client in federation.clients]
    if wanted is None:
        return ()
    where = f"papers/{cell.paper}/paper.yaml: scenarios.{cell.scenario}.training.unseen"
    if isinstance(wanted, list):
        for name in wanted:
            if name not in names:
                raise ParamError(f"{where}: {unknown('client', name, names)}")
        late: Sequence[int] = [k for k, name in enumerate(names) if name in wanted]
    else:
        late = draw(range(len(names)), wanted, len(names), "unseen", seed)
    if not any(len(client.labels) for k, client in enumerate(federation.clients) if k not in late):
        raise ParamError(f"{where}: seed {seed} has no client left that trains")
    return late


def _only(federation: Federation, chosen: Sequence[int]) -> Federation:
    """The federation of some of the clients, each with its test part."""
    return federation._replace(
        clients=tuple(federation.clients[k] for k in chosen), tests=tuple(federation.tests[k] for k in chosen)
    )


def _world(scenario: Scenario, federation: Federation, seed: int) -> World:
    public = (
        None if federation.public is None or scenario.public is None else (federation.public, scenario.public)
    )
    return World.create(
        federation.clients,
        scenario.training,
        federation.classes,
        seed,
        federation.clients[0].images.device,
        data=scenario.data,
        public=public,
        heldout=federation.heldout,
        test=federation.judged,
        test_sets={test.name: Batch(test.images, test.labels) for test in federation.tests}
        if scenario.evaluation.tests == "pooled"
        else None,
    )


def load(experiment: Experiment, seed: int) -> Federation:
    """The data of a seed, cached for later seeds of the same draw, also for processes forked from this
    one."""
    return _load(experiment, experiment.partition(seed))


@lru_cache(maxsize=1)
def _load(experiment: Experiment, folder: Path) -> Federation:
    cell, scenario, device = experiment.cell, experiment.scenario, default_device()
    checked = inputs.load(experiment, folder)
    parts, pictures = checked.parts, _Pictures(scenario, checked, device)
    clients = tuple(
        Client(name, domain, _model(scenario, name, domain, cell), *pictures.private(indices))
        for (name, domain), indices in zip(parts.clients, parts.train, strict=True)
    )
    public = None
    if scenario.public is not None:
        assert checked.public is not None
        public = to_tensor(checked.public.images[parts.public], scenario.data).to(device)
    pooled = np.concatenate(list(parts.domain_test.values()))
    judged = pictures.judged(pooled) if scenario.evaluation.tests == "pooled" else None
    heldout = pictures.judged(parts.heldout) if len(parts.heldout) else None
    return Federation(
        clients,
        _tests(scenario, parts, pooled, pictures),
        len(checked.stored.meta["classes"]),
        public,
        heldout,
        judged,
        checked.digest,
    )


def _tests(
    scenario: Scenario, parts: partition.Parts, pooled: np.ndarray, pictures: "_Pictures"
) -> tuple[TestSet, ...]:
    if scenario.evaluation.tests == "clients":  # as each client has them, corrupted or not
        return tuple(
            TestSet(name, *pictures.private(indices))
            for (name, _), indices in zip(parts.clients, parts.client_test, strict=True)
        )
    if scenario.evaluation.tests == "pooled" and scenario.corruption is not None:
        return (
            TestSet("clean", *pictures.clean(pooled)),
            TestSet("corrupted", *pictures.corrupted(pooled), pictures.corruption(pooled)),
        )
    elif scenario.evaluation.tests == "pooled":
        named = [("test", pooled)]
    else:
        named = list(parts.domain_test.items())
    return tuple(TestSet(name, *pictures.clean(indices)) for name, indices in named)


class _Pictures:
    """Network inputs and labels of stored images: as they are, or corrupted."""

    def __init__(self, scenario: Scenario, checked: inputs.Inputs, device: torch.device):
        self.scenario, self.stored, self.device = scenario, checked.stored, device
        self.vectors, self.damage = checked.vectors, checked.damage

    def clean(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._tensors(self.stored.images, indices)

    def corrupted(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """All of them corrupted, where the scenario has corruption."""
        return self._tensors((self.damage or self.stored).images, indices)

    def corruption(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Name of the corruption and severity of each, where the scenario has corruption."""
        if self.damage is None:
            return None
        kinds = np.array(self.damage.meta["corruption"]["kinds"])
        return kinds[self.damage.kind[indices]], np.asarray(self.damage.severity[indices])

    def private(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """A client's images, of which the share that the scenario states is corrupted."""
        if self.damage is None or self.scenario.corruption is None:
            return self.clean(indices)
        images, labels = self.clean(indices)
        hit = torch.from_numpy(self.damage.chosen(self.scenario.corruption)[indices]).to(images.device)
        return torch.where(hit[:, None, None, None], self.corrupted(indices)[0], images).contiguous(
            memory_format=torch.channels_last
        ), labels

    def judged(self, indices: np.ndarray) -> Batch:
        """Images by which clients are compared: corrupted if any private image is."""
        return Batch(*(self.corrupted(indices) if self.scenario.corruption else self.clean(indices)))

    def _tensors(self, images: np.ndarray, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        labels = torch.from_numpy(self.stored.labels[indices]).to(self.device)
        if self.vectors is not None:
            return torch.from_numpy(self.vectors[indices]).to(self.device), labels
        return to_tensor(images[indices], self.scenario.data).to(self.device), labels


def _model(scenario: Scenario, name: str, domain: str, cell: Cell) -> Model:
    if scenario.model is not None:
        return scenario.model
    models = scenario.models or {}
    model = models.get(name) or models.get(domain)
    if model is None:
        where = f"papers/{cell.paper}/paper.yaml: scenarios.{cell.scenario}.models"
        raise ParamError(f"{where}: no network for client {name!r}")
    return model
