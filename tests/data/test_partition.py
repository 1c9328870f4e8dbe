"""Numbers and identities of the five papers' partitions; clients of other libraries (PFLlib's
folders, Flower's lists, the CSV of an export); clients.csv."""

import csv
import dataclasses
import hashlib
import io
import itertools
import json

import numpy as np
import pandas as pd
import pytest

from pipeline import files
from pipeline.data import histogram, label_skew, listed, splits
from pipeline.data.label_skew import cut, dirichlet_counts, minimum_size, pathological_counts, train_test
from pipeline.data.partition import partition, to_arrays
from pipeline.data.parts import PRIVATE, Parts, Pool, generator
from pipeline.data.store import Stored
from pipeline.errors import DataError, ParamError
from pipeline.schema import Data, Domains, Subset
from pipeline.schema.partitions import (
    BalancedDirichlet,
    Dirichlet,
    ExtendedDirichlet,
    Iid,
    Listed,
    Natural,
    Pathological,
    QuantitySkew,
    Shards,
)

WHERE = "papers/x/paper.yaml: scenarios.y.partition"


def pool(per_class=60, classes=10, domains=("only",), test_share=0.2, seed=0):
    """A made-up set: `per_class` images of every class and domain, a fifth of them official test images."""
    rng = np.random.default_rng(seed)
    labels = np.tile(np.repeat(np.arange(classes), per_class), len(domains))
    number = np.repeat(np.arange(len(domains)), per_class * classes)
    return Pool(labels, number, rng.random(len(labels)) < test_share, list(domains), classes)


def everything(parts):
    return np.concatenate([*parts.train, *parts.client_test])


