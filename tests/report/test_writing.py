"""Forks that draw the pages of a report, and what a report writes when it is refused: nothing."""

import os
import signal
import sys

import pytest
from reporting import BALANCED, write_claims, write_run

from pipeline.errors import FedReproError, ParamError
from pipeline.report import markdown
from pipeline.report.writing import _made, render

HERE = os.getpid()
forks = pytest.mark.skipif(sys.platform == "darwin", reason="no forks there")
CLAIM = ("lead", "Ours is above FedAvg", "table=1|column=Avg|method=Ours", "table=1|column=Avg|method=FedAvg")


def names():
    return [lambda name=name: {name: f"{name} by {os.getpid() == HERE}"} for name in "abcd"]


@forks
def test_forks_make_all_parts_and_their_order_stays():
    assert _made(names(), 3) == [{name: f"{name} by False"} for name in "abcd"]
    assert _made(names(), 1) == [{name: f"{name} by True"} for name in "abcd"]


@forks
def test_what_a_fork_cannot_make_as_it_was_killed_is_made_here():
    def killed():
        if os.getpid() != HERE:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"killed": "made"}

    made = _made([*names(), killed], 2)
    assert made == [*({name: f"{name} by True"} for name in "abcd"), {"killed": "made"}]


@forks
def test_an_error_of_a_part_is_that_of_the_report():
    def wrong():
        raise ParamError("papers/x/paper.yaml: wrong")

    for workers in (1, 2):
        with pytest.raises(ParamError, match="papers/x/paper.yaml: wrong"):
            _made([*names(), wrong], workers)


@pytest.fixture
def losing(measured):
    """A checkout whose pages were written, and whose next report would lose a number of findings.csv."""
    write_claims(measured, [(*CLAIM, ">0")])
    render(root=measured)
    write_claims(measured, [])
    write_run(measured, "balanced/fedavg", {**BALANCED["fedavg"], "average": [58.0, 60.0]})
    return measured


def written(root):
    """Name of each file in reports/ -> its content and the time when it was written."""
    files = [path for path in (root / "reports").rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_refused_report_writes_no_page(losing):
    before = written(losing)
    with pytest.raises(FedReproError, match="findings.csv: 1 number would disappear"):
        render(root=losing)
    assert written(losing) == before


def test_a_refused_report_is_refused_again_and_written_once_it_may(losing):
    for _ in range(2):
        with pytest.raises(FedReproError, match="1 number would disappear"):
            render(root=losing)
    write_claims(losing, [(*CLAIM, ">0")])
    render(root=losing)
    assert "59.0" in (losing / "reports/fedcrl.md").read_text()


def test_a_refused_report_also_names_a_result_that_cannot_be_used(losing):
    (losing / "papers/fedcrl/runs/mini/ours/result.json").write_text("{")
    before = written(losing)
    with pytest.raises(FedReproError, match="2 problems; the first: .*papers.fedcrl.runs.mini.ours"):
        render(root=losing)
    assert written(losing) == before


def test_a_readme_that_is_refused_is_so_before_a_page_is_written(measured, monkeypatch):
    def refuse(text, pages):
        raise FedReproError("README.md: the block 'result' is missing")

    monkeypatch.setattr(markdown, "readme", refuse)
    (measured / "README.md").write_text("no blocks")
    with pytest.raises(FedReproError, match="README.md: the block 'result' is missing"):
        render(root=measured)
    assert written(measured) == {}
