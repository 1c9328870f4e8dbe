"""CI's check of what is committed: reports that differ, numbers that moved, and the pages it lays out."""

import copy
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
import warm
import yaml
from repository import ROOT, commit, copy_of_the_repository, run

LOADER = SourceFileLoader("ci_reports", str(ROOT / ".ci" / "reports"))
ci = module_from_spec(spec_from_loader("ci_reports", LOADER))
LOADER.exec_module(ci)

METRICS = {"accuracy": 90.0, "loss": 0.5, "up": 10.0, "down": 10.0, "seeds": 2, "rounds": 5}
HERE = {"device": "cpu", "executor": "sequential", "precision": "fp32"}
HERE |= {"versions": {"torch": "2", "processor": "A"}}
COMMITTED = {"metrics": METRICS, "history": "seed,round\n0,0\n", "result": HERE}


@pytest.fixture(autouse=True)
def beginning_warm(monkeypatch):
    """The checks' processes."""
    monkeypatch.setattr(sys, "executable", str(warm.python()))


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """A copy of the repository with one of its papers, whose reports are those of its results."""
    folder = tmp_path_factory.mktemp("committed")
    # with the history of the repository
    run(folder, "git", "clone", "-q", "--no-checkout", str(ROOT), ".")
    copied = copy_of_the_repository(folder, "fedcrl", without=["papers/*/tuning/*/*", "papers/*/runs/[!m]*"])
    run(copied, "python", "-m", "stages.results", "fedcrl")
    run(copied, "python", "-m", "stages.report")
    commit(copied)
    return copied


def test_a_report_that_was_edited_is_named(repository):
    """And no other."""
    page = repository / "reports/fedcrl.md"
    page.write_text(page.read_text() + "better than ever\n")
    commit(repository)
    with pytest.raises(ci.Different, match=r"1 committed reports differ: reports/fedcrl.md$"):
        ci.same_reports(repository)
    run(repository, "git", "reset", "-q", "--hard", "HEAD~1")


def test_a_change_that_was_not_run_is_named(repository):
    parameters = repository / "params.yaml"
    original = parameters.read_text()
    parameters.write_text(original + "# changed\n")
    with pytest.raises(ci.Different, match="dvc repro would run .*sources"):
        ci.nothing_to_run(repository)
    parameters.write_text(original)


def test_a_cell_of_a_miniature_is_drawn_and_trained_again_by_its_stage(tmp_path, monkeypatch):
    for name in (
        "papers/fedcrl/runs/mini/fedavg/result.json",
        "papers/fedccl/runs/across/fedsr/result.json",
        "papers/fedccl/runs/digits/fedavg/result.json",
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("{}")
    commit(tmp_path)
    assert {ci.choose(tmp_path, None) for _ in range(40)} == {"fedcrl/mini/fedavg", "fedccl/across/fedsr"}
    assert ci.choose(tmp_path, "fedcrl/mini/fedavg") == "fedcrl/mini/fedavg"
    with pytest.raises(ci.Different, match="--cell fedcrl/mini/nothing: .*fedcrl/mini/fedavg"):
        ci.choose(tmp_path, "fedcrl/mini/nothing")
    trained = []
    monkeypatch.setattr(ci, "run", lambda clone, *command, **environment: trained.append(command[-1]))
    monkeypatch.setattr(ci, "read", lambda clone, cell: COMMITTED)
    monkeypatch.setattr(ci, "explained", lambda clone, cell: None)
    for cell in ("fedcrl/mini/fedavg", "fedccl/across/fedsr"):
        ci.same_numbers(tmp_path, cell)
    assert trained == ["fedcrl/mini/fedavg", "fedccl/across/fedsr"]


OTHER_MACHINE = {"processor": "B"}
# as results were before the processor was recorded
UNKNOWN = {"processor": None}


@pytest.mark.parametrize(
    "metrics, history, versions, exact, agrees",
    [
        ({}, None, {}, True, True),
        ({}, "seed,round\n0,1\n", {}, False, False),
        ({"accuracy": 90.0001}, None, {}, False, False),
        ({"accuracy": 94.9, "loss": 9.0}, None, OTHER_MACHINE, False, True),
        ({"accuracy": 94.9}, None, OTHER_MACHINE, True, False),
        ({"accuracy": 95.1}, None, OTHER_MACHINE, False, False),
        ({"accuracy": float("nan")}, None, OTHER_MACHINE, False, False),
        ({"up": 11.0}, None, {"torch": "3"}, False, False),
        ({"accuracy": 91.0}, None, UNKNOWN, False, True),
    ],
)
def test_what_counts_as_the_same_number(metrics, history, versions, exact, agrees):
    committed, now = copy.deepcopy(COMMITTED), copy.deepcopy(COMMITTED)
    now["metrics"] |= metrics
    now["history"] = history or now["history"]
    now["result"]["versions"] |= versions
    if versions is UNKNOWN:
        del committed["result"]["versions"]["processor"], now["result"]["versions"]["processor"]
    if agrees:
        assert ci.compare(committed, now, 5.0, exact)
        if metrics:  # and no spread is known
            pytest.raises(ci.Different, ci.compare, committed, now, None)
    else:
        with pytest.raises(ci.Different):
            ci.compare(committed, now, 5.0, exact)


def test_the_pages_lack_nothing_that_they_link_to(repository, tmp_path):
    site = tmp_path / "site"
    ci.lay_out(repository, site)
    pages = [site / "index.html", *site.glob("reports/*.html")]
    assert len(pages) == 4
    for page in pages:
        links = re.findall(r'(?:href|src)="([^"#:]+)[#"]', page.read_text()) + re.findall(
            r"url=([^\"]+)", page.read_text()
        )
        assert links
        assert not [link for link in links if not (page.parent / link).exists()]
    ci.lay_out(repository, site)  # replaces what it made
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("")
    with pytest.raises(ci.Different, match="there is something else in it"):
        ci.lay_out(repository, tmp_path / "other")
    assert (tmp_path / "other" / "precious.txt").exists()


def test_the_workflow_pins_its_actions_and_may_only_read():
    workflow = yaml.safe_load((ROOT / ".github/workflows/reports.yml").read_text())
    jobs = workflow["jobs"]
    commands = [step.get("run", "") for step in jobs["check"]["steps"]]
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert uses
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name) for name in uses)
    assert "${{ inputs" not in "".join(commands)  # an input never becomes part of a command
    assert workflow["permissions"] == {"contents": "read"}
