"""Accuracies by client, domain, pooled and crossed; worked numbers."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from federation import close, image_clients, image_world, training
from torch import nn

from pipeline.cells import test_sets
from pipeline.cells.test_sets import TestSet
from pipeline.engine.state import Clients, Params
from pipeline.engine.world import World
from pipeline.schema import Model, Public
from pipeline.schema.scenario import Attack, Evaluation
from pipeline.training import evaluation
from pipeline.training.evaluation import last_mean, measure, right


@dataclasses.dataclass
class Person:
    name: str
    domain: str


class FixedWorld:
    """hits[i][j] of client i's model on test set j, whose images carry 10,000 j + their position."""

    def __init__(self, hits, sizes, domains):
        self.clients = [
            Person(d if len(set(domains)) == len(domains) else f"c{i}", d) for i, d in enumerate(domains)
        ]
        self.hits, self.sizes, self.names = hits, sizes, list(dict.fromkeys(domains))
        self.calls = 0

    def tests(self, names=None):
        places = [10_000 * j + torch.arange(n) for j, n in enumerate(self.sizes)]
        return [
            TestSet(name, place.float().view(-1, 1, 1, 1), torch.zeros(len(place), dtype=torch.long))
            for name, place in zip(names or self.names, places)
        ]

    def network(self, client, model):
        self.calls += 1
        hits = torch.tensor(self.hits[model["row"]])

        def network(images):
            place = images.flatten().long()
            return torch.nn.functional.one_hot((place % 10_000 >= hits[place // 10_000]).long(), 2).float()

        return network


def several(n):
    return Clients(Params({"row": i}) for i in range(n))


def test_worked_examples_by_client_and_crossed():
    """correct (9, 40, 1) of (10, 50, 4): weighted 78.125, mean 65, std over clients 28.5774 (ddof 0)."""
    world = FixedWorld([[9, 40, 1]] * 3, [10, 50, 4], ["a", "b", "c"])
    measures, per_client = measure(several(3), world, world.tests(), "clients")
    assert measures["weighted"] == pytest.approx(78.125)
    assert measures["average"] == pytest.approx(65.0)
    assert measures["clients_std"] == pytest.approx(28.5774, abs=1e-4)
    assert per_client == pytest.approx([90, 80, 25])
    # Eq. 21 and 22 on acc = [[90,20,30,40],[10,80,50,60],[15,25,70,35],[5,45,55,95]].
    acc = [[90, 20, 30, 40], [10, 80, 50, 60], [15, 25, 70, 35], [5, 45, 55, 95]]
    sizes = [100, 200, 300, 400]
    hits = [[a * n // 100 for a, n in zip(row, sizes)] for row in acc]
    world = FixedWorld(hits, sizes, ["M", "U", "SV", "SY"])
    measures, per_client = measure(several(4), world, world.tests(), "cross")
    assert [measures[f"intra.{d}"] for d in ("M", "U", "SV", "SY")] == [90, 80, 70, 95] == per_client
    assert [measures[f"inter.{d}"] for d in ("M", "U", "SV", "SY")] == pytest.approx([30, 40, 25, 35])
    assert (measures["intra.AVG"], measures["inter.AVG"], measures["average"]) == pytest.approx(
        (83.75, 32.5, 83.75)
    )


def test_worked_examples_by_domain_and_pooled():
    world = FixedWorld([[50, 100]], [100, 400], ["a", "b", "b"])
    one = Params({"row": 0})
    measures, per_client = measure(Clients([one, one, one]), world, world.tests(), "domains")
    assert measures == {"average": 37.5, "a": 50.0, "b": 25.0}
    assert per_client == [50, 25, 25]
    assert world.calls == 2
    world = FixedWorld([[50, 0], [0, 100], [0, 200]], [100, 400], ["a", "b", "b"])
    measures, _ = measure(several(3), world, world.tests(), "domains")
    assert measures == {"average": pytest.approx((50 + 37.5) / 2), "a": 50.0, "b": 37.5}
    world = FixedWorld([[80, 100], [60, 50]], [100, 200], ["theta0", "theta1"])
    measures, per_client = measure(several(2), world, world.tests(["clean", "corrupted"]), "pooled")
    assert measures["clean.AVG"] == 70
    assert measures["corrupted.AVG"] == 37.5
    assert measures["corrupted.theta1"] == 25
    assert per_client == [80, 60]


def test_clients_without_test_images_are_left_out():
    world = FixedWorld([[5, 0, 4]] * 3, [10, 0, 8], ["a", "b", "c"])
    measures, per_client = measure(several(3), world, world.tests(), "clients")
    assert measures["average"] == 50
    assert measures["weighted"] == 50
    assert math.isnan(per_client[1])
    # Such as the unseen clients of a small partition.
    world = FixedWorld([[0, 0]] * 2, [0, 0], ["a", "b"])
    measures, per_client = measure(several(2), world, world.tests(), "clients")
    assert set(measures) == {"average", "weighted", "clients_std"}
    assert all(map(math.isnan, [*measures.values(), *per_client]))


@pytest.mark.parametrize("kind", ["clients", "domains", "pooled", "cross"])
@pytest.mark.parametrize("shared", [False, True])
def test_an_attack_of_no_size_scores_what_is_scored_without_one(kind, shared):
    """The same models on the same test sets, by the method's rule: here the logits in reverse, and for
    the second client's model shifted by a class."""
    world, tests = crossed_world((6, 5), ["M", "U"], ["M", "U"], Model("cnn2"))
    one = world.new_models()[0]
    other = world.local_epochs(world.new_models(), lambda m, b, *_: m(b.images).sum()).models[1]
    models = Clients([one, one] if shared else [one, other])

    def scores(network, images, client):
        return (-network(images)).roll(0 if shared else client, 1)

    torch.manual_seed(0)
    images, first = [torch.rand_like(test.images) for test in tests], world.network(0, one)
    tests = [
        dataclasses.replace(test, images=x, labels=scores(first, x, 0).argmax(1))
        for test, x in zip(tests, images)
    ]
    tests = tests[:1] if kind == "pooled" else tests
    clean, _ = measure(models, world, tests, kind, scores=scores)
    protocol = Evaluation(kind)
    actual = evaluation.under_attack(models, world, tests, protocol, scores, Attack(1e-9, 1e-9, 2))
    assert actual == {name: pytest.approx(clean[protocol.measure]) for name in ("fgsm", "pgd")}
    hard = evaluation.under_attack(models, world, tests, protocol, scores, Attack(0.5, 0.1, 10))
    assert hard["pgd"] < clean[protocol.measure]


@pytest.mark.parametrize(("headline", "accuracy"), [(None, 75.0), ("weighted", 75.0), ("average", 81.0)])
def test_an_attack_is_measured_by_the_headline(monkeypatch, headline, accuracy):
    """(9, 36) of (10, 50) right, and the attack changes no image: 90 % and 72 % by client, 75 % of all."""
    monkeypatch.setattr(evaluation.attacks, "pgd", lambda handle, images, labels, **_: images)
    monkeypatch.setattr(evaluation, "Handle", lambda network: network)
    world = FixedWorld([[9, 36]] * 2, [10, 50], ["a", "b"])
    protocol = Evaluation("clients", headline=headline)
    actual = evaluation.under_attack(
        several(2), world, world.tests(), protocol, evaluation._raw, Attack(0.1, 0.1, 1)
    )
    assert actual == {"fgsm": pytest.approx(accuracy), "pgd": pytest.approx(accuracy)}


def test_a_sample_of_the_clients_has_the_means_of_those_and_no_other_is_scored():
    """Five of thirty, with different numbers of test images; bit for bit."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 40, 30).tolist()
    hits = [[int(rng.integers(0, n + 1)) for n in sizes] for _ in sizes]
    world = FixedWorld(hits, sizes, [f"c{k}" for k in range(30)])
    sample = (2, 3, 11, 20, 29)
    _, every = measure(several(30), world, world.tests(), "clients")
    world.calls = 0
    actual, per_client = measure(several(30), world, world.tests(), "clients", sample=sample)
    assert world.calls == 5
    chosen = [every[k] for k in sample]
    assert [per_client[k] for k in sample] == chosen
    assert sum(map(math.isnan, per_client)) == 25
    assert actual["average"] == sum(chosen) / 5
    images = sum(sizes[k] for k in sample)
    assert actual["weighted"] == 100 * sum(hits[k][k] for k in sample) / images
    assert actual["clients_std"] == float(np.std(chosen))


def test_accuracy_by_class_is_over_the_sampled_clients():
    """Two clients with two test images each, of one class; the second one's model is wrong about both."""

    class World:
        clients, classes = [Person("a", "x"), Person("b", "x")], 2

        def network(self, client, model):
            return lambda images: torch.eye(2)[torch.full((len(images),), model["row"])]

    tests = [TestSet(name, torch.zeros(2, 1, 1, 1), torch.zeros(2, dtype=torch.long)) for name in "ab"]
    models = Clients(Params({"row": row}) for row in (0, 1))
    assert evaluation.by_class(models, World(), tests)[0] == 50.0
    assert evaluation.by_class(models, World(), tests, sample=(0,))[0] == 100.0
    assert evaluation.by_class(models, World(), tests, sample=(1,))[0] == 0.0


def test_a_clients_test_set_is_that_of_its_name_else_of_its_domain_else_the_first():
    class World:
        clients = [Person("a", "x"), Person("b", "y"), Person("c", "z")]

    tests = [TestSet(name, torch.zeros(1), torch.zeros(1)) for name in ("other", "y", "a", "y")]
    assert evaluation.client_tests(World(), tests) == [2, 1, 0]


def test_accuracy_by_class_counts_an_image_once_with_the_mean_of_its_clients_models():
    """Two clients of domain b: on its five images, labels 0 0 1 1 1, one model says 0 always, the other 1.
    Client a's three images, labels 0 2 2, are all taken for 0. No image of class 3."""

    class World:
        clients, classes = [Person("a", "x"), Person("b0", "b"), Person("b1", "b")], 4

        def network(self, client, model):
            return lambda images: torch.eye(4)[torch.full((len(images),), model["row"])]

    tests = [
        TestSet(name, torch.zeros(len(labels), 1, 1, 1), torch.tensor(labels))
        for name, labels in (("b", [0, 0, 1, 1, 1]), ("unused", [3]), ("a", [0, 2, 2]))
    ]
    models = Clients(Params({"row": row}) for row in (0, 0, 1))
    actual = evaluation.by_class(models, World(), tests)
    # class 0: client a is right about its one, b's clients about half of two; class 1: half of three
    assert actual[:3] == [pytest.approx(200 / 3), 50.0, 0.0]
    assert math.isnan(actual[3])
    assert evaluation.by_class(models, World(), tests, top=4)[:3] == [100.0, 100.0, 100.0]
    worst = evaluation.by_class(
        models, World(), tests, scores=lambda network, images, client: -network(images)
    )
    assert worst[:2] == [pytest.approx(100 / 3), 50.0]


def plain(network, images, client):
    return images


def test_top_k_batches_and_means_of_the_last_rounds(monkeypatch):
    logits = torch.tensor([[3.0, 2, 1], [1, 2, 3], [2, 3, 1]])
    test = TestSet("x", logits, torch.tensor([1, 0, 1]))
    assert [int(right(None, test, 0, plain, k).sum()) for k in (1, 2, 3)] == [1, 2, 3]
    monkeypatch.setattr(test_sets, "BATCH", 7)
    labels = torch.arange(100) % 10
    test = TestSet("x", torch.nn.functional.one_hot(labels, 10).float(), labels)
    assert right(None, test, 0, plain).sum() == 100
    rows = [{"a": 10.0}, {"a": 20.0}, {}, {"a": 60.0}]
    assert last_mean(rows, "a", 2) == 40
    assert last_mean(rows, "a", 5) == 30
    assert math.isnan(last_mean(rows, "b", 2))


def test_representations_are_the_same_images_for_every_method_and_deal_a_domain_to_its_clients():
    world = image_world(sizes=(5, 5, 5))
    source = image_clients((30, 20))
    tests = [TestSet("only", source[0].images, source[0].labels)]
    first = evaluation.representations(world.new_models(), world, tests, limit=12)
    assert first["values"].shape == (12, 128)
    assert sorted(set(first["clients"])) == [0, 1, 2]
    assert (first["labels"] == source[0].labels.numpy()[first["ids"]]).all()
    other = evaluation.representations(
        world.local_epochs(world.new_models(), lambda m, b, *_: m(b.images).sum()).models,
        world,
        tests,
        limit=12,
    )
    assert (other["ids"] == first["ids"]).all()
    assert (other["values"] != first["values"]).any()
    network = world.network(int(first["clients"][0]), world.new_models()[0])
    expected = network.features(source[0].images[first["ids"][:1]])
    close(first["values"][:1], expected, 1e-3)


def test_local_prototypes_are_class_means_of_the_training_images_of_who_takes_part():
    world = image_world(sizes=(20, 33, 7), participation=2).at(1)
    models = world.local_epochs(world.new_models(), lambda m, b, *_: m(b.images).square().mean()).models
    actual = evaluation.local_prototypes(models, world)
    (absent,) = {0, 1, 2} - set(world.participants)
    seen = world.class_means(models)
    assert actual["prototypes"].dtype == np.float32
    assert not seen.present[absent].any()
    rows = np.stack([actual["prototype_clients"], actual["prototype_labels"]], 1)
    assert rows.tolist() == seen.present.nonzero().tolist()
    close(actual["prototypes"], seen.means[seen.present], 1e-5)


def test_nothing_is_crossed_or_shared_where_it_cannot_be():
    world = image_world(sizes=(5, 5), model=[Model("cnn4"), Model("lenet")])
    source = image_clients((30,))[0]
    assert (
        evaluation.representations(world.new_models(), world, [TestSet("only", source.images, source.labels)])
        == evaluation.local_prototypes(world.new_models(), world)
        == {}
    )
    world, tests = crossed_world((5, 4), ["M", "U"], ["M", "U"], Model("cnn4"))
    per_client = {"values", "labels", "clients", "ids"}
    pooled = [TestSet("test", tests[0].images, tests[0].labels)]
    assert set(evaluation.representations(world.new_models(), world, pooled)) == per_client | {"logits"}
    alone = image_world(sizes=(5, 5))
    only = [TestSet("only", tests[0].images, tests[0].labels)]
    assert set(evaluation.representations(alone.new_models(), alone, only)) == per_client


def crossed_world(sizes, domains, names, model, public=8):
    """A world with public images, clients of the given domains, and 30 test images for each domain."""
    made = image_clients(sizes, model)
    clients = [
        dataclasses.replace(client, name=name, domain=domain)
        for client, name, domain in zip(made, names, domains)
    ]
    settings = (torch.randn(public, 1, 16, 16), Public("x", size=public))
    tests = [
        TestSet(name, torch.randn(30, 1, 16, 16), torch.arange(30) % 3) for name in dict.fromkeys(domains)
    ]
    return World.create(clients, training(), 10, 0, public=settings), tests


def test_no_network_embeds_more_than_so_many_images_at_once(monkeypatch):
    """A deep network would take gigabytes for all of them; the values are the same."""
    world, tests = crossed_world((5, 4), ["M", "U"], ["one", "two"], [Model("cnn4"), Model("lenet")])
    whole, sizes = evaluation.representations(world.new_models(), world, tests), []

    def note(module, inputs):
        if isinstance(module, nn.Conv2d):
            sizes.append(len(inputs[0]))

    monkeypatch.setattr(evaluation, "EMBEDDED", 5)
    with nn.modules.module.register_module_forward_pre_hook(note):
        parts = evaluation.representations(world.new_models(), world, tests)
    assert 0 < max(sizes) <= 5
    assert parts.keys() == whole.keys()
    for name, values in whole.items():
        if values.dtype == np.float16:
            close(parts[name], values, 2e-3)
        else:
            assert (parts[name] == values).all()


def test_crosses_hold_every_clients_features_of_every_domains_images(monkeypatch):
    """Networks of 128 and 84 features; 6 of each domain's 30 images, 2 of each of its 3 classes."""
    monkeypatch.setattr(evaluation, "CROSSED", 6)
    world, tests = crossed_world((5, 4), ["M", "U"], ["one", "two"], [Model("cnn4"), Model("lenet")])
    models = world.new_models()
    actual = evaluation.representations(models, world, tests)
    widths = [network.width for network in (world.network(k, models[k]) for k in range(2))]
    assert "values" not in actual
    assert len(set(widths)) == 2
    assert actual["names"].tolist() == ["one", "two"]
    assert actual["domains"].tolist() == ["M", "U"]
    assert actual["cross_domains"].tolist() == ["M"] * 6 + ["U"] * 6
    assert sorted(actual["cross_labels"][6:]) == [0, 0, 1, 1, 2, 2]
    for k, name in enumerate(["one", "two"]):
        features, answers = actual[f"features.{name}"], actual[f"answers.{name}"]
        assert features.shape == (12, widths[k])
        assert features.dtype == "float16"
        assert answers.shape == (12,)
        assert answers.dtype == "int16"
        network, per_client = world.network(k, models[k]), tests[1]
        chosen = evaluation._balanced(per_client.labels.numpy(), 6)
        expected = network.features(per_client.images[chosen])
        close(features[6:], expected, 2e-3)
        assert (answers[6:] == network(per_client.images[chosen]).argmax(1).numpy()).all()
        assert (actual["cross_labels"][6:] == per_client.labels[chosen].numpy()).all()


def test_every_client_answers_the_first_private_images_of_each_domain(monkeypatch):
    """Two clients of 5 and 4 images share a domain: 7 of these 9 in order; the third has 3."""
    monkeypatch.setattr(evaluation, "PUBLIC", 7)
    world, tests = crossed_world((5, 4, 3), ["M", "M", "U"], ["a", "b", "c"], Model("cnn4"))
    models = world.new_models()
    actual = evaluation.representations(models, world, tests)
    assert actual["logits"].shape == (3, 7, 10)
    assert actual["private.M"].shape == (3, 7, 10)
    assert actual["private.U"].shape == (3, 3, 10)
    first = torch.cat([world.clients[0].images, world.clients[1].images[:2]])
    expected = world.network(2, models[2])(first)
    close(actual["private.M"][2], expected, 2e-3)


def test_of_corrupted_images_every_clients_answers_are_recorded():
    world, (test, _) = crossed_world((5, 4), ["M", "U"], ["M", "U"], Model("cnn4"))
    damage = np.array(["fog", "snow"] * 15), np.arange(30) % 4 + 1
    tests = [test, TestSet("corrupted", test.images + 1, test.labels, damage)]
    models = world.new_models()
    actual = evaluation.representations(models, world, tests)
    assert actual["corruptions"] is damage[0]
    assert actual["severities"] is damage[1]
    with torch.no_grad():
        for k, correct in enumerate(actual["right"]):
            answers = world.network(k, models[k])(test.images + 1).argmax(1)
            assert correct.dtype == bool
            assert correct.tolist() == (answers == test.labels).tolist()
    assert "right" not in evaluation.representations(models, world, [test])


def test_a_choice_of_no_images_indexes():
    chosen = evaluation._balanced(np.array([], dtype=np.int64), 5)
    assert chosen.dtype == np.int64
    assert not len(chosen)
