"""The best choice of made-up claims, and what a small paper's claims need."""

import shutil

import pytest
import yaml
from reporting import write_claims, write_run
from repository import edit

from pipeline.cells.experiment import Experiment
from pipeline.commands import plan
from pipeline.commands.plan import MissingRuns, Price, choose, hours_of, runs_of
from pipeline.files import write_json
from pipeline.provenance import identity
from pipeline.schema import ROOT, Cell
from pipeline.sealing import seal

A, B, C, D = (
    Cell("toy", scenario, method)
    for scenario, method in [("one", "a"), ("one", "b"), ("two", "a"), ("three", "a")]
)


def needs(prices, **claims):
    """A claim for every name: its cells with the seeds that each must have, and perhaps a chance."""
    return [MissingRuns(name, runs_of(seeds[0], prices), *seeds[1:]) for name, seeds in claims.items()]


def names(bundles):
    return [sorted(need.claim for need in bundle.needs) for bundle in bundles]


def test_the_choice_of_claims():
    """With 11 hours: A alone gives nothing, A and B two claims for 10.5, C one for 9."""
    prices = {A: Price(0, 10.0), B: Price(0, 0.5), C: Price(0, 9.0)}
    claims = needs(prices, first=({A: 1, B: 1},), second=({A: 1, B: 1},), third=({C: 1},))
    [bundle] = choose(claims, prices, 11)
    assert names([bundle]) == [["first", "second"]]
    assert bundle.cells == [A, B]
    assert bundle.hours == pytest.approx(10.5)
    assert names(choose(claims, prices, 10)) == [["third"]]
    assert names(choose(claims, prices, 8)) == []
    assert names(choose(claims, prices, 20)) == [["first", "second"], ["third"]]
    # None of the three is as cheap as C; together they are.
    more = [Cell("toy", "one", name) for name in "xyz"]
    prices = {A: Price(0, 10.0), C: Price(0, 9.0)} | dict.fromkeys(more, Price(0, 0.1))
    claims = needs(prices, third=({C: 1},), **{cell.method: ({A: 1, cell: 1},) for cell in more})
    assert names(choose(claims, prices, 11)) == [["x", "y", "z"]]
    # Two seeds are there of A, three are wanted; B of the same scenario then has three as well.
    prices = {A: Price(2, 1.0), B: Price(0, 1.0), C: Price(0, 3.0)}
    claims = needs(prices, open=({A: 3}, 0.8), waits=({B: 2},), other=({C: 1},))
    assert hours_of(claims[0].runs, prices) == 1
    assert hours_of(claims[1].runs, prices) == 2
    assert hours_of(claims[0].runs | claims[1].runs, prices) == 4
    assert names(choose(claims, prices, 3)) == [["open"]]  # with `waits` it would take four
    assert names(choose(claims, prices, 1)) == [["open"]]
    prices = {A: Price(0, 1.0), C: Price(0, 1.0)}
    assert names(choose(needs(prices, likely=({A: 1}, 0.8), certain=({C: 1},)), prices, 1)) == [["certain"]]


