"""What holds for every method and its options: both executors agree, small clients do no harm, a checkpoint
continues bit for bit; and where a term vanishes, a method is a simpler one."""

import dataclasses
import io

import pytest
import torch
from all_methods import METHODS, algorithm_of, collaborates, name, of, world_for
from federation import close, finite, image_world, miniature_cells, on_both, run, same, watched

from pipeline import methods
from pipeline.engine.handle import Handle
from pipeline.engine.stacked import stack
from pipeline.engine.state import pack, tensors_of, unpack
from pipeline.methods.local import Local
from pipeline.schema import Model, Optimiser

each_method = pytest.mark.parametrize("method", METHODS, ids=name)


@each_method
def test_both_executors_agree(method, monkeypatch):
    """In float64, on clients of which one has no image and one a single image, with idle rows in the stacks.
    All models stay finite. Public steps by SGD: the first step of a new Adam divides by |g| + 1e-8, so that
    rounding of a tiny gradient grows."""
    monkeypatch.setattr(stack, "BUCKETS", 2)
    if "public_optimiser" in vars(method):
        method = dataclasses.replace(method, public_optimiser="sgd")

    def end() -> list:
        world = world_for(method, (20, 0, 1, 17), dtype=torch.float64, local_epochs=2)
        state, trained = watched(method, world, 2)
        return [state, trained.models, method.deployed(state, world)]

    plain, stacked = on_both(end)
    close(stacked, plain, 1e-7 if collaborates(method) else 1e-9)
    assert finite(plain[1:])


@each_method
def test_small_clients_do_no_harm(method):
    """No image, one class, fewer than a batch: models and scores stay finite."""
    world = world_for(method, (5, 50, 0, 1, 20), one_class=True, drop_last=True)
    state, trained = watched(method, world, 2)
    deployed = method.deployed(state, world)
    assert finite(deployed)
    assert finite(method.after_training(state, trained.models))
    for k, model in enumerate(deployed):
        handle = Handle(world.network(k, model), client=k)
        with torch.inference_mode():
            scores = method.scores(handle, world.clients[1].images, state)
        assert scores.shape == (50, 10)
        assert not scores.isnan().any()


def attributes_of(world):
    """The fields of a world; what it computes from them when first asked is none."""
    return {field.name: getattr(world, field.name) for field in dataclasses.fields(world)}


@each_method
def test_a_checkpoint_continues_bit_for_bit_and_the_world_stays_as_it_is(method):
    world, file = world_for(method, (20, 0, 7)), io.BytesIO()
    attributes = attributes_of(world)
    before = [tensor.clone() for tensor in data_of(world)]
    state = run(method, world, 2)
    torch.save(pack(state), file)
    file.seek(0)
    again = unpack(torch.load(file, weights_only=True))
    assert same(again, state)
    assert same(method.round(again, world.at(3)), method.round(state, world.at(3)))
    assert attributes_of(world) == attributes
    assert same(data_of(world), before)


def data_of(world) -> list[torch.Tensor]:
    return tensors_of([*map(vars, world.clients), world.public_data and world.public_images, world.heldout])


def test_headlines_are_those_of_the_tables():
    """A global model is scored before local training, models of clients after it."""
    pre = [method for method in METHODS if collaborates(method) and method.headline == "pre"]
    post = [method for method in METHODS if not collaborates(method) and method.headline == "post"]
    assert [getattr(method, "form", "") for method in pre] == ["original"]
    assert {*map(algorithm_of, post)} == {"pfedme", "fedamp", "ditto", "fedproto", "fedcrl", "fedtgp"}
    assert not any(getattr(method, "averaging", False) for method in post)


