"""What is recorded of a run besides its accuracies."""

import pandas as pd
import pytest
from reporting import write_run

from pipeline.cells.results import collect
from pipeline.report import measures
from pipeline.schema import Cell

CELL = Cell("fedcrl", "balanced", "ours")
TABLE = pd.DataFrame(
    {
        "seed": [0, 0, 0, 1, 1, 1],
        "round": [0, 1, 2] * 2,
        "average": [50.0, 20.0, 40.0, 0.0, None, 30.0],
        "method.learns.0.1": [None, 1.0, 0.0, None, 1.0, 1.0],
        "method.learns.1.0": [None, 0, 1, None, 1, 0],
    }
)


@pytest.fixture
def result(root):
    write_run(root, "balanced/ours", {"average": [40.0, 60.0]})
    return collect(root)[CELL]


def test_rounds_and_bytes_to_a_target(result):
    assert measures.to_target(result, TABLE, 30.0) == {
        0: {"round": 2, "bytes": 24000},
        1: {"round": 2, "bytes": 24000},
    }
    assert measures.to_target(result, TABLE, 41.0) == {0: None, 1: None}  # round 0 does not count


def test_costs_take_the_devices_memory_where_it_has_some(result):
    def memory(**more):
        return measures.numbers(CELL, result | more, "run.memory")

    process = {"process_mb": [400, 500], "device_mb": [None, None]}
    assert measures.numbers(CELL, result, "run.seconds") == {0: 0.75, 1: 0.75} and memory() == {}
    assert memory(memory=process) == {0: 400, 1: 500}
    assert memory(memory=process | {"device_mb": [7, 8]}) == {0: 7, 1: 8}


def test_who_learns_from_whom_over_rounds():
    assert measures.teachers(TABLE) == {
        0: {1: [[0, 1], [0, 0]], 2: [[0, 0], [1, 0]]},
        1: {1: [[0, 1], [1, 0]], 2: [[0, 1], [0, 0]]},
    }
    assert measures.teachers(TABLE[["seed", "round"]]) == {}
