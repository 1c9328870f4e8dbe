"""What cannot be in a finished seed, wherever it was trained, and that it replaces no good result."""

import json
import shutil
import tomllib

import numpy as np
import pytest
from all_methods import METHODS, algorithm_of, name, of, world_for
from repository import CELL, ROOT

from pipeline.cells.experiment import Experiment
from pipeline.cells.plausible import (
    OLDEST_TORCH,
    SILENT,
    Clients,
    Expected,
    clients_of,
    kind_of,
    of_clients_last,
    of_row,
    of_seed,
    of_seeds,
)
from pipeline.data.parts import Parts
from pipeline.errors import TrainingError
from pipeline.schema import Cell
from pipeline.sealing import seal
from pipeline.training import trainer

# 12 of 30 and 6 of 10 test images are right: 45 % of all
CLIENTS = Clients(("a", "b"), ("all", "all"), images=(5, 6), classes=(2, 3), tests=(30, 10))
EXPECTED = Expected(2, 3, "post", "clients", CLIENTS, metrics=("gap",), silent=False)


def row(number: int, **changes) -> dict:
    measures = {"average": 50.0, "weighted": 45.0, "clients_std": 10.0, "loss": 1.5, "method.norm": 300.0}
    return {"round": number, "state": f"{number:016x}"} | measures | changes


def seed(**changes) -> dict:
    run = {"rows": [row(0), row(1), row(2)], "hook": "post", "clients": [40.0, 60.0]}
    run |= {"holdings": {"images": [5, 6], "classes": [2, 3]}, "by_class": [1.0, None, 99.0]}
    run |= {"traffic": [10.0, 20.0], "versions": {"torch": "2.8.0+cpu"}}
    return run | changes


def test_an_honest_seed_has_no_problem():
    assert of_seed(seed(), EXPECTED) == ""
    assert of_seed(seed(rows=[row(0, loss=None), row(1), row(2)]), EXPECTED) == ""
    more = {"metric.gap": 1.0, "post.average": 1.0, "unseen.weighted": 2.0, "fgsm": 3.0, "participants": 2}
    assert of_seed(seed(rows=[row(0), row(1), row(2, **more)]), EXPECTED) == ""


def test_a_client_without_a_usable_batch_holds_nothing():
    assert of_seed(seed(holdings={"images": [5, 0], "classes": [2, 0]}), EXPECTED) == ""


def test_a_seed_from_git_may_be_older_than_digests_of_states():
    rows = [row(number, state=None) for number in range(3)]
    assert of_seed(seed(rows=rows, adopted=True), EXPECTED) == ""
    assert "no digest of the state" in of_seed(seed(rows=rows), EXPECTED)


