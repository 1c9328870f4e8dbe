"""Hours that cells take: images, networks, steps, and measured rates."""

from dataclasses import replace

import pytest
import torch
from one_paper import AVG, CNN, COMMON, LENET, MINI, PROX, finish, repository
from repository import PARAMETERS, edit
from torch.utils.flop_counter import FlopCounterMode

from pipeline.cells.experiment import Experiment
from pipeline.commands import hours, status
from pipeline.files import write_text
from pipeline.methods._adversarial import AdversarialTraining
from pipeline.models import NAMES, build
from pipeline.schema import ROOT, Cell, Model


@pytest.fixture
def root(tmp_path):
    return repository(tmp_path)


def test_hours_are_measured_seconds_per_operation(root):
    """36 s for 1,347.75 images x 3 passes x 2 epochs x 10 rounds and 449.25 tests x 10; MNIST by the
    network's operations at its size, with its 1,000 test images."""
    finish(root, AVG)
    rates = hours.rates_of(status.read_results(root), root)
    small, large = (hours._table()["cnn4", 3][side] for side in (16, 32))
    assert [rate.seconds for rate in rates] == [pytest.approx(36 / (1797 * 0.75 * 60 + 4492.5) / small)]
    assert hours.estimate(PROX, rates, root) == pytest.approx(72 / 3600)
    mnist = Cell("fedcrl", "mnist", "fedavg")
    per_image = 72 / 3600 * large / small / (1797 * 0.75 * 60 + 4492.5)
    assert hours.estimate(mnist, rates, root) == pytest.approx(per_image * (3000 * 60 + 10_000))
    write_text(
        root / "papers/fedcrl/runs/mnist/clients.csv", "client,domain,train,test\n0,m,700,1\n1,m,800,4\n"
    )
    # counted, not guessed
    assert hours.estimate(mnist, rates, root) == pytest.approx(per_image * (1500 * 60 + 50))
    finish(root, PROX, (72.0, 72.0))
    rates = hours.rates_of(status.read_results(root), root)
    # of the same method where there is one
    assert hours.estimate(MINI, rates, root) == pytest.approx(72 / 3600)
    # of both, as steps of other networks or data are judged by their size
    assert hours.estimate(mnist, rates, root) == pytest.approx(1.5 * per_image * (1500 * 60 + 50))
    assert hours.estimate(mnist, [], root) is None


def test_every_clients_network_and_the_public_images_count(root):
    """Two clients with a network each; FedMD shows the public images to both, FedAvg to none."""
    two = COMMON | {
        "data": {"set": "digits", "size": 32},
        "models": {"a": CNN, "b": LENET},
        "partition": {"kind": "subset", "sizes": {"a": 100, "b": 10}},
        "public": {"set": "photo_patches", "size": 50, "epochs": 2},
        "evaluation": {"tests": "cross", "every": 5},
    }
    edit(root / PARAMETERS, lambda document: document["scenarios"].update(balanced=two))
    scenario = AVG.resolve(root)[0]
    cnn, lenet = (hours._table()[name, 3][32] for name in ("cnn4", "lenet"))
    local, tests = 3 * (100 * cnn + 10 * lenet) * 20, hours._expected(scenario)[1] * (cnn + lenet) * 2
    alone, tuning_states = (
        hours.work(replace(Experiment.of(AVG, root), algorithm=name)) for name in ("fedavg", "fedmd")
    )
    assert alone[0] == pytest.approx(local + tests)
    assert tuning_states[0] - alone[0] == pytest.approx(3 * (cnn + lenet) * 50 * 2 * 10)
    assert alone[1] == pytest.approx(16 * (100 * cnn + 10 * lenet) / 110)


def test_every_client_scores_all_images_where_tests_are_crossed(root):
    """Four clients of one network: each scores what one of them would."""
    experiment = Experiment.of(AVG, root)
    scenario = experiment.scenario
    crossed = replace(scenario, evaluation=replace(scenario.evaluation, tests="cross"))
    images = hours._expected(scenario)[1]
    own, _ = hours.work(experiment)
    all_images, _ = hours.work(replace(experiment, scenario=crossed))
    operations = hours._table()["cnn4", 3][16]
    assert all_images - own == pytest.approx((4 * hours._expected(crossed)[1] - images) * 10 * operations)


