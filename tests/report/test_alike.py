"""Methods on equal terms: over common seeds, with the paper's method minus each, and no row missing."""

import json

import pytest
from reporting import write_claims, write_run
from repository import edit

from pipeline.cells import results
from pipeline.report.alike import compared, scored_alike
from pipeline.report.comparison import Column, Setting
from pipeline.report.published import CHANCE, STALE
from pipeline.report.study import Study
from pipeline.report.tunings import Tuning, TuningTab, moved
from pipeline.schema import Cell
from pipeline.sealing import seal

YAML = "papers/fedcrl/paper.yaml"


def test_rows_are_compared_over_the_seeds_that_all_have():
    runs = {"Ours": {0: 10.0, 1: 14.0, 2: 99.0}, "FedAvg": {0: 9.0, 1: 11.0}}
    ours, rival = compared(runs, "Ours")
    assert (ours.name, ours.number.mean, ours.ahead) == ("Ours", 12.0, None)
    assert (rival.number.mean, rival.ahead) == (10.0, 2.0)


def test_the_interval_is_the_paired_one():
    runs = {"Ours": {0: 10.0, 1: 14.0, 2: 12.0}, "FedAvg": {0: 9.0, 1: 12.0, 2: 9.0}}
    rival = compared(runs, "Ours")[1]
    # differences 1, 2, 3: mean 2, standard error 1 / sqrt 3, t of two degrees of freedom 4.302653
    assert rival.interval == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5)


def test_without_a_common_seed_every_row_stays_and_none_is_subtracted():
    rows = compared({"Ours": {0: 10.0}, "FedAvg": {1: 9.0}}, "Ours")
    assert [(row.name, row.number.mean, row.ahead) for row in rows] == [
        ("Ours", 10.0, None),
        ("FedAvg", 9.0, None),
    ]


def test_one_seed_has_a_difference_and_no_interval():
    rival = compared({"Ours": {0: 10.0}, "FedAvg": {0: 9.0}}, "Ours")[1]
    assert (rival.ahead, rival.interval) == (1.0, None)


# -- tuned ---------------------------------------------------------------------------------------------------


def tab(study, **more):
    """Ours is tuned with seeds 0 and 1; the table has 0 to 2 of it and nothing of FedAvg."""
    ours = Tuning(
        Cell("fedcrl", "balanced", "ours"), {0: 40.0, 1: 42.0, 2: 90.0}, {0: 50.0, 1: 54.0}, False, [1.0]
    )
    fedavg = Tuning(Cell("fedcrl", "balanced", "fedavg"), {}, {0: 51.0, 1: 55.0}, False, [1.0], **more)
    return TuningTab(study, "balanced", [ours, fedavg], {"fedavg": "FedAvg", "ours": study.name})


def test_a_method_whose_seeds_differ_does_not_vanish(measured):
    study = Study.of("fedcrl", results.collect(measured), measured)
    rows = {row.name: row for row in tab(study).alike.rows}
    assert rows.keys() == {"FedAvg", "FEDCRL"}
    assert (rows["FEDCRL"].before.mean, rows["FEDCRL"].number.mean) == (41.0, 52.0)


def test_the_note_says_which_seeds_were_left_out_and_what_has_no_number(measured):
    study = Study.of("fedcrl", results.collect(measured), measured)
    notes = " ".join(tab(study, older=True, hook="post").alike.notes)
    assert "Tuned with 2 seeds, the table has 3: shown and compared are the 2 in common." in notes
    assert "Without a result for the paper’s values: FedAvg." in notes


def test_a_seed_that_was_drawn_again_is_no_pair():
    before = {(0, "first draw"): 40.0, (1, "a"): 41.0, (2, "a"): 42.0}
    after = {(0, "second draw"): 50.0, (1, "a"): 51.0}
    assert moved(before, after) == {0}


def test_old_results_and_results_at_chance_level_are_marked(measured, monkeypatch):
    study = Study.of("fedcrl", results.collect(measured), measured)
    monkeypatch.setattr(Study, "chance_level", lambda self, cell: 52.5)
    rows = {row.name: row for row in tab(study, older=True).alike.panel("Ours").rows}
    assert (rows["FedAvg"].values[0].signs, rows["FEDCRL"].values[0].signs) == (STALE, CHANCE)


def test_fedlsas_table_2_is_shown_before_and_after_tuning_for_all_its_methods(pages):
    [alike] = pages["fedlsa"].tuned
    rows = {row.name: row for row in alike.rows}
    nine = {"FedAvg", "FedProx", "MOON", "FedSR", "FedProto", "FedGA", "FPL", "FedTGP", "FedLSA"}
    assert nine <= rows.keys()
    assert all(rows[name].before for name in nine)


# -- scored alike --------------------------------------------------------------------------------------------


def write_hook(root, method, hook, scored, other):
    path = write_run(
        root,
        f"balanced/{method}",
        {"average": scored, f"{'pre' if hook == 'post' else 'post'}.average": other},
    )
    document = json.loads(path.read_text()) | {"hook": hook}
    document.pop("self")
    path.write_text(json.dumps(seal(document)))


def column(*names):
    numbers = {name: {0: 1.0, 1: 2.0} for name in names}
    return Setting(
        "Digits", "table1", {}, [Column("1", dict.fromkeys(names), "balanced", "average", numbers)]
    )


def test_methods_that_are_scored_before_and_after_are_compared_after_for_all(root):
    write_hook(root, "ours", "post", [60.0, 62.0], [50.0, 52.0])
    write_hook(root, "fedavg", "pre", [20.0, 22.0], [61.0, 62.0])
    edit(root / YAML, lambda paper: paper.update(name="Ours"))
    study = Study.of("fedcrl", results.collect(root), root)
    alike = scored_alike(study, column("Ours", "FedAvg"))
    rows = {row.name: row for row in alike.rows}
    assert (rows["FedAvg"].number.mean, rows["FedAvg"].before.mean, rows["FedAvg"].ahead) == (
        61.5,
        21.0,
        -0.5,
    )
    assert (rows["Ours"].number.mean, rows["Ours"].before.mean) == (61.0, 51.0)
    assert "Ours after local training, 1 method before it" in alike.about


def test_where_all_are_scored_alike_there_is_no_second_comparison(root):
    write_hook(root, "ours", "post", [60.0, 62.0], [50.0, 52.0])
    write_hook(root, "fedavg", "post", [61.0, 62.0], [20.0, 22.0])
    study = Study.of("fedcrl", results.collect(root), root)
    assert scored_alike(study, column("Ours", "FedAvg")) is None


def test_a_method_without_two_models_does_not_make_the_scores_unequal(root):
    write_hook(root, "ours", "post", [60.0, 62.0], [50.0, 52.0])
    write_hook(root, "fedavg", "pre", [61.0, 62.0], [61.0, 62.0])
    study = Study.of("fedcrl", results.collect(root), root)
    assert scored_alike(study, column("Ours", "FedAvg")) is None


def test_a_side_of_local_training_is_the_same_measure_for_every_method(root):
    from pipeline.report.measures import numbers

    write_claims(root, [])
    write_hook(root, "ours", "post", [60.0, 62.0], [50.0, 52.0])
    cell = Cell("fedcrl", "balanced", "ours")
    result = results.collect(root)[cell]
    assert numbers(cell, result, "after.average", root) == {0: 60.0, 1: 62.0}
    assert numbers(cell, result, "before.average", root) == {0: 50.0, 1: 52.0}
