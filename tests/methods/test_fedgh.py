"""FedGH: a head that the server trains on the clients' class means."""

from federation import close, image_world, one_class_world, one_round, params, run, same
from tiny import proto_world

from pipeline.engine.state import State
from pipeline.engine.trained import Watch
from pipeline.methods.fedgh import FedGH

GH = params({"head.weight": [[0.1, 0], [0, 0.1], [0.1, 0.1]], "head.bias": [0, 0, 0]})


def test_fedgh_trains_the_server_head_on_all_clients_means(monkeypatch):
    """Two clients whose means are the worked example's pairs, in the order of clients and classes."""
    world, method = proto_world(monkeypatch), FedGH(server_lr=0.5, server_batch=2)
    state, trained = one_round(method, State(features=world.new_models().features, head=GH), world)
    close(state.head["head.weight"], [[0.207368, -0.445962], [-0.360478, 0.378790], [0.353110, 0.267171]])
    close(state.head["head.bias"], [-0.040302, 0.023924, 0.016378])
    # the trained head is dropped
    assert same(trained.models[0].joined(state.head), FedGH().deployed(state, world)[0])


def test_it_sends_means_and_receives_the_head():
    assert FedGH().traffic(one_class_world()) == (128.0, 10 * 128 + 10)


def test_counting_what_is_sent_trains_nothing():
    """Where clients are trained alone first, fresh models are trained ones."""
    world = image_world(pretraining=1)
    watch = Watch(world.executor)
    FedGH().traffic(world.at(1, watch), run(FedGH(), world, 1))
    assert watch.trained is None
