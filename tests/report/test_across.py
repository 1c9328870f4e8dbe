"""The page across papers: places and ranks, accuracy against cost, tuning, attacks and rounding."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from federation import image_world, run
from reporting import BALANCED, write_run
from repository import edit

from pipeline import methods
from pipeline.cells.results import collect
from pipeline.errors import FedReproError
from pipeline.methods._collaborative import Collaborative
from pipeline.report import across, leakage, markdown
from pipeline.report.citations import citation
from pipeline.report.study import studies
from pipeline.report.tunings import Tuning, tuning_tabs
from pipeline.report.writing import fill
from pipeline.schema import ROOT, Cell, Model, load_paper, papers
from pipeline.schema.scenario import REQUIREMENTS
from pipeline.sealing import seal

PAPERS = papers()
LACKING = {
    "public data": "needs public data",
    "held-out images": "acc_source: heldout",
    "pixels in [0, 1]": r"attacks need pixels in \[0, 1\]",
    "projector": "needs a projector",
    "one network": "averages models|size of|size mismatch|equal size",
}


def change(root, key, **keys):
    """Edit a paper.yaml; a dict is merged into what is there."""

    def merge(document):
        for name, value in keys.items():
            document[name] = document[name] | value if isinstance(value, dict) else value

    edit(root / f"papers/{key}/paper.yaml", merge)


@pytest.mark.parametrize("algorithm", methods.method_names())
def test_an_algorithm_needs_what_it_declares(algorithm):
    """One round with clients of different networks, without all that a scenario may offer."""
    method = methods.load(algorithm, {}, "test")
    assert method.requires <= REQUIREMENTS.keys() < {*across.REASONS, "projector"}
    assert isinstance(method, Collaborative) == ("public data" in method.requires)
    world = image_world(model=[Model(name) for name in ("cnn4", "cnn5", "simple_cnn")]).at(1)
    order = ("held-out images", "public data", "pixels in [0, 1]", "projector", "one network")
    first = next((need for need in order if need in method.requires), None)
    if first is None:
        run(method, world, 1)
    else:
        with pytest.raises((FedReproError, RuntimeError), match=LACKING[first]):
            run(method, world, 1)


@pytest.mark.parametrize(
    "paper, algorithm, row",
    [
        ("fedccl", "fedccl_plus", "fedccl-plus"),
        ("fcclplus", "local", "base"),
        ("fcclplus", "moon", "moon-5"),
        ("rahfl", "fedproto_hetero", "fedproto"),
        ("rahfl", "fedproto", ""),
    ],
)
def test_the_plain_row_of_an_algorithm(paper, algorithm, row):
    assert across.plain(algorithm, load_paper(paper), load_paper(paper).miniature.methods) == row


@pytest.fixture
def compared(root):
    """Three papers whose miniatures have three methods, of which FedProx is the paper's in one."""
    for i, key in enumerate(PAPERS[:3]):
        named = {"name": "FedProx"} if i == 0 else {}
        change(root, key, methods={"moon": {}}, miniature={"methods": ["fedavg", "fedprox", "moon"]}, **named)
        for method, value in (("fedavg", 60.0), ("fedprox", 70.0), ("moon", 50.0)):
            write_run(root, f"mini/{method}", {"average": [value, value + 2]}, paper=key)
    return root


def test_places_and_ranks_of_the_methods_that_miniatures_share(compared):
    (group,) = across.across(studies(collect(compared), compared))["groups"]
    assert group.rows == ["FedProx", "FedAvg", "moon"]
    assert group.rest == []
    for column in group.columns:
        assert [column.places[name].place for name in group.rows] == [1, 2, 3]
        assert [*column.numbers] == group.rows
        assert column.numbers["FedProx"].mean == 71.0
    assert [column.name for column in group.columns][0] == "FedProx"
    assert group.shared.means == {"FedProx": 1.0, "FedAvg": 2.0, "moon": 3.0}
    # all orders alike: p is (3!)^-2; the critical distance is 1.91
    assert group.shared.p == pytest.approx(1 / 36)
    assert group.shared.different == [False, True, False]


