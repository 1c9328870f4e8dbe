"""`fedrepro migrate` gives keys of older paper.yaml files their names of today and changes nothing else."""

import dataclasses

import pytest
import yaml
from click.testing import CliRunner

from pipeline.commands.cli import main
from pipeline.commands.migrate import migrate
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import former_keys
from pipeline.schema.checker import check
from pipeline.schema.paper import Block, Grid, Paper, Source, Table

FORMER = """\
# A paper.
title: Of apples
headline: >-
  It wins by far.

  Really.
# Which cells are run.
grids:
  table1:
    scenarios: [one]   # beside: not a key
    methods: [fedavg]
    apart: true
    beside: true
tables:
  table1:
    remarks:
      - One.
      - Two.
    # shown next to it
    beside: {local: post.average}
    blocks:
      first: {scenario: one, rows: [beside]}
sources:
  methods:
    fedavg:
      lr: {own: none given}
  settings:
    training.rounds: {own: short}
"""
TODAY = """\
# A paper.
title: Of apples
# Which cells are run.
grids:
  table1:
    scenarios: [one]   # beside: not a key
    methods: [fedavg]
    separate_file: true
    supplementary: true
tables:
  table1:
    # shown next to it
    also: {local: post.average}
    blocks:
      first: {scenario: one, rows: [beside]}
sources:
  methods:
    fedavg:
      lr: {choice: none given}
  settings:
    training.rounds: {choice: short}
"""


def paper(root, text, key="apples"):
    path = root / "papers" / key / "paper.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_keys_are_renamed_or_removed_where_they_stand(tmp_path):
    path = paper(tmp_path, FORMER)
    migrate(root=tmp_path)
    assert path.read_text(encoding="utf-8") == TODAY


def test_each_change_is_a_line_with_its_place(tmp_path, capsys):
    paper(tmp_path, FORMER)
    migrate(root=tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert "papers/apples/paper.yaml:3: 'headline' is removed" in printed[0]
    assert "papers/apples/paper.yaml:12: 'apart' is now 'separate_file'" in printed[1]
    assert len(printed) == 7


def test_the_command_takes_names_of_papers(monkeypatch):
    """The command line calls `migrate` with them; without a name, with none."""
    asked = []
    monkeypatch.setattr("pipeline.commands.migrate.migrate", lambda wanted: asked.append(wanted))
    for arguments in (["migrate"], ["migrate", "apples", "pears"]):
        CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert asked == [(), ("apples", "pears")]


def test_a_file_of_today_is_not_written(tmp_path, capsys):
    path = paper(tmp_path, TODAY)
    before = path.stat().st_mtime_ns
    migrate(root=tmp_path)
    assert path.stat().st_mtime_ns == before
    assert capsys.readouterr().out == "No paper.yaml has a former key.\n"


def test_only_the_named_papers_are_changed(tmp_path):
    apples = paper(tmp_path, FORMER)
    pears = paper(tmp_path, FORMER, "pears")
    migrate(["pears"], tmp_path)
    assert apples.read_text(encoding="utf-8") == FORMER
    assert pears.read_text(encoding="utf-8") == TODAY


def test_an_unknown_paper_is_named(tmp_path):
    paper(tmp_path, FORMER)
    with pytest.raises(FedReproError, match="unknown paper 'aples'"):
        migrate(["aples"], tmp_path)


def test_a_dropped_key_within_braces_is_named_and_nothing_is_written(tmp_path):
    other = paper(tmp_path, FORMER, "a-first")
    paper(tmp_path, "tables: {table1: {marks: [], also: {}}}\n")
    with pytest.raises(FedReproError, match="papers/apples/paper.yaml:1: 'marks' was dropped: remove it"):
        migrate(root=tmp_path)
    assert other.read_text(encoding="utf-8") == FORMER


def test_a_former_key_beside_todays_is_named_and_nothing_is_written(tmp_path):
    both = "extra_scenarios: []\nbeside: []\n"
    path = paper(tmp_path, both)
    with pytest.raises(
        FedReproError, match="paper.yaml:2: 'beside' is now 'extra_scenarios', which is there"
    ):
        migrate(root=tmp_path)
    assert path.read_text(encoding="utf-8") == both


def test_a_file_that_is_no_yaml_is_named(tmp_path):
    paper(tmp_path, "title: [\n")
    with pytest.raises(FedReproError, match="papers/apples/paper.yaml"):
        migrate(root=tmp_path)


def test_a_text_that_ends_in_a_number_sign_is_removed_whole(tmp_path):
    path = paper(tmp_path, "title: T\nheadline: |\n  first\n  # last\norder: 1\n")
    migrate(root=tmp_path)
    assert path.read_text(encoding="utf-8") == "title: T\norder: 1\n"


def test_a_dropped_key_at_the_end_of_the_file_is_removed(tmp_path):
    path = paper(tmp_path, "title: T\nheadline: short")
    migrate(root=tmp_path)
    assert path.read_text(encoding="utf-8") == "title: T\n"


@pytest.mark.parametrize(
    ("kind", "document", "advice"),
    [
        (Grid, {"scenarios": [], "methods": [], "apart": True}, "the key 'apart' is now 'separate_file'"),
        (Paper, {"headline": "x"}, "the key 'headline' was dropped"),
    ],
)
def test_the_checker_says_what_became_of_a_former_key(kind, document, advice):
    with pytest.raises(ParamError, match=f"p.yaml: {advice} .*fedrepro migrate"):
        check(kind, document, "p.yaml:")


def test_every_former_key_has_a_place_and_none_is_a_key_of_today():
    kinds = {kind.__name__: kind for kind in (Paper, Grid, Table, Block, Source)}
    assert former_keys.FORMER_KEYS.keys() == former_keys.PLACES.keys() == kinds.keys()
    for name, names in former_keys.FORMER_KEYS.items():
        fields = {field.name for field in dataclasses.fields(kinds[name])}
        assert not names.keys() & fields
        assert {today for today in names.values() if today} <= fields


def test_what_is_left_is_the_same_yaml(tmp_path):
    path = paper(tmp_path, FORMER)
    migrate(root=tmp_path)
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["grids"]["table1"] == {
        "scenarios": ["one"],
        "methods": ["fedavg"],
        "separate_file": True,
        "supplementary": True,
    }