@pytest.mark.parametrize(
    "changes, said",
    [
        (
            {"rows": [row(0), row(1), row(2, average=454.86)]},
            "round 2: average: 454.86 is not between 0 and 100",
        ),
        ({"rows": [row(0), row(1, weighted=-1.0), row(2)]}, "round 1: weighted"),
        ({"rows": [row(0), row(1, loss=float("inf")), row(2)]}, "loss: inf is no number"),
        ({"rows": [row(0, **{"method.norm": float("nan")}), row(1), row(2)]}, "method.norm: nan"),
        ({"rows": [row(0), row(1, participants=-1), row(2)]}, "participants"),
        ({"rows": [row(0), row(1)]}, "1 rounds, the scenario has 2"),
        ({"rows": [row(0), row(1), row(2), row(3)]}, "3 rounds, the scenario has 2"),
        ({"hook": "pre"}, "scores the models 'pre', the cell scores 'post'"),
        ({"clients": [40.0]}, "clients: 1 clients, the partition has 2"),
        ({"clients": [40.0, 60.0, 50.0]}, "clients: 3 clients"),
        ({"holdings": {"images": [5], "classes": [2, 3]}}, "holdings.images: 1 clients"),
        ({"holdings": {"images": [5, 6], "classes": [2, 4]}}, "holdings.classes"),
        ({"by_class": [1.0, 2.0]}, "by_class: 2 classes"),
        ({"clients": [45.0, 65.0]}, "average is 50.0, the clients give 55.0"),
        ({"clients": [30.0, 70.0]}, "clients_std is 10.0, the clients give 20.0"),
        ({"rows": [row(0), row(1), row(2, weighted=61.0)]}, "weighted is 61.0"),
        ({"rows": [row(0), row(1), row(2, average=None)]}, "round 2: average is missing"),
        ({"rows": [row(0), row(1), row(2, weighted=None)]}, "round 2: weighted is missing"),
        ({"rows": [row(0), row(1, state=""), row(2)]}, "state: a round has no digest"),
        (
            {"rows": [row(0, state=""), row(1, state=""), row(2)], "adopted": True},
            "state: 2 of 3 rounds have no digest",
        ),
        (
            {"rows": [row(0, state="0" * 16, average=49.0), *(row(k, state="0" * 16) for k in (1, 2))]},
            "all rounds have the same",
        ),
        ({"rows": [row(0), row(1), row(2, sketch=50.0)]}, "sketch: the cell measures no such thing"),
        ({"rows": [row(0), row(1, **{"metric.x": 1.0}), row(2)]}, "metric.x: the cell measures no"),
        ({"holdings": {"images": [6, 5], "classes": [2, 3]}}, "client a has 6, by the partition 5"),
        ({"holdings": {"images": [5, 6], "classes": [3, 3]}}, "client a has 3, by the partition 2"),
        ({"traffic": [0.0, 0.0]}, "traffic: [0.0, 0.0], of a method with communication"),
        ({"traffic": [5.0, 0.0]}, "of a method with communication"),
        (
            {"versions": {"torch": "1.4.0"}},
            "versions.torch: '1.4.0', the oldest that this project has is 2.8",
        ),
        ({"versions": {}}, "versions.torch: None"),
        ({"clients": [60.0, 40.0]}, "weighted is 45.0, the clients give 55.0"),
    ],
)
def test_a_seed_that_cannot_be_is_named(changes, said):
    assert said in of_seed(seed(**changes), EXPECTED)


@pytest.mark.parametrize(
    "kind, line, said",
    [
        ("domains", {"average": 50.0, "a": 40.0, "b": 60.0, "metric.x": 1.0}, ""),
        ("domains", {"average": 55.0, "a": 40.0, "b": 60.0}, "average is 55.0, the domains give 50.0"),
        (
            "domains",
            {"average": 50.0, "a": 40.0, "b": 60.0, "post.average": 1.0, "post.a": 2.0},
            "post.average",
        ),
        ("cross", {"average": 50.0, "intra.AVG": 50.0, "intra.0": 40.0, "intra.1": 60.0}, ""),
        (
            "cross",
            {"average": 50.0, "intra.AVG": 50.0, "intra.0": 45.0, "intra.1": 60.0},
            "intra.AVG is 50.0",
        ),
        ("cross", {"average": 55.0, "intra.AVG": 50.0}, "average is 55.0"),
        ("pooled", {"average": 55.0}, ""),
    ],
)
def test_parts_of_a_line_have_to_give_its_means(kind, line, said):
    found = of_row(line, kind)
    assert said in found
    assert bool(said) == bool(found)


def test_a_method_without_communication_sends_nothing():
    quiet = Expected(2, 3, "post", "clients", CLIENTS, silent=True)
    assert of_seed(seed(traffic=[0.0, 0.0]), quiet) == ""
    assert "of a method without communication" in of_seed(seed(), quiet)
    own = Expected(2, 3, "post", "clients", CLIENTS)
    assert of_seed(seed(), own) == of_seed(seed(traffic=[0.0, 0.0]), own) == ""


@pytest.mark.parametrize("method", [*METHODS, of("centralised")], ids=name)
def test_which_methods_send_nothing(method):
    world = world_for(method)
    sent = method.traffic(world, method.init(world))
    assert not any(sent) if algorithm_of(method) in SILENT else all(sent)


def test_the_oldest_torch_is_that_of_the_project():
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    oldest = ".".join(map(str, OLDEST_TORCH))
    assert any(one.startswith(f"torch>={oldest}") for one in needed)