def report_weighted(root, method, **measures):
    """A method's cell of the first miniature, trained again with `headline: weighted`."""
    path = write_run(root, f"mini/{method}", measures, paper=PAPERS[0])
    result = json.loads(path.read_text())
    path.write_text(json.dumps(seal(result | {"headline": "weighted"})))


def test_a_cell_that_reports_another_mean_is_ranked_by_that_of_the_others_and_named(compared):
    report_weighted(compared, "fedprox", average=[55.0, 57.0], weighted=[90.0, 92.0])
    known = studies(collect(compared), compared)
    view = across.across(known)
    column = view["groups"][0].columns[0]
    assert column.numbers["FedProx"].mean == 56.0
    assert column.places["FedProx"].place == 2
    note = (
        "FedProx: all are shown by the accuracy “average”; “weighted by test size” is what the results "
        "report of FedProx."
    )
    assert column.notes == [note]
    assert note in markdown.fill("across.md", view=view)
    assert note in fill("across.html", view=view, pages=known, cite=citation(compared))


def test_a_cell_without_the_mean_of_the_others_is_left_out_and_named(compared):
    report_weighted(compared, "fedprox", weighted=[90.0, 92.0])
    column = across.across(studies(collect(compared), compared))["groups"][0].columns[0]
    assert [*column.numbers] == ["FedAvg", "moon"]
    assert column.notes == ["FedProx: left out, without the accuracy “average”: FedProx."]


def test_cells_that_report_one_mean_have_no_note(compared):
    (group,) = across.across(studies(collect(compared), compared))["groups"]
    assert [column.notes for column in group.columns] == [[], [], []]


def test_what_the_page_says_of_one_cell(measured):
    context = across.across(studies(collect(measured), measured))
    assert (context["done"], context["planned"]) == (1, 5)
    (group,) = context["groups"]
    assert group.shared is None
    assert group.rows == ["FedAvg"]
    missing = [key for key in PAPERS if key != "fedcrl"]
    assert context["command"].split()[2:] == [f"{key}/mini/fedavg" for key in missing]
    reasons = [text.partition(":")[0] for text in context["about"]["FEDCRL"]]
    assert {*across.REASONS.values()} & {*reasons} == {
        across.REASONS[need] for need in ("public data", "pixels in [0, 1]", "not listed")
    }


def test_a_method_of_another_paper_runs_in_the_miniature(measured):
    change(measured, "fedcrl", miniature={"others": ["fedprox"]})
    write_run(measured, "across/fedprox", BALANCED["ours"])
    (group,) = across.across(studies(collect(measured), measured))["groups"]
    assert [(name, group.columns[0].places[name].place) for name in group.rows] == [
        ("FedProx", 1),
        ("FedAvg", 2),
    ]


def test_a_result_that_cannot_be_used_and_an_old_one_are_named(measured, monkeypatch):
    cell = Cell("fedcrl", "mini", "fedavg")
    context = across.across(studies({}, measured, {cell: "result.json: cut"}))
    assert (context["done"], context["problems"]) == (0, ["result.json: cut"])
    monkeypatch.setattr(across.identity, "current", lambda result, experiment: False)
    assert across.across(studies(collect(measured), measured))["older"] == ["fedcrl/mini/fedavg"]


def test_the_front_has_what_none_beats_and_is_named():
    table = pd.DataFrame({"name": list("abcde"), "x": [1, 1, 2, 3, 4], "y": [50, 60, 55, 70, 70]})
    assert across.front(table)["name"].tolist() == ["b", "d"]
    table = pd.DataFrame(
        {"name": ["Cheap", "Best", "Ours", "Worse"], "x": [1, 100, 50, 80], "y": [50, 60, 45, 40]}
    )
    svg = across.pareto("Digits", "kB", table, "Ours").svg
    assert {*re.findall(r"<text[^>]*>([A-Z]\w+)</text>", svg)} == {"Cheap", "Best", "Ours"}
    assert {*re.findall(r"<title>(\w+): ", svg)} == {"Cheap", "Best", "Ours", "Worse"}


