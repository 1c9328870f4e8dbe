"""A cluster's class that lacks something, or answers something else, is told in one line with its file."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pipeline import clusters
from pipeline.clusters import Kind, contract, executor
from pipeline.clusters.cluster import Cluster, Sent
from pipeline.clusters.order import Order
from pipeline.errors import FedReproError

HEAD = "from pipeline.clusters.cluster import Cluster\n\n\n"
WHOLE = """class Mine(Cluster):
    title = "mine"

    def __init__(self, cores, jobs):
        super().__init__(cores)

    def send(self, jobs):
        return []

    def states(self):
        return {}

    def end(self, jobs):
        pass
"""


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Write the module of the cluster `mine`."""

    def function(text: str) -> None:
        (tmp_path / "own_cluster.py").write_text(HEAD + text)
        monkeypatch.delitem(sys.modules, "own_cluster", raising=False)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(clusters.CLUSTERS, "mine", Kind("own_cluster:Mine", ("cancel",)))
    return function


def test_a_whole_class_is_made(write):
    write(WHOLE)
    assert executor("mine", 3, 1, {"cancel": False}).cores == 3


@pytest.mark.parametrize(
    "former, new, wrong",
    [
        ("class Mine", "class Other", ": expected a class Mine, as CLUSTERS names it"),
        ("class Mine(Cluster)", "class Mine", ": expected a subclass of pipeline.clusters.cluster.Cluster"),
        ("def send", "def sned", ": has no method send(jobs)"),
        ("def states", "def state", ": has no method states()"),
        ("def end", "def ends", ": has no method end(jobs)"),
        ("cores, jobs):", "cores):", ": is called as Mine(cores, jobs): too many positional arguments"),
        ("cores, jobs):", "cores, jobs, queue):", ": missing a required argument: 'queue'"),
        ("super().__init__(cores)", "pass", ": __init__ does not call super().__init__(cores)"),
        ('title = "mine"', "title = 7", ": expected a text as `title`, not 7"),
        ('    title = "mine"\n', "", ": expected a text as `title`, not None"),
    ],
)
def test_what_a_class_lacks_is_told(write, tmp_path, former, new, wrong):
    assert former in WHOLE
    write(WHOLE.replace(former, new))
    with pytest.raises(FedReproError) as caught:
        executor("mine", 1, 1, {"cancel": False})
    line = str(caught.value)
    assert line.startswith(str(tmp_path / "own_cluster.py"))
    assert wrong in line
    assert "\n" not in line


def test_jobs_that_end_with_the_command_need_no_method_to_end_them(write):
    write(WHOLE.replace("def end", "outlives = False\n\n    def ends"))
    assert executor("mine", 1, 1, {"cancel": False}).title == "mine"


class Answering(Cluster):
    """A cluster whose answers the test chooses."""

    title = "answering"

    def __init__(self, root: Path, **answers: object):
        super().__init__(1, root)
        self.answers = {"id": "1", "name": "x", "send": [], "states": {}, "end": None} | answers

    def send(self, jobs):
        for job in jobs:
            job.id, job.name = self.answers["id"], self.answers["name"]
        return self.answers["send"]

    def states(self):
        return self.answers["states"]

    def end(self, jobs):
        return self.answers["end"]


@pytest.fixture
def task(tmp_path, monkeypatch) -> SimpleNamespace:
    """The stage of a cell, whose order is that of no real one."""
    order = Order("fedcrl/mini/fedavg", "fp32", {"sequential": {"0": "a" * 64}}, {})
    monkeypatch.setattr("pipeline.clusters.cluster.SECONDS_BETWEEN_POLLS", 0)
    monkeypatch.setattr(Order, "of", lambda *_: order)
    folder = tmp_path / ".cells" / "logs"
    return SimpleNamespace(
        cell=order.cell, name="stage", log=folder / "x.log", events=folder / "x.jsonl", workers=1
    )


def submitted(one: Cluster, task: SimpleNamespace) -> None:
    one.submit(task, False)
    for _ in range(3):  # the jobs arrive, are sent and are looked at
        one.poll()


@pytest.mark.parametrize(
    "answers, wrong",
    [
        ({"send": None}, "send: expected a list of the jobs without room, such as [], not None"),
        ({"send": ["1"]}, "send: returned a job that it was not given, not '1'"),
        ({"id": 17}, "send: expected a text as `id` of the job of fedcrl/mini/fedavg, not 17"),
        ({"id": ""}, "send: expected a text as `id` of the job of fedcrl/mini/fedavg, not ''"),
        ({"name": None}, "send: expected a text as `name` of the job of fedcrl/mini/fedavg, not None"),
        ({"states": None}, "states: expected a mapping of (id, name) to a text, not None"),
        ({"states": ["1"]}, "states: expected a mapping of (id, name) to a text, not ['1']"),
        ({"states": {"1": "runs"}}, "states: expected a pair of texts, (id, name), as key, not '1'"),
        (
            {"states": {(1, "x"): "runs"}},
            "states: expected a pair of texts, (id, name), as key, not (1, 'x')",
        ),
        ({"states": {("1", "x"): None}}, "states: expected a text that says where job 1 is, not None"),
    ],
)
def test_an_answer_of_another_kind_is_told(tmp_path, task, answers, wrong):
    one = Answering(tmp_path, **answers)
    with pytest.raises(FedReproError, match=f"class Answering: {re.escape(wrong)}$"):
        submitted(one, task)


def test_what_a_wrong_send_has_submitted_is_found_again(tmp_path, task):
    with pytest.raises(FedReproError, match="send"):
        submitted(Answering(tmp_path, send=None), task)
    assert Answering(tmp_path, states={("1", "x"): "runs"}).cancel([task]) == 1


def test_an_end_that_returns_something_has_ended_nothing(tmp_path, task):
    submitted(Answering(tmp_path), task)
    again = Answering(tmp_path, states={("1", "x"): "runs"}, end=7)
    with pytest.raises(FedReproError, match="class Answering: end: expected .* returns nothing, not 7"):
        again.cancel([task])
    assert Answering(tmp_path, states={("1", "x"): "runs"}).cancel([task]) == 1


def test_what_is_looked_at_later_is_checked_too(tmp_path, task):
    one = Answering(tmp_path)
    submitted(one, task)
    one.answers["states"] = "runs"
    with pytest.raises(FedReproError, match="class Answering: states: expected a mapping"):
        one.poll()


def test_a_job_that_was_refused_needs_no_id(tmp_path, task):
    task.log.parent.mkdir(parents=True)
    job = Sent(task, mark=tmp_path / "mark")
    job.lost("error: the queue is closed")
    assert contract.wrong_in_send(Answering(tmp_path), [job], []) == ""


def test_a_class_without_a_file_is_told_all_the_same():
    module = ModuleType("nowhere")
    with pytest.raises(FedReproError, match=r"^\?: expected a class Mine"):
        contract.found(module, "Mine")
