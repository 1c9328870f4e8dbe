"""`fedrepro compare`: differences on common seeds, their interval, variants."""

import csv
import io
import json

import numpy as np
import pytest
from repository import CELL, forget, python

from pipeline.commands import compare
from pipeline.commands.compare import Contestant, Difference
from pipeline.errors import FedReproError, ParamError
from pipeline.report.statistics import one_sample
from pipeline.schema import Cell
from pipeline.schema.cell import ExtraSeeds, Variant

WITHOUT_DVC = "from pipeline.commands import run, compare; run.main = lambda *_: 0"
A, B = (Cell("fedlsa", "mini", method) for method in ("fedlsa", "fedavg"))


def contestant(cell: Cell, by_seed: dict[int, float], **more) -> Contestant:
    return Contestant(cell, (), cell.method, "average", by_seed, **more)


def said(*differences: float) -> str:
    return compare.sentence("FedLSA", "FedAvg", one_sample(np.array(differences)))


# By hand: mean 2, standard deviation 1, t(2 df, 97.5 %) = 4.3027, half width 4.3027 / sqrt(3) = 2.484.
def test_a_clear_difference_names_the_better_first():
    assert said(5, 6, 7) == "FedLSA beats FedAvg by 6.0 points (95 % interval 3.5 to 8.5, 3 seeds)"


def test_a_clear_loss_names_the_other_as_the_better_with_positive_points():
    assert said(-5, -6, -7) == "FedAvg beats FedLSA by 6.0 points (95 % interval 3.5 to 8.5, 3 seeds)"


def test_an_interval_with_zero_is_open():
    assert said(1, 2, 3) == (
        "Whether FedLSA beats FedAvg is open: +2.0 points (95 % interval -0.5 to 4.5, 3 seeds)"
    )


def test_one_seed_has_no_interval():
    assert said(4.0) == (
        "FedLSA is 4.0 points better than FedAvg with one seed; how far seeds spread is not known"
    )


def test_equal_numbers_are_said_to_be_equal():
    assert said(0.0, 0.0) == "FedLSA and FedAvg have the same accuracy (2 seeds)"


def test_only_common_seeds_count():
    difference = Difference(contestant(A, {0: 5.0, 1: 7.0, 2: 9.0}), contestant(B, {1: 4.0, 2: 8.0, 3: 1.0}))
    assert difference.by_seed == {1: 3.0, 2: 1.0}
    assert difference.estimate.d == 2.0


def test_cells_without_a_common_seed_are_refused():
    measured = {(A, ()): contestant(A, {0: 5.0}), (B, ()): contestant(B, {1: 5.0})}
    with pytest.raises(FedReproError, match="no common seed"):
        compare.check_comparable(compare.pairs(measured, [A, B], [()]))


def test_seeds_whose_clients_have_other_data_are_said_to_be_no_pairs(capsys):
    one, alike = ({"drawn": {0: "a", 1: "b"}} for _ in range(2))
    other = {"drawn": {0: "a", 1: "c"}}
    for more, said in ((alike, False), (other, True)):
        both = [contestant(A, {0: 5.0, 1: 6.0}, **one), contestant(B, {0: 4.0, 1: 5.5}, **more)]
        compare.show(both, [Difference(*both)])
        assert ("clients have other data in each" in capsys.readouterr().out) is said


def test_a_variant_is_compared_with_its_cell_and_with_the_first_cell_under_the_same_values():
    more = (("training.local_epochs", 5),)
    measured = {
        (cell, changes): Contestant(cell, changes, f"{cell.method}{len(changes)}", "average", {0: 1.0})
        for cell in (A, B)
        for changes in ((), more)
    }
    named = [(one.first.label, one.second.label) for one in compare.pairs(measured, [A, B], [(), more])]
    assert named == [
        ("fedlsa0", "fedavg0"),
        ("fedlsa1", "fedavg1"),
        ("fedlsa1", "fedlsa0"),
        ("fedavg1", "fedavg0"),
    ]


def test_what_is_missing_is_trained_as_a_variant_or_with_further_seeds(monkeypatch):
    class Asked(Exception):
        pass

    def train(missing, jobs):
        raise Asked(missing)

    monkeypatch.setattr(compare.variants, "train", train)
    with pytest.raises(Asked) as asked:
        compare.contestants([A], [(), (("training.local_epochs", 5),)], (1000,), None)
    [further, variant] = asked.value.args[0]
    assert isinstance(further, ExtraSeeds)
    assert isinstance(variant, Variant)
    assert (further.seeds, variant.seeds) == ((1000,), (1000,))


