"""A user without a name, other terminals, few cores, proxies, relative paths, files of another user."""

import getpass
import os
import pwd
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from repository import ROOT, commit, run

from pipeline import place
from pipeline.commands import reproduce
from pipeline.commands.cli import main
from pipeline.errors import FedReproError
from pipeline.git import git
from pipeline.training.checks import check_environment

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def without(monkeypatch, *names):
    """Variables that are restored after the test, whatever it sets."""
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_user_has_a_name(monkeypatch):
    without(monkeypatch, *NAMES)
    place.begin()
    assert not any(map(os.environ.get, NAMES))

    def unknown(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    without(monkeypatch, *NAMES)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(KeyError):
        getpass.getuser()
    place.begin()
    assert getpass.getuser() == f"user{os.getuid()}"


def test_any_terminal_shows_an_explanation():
    command = [sys.executable, "-m", "pipeline", "explain", "fedlsa/mini/fedavg"]
    assert "fedlsa/mini/fedavg" in run(ROOT, *command, PYTHONIOENCODING="ascii").stdout


def test_cores_are_those_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert place.cores() == 1


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, place.LOOPBACK),
        ("intranet", f"intranet,{place.LOOPBACK}"),
        ("*", "*"),
        (place.LOOPBACK, place.LOOPBACK),
    ],
)
def test_loopback_needs_no_proxy(monkeypatch, given, expected):
    without(monkeypatch, "no_proxy", "NO_PROXY")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    if given:
        monkeypatch.setenv("no_proxy", given)
    place.begin()
    assert os.environ["no_proxy"] == expected


def test_a_relative_mirror_is_that_of_where_the_user_stands(monkeypatch, tmp_path):
    (tmp_path / "mirror").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDREPRO_MIRROR", "mirror")
    assert CliRunner().invoke(main, ["methods"]).exit_code == 0
    assert reproduce._environment(ROOT, tmp_path)["FEDREPRO_MIRROR"] == str(tmp_path / "mirror")


@pytest.mark.parametrize(
    "given, meant",
    [
        ("sqlite:///runs.db", "sqlite:///{}/runs.db"),
        ("./runs", "{}/runs"),
        ("file:runs", "file:{}/runs"),
        *((same, same) for same in ("sqlite:////a/x.db", "http://a:1", "databricks", "postgresql://a/b")),
    ],
)
def test_a_relative_address_of_runs_is_that_of_where_the_user_stands(monkeypatch, tmp_path, given, meant):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    assert CliRunner().invoke(main, ["methods"]).exit_code == 0
    assert os.environ["MLFLOW_TRACKING_URI"] == meant.format(tmp_path)


def test_files_of_another_user_are_one_line_that_says_what_to_do(monkeypatch):
    """The variable is one of git's, for its tests."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for call in (lambda: git(ROOT, "rev-parse", "HEAD"), check_environment):
        with pytest.raises(FedReproError) as error:
            call()
        assert f"safe.directory {ROOT}" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_clone_has_the_same_bytes_whatever_git_is_set_to(tmp_path):
    """Of Git for Windows, core.autocrlf is true."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    content = {
        "history.csv": b"seed,round\n0,1\n",
        "odd.csv": b"a\r\nb\n",
        ".gitattributes": (ROOT / ".gitattributes").read_bytes(),
    }
    for name, text in content.items():
        (origin / name).write_bytes(text)
    commit(origin)
    run(tmp_path, "git", "clone", "-q", "-c", "core.autocrlf=true", str(origin), str(clone))
    assert {path.name: path.read_bytes() for path in clone.iterdir() if path.is_file()} == content
    assert Path(clone, ".git").is_dir()
