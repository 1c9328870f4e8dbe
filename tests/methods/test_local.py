"""Local: clients train alone."""

from federation import image_clients, image_world, run, same, training

from pipeline.engine.world import World
from pipeline.methods.local import Local
from pipeline.schema import Model


def test_local_training_does_not_depend_on_the_other_clients():
    """A client's result is the same whoever else is there: nothing leaks through network or generator."""
    clients = image_clients(model=Model("cnn2", dropout=0.3))
    alone = run(Local(), World.create(clients[2:], training(), 10, 0)).models[0]
    assert same(alone, run(Local(), World.create(clients, training(), 10, 0)).models[2])


def test_clients_may_hold_different_networks():
    world = image_world(model=[Model("cnn4"), Model("cnn4"), Model("cnn2")])
    assert len(run(Local(), world, 1).models) == 3


def test_a_client_without_data_keeps_its_model():
    world = image_world(sizes=(20, 0, 7))
    assert same(run(Local(), world, 1).models[1], world.new_models()[1])


def test_nothing_is_sent():
    assert Local().traffic(image_world()) == (0, 0)