FOUR = Clients(("a", "b", "c", "d"), ("x", "x", "y", "z"), tests=(10, 10, 10, 10))


@pytest.mark.parametrize(
    "kind, line",
    [
        ("domains", {"average": 40.0, "x": 20.0, "y": 40.0, "z": 60.0}),
        ("cross", {"average": 35.0, "intra.a": 10.0, "intra.b": 30.0, "intra.c": 40.0, "intra.d": 60.0}),
        ("pooled", {"average": 35.0, "clean.a": 10.0, "clean.b": 30.0, "clean.c": 40.0, "clean.d": 60.0}),
    ],
)
def test_clients_that_change_places_are_seen(kind, line):
    accuracies = [10.0, 30.0, 40.0, 60.0]
    assert of_clients_last(line, accuracies, kind, FOUR) == ""
    assert of_clients_last(line, accuracies[::-1], kind, FOUR) != ""


@pytest.mark.parametrize(
    "accuracies, said",
    [
        ([10.0, 30.0, 40.0, 61.0], "61.0 is no share of the 10 test images of d"),
        ([10.0, 30.0, 40.0, None], "d is scored on 10 test images, its accuracy is None"),
    ],
)
def test_an_accuracy_is_a_share_of_the_clients_test_images(accuracies, said):
    assert said in of_clients_last({"average": 35.0}, accuracies, "domains", FOUR)


def rows(start: int, **changes) -> list[dict]:
    return [row(number, state=f"{start + number:016x}", loss=start + 0.5, **changes) for number in range(3)]


def test_seeds_of_one_cell_may_differ_in_what_a_method_or_a_paper_tells():
    one, two = rows(10), rows(20)
    two[1] |= {"method.learns.0.1": 1.0, "metric.gap": 2.0, "unseen.average": 3.0}
    assert of_seeds({0: one, 1: two}) == ""
    older = [{**line, "state": None} for line in two]
    assert of_seeds({0: one, 1: older}) == ""


@pytest.mark.parametrize(
    "two, said",
    [
        (rows(20, sketch=50.0), "seed 1 has 'sketch', which seed 0 has not"),
        (rows(20, **{"inter.x": 50.0}), "seed 1 has 'inter.x'"),
        (rows(10), "seeds 0 and 1 have the same state in round 1"),
        ([{**line, "state": None} for line in rows(10)], "seeds 0 and 1 have the same rounds"),
        ([*rows(20)[:2], {**rows(10)[2], "average": 51.0}], "seeds 0 and 1 have the same state in round 2"),
    ],
)
def test_seeds_that_cannot_both_be_are_named(two, said):
    assert said in of_seeds({0: rows(10), 1: two})


def test_states_of_trainings_that_diverged_may_be_alike():
    one, two = rows(10), rows(20)
    for seed_rows in (one, two):
        seed_rows[2] |= {"loss": None, "state": "f" * 16}
    assert of_seeds({0: one, 1: two}) == ""


def test_of_one_common_test_set_the_clients_give_the_mean():
    assert of_clients_last({"average": 50.0}, [40.0, 60.0], "pooled") == ""
    assert "the clients give 45" in of_clients_last({"average": 50.0}, [40.0, 50.0], "pooled")


@pytest.fixture(scope="module")
def copy(finished, tmp_path_factory):
    """A copy with a finished cell, its plan, and the files of its two seeds with what they hold."""
    root = shutil.copytree(finished, tmp_path_factory.mktemp("plausible") / "copy", symlinks=True)
    experiment = Experiment.of(Cell.parse(CELL), root)
    files = [job.files.finished for job in trainer.plan(experiment, "fp32", "sequential").jobs]
    return experiment, {file: file.read_text() for file in files}


@pytest.fixture
def delivered(copy):
    """The cell's plan, and the files of its seeds, which are whole again afterwards."""
    experiment, whole = copy
    yield trainer.plan(experiment, "fp32", "sequential"), [*whole]
    for file, text in whole.items():
        file.write_text(text)


