"""The engine on a GPU that is pretended (pretend_card.py): everything is on its device, steps are recorded
and replayed, the host does not wait for them, and the numbers are the CPU's. One method for each thing that
methods ask of the engine; on_a_card.py runs all."""

import json
import sys
from pathlib import Path

import pytest
from repository import ROOT, run
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="an older torch"
)
QUICK = "fedavg moon fedbn".split()
LONGER = "fedccl fedsr perfedavg fedala fedcrl fedproto_hetero rahfl scaffold".split()
METHODS = [*QUICK, *(pytest.param(method, marks=pytest.mark.rest) for method in LONGER)]
COUNTED = "half", "decay"
SERVERS = "server20", "server100"
NEVER_TWICE = {"fedccl"}  # as many prototypes as clusters, new ones each round
# What a process answers at once: the second, of eight methods and of rounds of 20 clients, is of the rest.
PROCESSES = (("rules", *SERVERS, "digests", "layers", *QUICK), ("20", *COUNTED, *LONGER))


class Answers(dict):
    """Name of a setting or method -> what the process that computes it has printed."""

    def __missing__(self, name: str) -> dict | list:
        (wanted,) = (words for words in PROCESSES if name in words)
        self.update(dict.fromkeys(wanted, {}))  # a process that fails is not begun again
        command = sys.executable, "-m", "on_a_card", *wanted
        printed = run(Path(__file__).parents[1], *command, PYTHONPATH=str(ROOT)).stdout
        for line in map(json.loads, printed.splitlines()):
            self[name_of(line)] = line
        return self[name]


def name_of(line: dict | list) -> str:
    """What a line of the process tells of."""
    if isinstance(line, list):
        return "layers"
    return line.get("setting") or line.get("algorithm") or "rules"


@pytest.fixture(scope="module")
def results() -> Answers:
    """In separate processes: torch keeps a device once it knows it."""
    return Answers()


@pytest.mark.parametrize("method", METHODS)
def test_on_the_card_as_on_the_cpu(method, results):
    assert results[method]["equal"]


@pytest.mark.parametrize("method", METHODS)
def test_steps_are_replayed_and_the_host_does_not_wait(method, results):
    """A shape is taken as it is, then recorded, then replayed."""
    assert results[method]["replays"] == results[method]["again"]
    assert (results[method]["again"] > 0) == (method not in NEVER_TWICE)
    assert not results[method]["waits"]


@pytest.mark.rest
@pytest.mark.parametrize("setting", COUNTED)
def test_a_shape_is_recorded_once_whoever_takes_part_at_whatever_rate(setting, results):
    """Five rounds of 20 clients, of whom half are drawn in each, or whose rate falls."""
    counted = results[setting]
    assert counted["equal"]
    assert counted["recorded"] == counted["shapes"] > 4
    assert counted["round"]["waits"] == 1  # for what was logged
    assert counted["step"]["launches"] <= 8
    assert counted["step"]["kernels"] < 100
    assert "waits" not in counted["step"]
    assert "bytes" not in counted["step"]


@pytest.mark.rest
def test_images_of_bytes_are_held_as_bytes(results):
    images = sum(4 + k % 9 for k in range(20))
    assert results["decay"]["pool"] == images * (16 * 16 + 8)


def test_a_convolution_by_im2col_is_as_many_kernels_for_more_images(results):
    for layer in ("first", "later"):
        assert len({row["kernels"] for row in results["layers"] if row["layer"] == layer}) == 1


@pytest.mark.parametrize("computed", ["mean", "mix", "interpolation", "finite", "digest"])
def test_the_server_computes_with_all_models_at_once(computed, results):
    """Of 100 clients, nine entries each. Model by model, `mix` had 81,700 launches, `mean` 817."""
    few, many = (results[server][computed] for server in SERVERS)
    assert many["launches"] <= 15
    # torch.cat takes 128 tensors in a launch.
    assert many["launches"] - few["launches"] <= 9 * 100 // 128
    assert many["gap"] == 0


def test_the_host_waits_once_for_a_check_or_a_digest_of_all_models(results):
    for server in SERVERS:
        waits = {name: row["waits"] for name, row in results[server].items() if name != "algorithm"}
        assert waits == {"mean": 0, "mix": 0, "interpolation": 0, "finite": 1, "digest": 1}


def test_a_digest_on_the_card_changes_with_the_values_alone(results):
    assert results["digests"]["again"]
    assert results["digests"]["changed"]
    assert results["digests"]["swapped"]


def test_a_digest_of_the_card_is_another_one_but_a_checkpoints_hash_is_the_same(results):
    assert results["digests"]["here"]
    assert results["digests"]["saved"]


def test_all_models_are_scored_with_one_wait(results):
    assert results["fedavg"]["scored"] == results["fedbn"]["scored"] == [1]


def test_the_card_has_a_gpus_rules(results):
    results = results["rules"]
    assert "same device" in results["mixed"]
    assert "capturing" in results["fetched"]
    assert results["recorded"] == [0, 0, 0]
    assert results["replayed"] == [4, 8, 12]
    assert "another stream" in results["early"]
    assert not results["late"]
    assert [why.split()[0] for why in results["waits"]] == ["copy", "copy"]  # the two lists
