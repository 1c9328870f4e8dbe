"""Verdicts: none is stronger than the runs, and one function counts them."""

import json

import pytest
from reporting import BALANCED, write_claims, write_run
from repository import edit

from pipeline.cells import results
from pipeline.report.claims import PublishedNumbers, read_claims
from pipeline.report.study import Study
from pipeline.report.verdicts import Chip, Evidence, count, judge, variants, verdicts
from pipeline.sealing import seal

AVG = "table=1|column=Avg"
OURS, FEDAVG, OTHERS = f"{AVG}|method=Ours", f"{AVG}|method=FedAvg", f"max({AVG}|method!=Ours)"
LOW = "table=2|setting=practical(beta=0.1,N=20)|column=Std."
CLAIMS = [
    ("more", "Ours is 4.44 above FedAvg", OURS, FEDAVG, "=4.44"),
    ("best", "Ours is best", OURS, OTHERS, ">0"),
    ("value", "Ours reaches 46.66", OURS, "", "=46.66"),
    ("less", "Ours is below FedAvg", OURS, FEDAVG, "<0"),
    ("fair", "Ours has the lowest spread of the two", f"{LOW}|method=Ours", f"{LOW}|method=Ours & FedAvg",
     "rank<=1 low"),
    ("size", "there are 7007 digits", "table=3|dataset=Digits|column=N", "", "=7007"),
    ("same", "FedAvg is FedAvg", FEDAVG, FEDAVG, "=0"),
    ("words", "it is fast", "", "", "text"),
    ("run", "Ours reaches 80", "scenario=skewed|measure=M|method=Ours", "", "=80"),
]  # fmt: skip
# The printed table 1 has FedAvg, FedProx and Ours.
THREE = {"fedavg": [60.0, 62.0, 61.0], "fedprox": [62.0, 63.9, 63.1], "ours": [66.5, 68.6, 67.4]}

# Ours is ahead of both, but not surely.
OPEN = {"fedavg": [60.0, 62.0, 61.0], "fedprox": [61.0, 61.5, 63.1], "ours": [62.9, 63.3, 61.2]}
NOISY = {"fedavg": [60.0, 63.0, 61.0], "fedprox": [60.0, 62.5, 65.1], "ours": [62.9, 66.3, 61.2]}

YAML = "papers/fedcrl/paper.yaml"


def write_three(root, rows=THREE, scenario="balanced"):
    for method, values in rows.items():
        measures = {"average": values, "weighted": values, "M": [value - 5 for value in values]}
        write_run(root, f"{scenario}/{method}", measures)


def judged(root, *names):
    evidence = Evidence(PublishedNumbers(Study.of("fedcrl", results.collect(root), root)))
    made = {claim.id: judge(claim, evidence) for claim in read_claims(evidence.printed)}
    return [made[name] for name in names] if len(names) > 1 else made[names[0]]


def alter(path, **changes):
    """A result as if it had other facts."""
    path.write_text(json.dumps(seal(json.loads(path.read_text()) | changes)))


def test_verdicts_of_every_kind(root):
    more = [("near", "", OURS, FEDAVG, "abs<8"), ("all", "", OURS, FEDAVG, "=6.5"),
            ("far", "", OURS, "", "=60"), ("at", "", OURS, "", "=67")]  # fmt: skip
    write_claims(root, [*CLAIMS, *more])
    write_three(root)
    more, best, less = judged(root, "more", "best", "less")
    assert (more.chip, more.size, more.seeds, more.points) == (Chip.HOLDS, "larger", 3, True)
    assert (more.point, more.printed) == (pytest.approx(6.5), pytest.approx(4.44))
    assert (more.low, more.high) == (pytest.approx(6.27, abs=0.01), pytest.approx(6.73, abs=0.01))
    assert [*more.by_seed.values()] == pytest.approx([6.5, 6.6, 6.4])
    assert (best.chip, best.rival, best.printed) == (Chip.HOLDS, "FedProx", pytest.approx(2.22))
    assert best.method.endswith("Holm over 2")
    assert 0 < best.low < best.point < best.high
    assert less.chip == Chip.FAILS
    assert less.p == more.p
    assert less.rival == ""
    near, all_, far, at = judged(root, "near", "all", "far", "at")
    assert (near.chip, all_.chip, all_.size) == (Chip.HOLDS, Chip.HOLDS, "as printed")
    assert (far.chip, at.chip, at.points) == (Chip.FAILS, Chip.UNDECIDED, False)
    assert (at.point, at.low, at.high) == pytest.approx((67.5, 64.88, 70.12), abs=0.005)
    size, same, words, run = judged(root, "size", "same", "words", "run")
    assert {verdict.chip for verdict in (size, same, words)} == {Chip.NOT_TESTABLE}
    assert len({verdict.reason for verdict in (size, same, words)}) == 3
    assert run.chip == Chip.NOT_RUN


