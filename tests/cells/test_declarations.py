"""Declared experiments: a wrong file names itself and its key, and a row without its seeds is told."""

from types import SimpleNamespace

import pytest
import yaml

from pipeline.cells.declarations import POCOCK, declarations, level_of, missing_seeds
from pipeline.commands import status
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, papers

DECLARED = {
    "question": "Is the lead more than the network's?",
    "scenario": "balanced",
    "rows": ["ours"],
    "controls": ["fedavg"],
    "seeds": [0, 1, 2],
    "measure": "average",
    "looks": 1,
    "alpha": 0.05,
    "smallest_effect": 4.44,
}


@pytest.fixture
def declare(root):
    def write(**changes):
        folder = root / "papers/fedcrl/experiments"
        folder.mkdir(exist_ok=True)
        (folder / "lead.yaml").write_text(yaml.safe_dump(DECLARED | changes))
        return root

    return write


@pytest.mark.parametrize("paper", papers())
def test_the_committed_experiments_are_whole(paper):
    assert isinstance(declarations(paper), dict)


def test_an_experiment_is_read(declare):
    declared = declarations("fedcrl", declare())["lead"]
    assert declared.methods == ["ours", "fedavg"]
    assert declared.level == 0.05


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"scenario": "nowhere"}, "scenario"),
        ({"rows": ["nobody"]}, "rows"),
        ({"controls": ["nobody"]}, "controls: unknown method 'nobody'"),
        ({"seeds": [0, 0]}, "seeds"),
        ({"seeds": "all"}, "seeds"),
        ({"rows": ["ours", "fedavg"]}, "fedavg twice"),
        ({"looks": 9}, "looks"),
        ({"looks": 3, "alpha": 0.01}, "alpha"),
        ({"smallest_effect": 0}, "smallest_effect"),
        ({"seen": {"nobody": [0]}}, "seen"),
        ({"seen": {"ours": [7]}}, "seen.ours"),
        ({"diverged": {"ours": [7]}}, "diverged.ours"),
        ({"question": " "}, "question"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_experiment_names_file_and_key(declare, changes, named):
    root = declare(**changes)
    with pytest.raises(ParamError, match=f"papers/fedcrl/experiments/lead.yaml.*{named}"):
        declarations("fedcrl", root)


def test_several_looks_are_tested_at_pococks_level(declare):
    assert declarations("fedcrl", declare(looks=3))["lead"].level == 0.0221


def test_two_looks_have_a_level_of_their_own(declare):
    assert declarations("fedcrl", declare(looks=2))["lead"].level == POCOCK[2]


def test_more_looks_than_the_table_has_get_its_last_level():
    assert level_of(12) == level_of(5) < level_of(1)


def test_a_comparison_with_an_undeclared_row_was_not_planned(declare):
    declared = declarations("fedcrl", declare())["lead"]
    assert declared.covers("balanced", {"ours", "fedavg"}, "average")
    assert not declared.covers("balanced", {"ours", "fedprox"}, "average")
    assert not declared.covers("skewed", {"ours", "fedavg"}, "average")


def test_a_comparison_of_controls_alone_was_not_planned(declare):
    declared = declarations("fedcrl", declare(controls=["fedavg", "fedprox"]))["lead"]
    assert not declared.covers("balanced", {"fedavg", "fedprox"}, "average")


def test_a_seed_is_new_unless_both_sides_were_seen(declare):
    declared = declarations("fedcrl", declare(seen={"ours": [0, 1, 2], "fedavg": [0]}))["lead"]
    assert declared.new_seeds(["ours", "fedavg"]) == [1, 2]


def test_the_seeds_that_a_row_lacks(declare):
    root = declare()
    ours, fedavg = (Cell("fedcrl", "balanced", name) for name in ("ours", "fedavg"))
    declared = declarations("fedcrl", root)["lead"]
    assert missing_seeds("fedcrl", declared, {ours: {"seeds": [0, 2]}}) == {ours: [1], fedavg: [0, 1, 2]}


def test_status_shows_a_declared_row_without_its_seeds(declare, measured):
    declare()
    board = SimpleNamespace(root=measured, results=status.read_results(measured))
    assert list(status.declared(["fedcrl"], board)) == [
        "declared in experiments/lead.yaml, not run: fedcrl/balanced/ours, seeds 2",
        "declared in experiments/lead.yaml, not run: fedcrl/balanced/fedavg, seeds 2",
    ]


def test_a_changed_experiment_renews_the_page():
    stages = yaml.safe_load((ROOT / "papers/fedlsa/dvc.yaml").read_text())["stages"]
    assert "papers/fedlsa/experiments" in stages["results"]["deps"]
    assert "papers/fedlsa/experiments" in stages["report"]["deps"]