# Settings of a world.
ONE, EMPTY = {"sizes": (20,)}, {"sizes": (20, 33, 0, 1)}
DROPOUT, ADAM = {"model": Model("cnn4", dropout=0.3)}, {"optimiser": Optimiser("adam", 0.003)}
UNIFORM, BATCH = {"averaging": "uniform"}, {"batch_size": 64}
SPHERES = [{"model": Model(network)} for network in ("fedlsa", "lenet", "cnn4")]
AVERAGE, LOCAL = of("fedavg"), Local()
SAME = [  # the same models as another method after some rounds
    *((of(algorithm), LOCAL, 2, ONE) for algorithm in ("fedavg", "fedper", "lgfedavg", "fedala", "scaffold")),
    (of("fedprox", mu=0.0), AVERAGE, 2, {}),
    (of("fedprox", mu=5.0), AVERAGE, 1, BATCH),
    (of("fedprox", mu=1.0, legacy_scale=0.01), of("fedprox", mu=0.01), 2, {}),
    (of("fedamp", lam=0.0), LOCAL, 2, {}),
    (of("fedala", eta=0.0), AVERAGE, 2, {}),
    (of("ditto", lam=0.0), LOCAL, 2, DROPOUT | ADAM),
    (of("moon", mu=0.0), AVERAGE, 2, DROPOUT),
    (of("moon", mu=5.0), AVERAGE, 1, DROPOUT),
    (of("fedproto", lam=0.0), LOCAL, 2, {}),
    (of("fedproto", lam=0.0, averaging=True), AVERAGE, 2, {}),
    (of("fedproto", lam=9.0), LOCAL, 1, {}),
    (of("fedpac", lam=5.0), of("fedpac", lam=0.0), 1, {}),
    (of("fedcrl", gamma=0.0, alpha=0.0), LOCAL, 2, {}),
    *((of(algorithm), AVERAGE, 1, {}) for algorithm in ("fedproc", "fedpcl", "fpl", "fedccl")),
    (of("fedpcl", contrast="official", exclude_positive=True), AVERAGE, 1, {}),
    (of("fpl", clusters="first", upcr="sum", means="running"), AVERAGE, 1, {}),
    (of("fedproc", alpha=1.0), AVERAGE, 2, EMPTY),
    (of("fedpcl", global_weight=0.0, local_weight=0.0), AVERAGE, 2, EMPTY),
    (of("fedccl", local_contrast=False, global_contrast=False), AVERAGE, 2, EMPTY),
    *((of("fedtgp", averaging=True, lam=0.0, server_epochs=n), AVERAGE, 2, {}) for n in (0, 7)),
    (of("fedtgp", averaging=True), AVERAGE, 1, {}),
    *((of("fedlsa", lam=0.0, server_epochs=3), AVERAGE, 2, sphere) for sphere in SPHERES),
    (of("fedlsa", lam=0.0, server_epochs=0), AVERAGE, 2, SPHERES[0]),
    (of("fedlsa", compactness="none", server_epochs=3), AVERAGE, 2, SPHERES[0]),
    (of("fedga", step=0.0), AVERAGE, 2, {"sizes": (20,) * 4}),
    *((of("scaffold", option=option), AVERAGE, 1, UNIFORM) for option in ("I", "II")),
    *((of("fedavgm", beta=0.0, nesterov=n), AVERAGE, 2, more) for n in (False, True) for more in ({}, ADAM)),
]
OTHER = [  # and where they differ
    (of("moon", mu=5.0), AVERAGE, 2, DROPOUT),
    (of("fedproto", lam=9.0), LOCAL, 2, {}),
    (of("fedpac", lam=5.0), of("fedpac", lam=0.0), 2, {}),
    *((of(algorithm), AVERAGE, 2, {}) for algorithm in ("fedproc", "fedpcl", "fpl", "fedccl")),
    (of("fedtgp", averaging=True), AVERAGE, 2, {}),
    (of("fedavgm", nesterov=True), AVERAGE, 2, {}),
    *((of("scaffold", option=option), AVERAGE, 2, UNIFORM) for option in ("I", "II")),
]


def described(value) -> str:
    return (
        "-".join(value) if isinstance(value, dict) else name(value) if dataclasses.is_dataclass(value) else ""
    )


@pytest.mark.parametrize("method, other, rounds, setting", SAME, ids=described)
def test_without_its_term_a_method_is_a_simpler_one(method, other, rounds, setting):
    def models() -> list:
        world, plain = (image_world(**{"sizes": (20, 7), **setting}) for _ in range(2))
        states = run(method, world, rounds), run(other, plain, rounds)
        return [method.deployed(states[0], world), other.deployed(states[1], plain)]

    for mine, theirs in on_both(models):
        assert same(mine, theirs)


@pytest.mark.parametrize("method, other, rounds, setting", OTHER, ids=described)
def test_with_its_term_a_method_is_another(method, other, rounds, setting):
    world = image_world(**{"sizes": (20, 7), **setting})
    states = run(method, world, rounds), run(other, world, rounds)
    assert not same(method.deployed(states[0], world), other.deployed(states[1], world))


def test_every_method_is_among_the_miniatures():
    assert miniature_cells().keys() == set(methods.method_names())