def test_the_table_has_a_column_for_every_seed():
    table = compare.table([Difference(contestant(A, {0: 5.0, 7: 7.0}), contestant(B, {0: 4.0, 7: 5.0}))])
    row = table.iloc[0]
    assert [row["seed 0"], row["seed 7"], row["difference"], row["seeds"]] == [1.0, 2.0, 1.5, "0 7"]
    # t(1 df, 97.5 %) = 12.7062; half width 12.7062 * 0.7071 / sqrt(2)
    assert [round(row["low"], 3), round(row["high"], 3)] == [-4.853, 7.853]


def test_latex_has_a_line_for_every_difference():
    difference = Difference(contestant(A, {0: 5.0, 7: 7.0}), contestant(B, {0: 4.0, 7: 5.0}))
    text = compare.as_latex([difference])
    assert r"fedlsa 6.0 & fedavg 4.5 & $+1.5$ & $-4.9$ to $7.9$ & 2 \\" in text


@pytest.mark.parametrize(
    "text", ["mu=1", "training.local_epochs", "training.rounds=", "method.mu=1,method.mu=2"]
)
def test_what_is_no_value_by_key_is_refused(text):
    with pytest.raises(ParamError, match="--set"):
        compare.parse_changes(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data.set=mnist", "--set data.set: expected training.<key>, evaluation.<key>, method.<key>"),
        ("training.local_epoch=5", "nearest: 'local_epochs'"),
        ("training.local_epochs=-1", "training.local_epochs: must be at least"),
        ("training.optimiser.lr=x", "training.optimiser.lr: expected float"),
    ],
)
def test_a_value_that_the_scenario_cannot_take_is_refused(text, message):
    from pipeline.schema.cell import Variant

    with pytest.raises(ParamError, match=message):
        Variant.of(A, compare.parse_changes(text), seeds=(7,)).resolve()


def test_values_of_any_depth_reach_the_scenario_and_the_method():
    from pipeline.schema.cell import Variant

    changes = compare.parse_changes("training.local_epochs=5,training.optimiser.lr=0.5,method.mu=0.1")
    scenario, _, hyper = Variant.of(Cell("fedlsa", "mini", "fedprox"), changes, seeds=(7, 8)).resolve()
    assert scenario.training.local_epochs == 5
    assert scenario.training.optimiser.lr == 0.5
    assert hyper["mu"] == 0.1
    assert scenario.seeds == [7, 8]


def test_a_picture_has_a_line_for_each(tmp_path):
    drawn = [contestant(A, {0: 5.0}, curve={0: 1.0, 1: 5.0}), contestant(B, {0: 4.0}, curve={0: 1.0, 1: 4.0})]
    compare.draw(drawn, tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text()
    assert text.count('id="line2d') >= 2
    assert "fedlsa (1 seed)" in text
    with pytest.raises(ParamError, match="--plot x.txt: expected a name that ends with .svg"):
        compare.draw(drawn, compare.Path("x.txt"))


def test_a_cell_of_an_archive_is_compared_with_the_first_one(monkeypatch, capsys):
    theirs = Contestant(B, (), "theirs", "average", {0: 4.0, 1: 5.0})
    monkeypatch.setattr(compare, "archived", lambda name, seeds: theirs)
    made = {(A, ()): contestant(A, {0: 5.0, 1: 6.0})}
    monkeypatch.setattr(compare, "contestants", lambda *_: made)
    compare.compare(["fedlsa/mini/fedlsa", "theirs.zip:fedlsa/mini/fedavg"])
    assert "fedlsa beats theirs by 1.0 points" in capsys.readouterr().out


def test_one_cell_alone_is_refused():
    with pytest.raises(ParamError, match="two cells or more"):
        compare.compare(["fedlsa/mini/fedavg"])


def test_a_variant_is_trained_beside_the_tables(project, reference, tmp_path):
    before = {path: path.read_bytes() for path in project.glob("papers/*/runs/*/*/*")}
    call = f"compare.compare(['{CELL}'], '', ['method.mu=5'], '{tmp_path}/a.csv', '{tmp_path}/a.tex')"
    text = python(project, f"{WITHOUT_DVC}; {call}").stdout
    result = json.loads((project / "papers/fedcrl/sweeps/mini/fedprox/method.mu=5/result.json").read_text())
    assert result["hyper"]["mu"] == 5
    assert "FedProx (mu 5)" in text
    (row,) = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text()))
    values = result["measures"][result["headline"]]
    assert abs(float(row["first_mean"]) - sum(values) / len(values)) < 1e-3
    assert before == {path: path.read_bytes() for path in project.glob("papers/*/runs/*/*/*")}
    forget(project)
