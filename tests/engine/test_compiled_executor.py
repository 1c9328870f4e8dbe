"""The executor `compiled`: numbers of `sequential` up to rounding, on the same draws and parameters."""

import dataclasses

import pytest
import torch
from federation import difference, image_world, run, same
from torch import nn

from pipeline.engine import compiled
from pipeline.engine.compiled import ConvReluPool
from pipeline.engine.world import supervised
from pipeline.errors import ParamError
from pipeline.methods.fedavg import FedAvg
from pipeline.models import Network, build
from pipeline.models.compiled import unavailable
from pipeline.models.small import STACKS
from pipeline.schema import Model, Optimiser

# relative to what the training changed
CLOSE = 1e-4
WITH_CONVOLUTIONS = sorted(name for name, stack in STACKS.items() if stack.convolutions)


@pytest.fixture(autouse=True)
def kernel():
    why = unavailable()
    if why:
        pytest.skip(why)


@pytest.fixture
def world_of(monkeypatch):
    """world_of(executor, **settings): a world of grey images, whose clients train by that executor."""

    def make(executor, **settings):
        monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
        return image_world(optimiser=Optimiser("sgd", 0.01), **settings)

    return make


def joined(network: nn.Module) -> list[nn.Module]:
    return [layer for layer in network.modules() if isinstance(layer, ConvReluPool)]


def change(world, models):
    """How local training changes the parameters of all clients, as one vector."""
    trained = world.local_epochs(models, supervised).models
    parts = []
    for before, after in zip(models, trained):
        parts += [(after[name] - before[name]).flatten() for name in before]
    return torch.cat(parts)


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_local_training_is_that_of_sequential_up_to_rounding(name, world_of):
    changes = []
    for executor in ("sequential", "compiled"):
        world = world_of(executor, model=Model(name)).at(1)
        changes.append(change(world, world.everyone(world.new_model())))
    by_torch, by_kernel = changes
    assert (by_kernel - by_torch).norm() < CLOSE * by_torch.norm()


def test_its_numbers_have_other_bits(world_of):
    ends = [run(FedAvg(), world_of(executor), 2) for executor in ("sequential", "compiled")]
    assert 0 < difference(*ends) < 1e-4


def test_two_trainings_have_the_same_bits(world_of):
    assert same(run(FedAvg(), world_of("compiled"), 2), run(FedAvg(), world_of("compiled"), 2))


@pytest.mark.parametrize("name", WITH_CONVOLUTIONS)
def test_models_begin_with_the_same_parameters_under_the_same_names(name, world_of):
    by_torch = world_of("sequential", model=Model(name)).new_model()
    by_kernel = world_of("compiled", model=Model(name)).new_model()
    assert list(by_torch) == list(by_kernel)
    assert same(by_torch, by_kernel)


def test_every_convolution_of_a_small_network_is_compiled(world_of):
    (network,) = world_of("compiled").networks.values()
    assert len(joined(network)) == len(STACKS["cnn4"].convolutions)


def test_pooling_and_relu_behind_a_joined_convolution_do_nothing():
    encoder = build(Model("lenet"), 3, 32, 10).features.encoder
    compiled.join_convolutions(encoder)
    assert [type(layer) for layer in encoder][:6] == [ConvReluPool, nn.Identity, nn.Identity] * 2
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in encoder)


def test_the_kernel_computes_training_and_evaluation(world_of, monkeypatch):
    calls = []

    def counted(images, weight, bias):
        calls.append(len(images))
        return by_kernel(images, weight, bias)

    by_kernel = compiled.conv_relu_pool
    monkeypatch.setattr(compiled, "conv_relu_pool", counted)
    world = world_of("compiled").at(1)
    model = world.new_model()
    world.local_epochs(world.everyone(model), supervised)
    assert calls
    calls.clear()
    world.network(0, model)(world.clients[0].images)
    assert calls == [len(world.clients[0].images)] * len(STACKS["cnn4"].convolutions)


def test_float64_is_left_to_torch(world_of):
    ends = [
        run(FedAvg(), world_of(executor, dtype=torch.float64), 2) for executor in ("sequential", "compiled")
    ]
    assert same(*ends)


def test_a_users_network_is_left_to_torch(world_of):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(1))
            self.head = nn.Linear(144, 10)

        def forward(self, images):
            return self.head(self.features(images))

    (network,) = world_of("compiled", model=Own()).networks.values()
    assert not joined(network)


def test_a_network_of_a_paper_with_the_name_of_a_small_one_is_left_to_torch():
    model = dataclasses.replace(Model("cnn4"), paper="mine")
    network = Network(nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(1)), nn.Linear(4, 2))
    compiled.Compiled({model: network}, None, None, torch.device("cpu"))
    assert not joined(network)


def test_another_device_than_a_cpu_is_refused():
    with pytest.raises(ParamError, match="'compiled' is for a CPU, and the device is cuda"):
        compiled.Compiled({}, None, None, torch.device("cuda"))


def test_where_the_kernel_cannot_be_built_nothing_trains(world_of, monkeypatch):
    monkeypatch.setattr(compiled, "unavailable", lambda: "compiled convolutions: no compiler")
    with pytest.raises(ParamError, match="FEDREPRO_EXECUTOR: compiled convolutions: no compiler"):
        world_of("compiled")
