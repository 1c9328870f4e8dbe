"""What a table's note says of its runs: seeds, scored models, marks, data, twins, dates."""

import json

from reporting import BALANCED, write_run
from repository import edit

from pipeline.cells import results
from pipeline.report.footnotes import footnotes, seeds
from pipeline.report.study import Study
from pipeline.report.tables import TableView
from pipeline.schema import Cell
from pipeline.sealing import seal


def notes(root):
    study = Study.of("fedcrl", results.collect(root), root)
    return footnotes(study, TableView("table1", study).panel)


def change(root, method, **changes):
    path = root / f"papers/fedcrl/runs/balanced/{method}/result.json"
    document = json.loads(path.read_text()) | changes
    document.pop("self")
    path.write_text(json.dumps(seal(document)))


def test_rows_with_fewer_seeds_than_declared_are_named(measured):
    one = {name: numbers[:1] for name, numbers in BALANCED["ours"].items()}
    write_run(measured, "balanced/ours", one)
    text = "Seeds: FedAvg 0, 1; Ours 0; declared are 0, 1. Means are over the 1 seed that all rows have."
    assert text in notes(measured)


def test_seeds_that_all_rows_lack_are_told_without_what_means_are_over(measured):
    for method, measures in BALANCED.items():
        one = {name: numbers[:1] for name, numbers in measures.items()}
        write_run(measured, f"balanced/{method}", one)
    [note] = [note for note in notes(measured) if note.startswith("Seeds")]
    assert note == "Seeds: FedAvg, Ours 0; declared are 0, 1."


def test_seeds_of_two_scenarios_are_told_with_the_name_of_each(measured):
    write_run(measured, "skewed/ours", {name: numbers[:1] for name, numbers in BALANCED["ours"].items()})
    study = Study.of("fedcrl", results.collect(measured), measured)
    [note] = seeds(study, [Cell("fedcrl", "balanced", "ours"), Cell("fedcrl", "skewed", "ours")])
    assert note == f"Seeds of {study.title('skewed')}: Ours 0; declared are 0, 1."


def test_with_all_declared_seeds_nothing_is_said_of_them(measured):
    assert not any("Seeds" in note for note in notes(measured))


def test_data_and_the_day_of_the_results_are_told(measured):
    assert "digits: from scikit-learn, every second image." in notes(measured)
    day = "First seeds trained 2025-01-01; processors of all seeds: "
    assert any(note.startswith(day) for note in notes(measured))


def test_rows_that_are_scored_on_different_sides_of_local_training_are_named(measured):
    for method, hook, other in (("fedavg", "pre", "post.average"), ("ours", "post", "pre.average")):
        change(measured, method, hook=hook, measures=BALANCED[method] | {other: [1.0, 2.0]})
    [note] = [note for note in notes(measured) if note.startswith("Not all")]
    assert "Ours after local training" in note
    assert "FedAvg before it" in note


def test_a_table_says_that_only_some_clients_are_scored(measured):
    assert not any("drawn once" in note for note in notes(measured))
    change(measured, "ours", sample=2)
    told = "accuracies are over 2 clients of 3, drawn once for every seed."
    assert any(note.endswith(told) for note in notes(measured))


def test_an_accuracy_at_chance_is_marked_and_not_the_best(measured):
    for method in ("fedavg", "ours"):
        change(measured, method, measures={"average": [12.0, 13.0], "M": [12.0, 13.0]})
    study = Study.of("fedcrl", results.collect(measured), measured)
    values = [value for row in TableView("table1", study).panel.rows for value in row.values if value.cell]
    assert {value.signs for value in values} == {"°"}
    assert {value.mark for value in values} == {""}
    assert any(note.startswith("° at chance level") for note in notes(measured))


def test_a_number_of_other_seeds_than_todays_is_marked(measured):
    edit(
        measured / "papers/fedcrl/paper.yaml",
        lambda paper: paper["scenarios"]["balanced"].update(seeds=[0, 1, 2]),
    )
    assert any(note.startswith("† by code, parameters or seeds") for note in notes(measured))


def test_twins_are_told_of_the_images_and_the_rule_that_were_counted(measured):
    (measured / "data").mkdir(exist_ok=True)
    rows = (
        f"set,digest,rule,domain,tests,twins\ndigits,{'a' * 64},,digits,360,7\ndigits,{'b' * 64},,other,9,9\n"
    )
    (measured / "data/twins.csv").write_text(rows)
    [note] = [note for note in notes(measured) if "twin" in note]
    assert note.startswith("7 of 360 test images of DIGITS have a byte-identical twin in the training part")


def test_what_was_found_of_a_set_is_told(measured):
    path = measured / "papers/fedcrl/runs/balanced/twins.json"
    path.write_text(json.dumps({"tests": {"digits": [3, 360]}, "found": {"left_out": {"val/cat": 7}}}))
    said = notes(measured)
    assert "digits: 7 images of the archive are left out: val/cat (7)." in said
    assert any("pixel by pixel the same: 3 of 360 of digits." in note for note in said)


def test_a_damaged_note_of_what_was_found_says_nothing(measured):
    before = notes(measured)
    path = measured / "papers/fedcrl/runs/balanced/twins.json"
    for text in ("[]", "{", '{"found": 3, "tests": []}', '{"found": {"left_out": 3}, "tests": {"a": 3}}'):
        path.write_text(text)
        assert notes(measured) == before
