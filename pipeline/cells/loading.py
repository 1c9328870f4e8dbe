"""Build the federation of one seed as tensors on a device: clients, clients that join later, test sets,
public images."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import Inputs
from pipeline.cells.inputs import load as load_inputs
from pipeline.cells.test_sets import TestSet
from pipeline.data.parts import Parts
from pipeline.data.tensors import Scale, numbers, to_tensor
from pipeline.engine.environment import default_device
from pipeline.engine.handle import Batch
from pipeline.engine.phase import Client, draw, least_batch
from pipeline.engine.world import World
from pipeline.errors import ParamError, unknown
from pipeline.schema import Model, Public, Scenario


class Federation(NamedTuple):
    """The loaded data that all seeds with the same draw of a cell's partition share."""

    clients: tuple[Client, ...]
    tests: tuple[TestSet, ...]
    classes: int
    public: tuple[Tensor, Public] | None
    heldout: Batch | None
    judged: Batch | None  # the test images under the scenario's corruption (RAHFL's literal reading)
    digest: str  # of what they were loaded from
    scale: Scale | None  # by which samples that are no images were normalised


def load_world(experiment: Experiment, seed: int) -> tuple[World, tuple[TestSet, ...]]:
    """The federation of one seed and its test sets, on the device of FEDREPRO_DEVICE (default: a GPU if there
    is one).

    It does not contain clients that the scenario keeps unseen.
    """
    federation = load(experiment, seed)
    if late := _unseen(experiment, seed, federation):
        federation = _only(federation, [k for k in range(len(federation.clients)) if k not in late])
    world = _world(experiment.scenario, federation, seed)
    _check_batches(world, experiment.scenario_key)
    _check_sample(experiment.scenario.evaluation.sample, federation.tests, seed, experiment.scenario_key)
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


def _check_sample(wanted: int | None, tests: Sequence[TestSet], seed: int, where: str) -> None:
    """ParamError where fewer clients have test images than are to be scored."""
    if wanted is None:
        return
    able = sum(len(test.labels) > 0 for test in tests)
    if able < wanted:
        what = f"is {wanted}, and only {able} clients of seed {seed} have test images"
        raise ParamError(f"{where}.evaluation.sample: {what}")


def load_newcomers(experiment: Experiment, seed: int) -> tuple[World, tuple[TestSet, ...]] | None:
    """The clients that come after the last round, as another federation in that round and
    whose local epochs are the scenario's `adaptation`; None where there are none."""
    federation, training = load(experiment, seed), experiment.scenario.training
    if not (late := _unseen(experiment, seed, federation)):
        return None
    federation, epochs = _only(federation, late), training.adaptation or training.local_epochs
    training = dataclasses.replace(
        training, local_epochs=epochs, participation=None, failing=None, stragglers=None
    )
    world = _world(dataclasses.replace(experiment.scenario, training=training), federation, seed)
    return world.at(training.rounds), federation.tests


def _unseen(experiment: Experiment, seed: int, federation: Federation) -> Sequence[int]:
    """Which clients come after the last round: those named, or a draw of the seed's."""
    wanted, names = experiment.scenario.training.unseen, [client.name for client in federation.clients]
    if wanted is None:
        return ()
    where = f"{experiment.scenario_key}.training.unseen"
    if isinstance(wanted, list):
        if lost := [name for name in wanted if name not in names]:
            raise ParamError(f"{where}: {unknown('client', lost[0], names)}")
        late: Sequence[int] = [k for k, name in enumerate(names) if name in wanted]
    else:
        late = draw(range(len(names)), wanted, len(names), "unseen", seed)
    if not any(len(client.labels) for k, client in enumerate(federation.clients) if k not in late):
        raise ParamError(f"{where}: seed {seed} has no client left that trains")
    return late


def _only(federation: Federation, chosen: Sequence[int]) -> Federation:
    return federation._replace(
        clients=tuple(federation.clients[k] for k in chosen), tests=tuple(federation.tests[k] for k in chosen)
    )


