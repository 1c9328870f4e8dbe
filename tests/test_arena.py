"""The arena: rounds to a common accuracy, and what equal tuning changes, by made-up runs."""
from dataclasses import replace

import pytest
from reporting import found as repository
from reporting import write_run

from pipeline.cells.results import collect, summarise
from pipeline.report import arena
from pipeline.report.ranks import ranks
from pipeline.report.study import studies
from pipeline.report.tuning import Tuning
from pipeline.schema import Cell

LABELS = {"FedAvg": "fedavg", "FedProx": "fedprox", "Ditto": "ditto", "MOON": "moon", "FedPer": "fedper"}


def test_a_round_counts_where_every_seed_has_its_references_accuracy(tmp_path):
    """Runs of two rounds, of which the first has half the accuracy of the second."""
    root, cells, results = repository(tmp_path), {}, {}
    for method, numbers in {"fedavg": [40.0, 44.0], "fedprox": [80.0, 90.0], "ditto": [40.0, 43.9],
                            "moon": [39.0, 43.0]}.items():
        write_run(root, f"mini/{method}", {"weighted": numbers})
        cells[method, "fedcrl"] = Cell("fedcrl", "mini", method)
    results = collect(root)
    minis = {"fedcrl": studies(results, root)["fedcrl"]}
    found = {at: results[cell] for at, cell in cells.items()}
    speed = arena.speed(minis, cells, found, LABELS)
    rows = {row.name: [value.text for value in row.values] for row in speed.panel.rows}
    assert rows == {"FedAvg": ["2", "24"], "FedProx": ["1", "12"], "Ditto": ["1 of 2 seeds", ""],
                    "MOON": ["not reached", ""]}                      # FedPer has no run
    assert speed.targets == ["FEDCRL: 42.00 %, of FedAvg"]
    alone = {at: found[at] for at in found if at[0] == "ditto"}
    assert arena.speed(minis, cells, alone, LABELS) is None          # nothing to compare with


@pytest.fixture
def tuned(tmp_path):
    """FedAvg keeps its values, FedProx gains 6 points, Ditto loses one; MOON was not trained with its
    choice."""
    root = repository(tmp_path)
    minis = {key: study for key, study in studies({}, root).items() if key == "fedcrl"}
    minis["fedcrl"].paper.methods.update(ditto={}, moon={})

    def one(method, before, after, values, *spread):
        number = None if after is None else summarise([after - 1, after + 1])
        return Tuning(Cell("fedcrl", "mini", method), summarise([before - 2, before + 2]), number, values,
                      before == after, [*spread])

    return minis, [
        one("fedavg", 50.0, 50.0, {"lr": 0.01}, 52.0, 50.0),
        one("fedprox", 48.0, 54.0, {"mu": 0.5}, 40.0, None),
        one("ditto", 45.0, 44.0, {"lam": 2.0}, 46.0, 44.0, 42.0),
        one("moon", 60.0, None, {"mu": 1.0}, 1.0),
    ]


def test_tuning_is_told_with_its_gains_losses_and_spread(tuned):
    shown = arena.tuned(*tuned, LABELS, lambda numbers: None)
    rows = {row.name: [value.mean or value.text for value in row.values] for row in shown.panel.rows}
    assert rows == {"Ditto": ["44.00", "−1.00"], "FedAvg": ["50.00", "+0.00"], "FedProx": ["54.00", "+6.00"]}
    assert [row.values[0].mark for row in shown.panel.rows] == ["", "second", "best"]
    (name, panel), = shown.details
    assert name == "FEDCRL" and {row.name: [value.mean or value.text for value in row.values]
                                 for row in panel.rows} == {
        "Ditto": ["45.00", "44.00", "−1.00", "2.00", "lam 2"],
        "FedAvg": ["50.00", "50.00", "+0.00", "1.41", "kept: lr 0.01"],
        "FedProx": ["48.00", "54.00", "+6.00", "", "mu 0.5; 1 of 2 configurations diverged"],
    }
    assert [row.values[0].mark for row in panel.rows] == ["", "best", "second"]          # own values
    assert (shown.seeds, shown.tried, shown.by, shown.drawing) == ("2 seeds", "2 or 3", "", None)
    assert shown.findings == [
        "Tuning changes the accuracy by +1.67 points on average over three cells, the most for FedProx in "
        "FEDCRL's miniature (+6.00); 1 of them ends below what their own values give, and 1 keeps these "
        "values.",
        "In FEDCRL's miniature FedAvg is first before tuning with 50.00 %, 2.00 from FedProx (standard "
        "deviation over seeds up to 2.83), and after it FedProx with 54.00 %, 4.00 from FedAvg (standard "
        "deviation over seeds up to 1.41).",
    ]


