"""docs/questions.md: every command is one that there is; those that train nothing are run."""

import csv
import json
import re
import shlex
import sys
import zipfile

import click
import pytest
from click.testing import CliRunner
from repository import ROOT, commit, copy_of_the_repository, run

from pipeline.commands.cli import main

TEXT = (ROOT / "docs/questions.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^fedrepro (.*)$", TEXT, re.MULTILINE)
# By the results in git, in seconds. test_answers has all.
QUICK = [
    "compare fedlsa/mini/fedlsa fedlsa/mini/fedavg --csv compared.csv --latex compared.tex",
    "explain fedlsa/mini --clients",
    "compare fedlsa/mini/fedlsa fedlsa/mini/fedavg fedlsa/mini/fedprox fedlsa/mini/moon fedlsa/mini/fpl "
    "--plot curves.svg",
]
LONGER = [
    "archive fedlsa",
    "export results fedlsa --csv results.csv",
    "status fedlsa --device h200",
    "plan 0.5 fedlsa",
]


def called(line: str, folder) -> str:
    """What a command prints, called in a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(main, shlex.split(line), prog_name="fedrepro")
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_these_arguments(line):
    group: click.Command = main
    words = shlex.split(line)
    while isinstance(group, click.Group):
        _, group, words = group.resolve_command(click.Context(group), words)
    group.make_context("fedrepro", words)


def test_every_question_has_an_answer():
    assert len(re.findall(r"^\*\*.*\?\*\*$", TEXT, re.MULTILINE)) == 13


@pytest.mark.parametrize("line", [*QUICK, *(pytest.param(line, marks=pytest.mark.rest) for line in LONGER)])
def test_a_command_that_trains_nothing_runs(line, tmp_path):
    assert line in COMMANDS
    assert called(line, tmp_path)
    for name in re.findall(r"\S+\.(?:csv|tex|svg)$|\S+\.csv(?= )", line):
        assert (tmp_path / name).stat().st_size
    assert line != "archive fedlsa" or zipfile.is_zipfile(tmp_path / "fedlsa.zip")


@pytest.mark.rest
def test_clients_are_written_in_a_fresh_clone(tmp_path):
    """Which has no partition yet."""
    line = "export partition fedlsa/mini clients --format pfllib"
    assert line in COMMANDS
    copy = copy_of_the_repository(tmp_path / "copy", "fedlsa")
    commit(copy)
    run(copy, sys.executable, "-m", "pipeline", *line.split())
    kept = list(csv.DictReader((ROOT / "papers/fedlsa/runs/mini/clients.csv").open()))
    config = json.loads((copy / "clients/config.json").read_text())
    held = [sum(count for _, count in client) for client in config["Size of samples for labels in clients"]]
    assert held == [int(row["train"]) for row in kept]


@pytest.mark.rest
def test_an_archive_of_this_paper_is_compared_with_it(tmp_path):
    line = "compare fedlsa/mini/fedavg theirs.zip:fedlsa/mini/fedavg"
    assert line in COMMANDS
    called("archive fedlsa --to theirs.zip", tmp_path)
    assert "FedAvg and FedAvg [theirs.zip] have the same accuracy (2 seeds)" in called(line, tmp_path)
