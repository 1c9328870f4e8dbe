"""What a walk compares tells each method from itself without what it adds; the table of all methods' walks,
docs/ablations.md; and that no stamp counts for fewer rounds than ablations need."""

import os
import sys
from functools import cache

import pytest
from all_methods import ALWAYS, world_for

from benchmarks import ablations
from benchmarks.ablations import ABLATIONS, ACCEPTED, CELLS, CUTS, MINIATURE, REAL, REFUSED, ROUNDS
from pipeline import methods
from pipeline.cells import stamps
from pipeline.cells.experiment import Experiment
from pipeline.errors import TrainingError
from pipeline.schema import Cell
from pipeline.training.seeds import _digest

EVERY = [(algorithm, one) for algorithm, all_of_it in ABLATIONS.items() for one in all_of_it]
# Clients' sizes, of which no mean by samples is a plain one; of three clients' means no cluster differs.
SIZES = (20, 33, 7)
MORE = {"fpl": (20, 33, 7, 12, 9, 15)}
# Such small networks are confident of nothing.
OPTIONS = ALWAYS | {"fedmatch": {"kappa": 0.0}}


def digests(algorithm: str):
    """Of the state after each round, on the same small clients."""
    method = methods.load(algorithm, OPTIONS.get(algorithm, {}), "test")
    world = world_for(method, MORE.get(algorithm, SIZES))
    state = method.init(world)
    for number in range(1, ROUNDS + 1):
        state = method.round(state, world.at(number))
        yield _digest(state)


@cache
def as_it_is(algorithm: str) -> list[str]:
    return list(digests(algorithm))


@pytest.mark.parametrize("algorithm, ablation", EVERY, ids=[f"{name}-{one.what}" for name, one in EVERY])
def test_states_tell_a_method_from_its_ablation(algorithm, ablation, monkeypatch):
    known = as_it_is(algorithm)
    changed = ablations.variant(algorithm, ablation)
    monkeypatch.setitem(sys.modules, f"pipeline.methods.{algorithm}", changed)
    assert any(one != other for one, other in zip(digests(algorithm), known, strict=True))


@pytest.mark.parametrize("algorithm", ("fedprox", "rahfl"))
def test_a_method_agrees_with_itself(algorithm, monkeypatch):
    """Also where its module is compiled anew, as that of an ablation."""
    known = as_it_is(algorithm)
    same = ablations.variant(algorithm, ablations.Ablation("nothing"))
    monkeypatch.setitem(sys.modules, f"pipeline.methods.{algorithm}", same)
    assert list(digests(algorithm)) == known


@pytest.mark.parametrize(
    "ablation, said",
    [
        (ablations.Ablation("a term", {"nu": 0.0}), "FedProx has no nu"),
        (ablations.Ablation("a term", code={"self.nu": "0"}), "stands there 0 times"),
    ],
)
def test_an_ablation_that_fits_the_code_no_more_is_an_error(ablation, said):
    with pytest.raises(ValueError, match=said):
        ablations.variant("fedprox", ablation)


def failing() -> None:
    print("round 1 of 3", file=sys.stderr)
    raise TrainingError("seed 0: the models diverged")


def dying() -> None:
    os.write(2, b"out of memory\n")
    os._exit(137)


@pytest.mark.parametrize(
    "task, said",
    [
        (failing, "pipeline.errors.TrainingError: seed 0: the models diverged"),
        (dying, "out of memory"),
        (lambda: os._exit(1), "it said nothing"),
    ],
)
def test_a_training_that_fails_says_why(task, said):
    with ablations.forked(task) as child:
        assert list(child.lines) == []
        assert str(child.failure("a cell")) == f"a cell: its training fails: {said}"


def test_every_method_has_ablations_and_cells():
    assert set(ABLATIONS) == set(CELLS) == set(methods.method_names())
    for algorithm, cells in CELLS.items():
        miniature, real = map(Cell.parse, cells)
        assert Experiment.of(miniature).algorithm == Experiment.of(real).algorithm == algorithm
        assert (miniature.folder() / "result.json").is_file()
        assert f"{real.paper}/{real.scenario}" in CUTS


def test_the_table_has_every_method_accepted_and_every_ablation_refused():
    listed = {(row["algorithm"], row["kind"], row["ablation"]): row for row in ablations.rows()}
    wanted = {
        (algorithm, kind, what)
        for algorithm, all_of_it in ABLATIONS.items()
        for kind in (MINIATURE, REAL)
        for what in ("", *(one.what for one in all_of_it))
    }
    assert listed.keys() == wanted
    for (algorithm, kind, what), row in listed.items():
        assert row["cell"] == CELLS[algorithm][kind == REAL]
        assert row["verdict"] == (REFUSED if what else ACCEPTED), (algorithm, kind, what)
        assert bool(row["bits"]) == bool(what)


@pytest.mark.parametrize("algorithm", ABLATIONS)
def test_miniatures_were_walked_against_the_results_that_are_committed_today(algorithm):
    walked = [row for row in ablations.rows() if row["algorithm"] == algorithm and row["kind"] == MINIATURE]
    assert walked
    assert all(map(ablations.is_of_today, walked))


def test_a_walk_against_a_former_result_is_not_of_today():
    row = next(row for row in ablations.rows() if row["kind"] == MINIATURE)
    assert not ablations.is_of_today(row | {"state": "0" * 16})


def test_a_stamp_has_the_rounds_in_which_the_ablations_were_refused():
    planted = [row for row in ablations.rows() if row["ablation"]]
    assert stamps.LEAST[stamps.BITS] >= ablations.latest(planted, "bits")
    assert stamps.LEAST[stamps.NUMBERS] >= ablations.latest(planted, "numbers")


def test_the_document_is_made_of_the_list():
    assert ablations.DOCUMENT.read_text("utf-8") == ablations.document(ablations.rows())


def test_what_the_document_says_of_an_ablation_that_was_accepted_or_needs_states():
    row = dict.fromkeys(ablations.COLUMNS, "")
    base = {"algorithm": "fedprox", "kind": MINIATURE, "ablation": "no proximal term"}
    for found, said in (
        ({}, "**accepted**"),
        ({"bits": "1", "numbers": "1"}, "1"),
        ({"bits": "1", "numbers": "2"}, "1 (2)"),
        ({"bits": "1"}, "1 (none)"),
    ):
        line = f"| `fedprox` | no proximal term | {said} | not walked |\n"
        assert line in ablations.document([row | base | found])
    assert ablations.latest([row | base], "numbers") == ROUNDS + 1
