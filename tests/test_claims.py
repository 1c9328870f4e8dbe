"""Claims and verdicts: one grammar, published numbers that bear their own text out, and no verdict stronger
than the runs."""
import csv
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from reporting import BALANCED, check_tex, unlinked, write_run

from pipeline.cells import provenance, results
from pipeline.errors import ParamError
from pipeline.report import geometry, render
from pipeline.report.claims import (
    COLUMNS,
    Claim,
    Expected,
    Number,
    Printed,
    Spot,
    parse,
    parse_expected,
    read_claims,
)
from pipeline.report.context import found_in, page
from pipeline.report.evidence import Evidence
from pipeline.report.geometry import uniformity
from pipeline.report.judgement import Judgement, Order, orders, ordinal
from pipeline.report.judging import closeness, decide, judge
from pipeline.report.measures import numbers
from pipeline.report.standings import of_table
from pipeline.report.study import Study
from pipeline.report.verdicts import (
    CONFIRMED,
    CONTRADICTED,
    FAILS,
    HOLDS,
    OPEN,
    UNDECIDED,
    UNTESTED,
    WAITS,
    Verdict,
)
from pipeline.schema import ROOT, Cell, load_paper
from pipeline.sealing import seal

PAPERS = ("fedccl", "fcclplus", "fedlsa", "rahfl", "fedcrl")          # those that come with FedRepro

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
    (
        "fair",
        "Ours has the lowest spread of the two",
        "table=2|setting=practical(beta=0.1,N=20)|column=Std.|method=Ours",
        "table=2|setting=practical(beta=0.1,N=20)|column=Std.|method=Ours & FedAvg",
        "rank<=1 low",
    ),
    ("size", "there are 7007 digits", "table=3|dataset=Digits|column=N", "", "=7007"),
    ("same", "FedAvg is FedAvg", f"{TABLE1}|method=FedAvg", f"{TABLE1}|method=FedAvg", "=0"),
    ("curve", "it is fast", "", "", "text"),
    ("run", "Ours reaches 80", "scenario=skewed|measure=M|method=Ours", "", "=80"),
]


@pytest.fixture
def claimed(measured):
    """The measured repository with claims about its tables 1 and 2."""
    write_claims(measured, CLAIMS)
    return measured


def write_claims(root, rows, paper="fedcrl"):
    with (root / "papers" / paper / "claims.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *([*row, "", ""] for row in rows)])


def verdicts(root, *names):
    found = evidence(root)
    made = {claim.id: judge(claim, found) for claim in read_claims(found.printed)}
    return [made[name] for name in names] if len(names) > 1 else made[names[0]]


def evidence(root, variant=""):
    return Evidence(Printed(Study.of("fedcrl", results.collect(root), root)), variant)


# -- the papers' own claims ----------------------------------------------------------------------------------

@pytest.mark.parametrize("key", PAPERS)
def test_published_numbers_bear_the_claims_out_except_for_the_papers_slips(key):
    printed, lost, wrong = Printed(Study(key, load_paper(key))), set(), {}
    claims = [claim for claim in read_claims(printed) if claim.expected.testable and claim.table]
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
    found = Evidence(Printed(Study(key, load_paper(key))))
    without = {
        claim.id for claim in read_claims(found.printed) for spot in claim.spots if found.source(spot) is None
    }
    assert without == SIZES.get(key, set())


def test_examples_of_the_papers_numbers():
    printed = Printed(Study("fedcrl", load_paper("fedcrl")))
    claims = {claim.id: claim for claim in read_claims(printed)}
    value = {
        name: claims[name].difference(printed.numbers.__getitem__)
        for name in ("R02a", "R03a", "R04", "R13i", "R10a")
    }
    assert value["R02a"] == pytest.approx(0.49) and value["R03a"] == pytest.approx(2.37 - 0.71)
    assert value["R04"] == pytest.approx(80.283 - 80.280, abs=0.001) and value["R13i"] == 6
    assert len(claims["R10a"].spots) == 15 + 15  # FedPAC has no number at beta 0.01


# -- the grammar ---------------------------------------------------------------------------------------------

@pytest.fixture
def printed(root):
    return Printed(Study("fedcrl", load_paper("fedcrl", root), root=root))


@pytest.mark.parametrize("text, value", [
    ("2.5", 2.5),
    ("table=1|column=Avg|method=Ours", 46.66),
    ("table=1|column=Avg|method=Ours - table=1|column=Avg|method=FedAvg", 4.44),
    ("max(table=1|column=Avg|method!=Ours)", 44.44),
    ("min(table=1|column=Avg)", 42.22),
    ("mean(table=1|column=Avg|method=Ours & FedAvg)", 44.44),
    ("max(table=1|column=Avg) - 1.5 + min(table=1|public=a|column=M)", 46.66 - 1.5 + 41.11),
    ("mean(table=2|setting=practical(beta=0.1,N=20)|column=Acc.)", 32.07),  # the row Averaged is no method
    ("max(table=1|column=M - table=1|column=Avg)", -1.11),                       # method by method
    ("min(table=2|setting=pathological(N=20)|column=Acc. - 10)", 41.07),
    ("max(table=1|column=M|method=Ours ; 2 ; min(table=1|column=Avg))", 45.55),
])
def test_expressions(printed, text, value):
    [(_, tree)] = parse(text, printed).trees()
    assert tree.value(lambda form: form.at(printed.numbers.__getitem__)) == pytest.approx(value)


def test_what_a_largest_of_differences_hangs_on(printed):
    """Each side's extreme becomes one of the pairwise differences, and turns over with the sign."""
    [(_, tree)] = parse(
        "table=1|column=Avg|method=Ours - max(table=1|column=Avg|method!=Ours) + min(table=1|column=M)",
        printed,
    ).trees()
    assert (
        tree.kind == "min" and {part.kind for part in tree.parts} == {"min"} and len(tree.leaves()) == 2 * 3
    )
    [(_, back)] = parse(
        "max(table=1|column=Avg|method!=Ours) - table=1|column=Avg|method=Ours", printed
    ).trees()
    [(_, forth)] = parse(
        "table=1|column=Avg|method=Ours - max(table=1|column=Avg|method!=Ours)", printed
    ).trees()
    numbers = printed.numbers.__getitem__
    assert back.kind == "max" and back.value(lambda form: form.at(numbers)) == -forth.value(
        lambda form: form.at(numbers)
    )
    assert all(sum(c for _, c in leaf.coefficients) == 0 for leaf in forth.leaves())


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
    (("scenario=skewed|measure=M|method!=Ours", "", "=1"), "a run has every key once, and none with `!`"),
    (("scenario=skewed|measure=M|method=Ours|method=FedAvg", "", "=1"), "a run has every key once"),
    (("table=1|colunm!=Avg|method=Ours", "", "=1"), "unknown key 'colunm' .nearest: 'column'"),
    (("table=1|column=Avg|method=Ours", "", "~3"), "expected '~3' is of a difference"),
    (("scenario=skewed|measure=M|method=Ours & Our", "", "=1"), "unknown method 'Our'"),
    (("scenario=skewed|measure=figure9.mean|method=Ours", "", "=1"), "unknown figure 'figure9'"),
    (("scenario=skewed|measure=above.ors.M|method=Ours", "", "=1"), "unknown row 'ors' .nearest: 'ours'"),
    (("table=1|column=Avg|method=Ours", "", "about 3"), "expected 'about 3' is none of"),
    (("table=1|column=Avg|method=Ours", "", "rank<=2"), "a rank needs"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg|method!=Ours", "rank<=2"), "a rank needs"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg - table=1|column=M|method=Ours & FedAvg",
      "rank<=1"),
     "the sides of a difference have different methods"),
    (("table=1|column=Avg|method=Ours", "", "text"), "compares nothing"),
    (("table=1|column=Avg|method=Ours", "table=1|column=Avg", "rank<=0"), "no place before the first"),
    (("table=1|column=Avg|method=Ours", "1", "abs<0"), "no difference is closer to 0 than 0"),
    (("max(" * 400 + "1" + ")" * 400, "", "=1"), "brackets are nested too deeply"),
    (("1" * 400, "", "=1"), "claims.csv:2: x: '1{200}"),
    (("1", "", "=" + "1" * 400), "claims.csv:2: x: expected '=1{200}"),
])
def test_a_wrong_claim_is_named(root, row, message):
    write_claims(root, [("x", "words", *row)])
    with pytest.raises(ParamError, match=message):
        page(Study.of("fedcrl", {}, root))