def test_what_runs_later_changes_no_verdict(root):
    write_claims(root, CLAIMS)
    write_three(root)
    before = judged(root, "best")
    edit(root / YAML, lambda document: document["methods"].update(reading={"label": "Reading"}))
    write_run(root, "balanced/reading", {"average": [10.0, 90.0, 30.0]})
    assert judged(root, "best") == before


def test_a_rival_of_another_spread_may_leave_a_claim_open(root):
    """The paired t test of that rival decides where the nearest rival does not, and gives the interval."""
    write_claims(root, CLAIMS)
    write_three(root, THREE | {"fedprox": [30.0, 63.0, 45.0]})
    best, more = judged(root, "best", "more")
    assert (best.chip, best.rival) == (Chip.UNDECIDED, "FedProx")
    assert best.low < 0 < best.point < best.high
    assert "FedProx" in best.method
    assert "FedProx" in more.method
    assert more.size == "larger"
    assert more.needed is None
    assert best.needed is None  # a printed lead of 2 would need over 100 seeds


def test_the_hours_are_those_of_the_further_seeds(root):
    write_claims(root, CLAIMS)
    write_three(root, OPEN)
    best = judged(root, "best")
    assert best.chip == Chip.UNDECIDED
    assert best.needed > 3
    assert best.hours == pytest.approx((best.needed - 3) * 3 * 1.5 / 3600)


def test_the_needed_seeds_come_from_the_printed_difference_not_from_the_measured_one(root):
    write_claims(root, [("more", "", OURS, FEDAVG, ">0")])
    needed = []
    for shift in (0, -2):
        write_three(root, NOISY | {"ours": [value + shift for value in NOISY["ours"]]})
        more = judged(root, "more")
        assert more.chip == Chip.UNDECIDED
        needed.append(more.needed)
    assert needed[0] == needed[1] > 3


def test_a_claim_that_its_own_tables_contradict_has_no_needed_seeds(root):
    write_claims(root, [("less", "", OURS, FEDAVG, "<0")])
    write_three(root, NOISY)
    less = judged(root, "less")
    assert less.chip == Chip.UNDECIDED
    assert less.needed is None


def test_an_open_direction_whose_interval_excludes_the_named_size_contradicts_it(root):
    write_claims(root, [("more", "", OURS, FEDAVG, "=4.44")])
    write_three(root, THREE | {"ours": [60.1, 61.9, 61.1]})
    more = judged(root, "more")
    assert (more.chip, more.size) == (Chip.CONTRADICTED, "smaller")


def test_the_least_of_several_leads_names_its_rival_and_its_measure(root):
    """`Not the best in every domain`."""
    at = "scenario=balanced|measure={0}|method="
    lead = f"{at}Ours - max({at}FedAvg & FedProx)"
    both = f"min({lead.format('M')} ; {lead.format('average')})"
    write_claims(root, [("somewhere", "", both, "", "<0"), ("nested", "", f"min({both} ; {both})", "", "<0")])
    write_three(root)
    one, nested = judged(root, "somewhere", "nested")
    assert (nested.chip, nested.point, nested.low) == (one.chip, one.point, one.low)
    assert one.chip == Chip.FAILS
    assert one.rival in ("Ours and FedProx, M", "Ours and FedProx, average")
    assert one.method.endswith("Holm over 4")


def test_where_one_scenario_has_a_single_seed_that_seed_is_compared(root):
    """Not with the mean of the other scenario's seeds."""
    at = "scenario={0}|measure=M|method=Ours"
    write_claims(root, [("milder", "", at.format("skewed"), at.format("balanced"), "<0")])
    write_three(root, {"ours": THREE["ours"]})
    write_three(root, {"ours": [60.0]}, "skewed")
    milder = judged(root, "milder")
    assert (milder.chip, milder.low, milder.point) == (Chip.ONE_FOR, None, pytest.approx(-6.5))
    assert milder.by_seed == {0: pytest.approx(-6.5)}


def test_copies_are_equal_and_numbers_without_spread_decide_nothing(root):
    more = [("equal", "", OURS, FEDAVG, "=0"), ("least", "", OURS, FEDAVG, ">=0")]
    write_claims(root, [*CLAIMS, *more])
    write_three(root, THREE | {"ours": THREE["fedavg"]})
    less, equal, least, best = judged(root, "less", "equal", "least", "best")
    assert [v.chip for v in (less, equal, least)] == [Chip.FAILS, Chip.HOLDS, Chip.HOLDS]
    assert (least.point, least.low, least.high) == (0, 0, 0)
    assert "identical" in least.method
    assert best.chip == Chip.FAILS
    write_three(root, {"fedavg": [60.0] * 3, "fedprox": [62.0] * 3, "ours": [66.0] * 3})
    more, less = judged(root, "more", "less")
    assert (more.chip, more.point, more.low, more.size) == (Chip.ONE_FOR, 6, None, "")
    assert less.chip == Chip.ONE_AGAINST