def _world(scenario: Scenario, federation: Federation, seed: int) -> World:
    tests = {test.name: Batch(test.images, test.labels) for test in federation.tests}
    return World.create(
        federation.clients,
        scenario.training,
        federation.classes,
        seed,
        federation.clients[0].images.device,
        data=scenario.data,
        public=federation.public,
        heldout=federation.heldout,
        test=federation.judged,
        test_sets=tests if scenario.evaluation.tests == "pooled" else None,
    )


def load(experiment: Experiment, seed: int) -> Federation:
    """The data of a seed, cached for later seeds with the same draw and for forked processes."""
    return _load(experiment, experiment.partition(seed))


@lru_cache(maxsize=1)
def _load(experiment: Experiment, folder: Path) -> Federation:
    scenario, device, checked = experiment.scenario, default_device(), load_inputs(experiment, folder)
    parts, scale = checked.parts, None
    if scenario.data.normalise == "standard":
        scale = Scale.of(checked.stored.images[np.concatenate(parts.train)])
    pictures = _Pictures(scenario, checked, device, scale)
    clients = tuple(
        Client(name, domain, _model(experiment, name, domain), *pictures.private(indices))
        for (name, domain), indices in zip(parts.clients, parts.train, strict=True)
    )
    public = None
    if scenario.public is not None:
        assert checked.public is not None
        public = pictures.tensor(checked.public.images[parts.public]), scenario.public
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
        scale,
    )


def _tests(
    scenario: Scenario, parts: Parts, pooled: np.ndarray, pictures: "_Pictures"
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
    named = {"test": pooled} if scenario.evaluation.tests == "pooled" else parts.domain_test
    return tuple(TestSet(name, *pictures.clean(indices)) for name, indices in named.items())


@dataclasses.dataclass(frozen=True)
class _Pictures:
    """Network inputs and labels of stored samples: as they are, or images corrupted."""

    scenario: Scenario
    loaded: Inputs
    device: torch.device
    scale: Scale | None

    def clean(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._tensors(self.loaded.stored.images, indices)

    def corrupted(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """All of them corrupted, where the scenario has corruption."""
        return self._tensors((self.loaded.damage or self.loaded.stored).images, indices)

    def corruption(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Name of the corruption and severity of each, where the scenario has corruption."""
        if self.loaded.damage is None:
            return None
        kinds = np.array(self.loaded.damage.meta["corruption"]["kinds"])
        return kinds[self.loaded.damage.kind[indices]], np.asarray(self.loaded.damage.severity[indices])

    def private(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """A client's images, of which the share that the scenario states is corrupted."""
        if self.loaded.damage is None or self.scenario.corruption is None:
            return self.clean(indices)
        images, labels = self.clean(indices)
        hit = torch.from_numpy(self.loaded.damage.chosen(self.scenario.corruption)[indices]).to(images.device)
        return torch.where(hit[:, None, None, None], self.corrupted(indices)[0], images).contiguous(
            memory_format=torch.channels_last
        ), labels

    def judged(self, indices: np.ndarray) -> Batch:
        """Images by which clients are compared: corrupted if any private image is."""
        return Batch(*(self.corrupted(indices) if self.scenario.corruption else self.clean(indices)))

    def _tensors(self, images: np.ndarray, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        labels = torch.from_numpy(self.loaded.stored.labels[indices]).to(self.device)
        if self.loaded.vectors is not None:
            return torch.from_numpy(self.loaded.vectors[indices]).to(self.device), labels
        return self.tensor(images[indices]), labels

    def tensor(self, samples: np.ndarray) -> Tensor:
        """Stored images, or other samples, as the networks take them."""
        data = self.scenario.data
        tensor = to_tensor(samples, data) if data.of_images else numbers(samples, self.scale)
        return tensor.to(self.device)


def _model(experiment: Experiment, name: str, domain: str) -> Model:
    models = experiment.scenario.models or {}
    model = experiment.scenario.model or models.get(name) or models.get(domain)
    if model is None:
        raise ParamError(f"{experiment.scenario_key}.models: no network for client {name!r}")
    return model
