"""The digest of the state that every round of history.csv records."""

import pytest
from repository import CELL, forget, stage

from pipeline.cells import results
from pipeline.errors import FedReproError
from pipeline.schema import Cell


def test_every_round_records_its_state_and_a_second_run_the_same(project):
    histories = []
    for _ in range(2):
        stage(project, "train", CELL)
        histories.append(results.history(Cell.parse(CELL), project))
        forget(project)
    states = histories[0][results.STATE]
    assert states.str.fullmatch("[0-9a-f]{16}").all() and states.nunique() == len(states)
    assert histories[1][results.STATE].equals(states)


def test_digits_alone_are_read_as_text_and_other_text_is_refused(tmp_path):
    path = tmp_path / "history.csv"
    table = results.parse_history(b"seed,round,loss,state\n0,0,,1234567890123456\n0,1,0.5,\n", path)
    assert table[results.STATE].tolist()[0] == "1234567890123456"
    with pytest.raises(FedReproError, match=r"history.csv:2: state"):
        results.parse_history(b"seed,round,loss,state\n0,0,,12e4\n", path)
