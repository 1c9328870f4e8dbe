"""What a cluster is told of a cell."""

import pytest
import torch

from pipeline.clusters import order
from pipeline.clusters.order import Order, versions
from pipeline.engine.environment import EXECUTORS
from pipeline.schema import Cell

CELL = Cell("fedcrl", "mini", "fedavg")


@pytest.fixture
def digests(monkeypatch):
    """Names of what a digest is of, in its place: no partition has to be made."""

    def digest(experiment, partition, precision, executor):
        return f"{experiment.cell} {partition} {precision} {executor}"

    monkeypatch.setattr(order, "inputs", lambda experiment, seed: {"digest": f"partition {seed}"})
    monkeypatch.setattr(order.identity, "cell_digest", digest)


def test_an_order_has_the_digest_of_every_seed_for_each_executor(digests):
    made = Order.of(CELL, "bf16")
    assert (made.cell, made.precision) == ("fedcrl/mini/fedavg", "bf16")
    assert made.digests == {
        executor: {seed: f"{CELL} partition {seed} bf16 {executor}" for seed in ("0", "1")}
        for executor in EXECUTORS
    }


def test_an_order_has_the_versions_without_the_suffix_of_a_build(digests):
    assert Order.of(CELL, "fp32").versions == versions()
    assert versions()["torch"] == torch.__version__.partition("+")[0]


def made_seeds(root, *digests):
    for digest in digests:
        (root / ".cells" / digest).mkdir(parents=True)
        (root / ".cells" / digest / "seed-0.json").touch()


def ordered(by_executor):
    return Order(str(CELL), "fp32", by_executor, {})


def test_a_cell_is_trained_with_the_executor_that_has_every_seed(tmp_path):
    made_seeds(tmp_path, "a", "b")
    half = {"sequential": {"0": "a", "1": "a"}, "stacked": {"0": "b"}}
    assert ordered(half).trained_with(tmp_path) == "stacked"


def test_a_cell_of_which_a_seed_is_missing_is_not_trained(tmp_path):
    made_seeds(tmp_path, "a")
    assert ordered({"sequential": {"0": "a", "1": "a"}}).trained_with(tmp_path) is None


def test_an_order_without_seeds_is_not_trained(tmp_path):
    assert ordered({"sequential": {}}).trained_with(tmp_path) is None