def test_traffic_that_is_the_same_in_every_seed_is_judged_without_a_test(measured):
    cost = "scenario=balanced|measure=run.traffic|method="
    sides = f"{cost}Ours", f"{cost}FedAvg"
    kinds = {"least": "<0", "most": ">0", "equal": "abs<0.01", "size": "=-12", "about": "~-6"}
    rows = [(name, "", *sides, kind) for name, kind in kinds.items()]
    write_claims(measured, [*rows, ("mixed", "", f"{cost}FedProx", f"min({cost}Ours & FedAvg)", "<0")])
    path = measured / "papers/fedcrl/runs/balanced/ours/result.json"
    alter(path, traffic={"up": 0, "down": 1500, "bytes": 6000})
    made = judged(measured, *kinds)
    chips = (Chip.HOLDS, Chip.FAILS, Chip.FAILS, Chip.HOLDS, Chip.HOLDS)
    assert [(one.chip, one.point, one.low) for one in made] == [(chip, -6.0, None) for chip in chips]
    assert [one.size for one in made] == ["", "", "", "smaller", "as printed"]
    alter(path, traffic_of_seeds={"up": [0, 0], "down": [0, 0], "bytes": [6000, 7000]})
    assert [one.text(one.point) for one in made[::3]] == ["−6 kB"] * 2
    spread = judged(measured, "least")
    assert spread.low is not None
    assert "kB" not in spread.interval
    assert spread.interval.startswith("[−")
    alter(path, traffic_of_seeds={"up": [0, 0], "down": [0, 0], "bytes": [6000, 6010]})
    write_run(measured, "balanced/fedprox", {"average": [60.0, 62.0]})
    alter(path.parents[1] / "fedprox/result.json", traffic={"up": 0, "down": 750, "bytes": 3000})
    assert judged(measured, "mixed").chip == Chip.HOLDS  # one difference spreads over the seeds, one does not


def test_two_measures_of_one_run_are_one_number_of_it(root):
    """A loss of one method has the spread of its runs; a difference of two losses is pooled over methods."""
    loss = f"{AVG}|method={{0}} - table=1|column=M|method={{0}}"
    rows = [("within", "", loss.format("Ours"), "", "<0"),
            ("between", "", loss.format("Ours"), loss.format("FedAvg"), "<0"),
            ("level", "", f"mean({AVG}|method=Ours & FedAvg)", "", ">0")]  # fmt: skip
    write_claims(root, rows)
    runs = {"fedavg": ([60, 62, 61.5], [3, 2, 4]), "fedprox": ([61, 63, 62], [2, 3, 2.5]),
            "ours": ([66, 67, 67], [5, 6, 7.5])}  # fmt: skip
    for method, (values, more) in runs.items():
        write_run(root, f"balanced/{method}", {"average": values, "M": [a + b for a, b in zip(values, more)]})
    within, between, level = judged(root, "within", "between", "level")
    assert (within.point, between.point) == pytest.approx((-18.5 / 3, -18.5 / 3 + 3))
    assert "2 df" in within.method
    assert "3 rows" in between.method
    assert "4 df" in between.method
    assert level.chip == Chip.HOLDS
    assert "2 df" in level.method


def test_ranks_are_judged_by_all_pairs_at_once(root):
    write_claims(root, [
        ("first", "", OURS, AVG, "rank<=1"), ("low", "", FEDAVG, AVG, "rank<=1 low"),
        ("second", "", FEDAVG, AVG, "rank<=2"), ("best", "", OURS, OTHERS, ">0"),
        ("fair", "", f"{LOW}|method=Ours", LOW, "rank<=1 low"),
    ])  # fmt: skip
    write_three(root)
    first, low, second, best, fair = judged(root, "first", "low", "second", "best", "fair")
    assert [(v.chip, v.point, v.low, v.high) for v in (first, low, second)] == [
        (Chip.HOLDS, 1, 1, 1), (Chip.HOLDS, 1, 1, 1), (Chip.FAILS, 3, 3, 3)]  # fmt: skip
    assert (first.p, first.rival, first.points) == (best.p, best.rival, False)
    assert second.rival == "FedProx"
    assert fair.chip == Chip.NOT_RUN


def test_published_numbers_never_stand_in_for_measured_ones(root):
    write_claims(root, CLAIMS)
    made = judged(root, *(row[0] for row in CLAIMS))
    assert {verdict.chip for verdict in made} == {Chip.NOT_RUN, Chip.NOT_TESTABLE}
    assert {verdict.point for verdict in made} == {None}