def test_published_values_without_a_number_leave_what_tuning_gives(tuned):
    minis, (fedavg, fedprox, *_) = tuned
    shown = arena.tuned(minis, [fedavg, replace(fedprox, published=None)], LABELS, lambda numbers: None)
    rows = {row.name: [value.mean or value.text for value in row.values] for row in shown.panel.rows}
    assert rows == {"FedAvg": ["50.00", "+0.00"], "FedProx": ["54.00", ""]}
    assert "over one cell," in shown.findings[0] and len(shown.findings) == 1          # none is first of one
    shown = arena.tuned(minis, [replace(fedprox, published=None)], LABELS, lambda numbers: None)
    assert shown.findings == []
    values = shown.details[0][1].rows[0].values
    assert [value.state for value in values[:3]] == ["outside", "measured", "outside"]
    lost = replace(fedprox, published=None, configurations=[None, 40.0])      # with its own values
    shown = arena.tuned(minis, [lost], LABELS, lambda numbers: None)
    assert shown.details[0][1].rows[0].values[0].text == "diverged"


def test_ranks_before_and_after_are_of_the_same_algorithms(tuned):
    def judge(numbers):
        return ranks({name: [value, value + 1, value + 2] for (name, _), value in numbers.items()}), [
            "A",
            "B",
            "C",
        ]
    shown = arena.tuned(*tuned, LABELS, judge)
    text, drawing = " ".join(shown.findings), shown.drawing
    assert drawing.path == "figures/across-tuned-ranks.svg" and "fedprox 1.00, fedavg 2.00" in drawing.alt
    assert (
        "Before tuning, the best mean ranks of 3 algorithms in the miniatures of A, B and C are fedavg 1.00, "
        in text
    )
    assert (
        "After tuning, the best mean ranks of 3 algorithms in the miniatures of A, B and C are fedprox 1.00, "
        in text
    )


def test_another_scenario_is_a_column_before_the_miniatures_and_has_no_part_in_their_ranks(tuned):
    minis, mini = tuned[0], tuned[1][1]
    other = replace(mini, cell=Cell("fedcrl", "balanced", "fedprox"))
    title = minis["fedcrl"].title("balanced")
    ranked = []
    shown = arena.tuned(minis, [mini, other], LABELS, lambda numbers: ranked.append(numbers))
    assert [head.text for head in shown.panel.heads[0]] == [f"FEDCRL, {title}", "FEDCRL"]
    assert [[row.name for row in panel.rows] for _, panel in shown.details] == [["FedProx"], ["FedProx"]]
    assert not any("is first" in said for said in shown.findings)           # of one method
    assert [[*numbers] for numbers in ranked] == [[("fedprox", "fedcrl")]] * 2
    two = [replace(one, cell=Cell("fedcrl", "balanced", one.cell.method)) for one in tuned[1][:2]]
    said = arena.tuned(minis, two, LABELS, lambda numbers: None).findings
    place = f"FEDCRL's {title}"
    assert said[1].startswith(f"In {place} FedAvg is first before tuning with 50.00 %, 2.00 from FedProx (")
    assert f"{place} has images of the paper, not of a miniature, and no part in the mean ranks." in said


def test_without_tuning_nothing_is_said(tuned):
    assert arena.tuned(tuned[0], [], LABELS, lambda numbers: None) is None