def test_wrong_columns_and_ids_given_twice_are_named(root):
    write_claims(root, [CLAIMS[0], CLAIMS[0]])
    with pytest.raises(ParamError, match="claims.csv:3: more: the id is given twice"):
        page(Study.of("fedcrl", {}, root))
    (root / "papers/fedcrl/claims.csv").write_text("id,lhs\n")
    with pytest.raises(ParamError, match="claims.csv:1: the column 'claim' is missing; the columns"):
        page(Study.of("fedcrl", {}, root))


def test_a_claim_has_the_title_of_its_row_and_a_file_needs_no_titles(root):
    write_claims(root, CLAIMS[:2])
    assert [claim.title for claim in read_claims(evidence(root).printed)] == ["", ""]
    path = root / "papers/fedcrl/claims.csv"
    header, first, second = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{header},title\n{first},better\n{second},\n", encoding="utf-8")
    assert [claim.title for claim in read_claims(evidence(root).printed)] == ["better", ""]


def test_a_main_claim_that_the_paper_does_not_make_is_named(root):
    write_claims(root, CLAIMS[:2])
    with (root / "papers/fedcrl/paper.yaml").open("a", encoding="utf-8") as file:
        file.write(f"main: [{CLAIMS[0][0]}, mroe]\n")
    with pytest.raises(ParamError, match="paper.yaml: main: unknown claim 'mroe' .nearest: 'more'"):
        page(Study.of("fedcrl", {}, root))


# -- verdicts ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("expected, low, high, word", [
    (">0", 0.1, 2.0, HOLDS), (">0", -0.1, 2.0, UNDECIDED), (">0", -2.0, -0.1, FAILS), (">0", 0.0, 0.0, FAILS),
    (">=0", 0.0, 0.0, HOLDS), ("<0", -2.0, -0.1, HOLDS), (">=5", 5.0, 6.0, HOLDS),
    (">=5", 4.0, 6.0, UNDECIDED),
    ("<0.5", 0.6, 0.7, FAILS), ("<0.5", 0.5, 0.7, FAILS),
    ("=8.47", 1.0, 2.0, HOLDS), ("=8.47", -1.0, 9.0, UNDECIDED), ("~-6", -3.0, -2.0, HOLDS),
    ("~2", -3.0, -2.0, FAILS), ("rank<=2", 1, 2, HOLDS), ("rank<=2", 2, 3, UNDECIDED),
    ("rank<=2", 3, 4, FAILS),
])
def test_decide(expected, low, high, word):
    assert decide(parse_expected(expected), low, high) == word