def test_only_the_test_images_of_scored_clients_are_estimated(root):
    """One client of four: a quarter of the 449.25 test images, in ten rounds."""
    operations = hours._table()["cnn4", 3][16]
    every, _ = hours.work(Experiment.of(AVG, root))
    edit(root / PARAMETERS, lambda document: document["scenarios"]["balanced"]["evaluation"].update(sample=1))
    some, _ = hours.work(Experiment.of(AVG, root))
    assert every - some == pytest.approx(0.75 * 449.25 * 10 * operations)


@pytest.mark.parametrize("row", ["0,m,1e999,1", "0,m,nan,1", "0,m,-5,1", "0,m,x,1", "0,m", "0,m,1,1e999"])
def test_a_table_of_clients_that_is_none_is_not_counted(root, row):
    expected = hours.images_of(MINI, Experiment.of(MINI, root).scenario, root)
    write_text(MINI.folder(root).with_name("clients.csv"), f"client,domain,train,test\n{row}\n")
    assert hours.images_of(MINI, Experiment.of(MINI, root).scenario, root) == expected
    write_text(MINI.folder(root).with_name("clients.csv"), "client,domain,train,test\n" + "9" * 200_000)
    assert hours.images_of(MINI, Experiment.of(MINI, root).scenario, root) == expected


def test_seconds_without_an_end_give_no_rate(root):
    finish(root, AVG)
    results = status.read_results(root)
    for seconds in ([1e999], ["x"], 5, [], [10**400]):
        assert hours.rates_of({AVG: results[AVG] | {"seconds": seconds}}, root) == []


def test_adversarial_training_attacks_every_image(root):
    cell = Cell("fedccl", "mini", "fedavg-plus")
    scenario, _, hyper = cell.resolve()
    plain, attacked = (
        hours.work(Experiment(cell, scenario, name, hyper, ROOT))[0] for name in ("fedavg", "fedavg_plus")
    )
    train, tests = hours.images_of(cell, scenario)
    images = sum(train.values())
    training = scenario.training.rounds * scenario.training.local_epochs * 3 * images
    scored = tests * (
        scenario.training.rounds + 3 * scenario.evaluation.last * (1 + scenario.evaluation.attack.steps)
    )
    assert attacked / plain == pytest.approx(((1 + hyper["steps"]) * training + scored) / (training + scored))
    assert hours.ATTACK_STEPS == AdversarialTraining.steps
    wrong = Experiment(cell, scenario, "fedavg_plus", {"steps": "7"}, ROOT)  # named before it trains
    assert hours.work(wrong)[0] == pytest.approx(plain)


def count(name: str, channels: int, side: int) -> int:
    """Multiply-adds of torch's counter, and 100 for each number that a layer puts out."""
    with torch.device("meta"):
        built = build(Model(name), channels, side, 10).eval()
        image = torch.zeros(1, 192) if name == "vit_head" else torch.zeros(1, channels, side, side)
    written: list[int] = []
    for layer in built.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda *seen: written.append(seen[-1].numel()))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        built(image)
    return counter.get_total_flops() // 2 + hours.WRITTEN * sum(written)


@pytest.mark.parametrize("name", NAMES)
def test_operations_are_those_of_the_networks(name):
    table = {channels: sizes for (network, channels), sizes in hours._table().items() if network == name}
    assert table == {
        channels: {side: count(name, channels, side) for side in sizes} for channels, sizes in table.items()
    }
    assert table


@pytest.mark.parametrize(
    "partition, images",
    [
        ({"kind": "domains", "clients": {"mnist": 1, "usps": 4}, "share": 0.01}, 600 + 4 * 72.91),
        ({"kind": "domains", "clients": {"mnist": 1}, "test": "index_mod_10"}, 48_000),
        ({"kind": "domains", "clients": {"mnist": 3}, "per_class": 7}, 210),
        ({"kind": "pathological", "clients": 3, "classes": 2, "pool": "train"}, 150_548),
        ({"kind": "subset", "sizes": {"mnist": 150, "usps": 80}}, 230),
    ],
)
def test_training_images_of_a_partition_that_was_never_made(root, partition, images):
    balanced = COMMON | {"data": {"set": "digits4"}, "model": CNN, "partition": partition}
    edit(root / PARAMETERS, lambda document: document["scenarios"].update(balanced=balanced))
    actual = hours.images_of(AVG, AVG.resolve(root)[0], root)
    assert sum(actual[0].values()) == pytest.approx(images)