def test_a_delivered_seed_that_cannot_be_is_not_written_over_a_good_result(delivered):
    planned, (file, _) = delivered
    good = planned.experiment.folder / "result.json"
    before = good.read_bytes()
    run = json.loads(file.read_text())
    run["rows"][-1]["average"] = 454.86
    file.write_text(json.dumps(seal(run)))
    with pytest.raises(TrainingError, match="seed 0 cannot be what training wrote: round 4: average: 454.86"):
        planned.write(planned.result())
    assert good.read_bytes() == before
    assert file.with_name(file.name + ".damaged").exists()
    assert not file.exists()


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda run: run["holdings"]["images"].reverse(), "holdings.images: client"),
        (lambda run: run["clients"].reverse(), "clients|weighted"),
        (lambda run: run.update(traffic=[0.0, 0.0]), "traffic"),
        (lambda run: run["rows"][-1].update(average=None), "average is missing"),
        (lambda run: run["rows"][2].pop("state"), "no digest of the state"),
    ],
)
def test_a_delivered_seed_is_compared_with_its_partition_and_method(delivered, change, said):
    planned, (file, _) = delivered
    run = json.loads(file.read_text())
    change(run)
    file.write_text(json.dumps(seal(run)))
    with pytest.raises(TrainingError, match=f"seed 0 cannot be what training wrote: .*({said})"):
        planned.result()


def test_rows_of_one_seed_that_are_delivered_as_another_s_are_refused(delivered):
    planned, (one, two) = delivered
    first, second = (json.loads(file.read_text()) for file in (one, two))
    # by the clients of the other draw the numbers would not do
    for line, own in zip(first["rows"], second["rows"], strict=True):
        line.update({name: own[name] for name in own if name != "state"})
    two.write_text(json.dumps(seal(second | {"rows": first["rows"]})))
    with pytest.raises(TrainingError, match="seeds 0 and 1 have the same state in round 1"):
        planned.result()


def test_clients_that_come_after_the_last_round_are_not_expected():
    experiment = Experiment.of(Cell.parse("fedcrl/digits-partial/fedavg"))
    result = json.loads((experiment.folder / "result.json").read_text())
    table = (experiment.folder.parent / "clients.csv").read_text().splitlines()[1:]
    dealt = [line.split(",")[:4] for line in table]
    ends = np.cumsum([0, *(int(train) for _, _, train, _ in dealt)])
    train = [np.arange(*span) for span in zip(ends, ends[1:])]
    parts = Parts([(n, d) for n, d, *_ in dealt], train, [np.zeros(int(one[3]), int) for one in dealt], {})
    clients = clients_of(experiment.scenario, 0, parts, np.zeros(ends[-1], int))
    last = {name: each[0] for name, each in result["final"].items()}
    assert len(clients.names) == len(result["clients"][0]) < len(dealt)
    assert of_clients_last(last, result["clients"][0], "clients", clients) == ""


def test_a_client_that_is_not_scored_has_no_accuracy_and_a_scored_one_has():
    """Of four clients with ten test images each the second and the last are scored."""
    clients = Clients(tuple("abcd"), ("all",) * 4, tests=(0, 10, 0, 10))
    line = {"average": 60.0, "weighted": 60.0, "clients_std": 10.0}
    assert of_clients_last(line, [None, 50.0, None, 70.0], "clients", clients) == ""
    wrong = of_clients_last(line, [50.0, None, None, 70.0], "clients", clients)
    assert wrong == "clients: a is scored on 0 test images, its accuracy is 50.0"
    wrong = of_clients_last(line | {"average": 70.0, "clients_std": 0.0}, [None] * 3 + [70.0], "clients")
    assert wrong == "weighted is 60.0, the clients lie between 70.0 and 70.0"


def test_a_domain_may_have_a_dot_in_its_name():
    measures = {"average": 50.0, "v1.0": 40.0, "v2.0": 60.0, "method.norm": 3.0, "metric.gap": 1.0}
    assert kind_of(measures) == "domains"
    assert of_row({"round": 1} | measures, "domains") == ""
    assert "the domains" in of_row({"round": 1} | measures | {"v2.0": 90.0}, "domains")
    assert (
        kind_of({"average": 50.0, "clean.AVG": 50.0, "corrupted.AVG": 40.0, "unseen.average": 1.0})
        == "pooled"
    )