TABLE1 = "table=1|column=Avg"
CLAIMS = [
    ("settled", "Ours is above FedAvg", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedAvg", ">0"),
    ("waits", "Ours is above FedProx", f"{TABLE1}|method=Ours", f"{TABLE1}|method=FedProx", ">0"),
    ("best", "Ours is best", f"{TABLE1}|method=Ours", f"max({TABLE1}|method!=Ours)", ">0"),
    ("words", "it is fast", "", "", "text"),
]
FEDPROX = Cell("fedcrl", "balanced", "fedprox")


@pytest.fixture
def claimed(root):
    """One paper whose scenario `balanced` has FedAvg and Ours of three methods, valid as of today's code."""
    for name in ("pipeline", "stages"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    write_claims(root, CLAIMS)
    change(root, "methods", "ours", algorithm="fedavg")
    finish(root, "fedavg", [60.0, 61.0])
    finish(root, "ours", [66.0, 67.2])
    return root


def change(root, kind, name, **values):
    """Edit an entry of paper.yaml."""
    edit(root / "papers/fedcrl/paper.yaml", lambda document: document[kind][name].update(values))


def finish(root, method, average):
    """A run that `fedrepro status` calls done, of an hour a seed."""
    path = write_run(root, f"balanced/{method}", {"average": average})
    cell, digest = Cell("fedcrl", "balanced", method), "b" * 64
    document = {name: value for name, value in yaml.safe_load(path.read_text()).items() if name != "seal"}
    document |= {"precision": "fp32", "executor": "sequential", "seconds": [3600.0] * len(average)}
    document["digest"] = identity.cell_digest(Experiment.of(cell, root), digest)
    write_json(path, seal(document))


def test_only_claims_that_wait_or_could_be_decided_are_offered(claimed):
    actual = plan.plan_inputs(["fedcrl"], claimed)
    assert [need.claim for need in actual.needs] == [
        "FEDCRL waits: Ours is above FedProx",
        "FEDCRL best: Ours is best",
    ]
    assert {need.runs for need in actual.needs} == {frozenset({(FEDPROX, 0), (FEDPROX, 1)})}
    assert hours_of(actual.needs[0].runs, actual.prices) == pytest.approx(2.0)
    assert not actual.without


@pytest.mark.parametrize("ours, offered", [([62.0, 61.5], True), ([20.0, 99.0], False)])
def test_an_undecided_claim_is_offered_where_more_seeds_promise_to_decide_it(claimed, ours, offered):
    finish(claimed, "ours", ours)
    actual = plan.plan_inputs(["fedcrl"], claimed)
    mine = [need for need in actual.needs if "settled" in need.claim]
    assert bool(mine) == offered
    assert bool(actual.without) != offered
    for need in mine:
        cells, seeds = ({run[at] for run in need.runs} for at in (0, 1))
        assert {cell.method for cell in cells} == {"fedavg", "ours"}
        assert min(seeds) == 2
        assert need.value == 0.8
        text = "\n".join(plan.lines(actual, plan.chosen(actual, 1000.0), 1000.0, root=claimed))
        wanted = list(range(max(seeds) + 1))
        assert f"  papers/fedcrl/paper.yaml: scenarios.balanced.seeds: {wanted}" in text
        change(claimed, "scenarios", "balanced", seeds=wanted)  # finished ones still count
        again = plan.plan_inputs(["fedcrl"], claimed)
        assert [one.runs for one in again.needs if "settled" in one.claim] == [need.runs]
        assert not plan._more_seeds(plan.chosen(again, 1000.0), claimed)


def test_the_only_seed_of_a_cell_still_counts_where_more_are_wanted(claimed):
    """Each then with a separate draw: the first one's is the same."""
    cell, partition = Cell("fedcrl", "balanced", "ours"), {"kind": "dirichlet", "clients": 5, "beta": 0.1}
    change(claimed, "scenarios", "balanced", seeds=[0], partition=partition)
    finish(claimed, "ours", [66.0])
    change(claimed, "scenarios", "balanced", seeds=[0, 1, 2])
    assert plan.plan_inputs(["fedcrl"], claimed).prices[cell].have == 1


def test_claims_whose_data_must_be_downloaded_wait_for_a_network(claimed, capsys, monkeypatch):
    monkeypatch.delenv("FEDREPRO_MIRROR", raising=False)
    change(claimed, "scenarios", "balanced", data={"set": "digit5", "features": "vit_tiny"})
    here = plan.plan_inputs(["fedcrl"], claimed)
    missing = {"mnist", "usps", "svhn", "synth_digits (by hand)", "mnistm", "pretrained ViT-Ti/16 weights"}
    assert not here.needs
    assert set(here.waiting) == missing
    (claimed / "data/usps").mkdir(parents=True)
    anywhere = plan.plan_inputs(["fedcrl"], claimed, network=True)
    assert anywhere.needs
    assert anywhere.fetched[FEDPROX] == missing - {"usps"}
    assert plan.plan(1000.0, ["fedcrl"], root=claimed, network=True) == 0
    assert "To be downloaded: mnist, mnistm," in capsys.readouterr().out


def test_what_is_printed(claimed, capsys):
    assert plan.plan(5.0, ["fedcrl"], 2, claimed) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 claims for about 2.0 hours")
    assert " 1. 2.0 hours, 2 claims\n    FEDCRL waits: " in text
    assert text.splitlines()[-1].endswith("--jobs 2 < .cells/plan.txt")
    assert (claimed / plan.FILE).read_text() == "fedcrl/balanced/fedprox\n"
    assert plan.plan(1.0, ["fedcrl"], root=claimed) == 0
    assert "2 other claims would take more hours; the cheapest takes 2.0 hours" in capsys.readouterr().out
    finish(claimed, "fedprox", [60.2, 61.3])
    assert plan.plan(1.0, ["fedcrl"], root=claimed) == 0
    assert capsys.readouterr().out.startswith("Nothing to plan")


def test_many_processes_do_not_make_a_seed_shorter():
    long, short = (Cell("fedlsa", "office-caltech", name) for name in ("fedavg", "fedprox"))
    prices = {long: Price(0, 3.0), short: Price(0, 2.0)}
    actual = plan.PlanInputs(needs(prices, slow=({long: 1},), quick=({short: 2},)), prices)
    bundles = plan.chosen(actual, 2.0, 4)
    assert names(bundles) == [["quick"]]
    assert any(line.startswith("1 other claim") for line in plan.lines(actual, bundles, 2.0, 4))


def test_numbers_of_figures_come_with_the_stages_that_compute_them():
    cell = Cell("fedlsa", "digits", "fedlsa")
    assert plan._figure(cell, "average") == ""
    assert plan._figure(cell, "figure2.uniformity") == "papers/fedlsa/grids/dvc.yaml:figure2@digits-fedlsa"


@pytest.mark.parametrize("given, network", [({}, False), ({"network": True}, True)])
def test_claims_that_wait_for_a_download_are_planned_on_request_alone(given, network, monkeypatch):
    class Asked(Exception):
        pass

    def inputs(wanted, root, network, device):
        raise Asked(network)

    monkeypatch.setattr(plan, "plan_inputs", inputs)
    with pytest.raises(Asked) as asked:
        plan.plan(1.0, **given)
    assert asked.value.args == (network,)
