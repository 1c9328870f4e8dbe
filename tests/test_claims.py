"""Claims and verdicts: one grammar, published numbers that bear their own text out, and no verdict stronger than the runs."""
import csv
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from test_report import BALANCED, check_tex, measured, root, unlinked, write_run  # noqa: F401  (fixtures)

from pipeline import results
from pipeline.errors import ParamError
from pipeline.params import PAPERS, ROOT, load_paper
from pipeline.report import render
from pipeline.report.claims import COLUMNS, Claim, Expected, Number, Printed, parse, parse_expected, read_claims
from pipeline.report.context import page
from pipeline.report.verdicts import FAILS, HOLDS, UNDECIDED, WAITS, Judgement, Verdict, decide, interval, judge, ordinal, orders, source

# Claims whose published numbers the scan lost.
LOST = {"fcclplus": {"F05", "F12", "F14"}}
# Claims about the sizes of data sets, which no run measures.
SIZES = {"fedlsa": {"L10a", "L10b", "L10c"}}

TABLE1 = "table=1|column=Avg"
CLAIMS = [
    ("more", "Ours is 4.44 above FedAvg", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", "=4.44"),
    ("best", "Ours is best", f"{TABLE1}|method=Ours", f"max({TABLE1}|method!=Ours)", ">0"),
    ("value", "Ours reaches 46.66", f"{TABLE1}|method=Ours", "", "=46.66"),
    ("less", "Ours is below FedAvg", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", "<0"),
    ("fair", "Ours has the lowest spread of the two", "table=2|setting=practical(beta=0.1,N=20)|column=Std.|method=Ours",
     "table=2|setting=practical(beta=0.1,N=20)|column=Std.|method=Ours & FedAvg", "rank<=1 low"),
    ("size", "there are 7007 digits", "table=3|dataset=Digits|column=N", "", "=7007"),
    ("same", "FedAvg is FedAvg", f"{TABLE1}|method=FedAvg", f"{TABLE1}|method=FedAvg", "=0"),
    ("curve", "it is fast", "", "", "figure"),
    ("run", "Ours reaches 80", "scenario=skewed|measure=M|method=Ours", "", "=80"),
]


@pytest.fixture
def claimed(measured):                                                           # noqa: F811
    """The measured repository with claims about its tables 1 and 2."""
    write_claims(measured, CLAIMS)
    return measured


def write_claims(root, rows, paper="fedcrl"):                                    # noqa: F811
    with (root / "papers" / paper / "claims.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *([*row, "", ""] for row in rows)])


def verdicts(root, *names):                                                      # noqa: F811
    paper, found = load_paper("fedcrl", root), results.collect(root)
    claims = {claim.id: claim for claim in read_claims("fedcrl", paper, root)}
    made = {name: judge(claims[name], "fedcrl", paper, found, Printed("fedcrl", paper, root)) for name in claims}
    return [made[name] for name in names] if len(names) > 1 else made[names[0]]


# -- the papers' own claims ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("key", PAPERS)
def test_published_numbers_bear_the_claims_out_except_for_the_papers_slips(key):
    paper = load_paper(key)
    printed, lost, wrong = Printed(key, paper), set(), {}
    claims = [claim for claim in read_claims(key, paper) if claim.expected.testable and claim.table]
    for claim in claims:
        numbers = {spot: printed.numbers.get(spot) for spot in claim.spots}
        if None in numbers.values():
            lost.add(claim.id)
        elif not claim.stands(value := claim.difference(numbers.__getitem__)):
            wrong[claim.id] = value
    assert len(claims) > 20 and lost == LOST.get(key, set())
    assert set(wrong) == {claim.id for claim in claims if claim.slip}, wrong


@pytest.mark.parametrize("key", PAPERS)
def test_every_number_of_a_claim_is_a_measure_of_a_run(key):
    paper = load_paper(key)
    without = {claim.id for claim in read_claims(key, paper) for spot in claim.spots if source(spot, key, paper) is None}
    assert without == SIZES.get(key, set())


def test_examples_of_the_papers_numbers():
    paper = load_paper("fedcrl")
    printed = Printed("fedcrl", paper)
    claims = {claim.id: claim for claim in read_claims("fedcrl", paper)}
    value = {name: claims[name].difference(printed.numbers.__getitem__) for name in ("R02a", "R03a", "R04", "R13i", "R10a")}
    assert value["R02a"] == pytest.approx(0.49) and value["R03a"] == pytest.approx(2.37 - 0.71)
    assert value["R04"] == pytest.approx(80.283 - 80.280, abs=0.001) and value["R13i"] == 6
    assert len(claims["R10a"].spots) == 15 + 16                                  # FedPAC has no number at beta 0.01


# -- the grammar -------------------------------------------------------------------------------------------------------

@pytest.fixture
def printed(root):                                                               # noqa: F811
    return Printed("fedcrl", load_paper("fedcrl", root), root)


@pytest.mark.parametrize("text, value", [
    ("2.5", 2.5),
    ("table=1|column=Avg|method=Ours", 46.66),
    ("table=1|column=Avg|method=Ours - table=1|column=Avg|method=FedAvg", 4.44),
    ("max(table=1|column=Avg|method!=Ours)", 44.44),
    ("min(table=1|column=Avg)", 42.22),
    ("mean(table=1|column=Avg|method=Ours & FedAvg)", 44.44),
    ("max(table=1|column=Avg) - 1.5 + min(table=1|public=a|column=M)", 46.66 - 1.5 + 41.11),
    ("mean(table=2|setting=practical(beta=0.1,N=20)|column=Acc.)", 32.07),       # the row Averaged is no method
    ("max(table=1|column=M - table=1|column=Avg)", -1.11),                       # method by method
    ("min(table=2|setting=pathological(N=20)|column=Acc. - 10)", 41.07),
])
def test_expressions(printed, text, value):
    [(_, found)] = parse(text, printed).values(printed.numbers.__getitem__)
    assert found == pytest.approx(value)


def test_expressions_take_arrays(printed):
    numbers = {spot: np.array([number, number + 1]) for spot, number in printed.numbers.items() if number is not None}
    [(_, found)] = parse("mean(table=1|column=Avg) - max(table=1|column=Avg|method!=Ours)", printed).values(numbers.__getitem__)
    assert found == pytest.approx([0, 0])


@pytest.mark.parametrize("row, message", [
    (("table=9|column=Avg|method=Ours", "", "=1"), r"claims.csv:2: x: unknown table '9'"),
    (("table=1|column=Average|method=Ours", "", "=1"), "table 1 prints nothing with column=Average"),
    (("table=1|column=Avg|method=Our", "", "=1"), "unknown printed method 'Our' .nearest: 'Ours'"),
    (("table=1|column=Avg|method!=Our", "", "=1"), "unknown printed method 'Our'"),
    (("table=1|column=Avg", "", "=1"), "several numbers stands inside max"),
    (("table=1|Avg", "", "=1"), "'Avg' is not key=value"),
    (("max(table=1|column=Avg", "", "=1"), "brackets do not match"),
    (("max(table=1|column=Avg - table=1|column=Avg|method!=Ours)", "", "=1"), "different methods"),
    (("scenario=even|measure=M|method=Ours", "", "=1"), "unknown scenario 'even'"),
    (("scenario=skewed|method=Ours", "", "=1"), "a run is scenario"),
    (("table=1|column=Avg|method=Ours", "", "about 3"), "expected 'about 3' is none of"),
    (("table=1|column=Avg|method=Ours", "", "rank<=2"), "a rank needs"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg|method!=Ours", "rank<=2"), "a rank needs"),
    (("table=1|column=Avg|method=Ours", "", "figure"), "compares nothing"),
])
def test_a_wrong_claim_is_named(root, row, message):                             # noqa: F811
    write_claims(root, [("x", "words", *row)])
    with pytest.raises(ParamError, match=message):
        page("fedcrl", {}, root)


def test_wrong_columns_and_ids_given_twice_are_named(root):                      # noqa: F811
    write_claims(root, [CLAIMS[0], CLAIMS[0]])
    with pytest.raises(ParamError, match="claims.csv:3: the id 'more' is given twice"):
        page("fedcrl", {}, root)
    (root / "papers/fedcrl/claims.csv").write_text("id,lhs\n")
    with pytest.raises(ParamError, match="claims.csv: the columns must be id,claim,left"):
        page("fedcrl", {}, root)


# -- verdicts ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("expected, low, high, word", [
    (">0", 0.1, 2.0, HOLDS), (">0", -0.1, 2.0, UNDECIDED), (">0", -2.0, -0.1, FAILS), (">0", 0.0, 0.0, FAILS),
    ("<0", -2.0, -0.1, HOLDS), (">=5", 5.0, 6.0, HOLDS), (">=5", 4.0, 6.0, UNDECIDED), ("<0.5", 0.6, 0.7, FAILS),
    ("abs<1", -0.5, 0.5, HOLDS), ("abs<1", 2.0, 3.0, FAILS), ("abs<1", -2.0, 2.0, UNDECIDED), ("abs<1", -2.0, 0.0, UNDECIDED),
    ("=8.47", 1.0, 2.0, HOLDS), ("=8.47", -1.0, 9.0, UNDECIDED), ("~-6", -3.0, -2.0, HOLDS), ("~2", -3.0, -2.0, FAILS),
    ("=0", -1.0, 1.0, HOLDS), ("=0", 0.5, 1.0, FAILS),
    ("rank<=2", 1, 2, HOLDS), ("rank<=2", 2, 3, UNDECIDED), ("rank<=2", 3, 4, FAILS),
])
def test_decide(expected, low, high, word):
    assert decide(parse_expected(expected), low, high) == word


def test_a_value_holds_where_the_interval_has_it():
    assert [decide(parse_expected("=68.40", alone=True), *ends) for ends in ((68.0, 69.0), (68.41, 69.0), (68.404, 69.0))] == [HOLDS, FAILS, HOLDS]


def test_interval_of_three_seeds_is_their_range_and_the_same_each_time():
    def difference(a, b, axis):
        return a.mean(axis) - b.mean(axis)
    a, b = np.array([3.0, 5.0, 4.0]), np.array([1.0, 4.0, 2.5])
    assert interval([a, b], difference, True, 1) == pytest.approx((1.0, 2.0))    # 2, 1, 1.5 seed by seed
    low, high = interval([a, b[:2]], difference, False, 1)
    assert (low, high) == interval([a, b[:2]], difference, False, 1) and low < a.mean() - b[:2].mean() < high


def test_verdicts_of_every_kind(claimed):
    more, best, value, less, fair = verdicts(claimed, "more", "best", "value", "less", "fair")
    assert (more.word, more.measured, more.published, more.seeds) == (HOLDS, "+5.50 [+4.50, +6.50]", "+4.44", 2)
    assert more.size == "size +4.44 outside the interval" and not more.indicative
    assert (best.word, best.reason, best.measured) == (WAITS, "2 of 3 cells have run", "")
    assert (value.word, value.measured) == (FAILS, "66.50 [66.50, 66.50]")
    assert less.word == FAILS and (fair.word, fair.measured) == (HOLDS, "1 [1, 1]")
    size, same, curve, run = verdicts(claimed, "size", "same", "curve", "run")
    assert [v.word for v in (size, same, curve)] == ["not tested"] * 3 and run.word == WAITS
    assert [v.reason for v in (size, same, curve)] == ["nothing that a run measures", "both sides are the same run here", "about a figure"]


def test_published_numbers_never_stand_in_for_measured_ones(root):               # noqa: F811
    write_claims(root, CLAIMS)
    found = verdicts(root, *(row[0] for row in CLAIMS))
    assert not [verdict for verdict in found if verdict.tested or verdict.measured]


def test_one_seed_is_indicative_and_a_value_needs_two(claimed):
    shutil.rmtree(claimed / "papers/fedcrl/runs/balanced/ours")
    write_run(claimed, "balanced/ours", {name: values[:1] for name, values in BALANCED["ours"].items()})
    more, value = verdicts(claimed, "more", "value")
    assert (more.words, more.measured, more.size) == ("holds (indicative)", "+5.50", "")
    assert (value.word, value.reason) == (WAITS, "one seed gives no interval")
    table = page("fedcrl", results.collect(claimed), claimed).tables[0]
    assert table.judgement.strength == "Indicative, one seed" and "With one seed, 1 of 2 tested claims points the claimed way (50 %)" in table.judgement.summary


def test_a_table_with_some_single_seeds_is_indicative_too():
    claim = Claim("x", "", Expected("bound", 0, ">"), "", "", Number(0))
    firm, soft = Verdict(claim, HOLDS, seeds=3), Verdict(claim, FAILS, seeds=1)
    assert Judgement([firm], []).strength == "Verdict, 3 seeds or more"
    assert Judgement([firm, soft], []).strength == "Indicative, some numbers have one seed"
    assert Judgement([firm, soft], [], several=True).strength == "Verdict, in part indicative"
    assert Judgement([firm, soft], []).shares == "1 of 1 tested claim holds (100 %); with one seed, 0 of 1 tested claim points the claimed way (0 %)"
    assert Judgement([], []).summary == "" and Judgement([], []).strength == "No verdict yet"


def test_seeds_that_differ_are_drawn_apart(claimed):
    write_run(claimed, "balanced/fedprox", {"average": [60.0, 62.0, 64.0], "M": [1.0, 1.0, 1.0]})
    best = verdicts(claimed, "best")
    assert best.word == HOLDS and best.point == 66.5 - 62 and best.seeds == 2


def test_order_of_the_methods(claimed, monkeypatch):
    monkeypatch.setattr("pipeline.report.verdicts.RANKED", 3)                     # the tables of this paper have no more rows
    paper = load_paper("fedcrl", claimed)
    write_run(claimed, "balanced/fedprox", {"average": [70.0, 70.0], "weighted": [50.0, 50.0], "clients_std": [6.0, 6.0]})
    printed = Printed("fedcrl", paper, claimed)                                  # noqa: F811
    found = results.collect(claimed)
    [only] = orders("table1", "fedcrl", paper, found, printed)                   # printed 42, 44, 46; measured 61, 70, 66.5
    assert (only.title, only.methods, only.printed, only.winner, only.place) == ("Digits", 3, 3, "Ours", 2)
    assert only.tau == pytest.approx(1 / 3) and only.correlation == "0.33 (p = 1.00)"
    accuracy, spread = orders("table2", "fedcrl", paper, found, printed)         # Std.: printed 6, 7, 8; measured 9, 6, 4.5
    assert spread.title == "practical (β = 0.1, N = 20), Std." and spread.correlation == "−1.00 (p = 0.33)"
    assert (spread.winner, spread.place) == ("FedAvg", 3) and accuracy.tau == pytest.approx(1 / 3)
    assert orders("table1", "fedcrl", paper, {k: v for k, v in found.items() if k.method != "ours"}, printed) == []
    assert Judgement([], [accuracy, spread]).ranking.startswith("order of the methods against the published one: Kendall's τ −0.33 on average over 2 columns (−1.00 to 0.33)")
    monkeypatch.undo()
    assert orders("table1", "fedcrl", paper, found, printed) == []               # three methods tell no order from chance


def test_claims_are_judged_again_by_a_variant_of_their_tables(claimed):
    path = claimed / "papers/fedcrl/paper.yaml"
    document = yaml.safe_load(path.read_text())
    document["tables"]["table1-long"] = {**document["tables"]["table1"], "blocks": {"even,public=a|Digits": {"scenario": "skewed"}}}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    for method, value in (("ours", 50.0), ("fedavg", 60.0), ("fedprox", 40.0)):
        write_run(claimed, f"skewed/{method}", {"average": [value, value]})
    shown = page("fedcrl", results.collect(claimed), claimed)
    words = {table.key: {v.claim.id: v.word for v in table.judgement.verdicts} for table in shown.tables}
    assert (words["table1"]["more"], words["table1-long"]["more"]) == (HOLDS, FAILS)
    assert (words["table1"]["best"], words["table1-long"]["best"]) == (WAITS, FAILS)
    assert len(shown.judgement.verdicts) == len(CLAIMS)                          # a claim counts once


def test_ordinals():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 22, 103, 111)] == ["1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "22nd", "103rd", "111th"]


# -- on the pages ----------------------------------------------------------------------------------------------------------

def test_the_pages_show_claims_verdict_and_deviations(claimed):
    render(["fedcrl"], claimed)
    html, text, body = ((claimed / f"reports/fedcrl.{kind}").read_text() for kind in ("html", "md", "tex"))
    summary = "1 of 3 tested claims holds (33 %), 1 of them in sign alone, 2 fail; 1 claim waits for runs; 1 cannot be tested by a run"
    for shown in (html, text, body.replace(r"\%", "%")):
        assert summary in shown and "Not as in the paper" in shown and "every second image" in shown
    assert '<td data-label="verdict" class="word holds">holds</td>' in html
    assert "| Ours is 4.44 above FedAvg `more` | `=4.44` | +4.44 | +5.50 \\[+4.50, +6.50\\] (2 seeds, size +4.44 outside the interval) | **holds** |" in text
    assert "**not enough runs**" not in text and "not enough runs: 2 of 3 cells have run" in unlinked(text)
    check_tex(body)
    assert body.count(r"\begin{longtable}") == 3                                  # tables 1 and 2, and the claims about no table
    assert "all of the interval is as claimed" in html and "nothing of the interval is as claimed" in text
    index = (claimed / "reports/index.md").read_text()
    assert "Verdict, 2 seeds or more. 2 of 4 tested claims hold; 5 of 9 claims without an answer." in index


def test_a_page_per_scenario_tells_where_its_numbers_come_from(claimed):
    render(["fedcrl"], claimed)
    assert 'href="runs/fedcrl/balanced.html#ours"' in (claimed / "reports/fedcrl.html").read_text()
    html = (claimed / "reports/runs/fedcrl/balanced.html").read_text()
    section = html.partition('id="ours"')[2]
    for fact in ("c" * 40 + " with uncommitted changes", "a" * 64, "b" * 64, "digits (bundled)", "every second image", "<dd>cpu</dd>", "2 s, 2 s (by seed)",
                 "the method&#39;s defaults", "../../../papers/fedcrl/runs/balanced/ours/result.json", "accuracy (average) over 2 rounds, 0.00 to 66.50 %"):
        assert fact in section, fact
    assert section.count('<path d="M0 120L300 60L600 0"/>') == 2 and "kind: dirichlet" in html


def test_a_run_that_differs_from_what_is_asked_for_now_says_so(claimed):
    path = claimed / "papers/fedcrl/paper.yaml"
    path.write_text(path.read_text().replace("rounds: 2", "rounds: 40").replace("label: FedAvg", "label: FedAvg\n    mu: 0.5"))
    notes = {note.scenario: note.texts for note in page("fedcrl", results.collect(claimed), claimed).notes}
    assert "all methods: 2 rounds instead of 40." in notes["balanced"]
    assert "FedAvg: run with the method's defaults, paper.yaml now has mu = 0.5." in notes["balanced"]


def test_run_pages_of_scenarios_without_runs_go_away(claimed):
    render(["fedcrl"], claimed)
    shutil.rmtree(claimed / "papers/fedcrl/runs/balanced")
    render(["fedcrl"], claimed)
    assert [path.name for path in (claimed / "reports/runs/fedcrl").iterdir()] == ["mini.html"]


def test_all_reports_need_no_torch_no_data_and_little_time(tmp_path):
    for name in PAPERS:
        shutil.copytree(ROOT / "papers" / name, tmp_path / "papers" / name, ignore=shutil.ignore_patterns("partitions", "representations"))
    shutil.copy(ROOT / "params.yaml", tmp_path)
    script = f"""if True:
        import sys
        from pathlib import Path
        from pipeline.report import render
        written = render(root=Path({str(tmp_path)!r}))
        assert "torch" not in sys.modules and len(written) > 17"""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    assert time.monotonic() - begun < 30
