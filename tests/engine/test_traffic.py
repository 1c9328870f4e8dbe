"""What a run sends, by seed; and how many models a client holds while it trains."""

import pytest
import torch
from federation import miniature_cells, miniature_world, one_round

from pipeline import methods
from pipeline.cells import results
from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import model_copies
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import of_client
from pipeline.engine.state import Params
from pipeline.methods.fcclplus import FCCLPlus
from pipeline.methods.fednova import FedNova
from pipeline.methods.fedprox import FedProx
from pipeline.methods.moon import Moon
from pipeline.schema import Cell
from pipeline.training import seeds

CELLS = miniature_cells()
LEGACY = {"traffic": {"up": 1000, "down": 2000, "bytes": 12000}, "seeds": [0, 1]}


def test_traffic_of_seeds():
    """Three partitions, on which a client holds 4, 5.4 and 5 classes of 128 numbers."""
    actual = seeds.traffic([(512.0, 1280.0), (691.2, 1280.0), (640.0, 1280.0)])
    assert actual["traffic"] == {"up": pytest.approx(614.4), "down": 1280.0, "bytes": 7578}
    assert actual["traffic_of_seeds"]["bytes"] == [7168, 7885, 7680]
    up, both = (results.summarise(results.traffic_of_seeds(actual, name)) for name in ("up", "bytes"))
    assert (up.mean, up.seeds, both.seeds) == (pytest.approx(614.4), 3, 3)
    assert up.std == pytest.approx((((512 - 614.4) ** 2 + 76.8**2 + 25.6**2) / 2) ** 0.5)
    assert seeds.traffic([(0.1, 0.7)] * 3)["traffic"] == {"up": 0.1, "down": 0.7, "bytes": 3}
    assert results.traffic_of_seeds(LEGACY, "up") == [1000, 1000]

    def taken(result, at):
        return [results.traffic_of_seeds(result, name)[at] for name in ("up", "down")]

    new = seeds.traffic([(1.0, 2.0), (3.0, 4.0)]) | {"seeds": [0, 1]}
    assert (taken(LEGACY, 1), taken(new, 0), taken(new, 1)) == ([1000, 2000], [1.0, 2.0], [3.0, 4.0])


@pytest.mark.parametrize(
    "method, space",
    [("fedavg", 1), ("fedprox", 2), ("moon-5", 3), ("fedmd", 1), ("fccl", 3), ("fcclplus", 2)],
)
def test_the_parameter_space_is_the_printed_one(method, space):
    """FCCL+, Table 3, in |theta|."""
    assert model_copies(Experiment.of(Cell("fcclplus", "homogeneous-digits", method))) == space


OTHERS = [
    ("fedprox", FedProx(mu=0.0)),
    ("moon", Moon(buffer=2)),
    ("moon", Moon(mu=0.0)),
    ("fednova", FedNova(mu=0.1, lr=0.05)),
    *(("fcclplus", FCCLPlus(local=how, pretraining=1)) for how in ("kd", "ce", "ewc", "fccl")),
]


@pytest.mark.parametrize("algorithm, method", [*((name, None) for name in CELLS), *OTHERS])
def test_the_space_is_what_training_reads(algorithm, method):
    """Every model that a phase gives a client's loss, made of NaN in turn: it is held if that reaches the
    loss, or what a step leaves. The third round, in which all earlier models are there."""
    scenario, _, hyper = CELLS[algorithm].resolve()
    method = method or methods.load(algorithm, hyper, "here")
    world = miniature_world(scenario, rounds=3, sizes=(9, 4, 4))
    state, phases = method.init(world), []
    for number in (1, 2, 3):
        phases.clear()
        state, _ = one_round(method, state, world.at(number, Spy(world.executor, phases)))
    held = 1 + max(sum(reads(world, phase, *path) for path in models_of(phase)) for phase in phases)
    if algorithm == "fedmatch":  # its public phase moves psi, with sigma held
        held += 1
    assert method.copies == held


class Spy:
    """An executor that notes its phases."""

    def __init__(self, executor, phases):
        self.executor, self.phases = executor, phases

    def run(self, phase):
        self.phases.append(phase)
        return self.executor.run(phase)


def models_of(phase) -> list[tuple[str, tuple]]:
    """Where whole models are in what a client's loss is given: (server or client state, path)."""
    full = size(phase.models[0])

    def inside(value, path=()):
        if isinstance(value, Params):
            return [path] if size(value) > full / 2 else []
        return (
            [actual for key, part in value.items() for actual in inside(part, (*path, key))]
            if isinstance(value, dict)
            else []
        )

    return [
        (name, path)
        for name, value in (("server", phase.server_state), ("client", of_client(phase.client_state, 0)))
        for path in inside(value)
    ]


def size(model) -> int:
    return sum(value.numel() for value in model.values() if value.is_floating_point())


def spoiled(value, path):
    if path:
        return type(value)({**value, path[0]: spoiled(value[path[0]], path[1:])})
    return Params(
        (name, torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor)
        for name, tensor in value.items()
    )


def reads(world, phase, name, path) -> bool:
    """Does NaN in that model reach the loss of a batch, or its step?"""
    given = {"server": phase.server_state, "client": of_client(phase.client_state, 0)}
    given[name] = spoiled(given[name], path)
    client = phase.clients[0]
    network = world.network(0, phase.models[0]).train()
    images, labels = client.images[:4], client.labels[:4]
    batch = Batch(images, labels) if phase.views is None else None
    if batch is None:
        first, *others = phase.views(images, torch.Generator().manual_seed(0))
        batch = Batch(first, labels, tuple(others))
    handle = Handle(network, phase.models[0] if phase.step else None)
    if phase.step:
        moved, *_ = phase.step(handle, [batch] * phase.batches_per_step, given["server"], given["client"])
        return any(bool(value.isnan().any()) for value in moved.values())
    value = phase.loss(handle, batch, given["server"], given["client"])
    value = value[0] if isinstance(value, tuple) else value
    return bool(value.isnan())
