"""Texts that are made of a pattern: every {name} of it has got its value."""

import ast
import re
import runpy
import sys
from types import SimpleNamespace

import pytest

from pipeline.commands import sync
from pipeline.schema import ROOT, load_paper
from pipeline.tracking import mlflow_runs
from pipeline.training import final_models
from stages import sources

PLACEHOLDER = re.compile(r"\{[\w!]*\}|\$\w")  # of str.format, and of string.Template
GENERATED = [*ROOT.glob("papers/*/sources.yaml"), ROOT / "sources.yaml", *ROOT.glob("papers/*/dvc.yaml")]
CARD = {
    "label": "FedProx",
    "cell": "fedcrl/mini/fedprox",
    "seed": 3,
    "headline": "average",
    "hook": "pre",
    "measures": {"round": 10, "average": 71.5},
    "by_classifier": False,
    "scenario": {"evaluation": {"sample": None}},
    "clients": [70.0, 73.0],
    "data": {"set": "digits", "features": "pixels"},
    "prepare": {"channels": 1, "side": 8},
    "files": {
        "deployed-0.pt2": {"hook": "pre", "client": "c0"},
        "deployed-1.pt2": {"hook": "pre", "client": "c1"},
        "trained.pt2": {"hook": "post", "client": None},
    },
}
CARD["measured"] = {
    "pre": {"average": 71.5, "clients": [70.0, 73.0]},
    "post": {"average": 80.5, "clients": [80.5]},
}


def test_a_models_page_has_every_value():
    text = final_models._described(CARD)
    assert "# FedProx, digits" in text
    assert "`fedcrl/mini/fedprox`, seed 3, 10 rounds." in text
    assert "average accuracy: **71.50 %**" in text
    assert "| `deployed-1.pt2` |" in text
    assert not PLACEHOLDER.search(text)


def test_a_models_page_says_over_which_clients_its_accuracy_is():
    sampled = CARD | {"scenario": {"evaluation": {"sample": 1}}}
    assert "It is over 1 clients of 2, drawn once for every seed." in final_models._described(sampled)
    assert "drawn once" not in final_models._described(CARD)


def test_the_code_of_a_models_page_is_python():
    ast.parse(final_models._described(CARD).partition("```python\n")[2].partition("```")[0])


def test_a_models_page_says_when_the_classifier_alone_may_do_worse():
    assert "The method predicts by a rule of its own" in final_models._described(CARD)
    assert "rule of its own" not in final_models._described(CARD | {"by_classifier": True})


def test_the_note_of_a_papers_runs_has_its_title():
    made, paper = [], "fedcrl"
    client = SimpleNamespace(create_experiment=lambda *given: made.append(given))
    mlflow_runs.Store._new_experiment(SimpleNamespace(root=ROOT, client=client), paper)
    note = made[0][2]["mlflow.note.content"]
    assert note.startswith(f"{load_paper(paper).title}\n")
    assert not PLACEHOLDER.search(note)


@pytest.mark.parametrize("what", ["cells", "stages"])
def test_digests_say_of_what_they_are(what, monkeypatch, tmp_path):
    paper = "fedcrl" if what == "cells" else None
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "paper_digests", lambda paper: {"a": "1"})
    monkeypatch.setattr(sources, "stage_digests", lambda: {"a": "1"})
    (tmp_path / "papers/fedcrl").mkdir(parents=True)
    sources.sources(paper)
    text = (tmp_path / ("papers/fedcrl" if paper else "") / "sources.yaml").read_text()
    assert text.startswith(f"# Made by the stage `sources`. DVC reads it to know which {what} a change")
    assert not PLACEHOLDER.search(text)


def test_a_header_has_its_papers_name():
    assert sync._text("# of {key}\n", "fedcrl", {}).startswith("# of fedcrl\n")


@pytest.mark.parametrize("file", GENERATED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_comments_of_committed_files_have_no_placeholder(file):
    comments = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert comments
    assert not PLACEHOLDER.search("\n".join(comments))


def test_a_missing_library_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pipeline.commands.cli", None)
    with pytest.raises(SystemExit):
        runpy.run_module("pipeline", run_name="__main__")
    said = capsys.readouterr().err
    assert "pipeline.commands.cli" in said
    assert sys.executable in said
    assert not PLACEHOLDER.search(said)