def test_one_seed_only_points_and_a_value_needs_two(measured):
    write_claims(measured, CLAIMS)
    write_run(measured, "balanced/ours", {name: values[:1] for name, values in BALANCED["ours"].items()})
    more, less, value = judged(measured, "more", "less", "value")
    # Of the seed that both have.
    assert (more.chip, more.point, more.low, more.size) == (Chip.ONE_FOR, pytest.approx(6.5), None, "")
    assert (less.chip, value.chip) == (Chip.ONE_AGAINST, Chip.NOT_RUN)


def test_a_difference_of_runs_at_chance_says_nothing(measured):
    """Of ten classes, so below 15 %; a level is judged all the same, and so is a cost."""
    cost = "scenario=balanced|measure=run.seconds|method="
    write_claims(measured, [*CLAIMS, ("cost", "", f"{cost}Ours", f"{cost}FedAvg", "<=0")])
    write_run(measured, "balanced/ours", {name: [14.0, 15.9] for name in BALANCED["ours"]})
    more, value = judged(measured, "more", "value")
    assert (more.chip, more.point) == (Chip.NOT_TESTABLE, None)
    assert "Ours" in more.reason
    assert value.point == pytest.approx(14.95)
    assert judged(measured, "cost").chip == Chip.HOLDS
    write_run(measured, "balanced/ours", {name: [14.2, 15.9] for name in BALANCED["ours"]})
    assert judged(measured, "more").point is not None


def test_runs_that_share_one_seed_or_none_decide_nothing(root):
    write_claims(root, [("more", "", OURS, FEDAVG, ">0")])
    for other, chip in ((1, Chip.ONE_FOR), (2, Chip.NOT_RUN)):
        for method, first in (("fedavg", 0), ("ours", other)):
            path = write_run(root, f"balanced/{method}", BALANCED[method])
            lines = [line.split(",", 1) for line in path.with_name("history.csv").read_text().splitlines()]
            path.with_name("history.csv").write_text(
                "".join(f"{first + int(seed) if seed.isdigit() else seed},{rest}\n" for seed, rest in lines)
            )
            alter(path, seeds=[first, first + 1])
        more = judged(root, "more")
        assert (more.chip, more.low) == (chip, None)


def test_blocks_are_seeds_with_their_partition(root):
    """The same seed on another partition is another block: nothing is left to compare in pairs."""
    write_claims(root, CLAIMS)
    write_three(root)
    alter(root / "papers/fedcrl/runs/balanced/ours/result.json", partition="e" * 64)
    assert judged(root, "more").chip == Chip.NOT_RUN


def test_claims_are_judged_elsewhere_by_a_variant_of_their_table_and_count_once(measured):
    write_claims(measured, CLAIMS)
    long = {"number": "1, long", "blocks": {"even,public=a|Digits": {"scenario": "skewed"}}}
    edit(measured / YAML, lambda d: d["tables"].update({"table1-long": d["tables"]["table1"] | long}))
    for method, value in (("ours", 50.0), ("fedavg", 60.0), ("fedprox", 40.0)):
        write_run(measured, f"skewed/{method}", {"average": [value, value]})
    study = Study.of("fedcrl", results.collect(measured), measured)
    assert variants(study.paper) == {"table1-long": ("table1", "long")}
    made = verdicts(study)
    by_id = {verdict.claim.id: verdict for verdict in made}
    [(heading, other)] = by_id["more"].elsewhere.items()
    assert (heading, other.chip, other.point) == ("long", Chip.ONE_AGAINST, -10)
    assert [verdict.claim.id for verdict in made] == [row[0] for row in CLAIMS]
    assert not by_id["fair"].elsewhere
    assert sum(count(made).values()) == len(CLAIMS)


def test_shortened_runs_judge_by_themselves_what_has_not_run(root):
    def add(paper):
        paper["scenarios"]["balanced-short"] = paper["scenarios"]["balanced"]
        paper["extra_scenarios"] = ["balanced-short"]
        paper["grids"]["short"] = {"scenarios": ["balanced-short"], "methods": [*THREE]}

    edit(root / YAML, add)
    write_claims(root, CLAIMS)
    write_three(root, scenario="balanced-short")

    def made():
        judged = verdicts(Study.of("fedcrl", results.collect(root), root))
        return {verdict.claim.id: verdict for verdict in judged}

    assert (made()["best"].chip, made()["best"].shortened.chip) == (Chip.NOT_RUN, Chip.HOLDS)
    assert count(made().values())[Chip.HOLDS] == 0
    assert not made()["run"].elsewhere
    write_three(root)
    assert made()["best"].chip == Chip.HOLDS
    assert not made()["best"].elsewhere
