"""A client that has images but no usable batch is one without data, to every method."""

import dataclasses

import pytest
import torch
from federation import (
    close,
    image_clients,
    image_world,
    miniature_cells,
    miniature_world,
    params,
    run,
    same,
    tiny_world,
    training,
)

from pipeline import methods
from pipeline.cells import loading
from pipeline.engine.phase import only
from pipeline.engine.state import Clients
from pipeline.engine.world import World
from pipeline.errors import ParamError, TrainingError
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedproto import FedProto
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.prototypes import class_sums, logged_means
from pipeline.schema import Model, Public

CELLS = miniature_cells()
# Sizes of which the second has no batch: incomplete ones are dropped, or BatchNorm takes no single image.
CASES = {
    "an incomplete batch": ((5, 3, 9), {"batch_size": 4, "drop_last": True}),
    "a single image under BatchNorm": ((5, 1, 9), {"batch_size": 4, "model": Model("resnet10")}),
}
each_case = pytest.mark.parametrize("sizes, changes", CASES.values(), ids=CASES.keys())


@pytest.mark.parametrize("algorithm", CELLS)
def test_every_method_ends_where_it_does_if_the_client_has_no_data(algorithm):
    scenario, _, hyper = CELLS[algorithm].resolve()
    scenario = dataclasses.replace(
        scenario, training=dataclasses.replace(scenario.training, drop_last=True, participation=None)
    )
    method = methods.load(algorithm, hyper, "here")
    worlds = (miniature_world(scenario, 2, sizes=(9, 17, 5), empty=which) for which in ((), (2,)))
    assert same(*(run(method, world, 2) for world in worlds))


@each_case
def test_weights_and_counts(sizes, changes):
    world = image_world(sizes, **changes)
    assert world.weights == list(world.sizes) == [5, 0, 9]
    assert world.class_counts.sum(1).tolist() == [5, 0, 9]
    assert image_world(sizes, averaging="uniform", **changes).weights == [1, 0, 1]
    assert not world.class_means(world.everyone(world.new_model())).present[1].any()


def test_it_has_no_weight_is_never_drawn_and_may_predict_every_class():
    """(5 * 1 + 9 * 3) / 14, whatever the second client holds."""
    world = image_world((5, 3, 9), batch_size=4, drop_last=True)
    models = [params({"head.bias": [value]}) for value in (1.0, 100.0, 3.0)]
    close(world.average(models)["head.bias"], [32 / 14])
    close(world.average(models, uniform=True)["head.bias"], [2])
    world = image_world((5, 3, 9), batch_size=4, drop_last=True, participation=1)
    assert {world.at(number).participants for number in range(1, 30)} == {(0,), (2,)}
    with pytest.raises(TrainingError, match="round 1.*batches of 4"):
        run(FedAvg(), image_world((3, 2), batch_size=4, drop_last=True), 1)
    world = image_world((20, 3), batch_size=4, drop_last=True)
    owned = FedProto(candidates="own").init(world).owned
    assert torch.equal(owned[0], world.class_counts[0] > 0) and owned[1].all()


@pytest.mark.parametrize("variant, size", [("fo", 7), ("hf", 11)])
def test_perfedavg_needs_as_many_batches_as_a_step_takes(variant, size):
    """Two or three batches of four: a client with one image less is not averaged."""

    def end(clients):
        world = World.create(clients, training(batch_size=4, drop_last=True), 10, 0)
        return run(PerFedAvg(variant=variant), world, 2)

    three = image_clients((12, size, 24))
    assert same(end(three), end(only(three, (0, 2))))
    assert not same(end(three), end(image_clients((12, 12, 24))))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_client_counts_the_samples_that_it_holds(executor, monkeypatch):
    """Labels 0, 0, 2, 1, 1 in their order, batches of four: the last sample, of class 1, is in none. Counted
    are the two of class 1 that the client holds; where a class was not seen at all, it has no mean."""
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    x = [[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [2.0, 2.0], [9.0, 9.0]]
    for labels, counts in (([0, 0, 2, 1, 1], [2, 2, 1]), ([0, 0, 1, 1, 2], [2, 2, 0])):
        world = tiny_world(monkeypatch, (x, labels), classes=3, batch_size=4, drop_last=True)
        start = Clients([params({"head.weight": [[0.0, 0.0]] * 2, "head.bias": [0.0, 0.0]})])

        def loss(model, batch, server_state, client_state):
            z = model.features(batch.images)
            return model(batch.images).sum() * 0, class_sums(z, batch.labels, 3)

        actual = logged_means(world.local_epochs(start, loss), world.class_counts)
        assert actual.counts.tolist() == [counts]
        close(actual.means[0, 0], torch.tensor([2.0, 0.0]), 1e-5)


@pytest.mark.parametrize(
    "key, batch_size, public",
    [("training", 1, None), ("public", 4, {"batch_size": 1}), ("public", 4, {"size": 1})],
    ids=repr,
)
def test_batches_of_one_image_under_batchnorm_are_refused(key, batch_size, public):
    """Every batch would be left out: of training, or of the public images."""
    clients = image_clients((5, 9), Model("cnn3_bn"))
    settings = None if public is None else Public("digits", **{"size": 3, "batch_size": 3, **public})
    world = World.create(
        clients,
        training(batch_size=batch_size),
        classes=10,
        seed=0,
        public=settings and (clients[0].images[: settings.size], settings),
    )
    with pytest.raises(ParamError, match=f"x.{key}.batch_size: BatchNorm"):
        loading._check_batches(world, "x")
    loading._check_batches(World.create(clients, training(batch_size=2), classes=10, seed=0), "x")
