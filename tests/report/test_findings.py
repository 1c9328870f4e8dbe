"""Findings: what is said of a claim is no stronger than its controls, its looks and its size."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest
import yaml
from reporting import PAPER, write_claims, write_run
from repository import edit

from pipeline.cells.results import as_csv, collect, survey, tidy
from pipeline.errors import FedReproError, ParamError
from pipeline.findings_file import COLUMNS, FILE, GONE, as_text, lost, read_findings, withdrawn
from pipeline.report import markdown
from pipeline.report.controls import HOOK, NETWORK, TUNED
from pipeline.report.declared import experiments
from pipeline.report.findings import Finding, Findings, as_rows, discoveries
from pipeline.report.page import contradictions
from pipeline.report.sentences import compared, headline, told
from pipeline.report.study import Study
from pipeline.report.verdicts import Chip
from pipeline.report.writing import render
from pipeline.schema import ROOT, papers
from pipeline.sealing import seal

AVG = "table=1|column=Avg"
LEAD = ("lead", "Ours is above FedAvg", f"{AVG}|method=Ours", f"{AVG}|method=FedAvg", ">0")
SIZED = ("sized", "Ours is 4.44 above FedAvg", f"{AVG}|method=Ours", f"{AVG}|method=FedAvg", "=4.44")
YAML = "papers/fedcrl/paper.yaml"
WIDE = {"algorithm": "fedavg", "label": "FedAvg (wide)", "model": {"name": "cnn3_bn"}}


@pytest.fixture
def found(root):
    """Findings of a small paper: `found(rows, change)`, rows: method -> accuracies of its seeds."""

    def make(rows, change=None, claims=(LEAD, SIZED)):
        write_claims(root, claims)
        if change:
            edit(root / YAML, change)
        for method, values in rows.items():
            write_run(root, f"balanced/{method}", {"average": values, "weighted": values, "M": values})
        return Findings(Study.of("fedcrl", collect(root), root))

    return make


THREE = {"fedavg": [60.0, 62.0, 61.0], "fedprox": [62.0, 63.9, 63.1], "ours": [66.5, 68.6, 67.4]}


def wide(document):
    """Ours has another network, and so has a row of FedAvg."""
    document["methods"]["ours"]["model"] = {"name": "cnn3_bn"}
    document["methods"]["wide"] = WIDE
    document["findings"] = {"same_network": {"fedavg": "wide"}}


def test_a_lead_over_rivals_that_were_not_tuned_holds_with_a_reservation(found):
    lead = found(THREE).rows["lead"]
    assert (lead.verdict.chip, lead.direction) == (Chip.DIRECTION, "confirmed")
    assert lead.reservations[-1] == "rivals tuned alike not run"
    assert lead.words == "; ".join(["direction holds", *lead.reservations])


def test_a_lead_that_its_network_explains_does_not_hold_on_the_same_network(found):
    lead = found(THREE | {"wide": [66.4, 68.7, 67.5]}, wide).rows["lead"]
    assert lead.control(NETWORK).verdict.chip == Chip.UNDECIDED
    assert "open against FedAvg with the same network" in lead.words


def test_a_lead_on_the_same_network_agrees(found):
    lead = found(THREE | {"wide": THREE["fedavg"]}, wide).rows["lead"]
    assert lead.control(NETWORK).agrees
    assert "network" not in lead.words


def test_a_network_that_was_not_run_is_missing(found):
    lead = found(THREE, wide).rows["lead"]
    assert lead.control(NETWORK).text == "not run"
    assert "same network not run" in lead.words


def test_the_same_network_asks_for_nothing_where_all_have_it(found):
    assert found(THREE).rows["lead"].control(NETWORK) is None


def test_models_scored_at_different_times_ask_for_the_same_one(found):
    findings = found(THREE)
    study = findings.study
    path = study.cell("balanced", "fedavg").folder(study.root) / "result.json"
    document = json.loads(path.read_text()) | {"hook": "pre"}
    document["measures"]["post.average"] = [66.4, 68.7, 67.5]
    path.write_text(json.dumps(seal(document)))
    lead = Findings(Study.of("fedcrl", collect(study.root), study.root)).rows["lead"]
    assert lead.control(HOOK).verdict.chip == Chip.UNDECIDED
    assert "open with the same scored model" in lead.words


def test_several_looks_leave_a_weak_lead_open(found):
    weak = THREE | {"ours": [65.3, 64.8, 65.9]}
    once = found(weak, lambda d: d.update(PAPER)).rows["lead"]
    assert 0.0221 < once.verdict.p < 0.05
    assert once.direction == "confirmed"
    more = found(weak, lambda d: d.update(findings={"looks": {"balanced": [1, 2, 3]}})).rows["lead"]
    assert (more.direction, more.verdict.chip, more.looks) == ("open", Chip.UNDECIDED, 3)
    assert more.words.endswith("after three looks it must be below 0.022")


def test_a_control_is_open_where_its_looks_ask_for_more(found):
    def looked_at(document):
        wide(document)
        document["findings"]["looks"] = {"balanced": [1, 2, 3]}

    rows = THREE | {"wide": [63.5, 64.6, 61.9]}
    once = found(rows, wide).rows["lead"].control(NETWORK)
    assert once.agrees
    assert 0.0221 < once.verdict.p < 0.05
    more = found(rows, looked_at).rows["lead"].control(NETWORK)
    assert more.verdict.chip == Chip.UNDECIDED
    assert more.looks.endswith("after three looks it must be below 0.022")


def test_an_interval_that_holds_the_print_leaves_the_size_open(found):
    wide_spread = THREE | {"ours": [69.9, 67.0, 72.3], "fedprox": [62.0, 65.9, 60.1]}
    sized = found(wide_spread).rows["sized"]
    assert sized.direction == "confirmed"
    assert sized.size == "open"
    assert "size open" in sized.words


def test_two_spreads_that_decide_differently_are_both_told(found):
    apart = {
        "fedavg": [65.5, 62.1, 58.4, 57.3, 58.0, 60.0],
        "fedprox": [66.1, 62.3, 54.7, 58.5, 57.3, 59.4],
        "ours": [66.4, 62.5, 58.4, 59.2, 59.2, 60.6],
    }
    lead = found(apart).rows["lead"]
    assert lead.direction == "open"
    p, alone = lead.verdict.p, lead.verdict.alone
    assert p > 0.05 > alone
    assert f"p {p:.2g} by all rows of the table, {alone:.2g} by the compared rows alone" in lead.words


def test_a_lead_that_the_compared_rows_alone_leave_open_is_open(found):
    uneven = {
        "fedavg": [60.4, 60.5, 58.3, 61.5, 57.3, 58.9],
        "fedprox": [61.4, 60.0, 56.9, 62.2, 56.7, 58.9],
        "ours": [60.9, 64.7, 57.1, 63.5, 59.9, 60.7],
    }
    lead = found(uneven).rows["lead"]
    assert lead.verdict.p < 0.05 < lead.verdict.alone
    assert lead.verdict.chip == Chip.UNDECIDED


def scored_before(study, method, after):
    """The run of a method is scored before local training, and has these accuracies after it."""
    path = study.cell("balanced-short", method).folder(study.root) / "result.json"
    document = json.loads(path.read_text()) | {"hook": "pre"}
    document["measures"]["post.average"] = after
    path.write_text(json.dumps(seal(document)))


DECLARED = {
    "question": "Is the lead more than FedAvg's?",
    "scenario": "balanced",
    "rows": ["ours"],
    "controls": ["fedavg", "fedprox"],
    "seeds": [0, 1, 2],
    "smallest_effect": 4.44,
    "seen": {"ours": [0, 1, 2], "fedavg": [0, 1]},
}


def declare(root):
    folder = root / "papers/fedcrl/experiments"
    folder.mkdir()
    (folder / "lead.yaml").write_text(yaml.safe_dump(DECLARED))


def test_a_planned_comparison_names_its_new_seeds(found, root):
    declare(root)
    assert found(THREE).rows["lead"].planned == "lead, 1 of 3 seeds new"


def test_a_declared_experiment_compares_its_first_row_with_every_control(found, root):
    declare(root)
    [alike] = experiments(found(THREE).study)
    assert {row.name: row.ahead for row in alike.rows} == {"Ours": None, "FedAvg": 6.5, "FedProx": 4.5}
    assert "FedAvg 0, 1" in " ".join(alike.notes)


def test_a_declared_experiment_that_nothing_has_finished_is_not_shown(found, root):
    declare(root)
    assert experiments(found({name: values[:2] for name, values in THREE.items()}).study) == []


def test_the_question_for_a_declared_experiment_is_a_control_of_its_claim(found, root):
    declare(root)
    answer = {"question": "ahead?", "claim": "lead", "experiment": "lead"}
    lead = found(THREE, lambda d: d.update(findings={"answers": [answer]})).rows["lead"]
    control = lead.control("declared in lead")
    assert (control.place, control.left_out) == ((1, 3), 0)
    assert control.verdict.rival == "FedProx"


def test_a_question_for_an_unknown_experiment_is_refused(found):
    answer = {"question": "ahead?", "claim": "lead", "experiment": "nowhere"}
    with pytest.raises(ParamError, match="answers\\[0\\].experiment: unknown experiment"):
        found(THREE, lambda d: d.update(findings={"answers": [answer]}))


def test_a_declared_row_without_its_seeds_is_named_and_not_compared(found, root):
    declare(root)
    [alike] = experiments(found(THREE | {"fedprox": [62.0, 63.9]}).study)
    assert [row.name for row in alike.rows] == ["Ours", "FedAvg"]
    assert any("declared seeds are missing (2): FedProx" in note for note in alike.notes)


def test_a_shortened_run_that_fails_by_unequal_scoring_is_open(found):
    def short(document):
        document["scenarios"]["balanced-short"] = document["scenarios"]["balanced"]
        document["extra_scenarios"] = ["balanced-short"]
        document["grids"]["short"] = {"scenarios": ["balanced-short"], "methods": [*THREE]}

    study = found({}, short, claims=[("behind", LEAD[1], LEAD[2], LEAD[3], "<0")]).study
    for method, values in THREE.items():
        write_run(study.root, f"balanced-short/{method}", {"average": values})
    behind = Findings(Study.of("fedcrl", collect(study.root), study.root)).rows["behind"]
    assert behind.shown.chip == Chip.FAILS
    scored_before(study, "fedavg", [66.4, 68.7, 67.5])
    behind = Findings(Study.of("fedcrl", collect(study.root), study.root)).rows["behind"]
    assert behind.shown.chip == Chip.UNDECIDED
    assert behind.words == "shortened: undecided; fails as scored, open with the same scored model"


def test_a_question_for_another_scenario_is_a_control_of_its_claim(found):
    def asked(document):
        document["scenarios"]["other"] = document["scenarios"]["balanced"]
        document["titles"] = {"other": "Other"}
        document["extra_scenarios"] = ["other"]
        document["grids"]["other"] = {"scenarios": ["other"], "methods": [*THREE]}
        document["findings"] = {"answers": [{"question": "there?", "claim": "lead", "scenario": "other"}]}

    findings = found(THREE, asked)
    for method, values in THREE.items():
        write_run(findings.study.root, f"other/{method}", {"average": values[::-1]})
    findings = Findings(Study.of("fedcrl", collect(findings.study.root), findings.study.root))
    [row, _] = as_rows(findings.rows.values())
    assert "on Other: +6.5" in row["other_settings"]


def test_a_size_that_the_interval_excludes_is_told(found):
    sized = found(THREE).rows["sized"]
    assert sized.size.startswith("larger")
    assert sized.size.split(": ")[1] in sized.words
    assert compared(sized).startswith("The paper reports 4.4: same direction, about")


def test_the_headline_says_where_the_lead_stands_with_all_data(found):
    """Beside a shortened run, a scenario with the paper's data that no table shows: as scored, and where all
    are scored after local training."""

    def more(document):
        for name in ("balanced-short", "balanced-rounds"):
            document["scenarios"][name] = document["scenarios"]["balanced"]
            document["grids"][name] = {"scenarios": [name], "methods": [*THREE]}
        document["titles"]["balanced-rounds"] = "Balanced, 9 rounds"
        document["extra_scenarios"] = ["balanced-short", "balanced-rounds"]
        document["main"] = ["lead"]

    study = found({}, more).study
    for method, values in THREE.items():
        write_run(study.root, f"balanced-short/{method}", {"average": values})
    for method, value in {"fedavg": 60.0, "ours": 67.0}.items():
        write_run(study.root, f"balanced-rounds/{method}", {"average": [value]})
    path = study.cell("balanced-rounds", "fedavg").folder(study.root) / "result.json"
    document = json.loads(path.read_text()) | {"hook": "pre"}
    document["measures"]["post.average"] = [70.04]
    path.write_text(json.dumps(seal(document)))

    text = headline(Findings(Study.of("fedcrl", collect(study.root), study.root)))
    assert text.startswith("No setting of the paper has been run. In a shortened run: Ours beats FedAvg")
    assert text.endswith(
        " With all the paper's data (Balanced, 9 rounds; 1 seed, 2 of 3 methods, 2 of them stale) Ours is 1st"
        " of 2 (67.0) as scored and 2nd of 2 (67.0; FedAvg 70.0) where all are scored after local training."
    )


def test_a_shortened_run_is_no_setting_of_the_paper(found):
    def short(document):
        document["scenarios"]["balanced-short"] = document["scenarios"]["balanced"]
        document["extra_scenarios"] = ["balanced-short"]
        document["grids"]["short"] = {"scenarios": ["balanced-short"], "methods": [*THREE]}

    findings = found({}, short)
    for method, values in THREE.items():
        write_run(findings.study.root, f"balanced-short/{method}", {"average": values})
    findings = Findings(Study.of("fedcrl", collect(findings.study.root), findings.study.root))
    [row, _] = as_rows(findings.rows.values())
    assert (row["setting"], row["size"]) == ("shortened", "")
    assert row["verdict"] == "shortened: direction holds; rivals tuned alike not run"
    assert findings.rows["lead"].direction == "not run"


def test_the_false_discovery_rate_counts_all_tested_claims(found):
    one = found(THREE).rows["lead"]
    ps = [0.001, 0.02, 0.03, 0.2]
    tested = [replace(one, paper=str(i), verdict=replace(one.verdict, p=p)) for i, p in enumerate(ps)]
    kept, count = discoveries(tested)
    assert count == 4
    assert kept == {("0", "lead"), ("1", "lead"), ("2", "lead")}


def test_a_number_that_would_disappear_is_refused_and_the_file_stays(measured):
    write_claims(measured, [LEAD, SIZED])
    render(root=measured)
    file = measured / FILE
    before = file.read_text()
    write_claims(measured, [LEAD])
    with pytest.raises(FedReproError, match="findings.csv: 1 number would disappear.*fedcrl sized"):
        render(root=measured)
    assert file.read_text() == before


def test_a_withdrawn_number_may_disappear(measured):
    write_claims(measured, [LEAD, SIZED])
    render(root=measured)
    write_claims(measured, [LEAD])
    [row] = [one for one in read_findings(measured / FILE) if one["id"] == "sized"]
    head = "paper,id,column,number,date,reason"
    line = f"fedcrl,sized,row,{row['difference']},2026-11-29,the claim was split"
    (measured / GONE).write_text(f"{head}\n{line}\n")
    render(root=measured)
    assert "sized" not in (measured / FILE).read_text()


def test_the_findings_of_a_paper_whose_folder_is_gone_go_with_it(measured):
    render(root=measured)
    file = measured / FILE
    row = dict.fromkeys(COLUMNS, "") | {"paper": "gone", "id": "G1", "difference": "1.00"}
    file.write_text(as_text([*read_findings(file), row]))
    render(root=measured)
    assert "gone,G1" not in file.read_text()
    file.write_text(as_text([*read_findings(file), row]))
    (measured / "papers" / "gone").mkdir()
    with pytest.raises(FedReproError, match="gone G1: the whole row"):
        render(root=measured)


def test_a_control_that_fails_speaks_against_the_paper(found):
    findings = found(THREE | {"wide": [66.4, 68.7, 67.5]}, wide, [SIZED])
    [one] = contradictions(findings.study, findings.rows.values())
    assert (one.verdict.claim.id, one.heading) == ("sized", NETWORK)


# -- the committed results -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fedlsa(pages):
    return pages["fedlsa"].findings


def test_fedlsas_lead_is_smaller_than_printed_and_gone_when_both_are_tuned(fedlsa):
    lead = fedlsa.rows["L04"]
    assert lead.size == "smaller: about half the size"
    tuned = lead.control(TUNED).verdict
    assert (round(tuned.point, 1), round(tuned.low, 1), round(tuned.high, 1)) == (0.1, -4.4, 4.6)
    assert "not against tuned FedAvg" in lead.words


def test_fedlsas_separation_loss_is_judged_on_fedlsas_network(fedlsa):
    separation = fedlsa.rows["L08b"]
    assert {cell.method for cell in separation.cells} == {"fedlsa-separation", "fedavg-normalised"}
    assert separation.verdict.chip != Chip.HOLDS


def test_fedlsa_without_its_losses_is_not_fedavg_by_construction(fedlsa):
    assert {cell.method for cell in fedlsa.rows["L06b"].cells} == {"fedavg-normalised", "fedavg"}


def test_no_claim_holds_without_every_control_that_it_has(pages):
    for page in pages.values():
        for one in page.findings.rows.values():
            if one.verdict.chip == Chip.HOLDS:
                assert all(control.agrees for control in one.controls), one.claim.id


def test_the_readme_and_the_pages_say_what_the_findings_say(pages, files):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, page in pages.items():
        assert page.brief in readme, name
        assert headline(page.findings) in _text(files[name]), name
    for row in pages[markdown.EXAMPLE].answers:
        assert f"| {row.question} |" in readme
        assert row.answer in readme.replace("\\", "")


def _text(path):
    text = re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8"))
    return text.replace("&#39;", "'").replace("&#34;", '"')


def test_the_committed_findings_are_todays(pages):
    rows = as_rows(one for page in pages.values() for one in page.findings.rows.values())
    assert rows == read_findings(ROOT / FILE)


def test_no_committed_finding_disappears_without_a_reason(pages):
    rows = as_rows(one for page in pages.values() for one in page.findings.rows.values())
    assert lost(read_findings(ROOT / FILE), rows, withdrawn(ROOT / GONE)) == []


def test_a_difference_is_the_difference_of_measured_numbers(pages):
    """findings.csv and measured.csv agree, where all seeds are in both rows."""
    table = csv.DictReader(io.StringIO(as_csv(tidy(survey()[0]))))
    means = {
        (row["paper"], row["scenario"], row["method"]): float(row["mean"])
        for row in table
        if row["measure"] == "average"
    }
    lead, rival = (means["fedlsa", "office-caltech", name] for name in ("fedlsa", "fedavg"))
    assert pages["fedlsa"].findings.rows["L04"].verdict.point == pytest.approx(lead - rival, abs=0.01)


@pytest.mark.parametrize("key", papers())
def test_what_is_told_has_no_empty_sentence(pages, key):
    for one in pages[key].findings.rows.values():
        assert isinstance(one, Finding)
        assert all(text.endswith((".", ").")) for text in told(one))
