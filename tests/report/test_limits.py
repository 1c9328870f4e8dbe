"""Runs that cannot test a claim say why; two seeds decide nothing that their pair does not bear out."""

import json

import pytest
from reporting import write_claims, write_run

from pipeline.cells import results
from pipeline.report.claims import PublishedNumbers, read_claims
from pipeline.report.measures import locally_trained
from pipeline.report.study import Study
from pipeline.report.verdicts import Chip, Evidence, judge
from pipeline.sealing import seal

RUNS = "scenario=balanced|measure={}|method={}"


def judged(root, left, right, expected):
    write_claims(root, [("one", "", left, right, expected)])
    evidence = Evidence(PublishedNumbers(Study.of("fedcrl", results.collect(root), root)))
    [claim] = read_claims(evidence.printed)
    return judge(claim, evidence)


def sides(measure):
    return RUNS.format(measure, "Ours"), RUNS.format(measure, "FedAvg")


@pytest.mark.parametrize(
    "measure, expected, reason",
    [
        ("rounds.1-20.average", ">0", "asks for rounds 1 to 20, the runs have 2"),
        ("pace.average", "<50", "asks for fewer than 50 rounds, the runs have 2"),
        ("changes.average", ">0", "2 scored rounds show no unsteadiness"),
    ],
)
def test_a_claim_that_shorter_runs_cannot_test_says_why(measured, measure, expected, reason):
    verdict = judged(measured, *sides(measure), expected)
    assert (verdict.chip, verdict.reason, verdict.low) == (Chip.NOT_TESTABLE, reason, None)


def test_a_window_that_the_runs_have_is_tested(measured):
    assert judged(measured, *sides("rounds.1-2.average"), ">0").chip != Chip.NOT_TESTABLE


def test_wall_times_of_two_kinds_of_processor_are_not_compared(measured):
    assert judged(measured, *sides("run.seconds"), ">=0").chip != Chip.NOT_TESTABLE
    path = measured / "papers/fedcrl/runs/balanced/ours/result.json"
    document = json.loads(path.read_text())
    document.pop("self")
    document["versions"] = document["versions"] | {"processor": "another"}
    path.write_text(json.dumps(seal(document)))
    verdict = judged(measured, *sides("run.seconds"), ">=0")
    assert verdict.reason == "wall times of 2 kinds of processor do not compare"


def test_two_seeds_are_decided_by_their_pair_and_not_by_the_residual_of_all_rows(root):
    """Ours is 5 and 8 above FedAvg: +6.5 ± 4.6 by the residual of three rows, ± 19 by the pair."""
    for method, values in {"fedavg": [60.0, 62.0], "fedprox": [60.5, 63.5], "ours": [65.0, 70.0]}.items():
        write_run(root, f"balanced/{method}", {"average": values})
    verdict = judged(root, "table=1|column=Avg|method=Ours", "table=1|column=Avg|method=FedAvg", ">0")
    assert verdict.chip == Chip.UNDECIDED
    assert (verdict.low, verdict.high) == pytest.approx((6.5 - 19.06, 6.5 + 19.06), abs=0.01)


def test_a_difference_is_that_of_the_means_over_the_seeds_that_both_have(root):
    write_run(root, "balanced/fedavg", {"average": [60.0, 62.0, 61.0, 90.0]})
    write_run(root, "balanced/fedprox", {"average": [60.0, 63.0, 60.0, 95.0]})
    write_run(root, "balanced/ours", {"average": [64.0, 66.0, 66.0]})
    verdict = judged(root, "table=1|column=Avg|method=Ours", "table=1|column=Avg|method=FedAvg", ">0")
    assert verdict.point == pytest.approx((4 + 4 + 5) / 3)


@pytest.mark.parametrize(
    ("measure", "after"),
    [
        ("average", "post.average"),
        ("rounds.1-20.average", "rounds.1-20.post.average"),
        ("pace.weighted", "pace.post.weighted"),
    ],
)
def test_a_measure_of_locally_trained_models_keeps_its_statistic(measure, after):
    assert locally_trained(measure) == after