@pytest.mark.parametrize("near, likely, word", [
    ((6.6, 7.4), (3.0, 11.0), CONFIRMED), ((5.0, 9.0), (3.0, 11.0), OPEN),
    ((1.0, 2.0), (-1.0, 4.0), CONTRADICTED),
    ((1.0, 2.0), (-1.0, 7.016), OPEN), ((6.5, 7.6), (7.3, 7.4), CONFIRMED)])
def test_a_size_is_confirmed_by_a_narrow_interval_and_contradicted_by_a_far_one(near, likely, word):
    """7.02 within 0.7, a tenth of it; as printed it may be 0.005 more or less."""
    assert closeness(7.02, 0.702, near, likely) == word


# The printed table 1 has FedAvg, FedProx and Ours; what each verdict is in the block design is in
# test_statistics.
THREE = {"fedavg": [60.0, 62.0, 61.0], "fedprox": [62.0, 63.9, 63.1], "ours": [66.5, 68.6, 67.4]}


def write_three(root, rows=THREE, scenario="balanced"):
    for method, values in rows.items():
        write_run(
            root,
            f"{scenario}/{method}",
            {"average": values, "weighted": values, "M": [value - 5 for value in values]},
        )


def test_verdicts_of_every_kind(root):
    write_claims(
        root,
        [
            *CLAIMS,
            (
                "near",
                "Ours is within 8 of FedAvg",
                f"{TABLE1}|method=Ours",
                f"{TABLE1}|method=FedAvg",
                "abs<8",
            ),
            ("all", "Ours is 6.5 above", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", "=6.5"),
            ("far", "Ours reaches 60", f"{TABLE1}|method=Ours", "", "=60"),
            ("at", "Ours reaches 67", f"{TABLE1}|method=Ours", "", "=67"),
        ],
    )
    write_three(root)
    more, best, less, near, all_, far, at = verdicts(root, "more", "best", "less", "near", "all", "far", "at")
    assert (more.words, more.published, more.seeds) == (
        "direction holds; size contradicted",
        "+4.44",
        3,
    ) and more.point == pytest.approx(6.5)
    assert [value for _, value in more.by_seed] == pytest.approx(
        [6.5, 6.6, 6.4]
    ) and "3 of 3 above 0" in more.sentences[0]
    assert (best.word, best.way, best.deciding.name) == (HOLDS, "Dunnett", "FedProx") and best.p == max(
        member.p for member in best.members
    )
    assert (
        less.word == FAILS
        and less.p == more.p
        and near.word == HOLDS
        and near.p < 0.05
        and all_.words == "direction holds; size confirmed"
    )
    assert (far.word, at.word) == (FAILS, UNDECIDED) and at.measured == "67.50 [64.88, 70.12]"
    size, same, curve, run = verdicts(root, "size", "same", "curve", "run")
    assert [v.word for v in (size, same, curve)] == ["not tested"] * 3 and run.word == WAITS
    assert [v.reason for v in (size, same, curve)] == [
        "no run measures its numbers",
        "both sides are the same run here",
        "no number settles it",
    ]


def test_what_runs_beside_the_print_changes_no_verdict(root):
    write_claims(root, CLAIMS)
    write_three(root)
    before = verdicts(root, "best")
    path = root / "papers/fedcrl/paper.yaml"
    document = yaml.safe_load(path.read_text())
    document["methods"]["reading"] = {"label": "Reading"}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    load_paper.cache_clear()
    write_run(root, "balanced/reading", {"average": [10.0, 90.0, 30.0]})
    assert verdicts(root, "best") == before


def test_a_method_of_another_spread_is_set_apart_and_named(root):
    write_claims(root, CLAIMS)
    write_three(root, THREE | {"fedprox": [30.0, 63.0, 45.0]})
    best, more = verdicts(root, "best", "more")
    assert best.apart == more.apart == ("FedProx",) and best.way == "Holm" and best.word == UNDECIDED
    assert (
        best.deciding.name == "FedProx"
        and "[" not in best.measured
        and best.deciding.estimate.route == "paired"
    )
    assert "FedProx set apart" in more.sentences[1] and more.word == HOLDS and more.outlook is None
    assert best.outlook.needed > 3 and best.outlook.hours == pytest.approx(
        (best.outlook.needed - 3) * 3 * 1.5 / 3600
    )
    assert "seeds decide it (" in best.sentences[-1] and best.point > 0
    assert "seeds decide it, against the claim (" in replace(best, point=-best.point).sentences[-1]


def test_of_comparisons_by_several_measures_each_names_its_own(root):
    """`not the best in every domain`; an end of the interval that comes from a row set apart is not shown."""
    at = "scenario=balanced|measure={0}|method="
    lead = f"{at}Ours - max({at}FedAvg & FedProx)"
    both = f"min({lead.format('M')} ; {lead.format('average')})"
    write_claims(root, [("somewhere", "Ours is not best everywhere", both, "", "<0"),
                        ("nested", "the same", f"min({both} ; {both})", "", "<0")])
    write_three(root, THREE)
    quiet, nested = verdicts(root, "somewhere", "nested")
    assert (nested.word, nested.point, nested.low) == (quiet.word, quiet.point, quiet.low)
    assert [member.name for member in quiet.members] == [
        "FedAvg and Ours, M", "FedProx and Ours, M", "FedAvg and Ours, average", "FedProx and Ours, average"]
    assert quiet.word == FAILS and "[" in quiet.measured
    write_three(root, THREE | {"fedprox": [30.0, 63.0, 45.0]})
    wild = verdicts(root, "somewhere")
    assert wild.apart == ("FedProx",) and "[" not in wild.measured
    assert [member.apart for member in wild.members] == [False, True, False, True]


def test_where_one_scenario_has_a_single_seed_that_seed_is_compared(root):
    """Not with the mean of the other scenario's seeds."""
    at = "scenario={0}|measure=M|method=Ours"
    write_claims(root, [("milder", "it is harder", at.format("skewed"), at.format("balanced"), "<0")])
    write_three(root, {"ours": THREE["ours"]})
    write_three(root, {"ours": [60.0]}, "skewed")
    found = verdicts(root, "milder")
    assert found.indicative and found.word == HOLDS
    assert found.point == pytest.approx(60.0 - 66.5) and found.by_seed == ((0, pytest.approx(60.0 - 66.5)),)


def test_copies_and_numbers_without_spread(root):
    write_claims(
        root,
        [
            *CLAIMS,
            ("equal", "as FedAvg", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", "=0"),
            ("atleast", "at least FedAvg", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", ">=0"),
        ],
    )
    write_three(root, THREE | {"ours": THREE["fedavg"]})
    above, equal, least, best = verdicts(root, "less", "equal", "atleast", "best")
    assert [(v.word, v.reason, v.indicative) for v in (above, equal, least)] == [
        (FAILS, "identical in every seed", False),
        (HOLDS, "identical in every seed", False),
        (HOLDS, "identical in every seed", False),
    ]
    assert best.word == FAILS and best.way == "Holm"
    write_three(root, {"fedavg": [60.0] * 3, "fedprox": [62.0] * 3, "ours": [66.0] * 3})
    still = verdicts(root, "more")
    assert (still.words, still.reason, still.measured) == (
        "holds (indicative)",
        "no spread over the seeds: is the seed used?",
        "+6.00",
    )


def test_near_the_ends_of_the_scale_the_other_one_is_asked(root):
    """Over two scenarios a gain of 3 to 4 points at 50 % is more than one of 2 at 97 %, and by the logit it
    is less."""
    gain = "scenario={0}|measure=average|method=Ours - scenario={0}|measure=average|method=FedAvg"
    write_claims(root, [("gain", "it gains more", gain.format("skewed"), gain.format("balanced"), ">0")])
    write_three(
        root,
        {"fedavg": [50.0, 50.3, 50.1], "fedprox": [51.0, 51.2, 51.2], "ours": [53.4, 53.8, 53.8]},
        "skewed",
    )
    write_three(
        root, {"fedavg": [97.0, 97.1, 97.1], "fedprox": [98.0, 98.1, 98.0], "ours": [99.1, 99.1, 99.2]}
    )
    gain = verdicts(root, "gain")
    assert (gain.word, gain.reason, gain.outlook) == (
        UNDECIDED,
        "depends on the scale",
        None,
    ) and gain.low > 0
    assert gain.deciding.estimate.route == "combined" and gain.partitions == 1


def test_numbers_of_curves_of_costs_and_of_kept_points(root):
    cell = Cell("fedcrl", "balanced", "ours")
    write_run(root, "balanced/ours", {"average": [40.0, 60.0]})
    path = cell.folder(root) / "history.csv"
    path.write_text(
        "seed,round,average\n"
        + "".join(
            f"{seed},{r},{value}\n"
            for seed, values in ((0, (0, 10, 13, 9)), (1, (5, "", 20, 26)))
            for r, value in enumerate(values)
        )
    )
    result = results.collect(root)[cell] | {"memory": {"process_mb": [400, 500], "device_mb": [None, None]}}

    def number(measure):
        return numbers(cell, result, measure, root)
    assert number("average") == {0: 40.0, 1: 60.0} and number("rounds.2-3.average") == {0: 11.0, 1: 23.0}
    assert number("rounds.1-2.average") == {0: 11.5, 1: 20.0} and number("changes.average") == {
        0: pytest.approx(12.5**0.5),
        1: 6.0,
    }
    assert (number("run.traffic"), number("run.memory"), number("run.seconds")) == (
        {0: 12.0, 1: 12.0},
        {0: 400, 1: 500},
        {0: 0.75, 1: 0.75},
    )
    result["traffic_of_seeds"] = {"up": [1000, 1500], "down": [2000, 2000], "bytes": [12000, 14000]}
    assert number("run.traffic") == {0: 12.0, 1: 14.0}
    assert (
        number("figure3.vectors")
        == number("figure3.silhouette")
        == number("rounds.1-2.loss")
        == number("nothing")
        == {}
    )
    geometry.write(
        "margins",
        "figure3",
        cell,
        pd.DataFrame({"label": [0, 1], "clients": [1.0, 2.0], "mean": [0.5, 1.0], "vectors": [np.nan] * 2}),
        root,
    )
    assert number("figure3.clients") == {0: 1.5} and number("figure3.vectors") == {}


def test_shares_of_rounds_pace_spread_over_domains_and_scarce_clients(root):
    """Worked by hand: above in two of four rounds; a way of 10 whose 90 % are done in round 3; of five
    clients the one with the fewest images."""
    ours, other = Cell("fedcrl", "balanced", "ours"), Cell("fedcrl", "balanced", "fedavg")
    curves = {ours: (0, 10, 14, 19, 20), other: (90, 9, 14, 18, 30)}
    for cell, curve in curves.items():
        write_run(root, f"balanced/{cell.method}", {"average": [20.0], "pre.average": [5.0]})
        text = "".join(f"0,{r},{value}\n" for r, value in enumerate(curve))
        (cell.folder(root) / "history.csv").write_text(f"seed,round,average\n{text}")
    found = results.collect(root)[ours]

    def number(measure, **given):
        return numbers(ours, found | given, measure, root)

    assert number("above.fedavg.average") == {0: 50.0} and number("above.local.average") == {}
    assert number("pace.average") == {0: 3.0} and number("pace.loss") == {}
    assert number("other.average") == {0: 5.0} and number("other.average", hook="pre") == {}
    assert number("domains.std") == number("scarce.accuracy") == {}
    sizes = "".join(f"{client},{train}\n" for client, train in enumerate((30, 7, 50, 60, 70)))
    ours.folder(root).with_name("clients.csv").write_text(f"client,train\n{sizes}")
    clients = [[10.0, 90.0, 20.0, 30.0, 40.0]]
    assert number("scarce.accuracy", clients=clients) == {0: 90.0}
    assert number("scarce.accuracy", clients=[[10.0, None, 20.0, 30.0, 40.0]]) == {}
    assert number("scarce.accuracy", clients=clients * 2, partitions=["a", "b"]) == {}


def test_the_spread_over_domains_is_of_a_scenarios_own_domains():
    cell = Cell("fedlsa", "office-caltech", "fedlsa")
    scored = {"CALTECH": [20.0], "AMAZON": [40.0], "WEBCAM": [20.0], "DSLR": [40.0], "average": [99.0]}
    assert numbers(cell, {"seeds": [0], "measures": scored}, "domains.std") == {0: 10.0}


def test_another_measure_of_a_tables_runs_is_compared_among_the_rows_of_the_table():
    found = Evidence(Printed(Study("fedlsa", load_paper("fedlsa"))))
    spot = Spot("FedLSA", scenario="office-caltech", measure="domains.std")
    assert {cell.method for cell, _ in found.pool(spot)} == {
        "fedavg", "fedprox", "moon", "fedsr", "fedproto", "fedga", "fpl", "fedtgp", "fedlsa"}
    assert {measure for _, measure in found.pool(spot)} == {"domains.std"}


def test_directions_all_around_are_more_uniform_than_a_few():
    around = np.random.default_rng(0).normal(size=(300, 3))
    assert uniformity(around) < uniformity(around + [2, 0, 0]) < uniformity(np.ones((5, 3))) == 0
    assert uniformity(np.array([[2.0, 0.0], [0.0, 3.0]])) == pytest.approx(-4)  # exp(-2 * 2) of one pair


def test_two_measures_of_one_run_are_one_number_of_it(root):
    """A loss of one method has the spread of its own runs; the difference of two such losses is pooled over
    all methods."""
    loss = f"{TABLE1}|method={{0}} - table=1|column=M|method={{0}}"
    write_claims(
        root,
        [
            ("within", "no loss", loss.format("Ours"), "", "<0"),
            ("between", "less loss", loss.format("Ours"), loss.format("FedAvg"), "<0"),
            ("level", "a mean", f"mean({TABLE1}|method=Ours & FedAvg)", "", ">0"),
        ],
    )
    for method, values, more in (
        ("fedavg", [60, 62, 61.5], [3, 2, 4]),
        ("fedprox", [61, 63, 62], [2, 3, 2.5]),
        ("ours", [66, 67, 67], [5, 6, 7.5]),
    ):
        write_run(root, f"balanced/{method}", {"average": values, "M": [a + b for a, b in zip(values, more)]})
    within, between, level = verdicts(root, "within", "between", "level")
    assert (within.deciding.estimate.route, within.deciding.estimate.df, within.point) == (
        "paired",
        2,
        pytest.approx(-18.5 / 3),
    )
    assert (between.deciding.estimate.route, between.deciding.estimate.df, between.deciding.estimate.k) == (
        "pooled",
        4,
        3,
    )
    assert between.point == pytest.approx(-18.5 / 3 + 3) and (
        level.deciding.estimate.route,
        level.deciding.estimate.df,
    ) == ("level", 2)


def test_ranks_are_judged_by_all_pairs_at_once(root):
    low = "table=2|setting=practical(beta=0.1,N=20)|column=Std."
    write_claims(
        root,
        [
            (f"first{way}", "first", f"{TABLE1}|method={who}", TABLE1, f"rank<=1{way}")
            for who, way in (("Ours", ""), ("FedAvg", " low"))
        ]
        + [
            ("second", "second", f"{TABLE1}|method=FedAvg", TABLE1, "rank<=2"),
            ("fair", "fair", f"{low}|method=Ours", low, "rank<=1 low"),
        ],
    )
    write_three(root)
    first, last, second, fair = verdicts(root, "first", "first low", "second", "fair")
    assert [(v.word, v.low, v.high) for v in (first, last, second)] == [
        (HOLDS, 1, 1),
        (HOLDS, 1, 1),
        (FAILS, 3, 3),
    ]
    assert (
        (first.p, first.way) == (max(m.p for m in first.members), "Dunnett")
        and second.deciding.name == "FedProx"
        and fair.word == WAITS
    )


def test_a_word_turns_over_with_its_claim(root):
    rows = {"fedavg": [60.0, 62.0, 61.0], "fedprox": [61.0, 61.5, 63.1], "ours": [62.9, 63.3, 61.2]}
    for name, (left, right, sign) in {"a": ("Ours", "FedAvg", ">"), "b": ("FedAvg", "Ours", "<")}.items():
        write_claims(
            root,
            [
                (
                    name,
                    name,
                    f"{TABLE1}|method={left}",
                    f"max({TABLE1}|method={right} & FedProx)".replace("max", "min" if name == "a" else "max"),
                    f"{sign}0",
                )
            ],
        )
        write_three(root, rows)
    write_claims(
        root,
        [
            ("a", "a", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", ">0"),
            ("b", "b", f"{TABLE1}|method=FedAvg", f"{TABLE1}|method=Ours", "<0"),
        ],
    )
    one, two = verdicts(root, "a", "b")
    assert (one.word, one.low, one.p, one.outlook) == (
        two.word,
        -two.high,
        two.p,
        two.outlook,
    ) and one.word == UNDECIDED


def test_published_numbers_never_stand_in_for_measured_ones(root):
    write_claims(root, CLAIMS)
    found = verdicts(root, *(row[0] for row in CLAIMS))
    assert not [verdict for verdict in found if verdict.tested or verdict.measured]


def test_one_seed_is_indicative_and_a_value_needs_two(claimed):
    shutil.rmtree(claimed / "papers/fedcrl/runs/balanced/ours")
    write_run(claimed, "balanced/ours", {name: values[:1] for name, values in BALANCED["ours"].items()})
    more, value = verdicts(claimed, "more", "value")
    # of the seed that both have
    assert (more.words, more.measured, more.size) == ("holds (indicative)", "+6.50", "")
    assert (value.word, value.reason) == (WAITS, "one seed gives no interval")
    table = page(Study.of("fedcrl", results.collect(claimed), claimed)).tables[0]
    assert (
        table.judgement.strength == "Indicative, one seed"
        and table.judgement.summary.startswith("1 of 2 tested claims points the claimed way (50 %)")
    )


def test_a_difference_of_runs_at_chance_says_nothing(claimed):
    """Of ten classes, so below 15 %; a level is judged all the same."""
    write_run(claimed, "balanced/ours", {name: [14.0, 15.9] for name in BALANCED["ours"]})
    more, value = verdicts(claimed, "more", "value")
    assert (more.word, more.reason, more.measured) == (UNTESTED, "Ours is at chance", "")
    assert value.word != UNTESTED and value.measured
    write_run(claimed, "balanced/ours", {name: [14.2, 15.9] for name in BALANCED["ours"]})
    more = verdicts(claimed, "more")
    assert more.word != UNTESTED and more.measured


def test_runs_that_share_one_seed_are_indicative(root):
    for method, seeds in (("fedavg", [0, 1]), ("ours", [1, 2])):
        path = write_run(root, f"balanced/{method}", BALANCED[method])
        history = path.with_name("history.csv")
        lines = [line.split(",", 1) for line in history.read_text().splitlines()]
        history.write_text("".join(
            f"{seeds[int(first)] if first.isdigit() else first},{rest}\n" for first, rest in lines))
        document = json.loads(path.read_text())
        path.write_text(json.dumps(seal({**document, "seeds": seeds})))
    write_claims(root, [("more", "c", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", ">0")])
    found = verdicts(root, "more")
    assert (found.words, found.reason, found.low) == ("holds (indicative)", "", None)


def test_a_table_with_some_single_seeds_is_indicative_too():
    claim = Claim("x", "", Expected("bound", 0, ">"), "", "", Number(0))
    firm, soft = Verdict(claim, HOLDS, low=1, high=2, p=0.01, seeds=3), Verdict(claim, FAILS, seeds=1)
    assert Judgement([firm], []).strength == "Verdict, 3 seeds or more"
    assert Judgement([firm, soft], []).strength == "Indicative, some numbers have one seed"
    still = Verdict(claim, HOLDS, seeds=3)                        # no spread over the seeds
    assert Judgement([firm, still], []).strength == "Indicative, some numbers do not change with the seed"
    assert Judgement([firm, soft], [], several=True).strength == "Verdict, in part indicative"
    assert (
        Judgement([firm, soft], []).shares
        == "1 of 1 tested claim holds (100 %); indicative: 0 of 1 tested claim points the claimed way (0 %)"
    )
    order = Order("", None, None, 5, 5, "ours", None, seeds=3)     # several seeds beside claims with one
    assert Judgement([soft], [order], several=True).strength == "Verdict, in part indicative"
    assert (
        Judgement([soft], [order], several=True).summary
        == "Indicative: 0 of 1 tested claim points the claimed way (0 %)."
    )
    assert Judgement([], []).summary == "" and Judgement([], []).strength == "No verdict yet"


def test_claims_are_counted_together():
    claim = Claim("x", "", Expected("bound", 0, ">"), "", "", Number(0))
    made = [
        Verdict(claim, word, low=1, high=2, p=p, seeds=3, size=size, partitions=1)
        for word, p, size in (
            (HOLDS, 0.01, CONFIRMED),
            (FAILS, 0.02, ""),
            (HOLDS, 0.04, OPEN),
            (UNDECIDED, 0.6, CONTRADICTED),
        )
    ]
    page_wide = Judgement(made, [], several=True)
    assert page_wide.firm == "1 of 3 decided claims would remain so, corrected for all 4 tests (Holm)"
    assert page_wide.firm in page_wide.summary and Judgement(made, []).summary.count("Holm") == 0
    assert page_wide.sizes == "of 3 claimed sizes: 1 confirmed, 1 contradicted, 1 open"
    assert page_wide.summary.endswith(
        "All seeds of a scenario share one partition: the words are about that one."
    )


def test_seeds_that_not_all_have_are_used_by_least_squares(root):
    write_claims(root, CLAIMS)
    write_three(root, THREE | {"ours": THREE["ours"][:2]})
    best = verdicts(root, "best")
    assert (best.way, best.seeds, [member.estimate.route for member in best.members]) == (
        "Holm",
        2,
        ["pooled", "pooled"],
    )
    assert [member.estimate.df for member in best.members] == [3, 3] and [
        seed for seed, _ in best.by_seed
    ] == [0, 1]


def test_blocks_are_seeds_with_their_partition(root):
    """The same seed on another partition is another block: nothing is left to compare in pairs."""
    write_claims(root, CLAIMS)
    write_three(root)
    path = root / "papers/fedcrl/runs/balanced/ours/result.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(seal({**document, "partition": "e" * 64})))
    more = verdicts(root, "more")
    assert (more.word, more.reason) == (WAITS, "the runs share no seed")


def test_order_of_the_methods(claimed, monkeypatch):
    monkeypatch.setattr("pipeline.report.judgement.RANKED", 3)  # the tables of this paper have no more rows
    write_run(
        claimed,
        "balanced/fedprox",
        {"average": [70.0, 70.0], "weighted": [50.0, 50.0], "clients_std": [6.0, 6.0]},
    )
    found = evidence(claimed)
    [only] = orders("table1", found)  # printed 42, 44, 46; measured 61, 70, 66.5
    assert (only.title, only.methods, only.printed, only.winner, only.place) == ("Digits", 3, 3, "Ours", 2)
    assert only.tau == pytest.approx(1 / 3) and only.correlation == "0.33 (p = 1)"
    accuracy, spread = orders("table2", found)         # Std.: printed 6, 7, 8; measured 9, 6, 4.5
    assert spread.title == "practical (β = 0.1, N = 20), Std." and spread.correlation == "−1.00 (p = 0.33)"
    assert (spread.winner, spread.place) == ("FedAvg", 3) and accuracy.tau == pytest.approx(1 / 3)
    shutil.rmtree(claimed / "papers/fedcrl/runs/balanced/ours")
    assert orders("table1", evidence(claimed)) == []
    assert Judgement([], [accuracy, spread]).ranking.startswith(
        "order of the methods against the published one: Kendall's τ −0.33 on average over 2 columns (−1.00 "
        "to 0.33)"
    )
    monkeypatch.undo()
    assert orders("table1", found) == []               # three methods tell no order from chance


def test_mean_ranks_of_a_table_need_three_scenarios(root):
    path = root / "papers/fedcrl/paper.yaml"
    document = yaml.safe_load(path.read_text())
    document["scenarios"] |= {"third": document["scenarios"]["balanced"]}
    document["tables"]["table2"]["blocks"]["other|Third"] = {"scenario": "third"}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    with (root / "papers/fedcrl/published/table2.csv").open("a", newline="") as file:
        csv.writer(file).writerows(
            ["fedcrl", "2", "other", "Third", "Acc.", method, "50.0", "", ""]
            for method in ("FedAvg", "FedProx", "Ours")
        )
    for scenario in ("balanced", "skewed"):
        write_three(root, scenario=scenario)
    assert of_table("table2", evidence(root)) is None
    write_three(root, {name: THREE[name] for name in ("fedavg", "ours")}, "third")
    assert of_table("table2", evidence(root)) is None  # not every method has run there
    write_three(root, scenario="third")
    found = of_table("table2", evidence(root))
    assert found.text.startswith(
        "Mean ranks over 3 scenarios (1 is the best): Ours 1.00, FedProx 2.00, FedAvg 3.00. Friedman test"
    )
    assert (
        "p = 0.028" in found.text and "No bars are drawn for fewer than 5 scenarios." in found.drawing.caption
    )
    svg = found.drawing.draw()
    assert svg.count('id="rank-') == 3 and 'id="group-' not in svg
    render(["fedcrl"], root)
    assert (
        found.text in (root / "reports/fedcrl.html").read_text()
        and (root / "reports/figures/fedcrl-table2-ranks.svg").read_text() == svg
    )


def test_claims_are_judged_again_by_a_variant_of_their_tables(claimed):
    path = claimed / "papers/fedcrl/paper.yaml"
    document = yaml.safe_load(path.read_text())
    document["tables"]["table1-long"] = {
        **document["tables"]["table1"],
        "blocks": {"even,public=a|Digits": {"scenario": "skewed"}},
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    for method, value in (("ours", 50.0), ("fedavg", 60.0), ("fedprox", 40.0)):
        write_run(claimed, f"skewed/{method}", {"average": [value, value]})
    shown = page(Study.of("fedcrl", results.collect(claimed), claimed))
    words = {table.key: {v.claim.id: v.word for v in table.judgement.verdicts} for table in shown.tables}
    assert (words["table1"]["more"], words["table1-long"]["more"]) == (UNDECIDED, FAILS)
    assert (words["table1"]["best"], words["table1-long"]["best"]) == (WAITS, FAILS)
    assert len(shown.judgement.verdicts) == len(CLAIMS)                          # a claim counts once


def test_ordinals():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 22, 103, 111)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "21st",
        "22nd",
        "103rd",
        "111th",
    ]


# -- on the pages --------------------------------------------------------------------------------------------

def test_the_pages_show_claims_verdict_and_deviations(claimed):
    write_three(claimed)
    render(["fedcrl"], claimed)
    html, text, body = ((claimed / f"reports/fedcrl.{kind}").read_text() for kind in ("html", "md", "tex"))
    summary = (
        "2 of 4 tested claims hold (50 %), 2 fail; of 1 claimed size: 1 contradicted; "
        "1 cannot be tested by a run"
    )
    for shown in (html, text, body.replace(r"\%", "%")):
        assert summary in shown and "Not as in the paper" in shown and "every second image" in shown
    claim = html.partition('id="claim-more"')[2].partition("</li>")[0]
    assert '<span class="chip holds">direction holds</span>' in claim
    assert '<span class="chip contradicted">size contradicted</span>' in claim
    assert ("Measured +6.50 [+6.27, +6.73] over 3 seeds, published +4.44: the direction holds, the size is "
            "contradicted.") in claim
    row = (
        "| Ours is 4.44 above FedAvg `more` | `=4.44` | +4.44 | +6.50 \\[+6.27, +6.73\\] (3 seeds) | "
        "**direction holds; size contradicted**<br><small>By seed: +6.50 (seed 0), "
    )
    assert (
        row in text
        and "+6.60 (seed 1), +6.40 (seed 2): 3 of 3 above 0. Residual spread 0.1 of 3 methods over 3 seeds, "
            "4 degrees of freedom: p &lt; 0.0001."
        in html
    )
    assert "not enough runs: 0 of 1 cells have run" in unlinked(text) and "3 of 3 above 0" in body
    check_tex(body)
    assert body.count(r"\begin{longtable}") == 2  # table 1, and the claims beyond the tables
    assert "the whole interval agrees with the claim" in html and "the whole interval contradicts" in text
    index = (claimed / "reports/index.md").read_text()
    assert (
        "Of four claims tested with several seeds two hold (one of them in direction, not in size) and two "
        "fail; two claims wait for runs; three cannot be tested by a run." in index
    )


def test_a_page_per_scenario_tells_where_its_numbers_come_from(claimed):
    render(["fedcrl"], claimed)
    assert 'href="runs/fedcrl/balanced.html#ours"' in (claimed / "reports/fedcrl.html").read_text()
    html = (claimed / "reports/runs/fedcrl/balanced.html").read_text()
    section = html.partition('id="ours"')[2]
    for fact in (
        "c" * 40 + " with uncommitted changes",
        "a" * 64,
        "b" * 64,
        "digits (bundled)",
        "every second image",
        "<dd>cpu</dd>",
        "2 s, 2 s (by seed)",
        "the method&#39;s defaults",
        "../../../papers/fedcrl/runs/balanced/ours/result.json",
        "Ours: accuracy (average) over 2 rounds, a line per seed",
        '<text class="r" x="-6" y="4">66.5</text>',
        "seed 1</span>",
    ):
        assert fact in section, fact
    lines = re.findall(r'<path class="seed" style="--c: var\((--c\d)\)" d="M0 120L300 60L600 0"/>', section)
    assert lines == ["--c1", "--c2"] and "kind: dirichlet" in html


def test_a_run_that_differs_from_what_is_asked_for_now_says_so(claimed):
    path = claimed / "papers/fedcrl/paper.yaml"
    path.write_text(
        path.read_text()
        .replace("rounds: 2", "rounds: 40")
        .replace("label: FedAvg", "label: FedAvg\n    mu: 0.5")
    )
    notes = {
        note.scenario: note.texts
        for note in page(Study.of("fedcrl", results.collect(claimed), claimed)).notes
    }
    assert "all methods: 2 rounds instead of 40." in notes["balanced"]
    assert "FedAvg: run with the method's defaults, paper.yaml now has mu = 0.5." in notes["balanced"]


def test_a_run_of_earlier_code_says_so(claimed):
    for folder in ("pipeline", "stages"):
        (claimed / folder).symlink_to(ROOT / folder)

    def texts() -> list[str]:
        study = Study.of("fedcrl", results.collect(claimed), claimed)
        return next(note.texts for note in page(study).notes if note.scenario == "balanced")

    path = claimed / "papers/fedcrl/runs/balanced/fedavg/result.json"
    result = json.loads(path.read_text()) | {"precision": "fp32"}
    today = provenance.cell_digest(Cell("fedcrl", "balanced", "fedavg"), result["partition"], root=claimed)
    path.write_text(json.dumps(seal(result | {"digest": today})))
    assert not any("have changed since" in text for text in texts())
    path.write_text(json.dumps(seal(result | {"digest": "b" * 64})))
    assert ("FedAvg: measured with code or parameters that have changed since, and not yet measured again."
            in texts())


def test_seeds_on_one_draw_of_the_partition_say_so(claimed):
    path = claimed / "papers/fedcrl/paper.yaml"
    path.write_text(path.read_text().replace("fixed: true", "fixed: false"))
    found = page(Study.of("fedcrl", results.collect(claimed), claimed))
    assert "all methods: all seeds on one draw of the partition; by now each has its own." in next(
        note.texts for note in found.notes if note.scenario == "balanced")
    assert found.older == 2 and ", two of them with older code, parameters or draws, " in found_in([found])


def test_seeds_on_draws_of_their_own_that_are_to_share_one_say_so(claimed):
    path = claimed / "papers/fedcrl/runs/balanced/fedavg/result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(seal(result | {"partitions": [result["partition"]] * len(result["seeds"])})))
    notes = page(Study.of("fedcrl", results.collect(claimed), claimed)).notes
    assert "FedAvg: each seed on a draw of its own; by now they share one." in next(
        note.texts for note in notes if note.scenario == "balanced")


def test_run_pages_of_scenarios_without_runs_go_away(claimed):
    render(["fedcrl"], claimed)
    shutil.rmtree(claimed / "papers/fedcrl/runs/balanced")
    render(["fedcrl"], claimed)
    left = {path.name for path in (claimed / "reports/runs/fedcrl").iterdir()}
    assert left == {"mini.html", "miniature.html"}


def test_all_reports_need_no_torch_and_no_data(tmp_path):
    for name in PAPERS:
        shutil.copytree(
            ROOT / "papers" / name,
            tmp_path / "papers" / name,
            ignore=shutil.ignore_patterns("partitions", "representations"),
        )
    shutil.copy(ROOT / "params.yaml", tmp_path)
    script = f"""if True:
        import sys
        from pathlib import Path
        from pipeline.report import render
        written = render(root=Path({str(tmp_path)!r}))
        assert "torch" not in sys.modules and len(written) > 17"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
