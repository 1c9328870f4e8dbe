"""What is recorded of a run beside its accuracies, and read back as plain data."""

import json

import pandas as pd
import pytest
from reporting import write_run

from pipeline.cells import measures
from pipeline.cells.results import collect
from pipeline.errors import FedReproError
from pipeline.schema import Cell

CELL = Cell("fedcrl", "balanced", "ours")
TABLE = pd.DataFrame(
    {
        "seed": [0, 0, 0, 1, 1, 1],
        "round": [0, 1, 2] * 2,
        "average": [50.0, 20.0, 40.0, 0.0, None, 30.0],
        "method.tau": [None, 0.5, 0.25, None, 0.75, 1.0],
        "method.learns.0.1": [None, 1.0, 0.0, None, 1.0, 1.0],
        "method.learns.1.0": [None, 0, 1, None, 1, 0],
    }
)


@pytest.fixture
def result(root):
    write_run(root, "balanced/ours", {"average": [40.0, 60.0]})
    return collect(root)[CELL]


def test_a_clients_accuracy_stands_with_what_it_trains_on(root, result):
    held = {"images": [[5, 6, 0], [7, 8, 0]], "classes": [[1, 2, 0], [3, 4, 0]]}
    found = measures.by_holdings(CELL, result | {"holdings": held}, root)
    assert found[0] == {"seed": 0, "client": 0, "images": 5, "classes": 1, "accuracy": 50.0}
    assert [(one["seed"], one["images"], one["accuracy"]) for one in found[3:]] == [
        (1, 7, 51.0),
        (1, 8, 90.0),
        (1, 0, None),
    ]


def test_of_older_results_the_partition_is_that_of_clients_csv(root, result):
    assert measures.by_holdings(CELL, result, root) == []
    path = CELL.folder(root).parent / "clients.csv"
    path.write_text("client,domain,train,test,cat,dog\na,x,5,1,5,0\nb,x,6,1,2,4\nc,x,0,1,0,0\n")
    found = measures.by_holdings(CELL, result, root)
    assert [(one["seed"], one["images"], one["classes"]) for one in found] == [
        (seed, *held) for seed in (0, 1) for held in ((5, 1), (6, 2), (0, 0))
    ]
    # a partition for each seed
    own = measures.by_holdings(CELL, result | {"partitions": ["a", "b"]}, root)
    assert [one["seed"] for one in own] == [0, 0, 0]
    path.write_text("client,domain,train,test,cat\na,x,many,1,5\n")
    with pytest.raises(FedReproError, match="balanced/clients.csv: not the images per class"):
        measures.by_holdings(CELL, result, root)


def test_accuracy_by_class_is_there_where_it_was_recorded(result):
    assert measures.by_class(result) == {}
    recorded = [[1.0, None], [2.0, 3.0]]
    assert measures.by_class(result | {"by_class": recorded}) == {0: [1.0, None], 1: [2.0, 3.0]}


def test_rounds_and_bytes_to_a_target(result):
    assert measures.to_target(result, TABLE, 30.0) == {
        0: {"round": 2, "bytes": 24000},
        1: {"round": 2, "bytes": 24000},
    }
    assert measures.to_target(result, TABLE, {0: 20.0}) == {0: {"round": 1, "bytes": 12000}}
    assert measures.to_target(result, TABLE, 41.0) == {0: None, 1: None}  # round 0 does not count


def test_costs_take_the_devices_memory_where_it_has_its_own(result):
    assert measures.costs(result)[0] == {"seconds": 1.5, "seconds_per_round": 0.75, "memory_mb": None}
    memory = {"process_mb": [400, 500], "device_mb": [None, None]}
    assert measures.costs(result | {"memory": memory})[1]["memory_mb"] == 500
    assert measures.costs(result | {"memory": memory | {"device_mb": [7, 8]}})[1]["memory_mb"] == 8


def test_a_methods_own_numbers_over_rounds():
    assert measures.over_rounds(TABLE, "tau") == {0: {1: 0.5, 2: 0.25}, 1: {1: 0.75, 2: 1.0}}
    assert measures.over_rounds(TABLE, "global_clusters") == {}


def test_who_learns_from_whom_over_rounds():
    assert measures.teachers(TABLE) == {
        0: {1: [[0, 1], [0, 0]], 2: [[0, 0], [1, 0]]},
        1: {1: [[0, 1], [1, 0]], 2: [[0, 1], [0, 0]]},
    }
    assert measures.teachers(TABLE[["seed", "round"]]) == {}
    json.dumps([measures.teachers(TABLE), measures.over_rounds(TABLE, "tau")])  # plain data