def test_what_sends_nothing_has_no_place_and_equal_costs_make_no_picture(compared):
    results = collect(compared)
    for method, sent in (("moon", 0), ("fedavg", 6000)):
        results[Cell(PAPERS[0], "mini", method)]["traffic"]["bytes"] = sent
    charts = across.across(studies(results, compared))["costs"]
    assert [(unit, [one.svg.count("<title>") for one in picture.panels]) for unit, picture in charts] == [
        ("kB a round", [2])
    ]


def tunings(scenario="mini"):
    """FedAvg keeps its values, FedProx gains 6 points, Ditto's diverged; MOON's choice has no number."""
    rows = [
        ("fedavg", 50.0, 50.0, [52.0, 50.0]),
        ("fedprox", 48.0, 54.0, [40.0, None]),
        ("ditto", None, 44.0, [None, 44.0, 42.0]),
        ("moon", 60.0, None, [1.0]),
    ]
    return [
        Tuning(
            Cell("fedcrl", scenario, method),
            {0: before - 2, 1: before + 2} if before else {},
            {0: after - 1, 1: after + 1} if after else {},
            before == after,
            tried,
            method == "ditto",
        )
        for method, before, after, tried in rows
    ]


def test_tuning_before_and_after(root):
    papers_of = {"fedcrl": studies({}, root)["fedcrl"]}
    papers_of["fedcrl"].paper.methods.update(ditto={}, moon={})
    labels = {"fedavg": "FedAvg", "fedprox": "FedProx", "ditto": "Ditto", "moon": "MOON"}

    def tuned(several):
        return tuning_tabs(papers_of, labels, several)

    (tab,) = tuned(tunings())
    rows = [(row.name, row.number.mean, row.before.mean if row.before else None) for row in tab.alike.rows]
    assert rows == [("FedProx", 54.0, 48.0), ("FedAvg", 50.0, 50.0), ("Ditto", 44.0, None)]
    assert tab.changes == [6.0, 0.0]
    assert tab.best == "FedAvg"
    assert tab.files["FedProx"] == "papers/fedcrl/tuning/mini/fedprox.json"
    tabs = tuned([*tunings(), *tunings("balanced")])
    assert [tab.key for tab in tabs] == ["fedcrl-balanced", "fedcrl-mini"]
    assert tuned([]) == tuned(tunings()[3:]) == []


def test_a_stale_tuning_is_named_on_the_page(root):
    papers_of = {"fedcrl": studies({}, root)["fedcrl"]}
    papers_of["fedcrl"].paper.methods.update(ditto={}, moon={})
    labels = {"fedavg": "FedAvg", "fedprox": "FedProx", "ditto": "Ditto", "moon": "MOON"}
    stale = "Stale, by code, parameters or seeds that have changed since:"

    def sentence(**changed):
        several = [replace(one, **changed) for one in tunings() if one.after]
        (tab,) = tuning_tabs(papers_of, labels, several)
        return tab.stale

    assert sentence() == f"{stale} Ditto."
    assert sentence(older=True) == f"{stale} all 3 methods."
    assert sentence(older=False) == ""


def test_both_forms_of_the_page_tell_that_a_miniatures_tuning_is_stale(root):
    papers_of = studies({}, root)
    papers_of["fedcrl"].paper.methods.update(ditto={}, moon={})
    labels = {"fedavg": "FedAvg", "fedprox": "FedProx", "ditto": "Ditto", "moon": "MOON"}
    view = across.across(papers_of) | {"tuned": tuning_tabs(papers_of, labels, tunings())}
    sentence = "that have changed since: Ditto."
    assert f"miniature: Stale, by code, parameters or seeds {sentence}" in markdown.fill(
        "across.md", view=view
    )
    html = fill("across.html", view=view, pages=papers_of, cite=citation(root))
    assert f"seeds {sentence}</p>" in html