def test_cap_of_the_worked_example():
    rows = np.array([[[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]])
    assert cut(rows, np.array([10, 10, 10]))[0].tolist() == [[7, 7, 0], [2, 2, 1], [1, 1, 9]]
    rows = np.array([[[0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, 0.5, 0]]])
    assert (cut(rows, np.array([10, 2, 2])) == -1).all()
    # CIFAR-10, 20 clients, beta 0.01: about 8e-5 of the draws are accepted; 10^6 tries find one.
    counts = dirichlet_counts(np.full(10, 6000), Dirichlet(20, 0.01), np.random.default_rng(1))
    assert counts.sum(1).min() >= 40
    assert (counts.sum(0) == 6000).all()


@pytest.mark.parametrize(
    "total, clients, least", [(60000, 20, 40), (60000, 100, 40), (131600, 20, 40), (1000, 20, 25)]
)
def test_minimum_size(total, clients, least):
    assert minimum_size(total, Iid(clients)) == least


@pytest.mark.parametrize("clients, beta", [(10, 0.1), (20, 1.0), (100, 1.0)])
def test_dirichlet_uses_every_image_once_and_splits_three_to_one(clients, beta):
    parts = partition(Dirichlet(clients, beta), pool(600), WHERE)
    assert sorted(everything(parts)) == list(range(6000))
    for train, test in zip(parts.train, parts.client_test):
        m = len(train) + len(test)
        assert m >= minimum_size(6000, Iid(clients))
        assert len(train) == int(0.75 * m)


def test_dirichlet_on_the_training_part_keeps_the_official_test_set():
    p = pool()
    parts = partition(Dirichlet(5, 0.5, pool="train", min_samples=10), p, WHERE)
    assert sorted(np.concatenate(parts.train)) == np.flatnonzero(~p.test).tolist()
    assert sorted(parts.domain_test["only"]) == np.flatnonzero(p.test).tolist()


DOMAINS = ("MNIST", "USPS", "SVHN", "SYN")
RECORDED = {  # as they were when every seed had the same one
    "315dd2d5f359d423": (Dirichlet(5, 0.5), pool()),
    "e4c315902159b5e5": (Pathological(5, 4), pool()),
    "a129f2647b98f566": (Domains(dict.fromkeys(DOMAINS, 2), share=0.1, test="random"), pool(domains=DOMAINS)),
    "bbf1fdc524fe90f2": (Subset({"MNIST": 50, "USPS": 30}, heldout=20), pool(domains=DOMAINS)),
}


@pytest.mark.parametrize("recorded", RECORDED)
def test_draw_0_is_the_one_of_before_and_every_other_is_new(recorded):
    """In what is random: private parts, test parts, held-out images; sizes and official test parts stay."""
    settings, images = RECORDED[recorded]
    arrays = to_arrays(partition(settings, images, WHERE))
    digest = hashlib.sha256()
    for key, indices in sorted(arrays.items()):
        digest.update(key.encode() + np.ascontiguousarray(indices, np.int64).tobytes())
    assert digest.hexdigest()[:16] == recorded
    others = [to_arrays(partition(settings, images, WHERE, draw)) for draw in (1, 2)]
    tests_too = getattr(settings, "test", "random") == "random"
    for key in arrays:
        random = tests_too or key.startswith("train.") or key == "heldout"
        pairs = itertools.combinations([arrays, *others], 2)
        alike = [np.array_equal(a[key], b[key]) for a, b in pairs]
        assert alike == [not random or not len(arrays[key])] * 3, key


def test_few_draws_in_memory_give_what_many_do(monkeypatch):
    whole, settings = partition(Dirichlet(20, 0.1), pool(600), WHERE), Dirichlet(20, 0.1)
    monkeypatch.setattr(label_skew, "AT_ONCE", 3 * 20 * 10)
    few = partition(settings, pool(600), WHERE)
    assert all(np.array_equal(a, b) for a, b in zip(whole.train, few.train, strict=True))


def test_many_classes_and_clients_are_drawn_a_few_at_a_time(monkeypatch):
    class Recording:
        def dirichlet(self, alpha, shape):
            sizes.append(len(alpha) * shape[0] * shape[1])
            return np.full((*shape, len(alpha)), 1 / len(alpha))

    sizes: list[int] = []
    monkeypatch.setattr(label_skew, "LARGEST", 400_000)
    dirichlet_counts(np.full(200, 1000), Dirichlet(500, 0.1), Recording())
    assert max(sizes) <= label_skew.AT_ONCE
    assert sum(sizes) == 400_000


def test_one_draw_at_a_time_where_two_are_too_many(monkeypatch):
    class Recording:
        def dirichlet(self, alpha, shape):
            draws.append(shape[0])
            return np.full((*shape, len(alpha)), 1 / len(alpha))

    draws: list[int] = []
    monkeypatch.setattr(label_skew, "AT_ONCE", 2 * 20 * 10 - 1)
    dirichlet_counts(np.full(10, 600), Dirichlet(20, 0.1, tries=5), Recording())
    assert draws == [1] * 5


KINDS = {
    "iid": Iid(7),
    "shards": Shards(10, shards=2),
    "quantity": QuantitySkew(5, 0.5),
    "extended": ExtendedDirichlet(6, 1.0, classes=3),
    "balanced": BalancedDirichlet(6, 0.1),
    "natural": Natural(4, "writer"),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_keeps_what_it_promises(name):
    """Sizes, classes per client and users are those of the definition; another draw is another partition."""
    settings, p = KINDS[name], dataclasses.replace(pool(), columns={"writer": np.arange(600) % 9})
    parts, again, other = (partition(settings, p, WHERE, draw) for draw in (0, 0, 1))
    held = [np.concatenate(both) for both in zip(parts.train, parts.client_test, strict=True)]
    sizes, classes = [len(part) for part in held], [len(set(p.labels[part])) for part in held]
    assert len(np.unique(np.concatenate(held))) == sum(sizes)
    assert len(held) == settings.clients
    assert all(np.array_equal(a, b) for a, b in zip(parts.train, again.train, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(parts.train, other.train, strict=True))
    expected = {
        "iid": max(sizes) - min(sizes) <= 1 and sum(sizes) == 600,
        "shards": max(classes) <= 2 and sizes == [60] * 10,
        "quantity": max(sizes) > 2 * min(sizes) and min(classes) >= 8,
        "extended": classes == [3] * 6 and sum(sizes) == 600,
        "balanced": sizes == [100] * 6,
        "natural": all(len(set(p.columns["writer"][part])) == 1 for part in held),
    }
    assert expected[name]


@pytest.mark.parametrize(
    "settings, message",
    [
        (Iid(5, min_samples=200), "min_samples: 200 for each, of only 600 images"),
        (Dirichlet(9, 0.5, min_samples=10**9), "min_samples: 1000000000 for each, of only 600"),
        (Shards(5, shards=10**8), "shards: 100000000 for each client, of only 600 images"),
        (Natural(4, "writter"), "column: unknown column 'writter' .nearest: 'writer'"),
        (Natural(40, "writer"), "clients: 40 clients, of 9 users"),
        (ExtendedDirichlet(6, 1.0, classes=11), "classes: 11 classes per client"),
        (
            ExtendedDirichlet(6, 1.0, classes=1),
            "classes: 1 classes for each of 6 clients are too few to give each of the 10 classes 1",
        ),
        (QuantitySkew(4, 0.01), "beta: in 50 draws .* no draw gave every client 40 images"),
        (QuantitySkew(200, 0.01), "beta: Dir.0.01. leaves 1.. of 200 clients below 1 images, in each of 32"),
        (Dirichlet(9, 0.01, min_samples=66, tries=5000), "beta: in 5,000 draws .* had [1-9]"),
        (Iid(700), "clients: 700 clients for only 600 images"),
        (Pathological(5, 11), "classes: 11 classes per client, but the set has 10"),
    ],
)
def test_what_a_kind_cannot_do_names_its_key(settings, message, monkeypatch):
    monkeypatch.setattr(label_skew, "TRIES", 50)
    p = dataclasses.replace(pool(), columns={"writer": np.arange(600) % 9})
    with pytest.raises(ParamError, match=f"scenarios.y.partition.{message}"):
        partition(settings, p, WHERE)


@pytest.mark.parametrize(
    "settings, message",
    [
        (QuantitySkew(20, 1e-300), "beta: .* in each of 32 draws at least 19"),
        (QuantitySkew(100, 0.01), "beta: .* in each of 32 draws"),
        (ExtendedDirichlet(20, 0.01, classes=2), "beta: .* in each of (32|64) draws"),
        (ExtendedDirichlet(100, 0.01, classes=2), "beta: .* in each of 32 draws"),
        (ExtendedDirichlet(9, 1.0, classes=1), "classes: 1 classes for each of 9 clients are too few"),
        (ExtendedDirichlet(100, 1.0, classes=1, samples=90), "clients: 100 clients for only 90 images"),
    ],
)
def test_what_no_draw_will_give_is_refused_after_a_few(settings, message):
    with pytest.raises(ParamError, match=f"scenarios.y.partition.{message}"):
        partition(settings, pool(7_000), WHERE)


def test_what_hardly_a_draw_gives_is_drawn_as_long_as_before():
    """Of Dir(0.1) over 10 clients about one draw in a thousand gives each of them 40 of 70,000 images."""
    settings, tried = QuantitySkew(10, 0.1, min_samples=40), []
    for draw in range(2):
        rng = generator(settings, PRIVATE, draw)
        indices = np.arange(70_000)
        held = label_skew.quantity_skew(settings, pool(), indices, rng)
        again = generator(settings, PRIVATE, draw)
        shuffled = again.permutation(indices)
        parts, count = [[]], 0
        while min(map(len, parts)) < 40:
            ends = np.cumsum(again.dirichlet(np.full(10, 0.1))) * len(indices)
            parts = np.split(shuffled, ends[:-1].astype(np.int64))
            count += 1
        tried.append(count)
        assert all(np.array_equal(a, b) for a, b in zip(held, parts, strict=True))
        assert rng.random() == again.random()
    assert max(tried) > 10 * label_skew.LOOK


@pytest.mark.parametrize("blank", [1, 600])
def test_images_without_a_user_are_not_one_users(blank):
    writers = np.array([" " if n < blank else f"w{n % 5}" for n in range(600)])
    p = dataclasses.replace(pool(), columns={"writer": writers, "named": np.arange(600) % 5})
    with pytest.raises(ParamError, match=f"partition.column: 'writer' is blank for {blank} of 600 images"):
        partition(Natural(1, "writer"), p, WHERE)
    assert len(partition(Natural(5, "named"), p, WHERE).train) == 5


def test_owners_of_extended_dirichlet_are_drawn_and_not_dealt_evenly():
    """Each of 20 clients draws 2 of 10 classes: the owners of a class are nearly binomial (20, 0.2), whose
    standard deviation is 1.8; evenly dealt it would be 0."""
    spread = []
    for draw in range(20):
        parts = partition(ExtendedDirichlet(20, 1.0, classes=2), pool(2000), WHERE, draw)
        held = [np.concatenate(both) for both in zip(parts.train, parts.client_test, strict=True)]
        owners = np.zeros(10)
        for part in held:
            owners[np.unique(pool(2000).labels[part])] += 1
        assert owners.min() >= 2
        spread.append(owners.std())
    assert 1.0 < np.mean(spread) < 1.9


def test_small_clients_are_reported_and_too_large_ones_refused():
    p = dataclasses.replace(pool(), columns={"writer": np.minimum(np.arange(600), 8)})
    (warning,) = partition(Natural(3, "writer", pool="train"), p, WHERE).warnings[:1]
    assert "fewer than" in warning
    with pytest.raises(ParamError, match=r"sizes.MNIST: 5000 images wanted, \d+ left"):
        partition(Subset({"MNIST": 5000}), pool(domains=DOMAINS), WHERE)


@pytest.mark.parametrize("m, train", [(41, 30), (40, 30), (3, 2), (1, 1)])
def test_train_test_sizes(m, train):
    a, b = train_test(np.arange(m), 0.75, np.random.default_rng(0))
    assert len(a) == train
    assert sorted([*a, *b]) == list(range(m))


def owners(counts, c):
    return np.flatnonzero(counts[:, c]).tolist()


@pytest.mark.parametrize("balanced", [True, False])
def test_pathological_ownership_of_cifar10(balanced):
    settings = Pathological(20, 2, balanced=balanced)
    counts = pathological_counts(np.full(10, 6000), settings, np.random.default_rng(1))
    assert [owners(counts, c) for c in range(10)] == [[4 * (c // 2) + i for i in range(4)] for c in range(10)]
    assert (counts.sum(0) == 6000).all()
    assert (len(np.unique(counts[counts > 0])) == 1) == balanced


@pytest.mark.parametrize(
    "clients, classes, k, per_class",
    [(20, 100, 20, 4), (20, 100, 10, 2), (20, 100, 50, 10), (100, 10, 2, 20)],
)
def test_pathological_owners_per_class(clients, classes, k, per_class):
    settings = Pathological(clients, k, min_samples=40)
    counts = pathological_counts(np.full(classes, 600), settings, np.random.default_rng(0))
    assert {len(owners(counts, c)) for c in range(classes)} == {per_class}
    assert ((counts > 0).sum(1) == k).all()


def test_each_client_owns_as_many_random_classes_as_wanted():
    settings = Pathological(20, 3, owners="random")
    counts = pathological_counts(np.full(10, 600), settings, np.random.default_rng(0))
    assert ((counts > 0).sum(1) == 3).all()


def test_pathological_emnist_leaves_seven_classes_unowned_and_says_so():
    parts = partition(Pathological(20, 10), pool(100, 47), WHERE)
    (warning,) = parts.warnings
    assert warning.startswith("classes 40, 41, 42, 43, 44, 45, 46 ")
    assert " 700 images" in warning
    assert sorted(everything(parts)) == list(range(4000))


def test_fedlsa_clients_per_domain():
    p = pool(domains=DOMAINS)
    parts = partition(Domains({"MNIST": 1, "USPS": 4, "SVHN": 2, "SYN": 3}), p, WHERE)
    assert [d for _, d in parts.clients] == ["MNIST", *["USPS"] * 4, *["SVHN"] * 2, *["SYN"] * 3]
    assert len(set(np.concatenate(parts.train))) == sum(map(len, parts.train))
    for (_, domain), train in zip(parts.clients, parts.train):
        assert (p.domains[train] == DOMAINS.index(domain)).all()
        assert not p.test[train].any()
    assert {d: len(t) for d, t in parts.domain_test.items()} == {
        d: int((p.test & (p.domains == i)).sum()) for i, d in enumerate(DOMAINS)
    }


def test_domain_share_and_most_test_images_per_class():
    p = pool(domains=DOMAINS)
    parts = partition(Domains(dict.fromkeys(DOMAINS, 2), share=0.1), p, WHERE)
    assert [len(t) for t in parts.train] == [
        int(0.1 * (~p.test & (p.domains == i)).sum()) for i in range(4) for _ in range(2)
    ]
    with pytest.raises(ParamError, match="partition.share: 3 clients with 0.5 of MNIST"):
        partition(Domains({"MNIST": 3}, share=0.5), p, WHERE)
    parts = partition(Domains(dict.fromkeys(DOMAINS, 1), test_per_class=3), p, WHERE)
    assert all((np.bincount(p.labels[t], minlength=10) == 3).all() for t in parts.domain_test.values())


def test_validation_scores_on_what_no_client_has_and_never_on_the_test_part():
    p, settings = pool(domains=DOMAINS), Domains(dict.fromkeys(DOMAINS, 2), share=0.3, test="index_mod_10")
    tested, chosen = (
        partition(dataclasses.replace(settings, validation=on), p, WHERE, 1) for on in (False, True)
    )
    assert all(np.array_equal(a, b) for a, b in zip(tested.train, chosen.train, strict=True))
    for i, domain in enumerate(DOMAINS):
        parts = [*chosen.train[2 * i : 2 * i + 2], chosen.domain_test[domain], tested.domain_test[domain]]
        assert sorted(np.concatenate(parts)) == np.flatnonzero(p.domains == i).tolist()
        assert len(parts[2]) > 0
    assert np.array_equal(chosen.client_test[3], chosen.domain_test["USPS"])
    with pytest.raises(ParamError, match="y.partition.validation: the clients of MNIST have all of its"):
        partition(dataclasses.replace(settings, share=None, validation=True), p, WHERE)


def test_fedccl_balanced_and_imbalanced_counts():
    p = pool(domains=DOMAINS)
    balanced = partition(Domains(dict.fromkeys(DOMAINS, 1), per_class=10), p, WHERE)
    assert all((np.bincount(p.labels[t], minlength=10) == 10).all() for t in balanced.train)
    skewed = partition(Domains(dict.fromkeys(DOMAINS, 1), per_class=10, beta=0.5), p, WHERE)
    per_class = sum(np.bincount(p.labels[t], minlength=10) for t in skewed.train)
    assert (per_class <= 40).all()
    assert len({len(t) for t in skewed.train}) > 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stratified", [True, False])
def test_private_subsets_have_their_sizes_for_any_seed(seed, stratified):
    sizes = {"MNIST": 150, "USPS": 80, "SVHN": 400, "SYN": 180}
    parts = partition(Subset(sizes, seed=seed, stratified=stratified), pool(domains=DOMAINS), WHERE)
    assert [len(t) for t in parts.train] == list(sizes.values())
    assert all(len(set(t)) == len(t) for t in parts.train)
    if stratified:
        counts = np.bincount(pool(domains=DOMAINS).labels[parts.train[0]], minlength=10)
        assert counts.max() - counts.min() <= 6


def test_printed_domain_names_and_an_unknown_one():
    meta = {"domains": ["mnist", "usps"], "classes": list("0123456789")}
    stored = Stored(np.zeros((4, 8, 8, 1)), np.arange(4) % 2, np.array([0, 1, 0, 1]), np.zeros(4), meta)
    p = Pool.of(Data("digits4", domains={"U": "usps"}), stored, "f: data")
    assert p.names == ["U"]
    assert p.domains.tolist() == [-1, 0, -1, 0]
    with pytest.raises(ParamError, match="f: data.domains.S: unknown domain 'upsp' .nearest: 'usps'"):
        Pool.of(Data("digits4", domains={"S": "upsp"}), stored, "f: data")


@pytest.fixture
def stored() -> Stored:
    """60 images of 10 classes, two of them equal, the last 12 official test images."""
    images = np.random.default_rng(0).integers(0, 256, (60, 4, 4, 1), dtype=np.uint8)
    labels, split = np.arange(60) % 10, (np.arange(60) >= 48).astype(np.uint8)
    images[15] = images[5]
    return Stored(images, labels, np.zeros(60, np.int64), split, {"set": "made", "classes": [*"0123456789"]})


def pfllib(folder, stored: Stored, clients: list[tuple[list[int], list[int]]]):
    """The files of PFLlib's save_file."""
    for at, part in enumerate(("train", "test")):
        (folder / part).mkdir(parents=True)
        for client, indices in enumerate(clients):
            x = (stored.images[indices[at]].transpose(0, 3, 1, 2).astype(np.float32) / 255 - 0.5) / 0.5
            with open(folder / part / f"{client}.npz", "wb") as file:
                np.savez_compressed(file, data={"x": x, "y": stored.labels[indices[at]]})
    (folder / "config.json").write_text(json.dumps({"num_clients": len(clients)}))
    return folder


def lists(split: splits.Split) -> list[list[list[int]]]:
    return [[held.tolist() for held in part] for part in split]


def test_pfllibs_images_are_looked_up_and_equal_ones_taken_once(tmp_path, stored):
    folder = pfllib(tmp_path / "MNIST", stored, [([5, 3, 50], [20]), ([15, 7], [41, 8])])
    assert lists(splits.read(folder, stored)) == [[[5, 3, 50], [15, 7]], [[20], [41, 8]]]


def test_an_image_that_the_set_has_not_is_one_line(tmp_path, stored):
    other = dataclasses.replace(stored, images=255 - stored.images)
    folder = pfllib(tmp_path / "MNIST", other, [([0], [1])])
    with pytest.raises(DataError, match="train/0.npz: image 0 of class 0 is not, or no more, in data/made"):
        splits.read(folder, stored)


def test_what_is_written_for_pfllib_comes_back(tmp_path, stored):
    train, test = [np.array([5, 3, 50]), np.array([7])], [np.array([20]), np.array([41, 8])]
    splits.write_pfllib(train, test, stored, tmp_path)
    assert lists(splits.read(tmp_path, stored)) == [[[5, 3, 50], [7]], [[20], [41, 8]]]


def test_pfllibs_config_counts_each_clients_labels(tmp_path, stored):
    splits.write_pfllib([np.array([5, 15, 3])], [np.array([], np.int64)], stored, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_clients"] == 1
    assert config["num_classes"] == 10
    assert config["Size of samples for labels in clients"] == [[[3, 1], [5, 2]]]


def test_what_is_written_for_flower_comes_back(tmp_path, stored):
    mixed = dataclasses.replace(stored, split=1 - stored.split)
    train, path = [np.array([48, 50]), np.array([49])], tmp_path / "flower.json"
    assert splits.write_flower(train, [np.array([], int)] * 2, mixed, path) == (["flower.json"], False)
    assert json.loads(path.read_text()) == {"0": [0, 2], "1": [1]}
    assert lists(splits.read(path, mixed)) == [[[48, 50], [49]], [[], []]]


def test_a_pool_of_both_parts_is_numbered_for_flower_as_its_merger_joins_them(tmp_path, stored):
    """Training images 48 to 59, then test images 0 to 47; clients have test images of both."""
    mixed, path = dataclasses.replace(stored, split=1 - stored.split), tmp_path / "flower.json"
    train, test = [np.array([48, 0]), np.array([49])], [np.array([59]), np.array([1, 47])]
    names, of_both = splits.write_flower(train, test, mixed, path)
    assert names == ["flower.json", "flower-test.json"]
    assert of_both
    assert json.loads(path.read_text()) == {"0": [0, 12], "1": [1]}
    assert json.loads((tmp_path / "flower-test.json").read_text()) == {"0": [11], "1": [13, 59]}
    assert lists(splits.read(path, mixed)) == [[[48, 0], [49]], [[59], [1, 47]]]
    (tmp_path / "flower-test.json").write_text("[[1]]")
    with pytest.raises(DataError, match="flower-test.json has 1 clients, 2 expected"):
        splits.read(path, mixed)
    splits.write_flower(train, [np.array([], int)] * 2, mixed, path)
    assert lists(splits.read(path, mixed))[1] == [[], []]  # not those of the export before


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize("content", [Evil(), {"x": Evil()}, [1], {"x": 1}])
def test_a_pickle_of_anything_but_arrays_is_refused(tmp_path, stored, capsys, content):
    folder = pfllib(tmp_path / "MNIST", stored, [([0], [1])])
    with open(folder / "train/0.npz", "wb") as file:
        np.savez(file, data=np.array(content, dtype=object))
    with pytest.raises(DataError, match="train/0.npz: "):
        splits.read(folder, stored)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [[[0, 2], [1]], {"1": [1], "0": [0, 2]}])
def test_flowers_lists_are_positions_in_the_training_part(tmp_path, stored, content):
    mixed = dataclasses.replace(stored, split=1 - stored.split)
    (file := tmp_path / "clients.json").write_text(json.dumps(content))
    assert lists(splits.read(file, mixed)) == [[[48, 50], [49]], [[], []]]


@pytest.mark.parametrize("content", ["{", "[]", '{"a": [1]}', "[[-1]]", "[[1000]]", "[3]", "null"])
def test_a_file_that_is_no_list_of_positions_is_one_line(tmp_path, stored, content):
    (file := tmp_path / "clients.json").write_text(content)
    with pytest.raises(DataError, match="clients.json: "):
        splits.read(file, stored)


def test_an_export_gives_the_same_clients(tmp_path, stored, monkeypatch):
    monkeypatch.setattr(listed, "ROOT", tmp_path)
    pool = Pool(stored.labels, stored.domains, stored.split == 1, ["made"], 10)
    cut = partition(Iid(3), pool, WHERE)
    (file := tmp_path / "papers/x/splits/y.csv").parent.mkdir(parents=True)
    file.write_text(listed.as_csv(cut.train, cut.client_test))
    split = splits.read(file, stored)
    assert lists(split) == lists((cut.train, cut.client_test))
    settings = Listed(3, "papers/x/splits/y.csv", files.sha256(file))
    again = partition(settings, pool, WHERE)
    assert lists((again.train, again.client_test)) == lists(split)
    assert again.domain_test["made"].tolist() == cut.domain_test["made"].tolist()
    file.write_text(listed.as_csv(cut.train, [part[:0] for part in cut.train]))
    official = partition(dataclasses.replace(settings, sha256=files.sha256(file)), pool, WHERE)
    assert {tuple(part) for part in official.client_test} == {tuple(range(48, 60))}
    with pytest.raises(ParamError, match="y.partition.sha256: not that of papers/x/splits/y.csv"):
        partition(settings, pool, WHERE)
    for change in ({"clients": 2}, {"clients": 4}):
        changed = dataclasses.replace(settings, sha256=files.sha256(file), **change)
        with pytest.raises(ParamError, match="y.partition.clients: "):
            partition(changed, pool, WHERE)


def counted(classes):
    parts = Parts([("0", "m"), ("1", "m")], [np.arange(3), np.arange(3, 8)], [np.arange(0)] * 2, {})
    return histogram.label_counts(parts, np.array([0, 0, 1, 1, 1, 1, 1, 0]), classes)


@pytest.mark.parametrize(
    "classes",
    [
        ["train", "domain"],
        ["client", "test"],
        ["tree", ""],
        ["crane"] * 2,
        ["class 1: a", "a"],
        ["a", "class "],
    ],
)
def test_a_class_takes_no_column_of_ours(classes):
    table = counted(classes)
    text = table.to_csv(index=False)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["train"] for row in rows] == ["3", "5"]
    assert len(rows[0]) == 6
    assert all(rows[0])
    held = pd.read_csv(io.StringIO(text), index_col="client").drop(columns=["domain", "train", "test"])
    assert held.to_numpy().tolist() == [[2, 1], [1, 4]]
    assert all(name in column for name, column in zip(classes, held.columns))
    assert list(counted(["cat", "Train"]).columns) == [*histogram.OURS, "cat", "Train"]
