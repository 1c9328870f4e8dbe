"""`fedrepro explain`: where the values of a scenario are from, and whether its tuning is stale."""

import json

import pytest
from one_paper import MINI, TRAINING, finish, repository
from repository import PARAMETERS, edit

from pipeline.cells import choices
from pipeline.commands import explain
from pipeline.files import write_json, write_text
from pipeline.sealing import seal

CHANGED = "[changed by papers/fedcrl/params.yaml]"


def test_a_value_of_params_yaml_is_marked_also_where_the_paper_gives_no_source(tmp_path):
    root = repository(tmp_path)
    write_text(
        root / "papers/fedcrl/params.yaml",
        "settings: {mini: {training: {optimiser: {lr: 0.01}}, evaluation: {headline: average}}}\n",
    )
    marked = [line.split()[:2] for line in explain.lines(MINI, [], root) if line.endswith(CHANGED)]
    assert marked == [["optimiser.lr", "0.01"], ["headline", "average"]]


def with_rounds(root, rounds):
    """Train the miniature for so many rounds from now on."""

    def change(document):
        document["miniature"]["scenario"]["training"] = {**TRAINING, "rounds": rounds}

    edit(root / PARAMETERS, change)


@pytest.fixture
def tuned(tmp_path):
    """A repository whose miniature was tuned, and trained with the row's and with the chosen values."""
    root = repository(tmp_path)
    tuning = {"mini": {"configurations": 1, "seeds": [0], "methods": ["fedavg"], "test_seeds": [0, 1]}}
    edit(root / PARAMETERS, lambda document: document.update(tuning=tuning))
    one = {"changes": {}, "values": {"learning_rate": 0.001}, "accuracy": [50.0], "seconds": [1.0]}
    choice = {"cell": str(MINI), "seeds": [0], "chosen": 0, "configurations": [one]}
    write_json(choices.path(MINI, root), seal(choice))
    for cell in (choices.tuned(MINI, root), choices.published(MINI, root)):
        path = finish(root, cell, headline="weighted", measures={"weighted": [86.0, 87.0]})
        result = json.loads(path.read_text())
        del result["partitions"]  # one draw serves all its seeds
        write_json(path, seal(result))
    return root


def told(root):
    """The lines of the explanation on the tuning, as one text."""
    lines = list(explain.lines(MINI, [], root))
    first = next(number for number, line in enumerate(lines) if line.startswith(("tuning:", "untuned:")))
    last = next(number for number, line in enumerate(lines) if line.startswith("command:"))
    return " ".join(" ".join(lines[first:last]).split())


def test_a_current_tuning_has_its_numbers_and_no_note(tuned):
    assert told(tuned).startswith("untuned: 86.50 (weighted; seeds 0, 1: 86.00, 87.00) with the row's values")


def test_the_numbers_of_a_former_scenario_are_told_to_be_stale_and_why(tuned):
    with_rounds(tuned, 6)
    assert told(tuned).startswith(
        "tuning: stale by parameters (10 rounds, today 6): its numbers may differ from those above for this "
        "reason alone; `fedrepro tune fedcrl/mini/fedavg` measures them again untuned: stale: 86.50 "
    )