ATTACKS = """fedavg,gradient,0,1,a,1,batch,0.9,0.2,0.5
fedcrl,class means,0,1,a,12,nearest,0.6,0.7,0.8
fedcrl,class means,0,1,b,30,nearest,0.9,0.7,0.8
fedcrl,class means,0,1,b,30,class mean,0.5,0.6,0.7
fedcrl,class means,0,1,c,1,class mean,0.5,0.6,0.7
"""


def attacked(root, text):
    path = root / "reports/leakage/leakage.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("method,sent,seed,round,client,images,target,ssim,random,mean\n" + text)


def test_reconstructions_are_compared_with_both_guesses(root):
    assert leakage.leakage(studies({}, root), root) is None
    attacked(root, ATTACKS)
    table = leakage.leakage(studies({}, root), root)
    assert [words for words, _ in table.rows] == [
        ("FedAvg", "gradient", "1", "the batch"),
        ("fedcrl", "class means", "10 or more", "nearest image"),
        ("fedcrl", "class means", "10 or more", "mean image"),
    ]
    scores = [score for _, (score,) in table.rows]
    assert [(score.ssim, score.mean, score.above, score.attempts) for score in scores] == [
        (0.9, 0.5, 1, 1),
        (0.75, 0.8, 1, 2),
        (0.5, 0.7, 0, 1),
    ]
    assert [*table.against_images] == ["FedAvg, gradient", "fedcrl, class means"]
    assert table.more(1) == (1, 2)
    (root / "reports/leakage/leakage.png").write_text("no picture")
    with pytest.raises(FedReproError, match="leakage.png"):
        leakage.leakage(studies({}, root), root)


@pytest.mark.parametrize(
    "name, text",
    [
        *(("leakage/leakage.csv", text) for text in ("", "x\n1\n", "\0")),
        ("leakage/leakage.csv", "method,sent,images,target,ssim,random,mean,round\nfedavg,x,1,odd,1,1,1,1\n"),
        *(("processors.csv", text) for text in ("", "x\n1\n", "first,second\n", "first,second\n1,2\n")),
    ],
)
def test_a_damaged_table_of_a_study_is_named(root, name, text):
    (root / "reports/leakage").mkdir(parents=True, exist_ok=True)
    (root / "reports" / name).write_text(text)
    with pytest.raises(FedReproError, match=f"{name}: cannot be read"):
        leakage.leakage(studies({}, root), root), across.processors(root)


def test_a_page_with_one_result(measured):
    attacked(measured, ATTACKS)
    (measured / "reports").mkdir(exist_ok=True)
    row = "fedcrl/mini/{},AMD EPYC,Intel(R) Xeon(R),10,{},{}\n".format
    table = "cell,first,second,numbers,different,setting\n"
    table += row("fedavg", 0, "an earlier one") + row("ours", 3, "today's")
    (measured / "reports/processors.csv").write_text(table)
    view = across.across(studies(collect(measured), measured))
    made = {
        "across.html": fill("across.html", view=view, pages={}, cite=citation(ROOT)),
        "across.md": markdown.fill("across.md", view=view),
    }
    for page in made.values():
        assert "1 of 2 cells of the miniatures" in page
        assert "on processors of AMD and Intel" in page
        assert "1 of the 2 were compared in a setting that has changed since" in page
    ids = re.findall(r' id="([^"]+)"', made["across.html"])
    assert {"ranks", "leakage"} <= {*ids}
    assert len({*ids}) == len(ids)
    assert (
        'href="../papers/fedcrl/runs/mini/fedavg/result.json">61.0</a><small>±1.4</small>'
        in made["across.html"]
    )
    assert "[61.0](../papers/fedcrl/runs/mini/fedavg/result.json) ±1.4 (1)" in made["across.md"]
    assert "| fedcrl, class means | 10 or more | 0.75 (0.80) | 1/2 |" in made["across.md"]
