"""What a new user does wrong, through the command line: one line that names the place and what to do, no
traceback, and nothing half-written.

An interrupted `--force` and a folder where nobody may write are in test_run.py, ports that are taken in
test_mlflow_server.py, downloads that are cut or altered in test_download.py.
"""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import repository
from click.testing import CliRunner

from pipeline.commands.cli import main

PAPER, TABLE2 = "papers/fedlsa/paper.yaml", "papers/fedlsa/published/table2.csv"
COPIED = (
    "pipeline stages params.yaml dvc.yaml data/dvc.yaml pyproject.toml Makefile requirements/*.lock .dvc "
    ".gitignore reports/templates papers/fedlsa :!papers/fedlsa/runs"
).split()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A committed copy with one paper, FedLSA, and none of its results."""
    return repository.checkout(tmp_path_factory.mktemp("checkout"), COPIED)


def called(checkout: Path, *words: str, cwd: Path | None = None, expect: int = 2, **variables: str):
    """`python -m` in the copy, whose code runs wherever it is called."""
    more = {"PYTHONPATH": str(checkout), "FEDREPRO_TRACKING": "off"} | variables
    return repository.run(cwd or checkout, sys.executable, "-m", *words, expect=expect, **more)


def refused(done, message: str) -> None:
    errors = done.stderr
    assert errors.startswith("error: "), errors
    assert errors.count("\n") == 1, errors
    assert message in errors, errors


def fedrepro(words: str, **variables: str):
    """The same in this process and repository."""
    done = CliRunner(env={"COLUMNS": "80", **variables}).invoke(main, words.split(), prog_name="fedrepro")
    assert done.exit_code == 2, done
    return done


@pytest.mark.parametrize(
    "words, message",
    [
        ("stauts", "unknown command 'stauts' (nearest: 'status')"),
        ("new papre mine", "unknown command 'papre' (nearest: 'paper')"),
        ("run --gpu 1", "Did you mean '--gpus'? See fedrepro run --help"),
        ("run --gpus x", "'--gpus': 'x' is not a number"),
        ("run --jobs 0", "0 is not in the range"),
        ("run --on slrum", "--on: unknown executor 'slrum' (nearest: 'slurm')"),
        ("run --slurm partition=gpu", "--slurm is an option of --on slurm"),
        ("run --on slurm --address host:1", "--address is an option of --on ray"),
        ("run --force --on slurm", "--force: a cluster trains what is missing"),
        ("run fedlsa/mini/fedvag", "unknown method 'fedvag' (nearest: 'fedavg')"),
        ("run fedlsa/office_caltech/fedavg", "unknown scenario 'office_caltech' (nearest: 'office-caltech')"),
        ("run fedlas/mini/fedavg", "unknown paper 'fedlas' (nearest: 'fedlsa')"),
        ("explain fedlsa", "expected a cell, <paper>/<scenario>/<method>, or a paper, a table"),
        ("explain fedlsa table 2 Digits MNITS", "unknown row or column 'MNITS' (nearest: 'MNIST')"),
        ("status fedlas", "unknown paper 'fedlas' (nearest: 'fedlsa')"),
        ("status fedlsa --stages table2", "unknown table 'table2' (nearest: 'table 2')"),
        ("plan nan", "HOURS: expected a number above 0"),
        ("report fedlas", "unknown paper 'fedlas' (nearest: 'fedlsa')"),
        ("ui --port 80", "80 is not in the range"),
        ("verify fedlsa/mini/fedvag", "'fedlsa/mini/fedvag' (nearest: 'fedlsa/mini/fedavg')"),
        ("export model fedlsa/mini/fedavg --seed 7", "--seed: 7 is not of fedlsa/mini/fedavg"),
        ("new paper fedlsa", "papers/fedlsa: there is such a folder already"),
        ("new paper Mine!", "a folder's name"),
        ("new paper across", "papers/across"),
        ("new method fedavg", "pipeline/methods/fedavg.py: there is such a file already"),
        ("new method ours --paper fedlas", "unknown paper 'fedlas' (nearest: 'fedlsa')"),
        ("new method class", "a module's name"),
        ("new method none", "a module's name"),
    ],
)  # its class would be None
def test_words(words, message):
    refused(fedrepro(words), message)


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("DEVICE", "gpu", "torch has no device 'gpu' here"),
        ("DEVICE", "cuda:99", "torch has no device 'cuda:99' here"),
        ("EXECUTOR", "stack", "unknown executor 'stack' (nearest: 'stacked')"),
        ("PRECISION", "fp33", "unknown precision 'fp33' (nearest: 'fp32')"),
        ("WORKERS", "zero", "expected a whole number, not 'zero'"),
        ("WORKERS", "0", "must be at least 1, not 0"),
        ("CHECKPOINT_SECONDS", "often", "expected a number, not 'often'"),
        ("CHECKPOINT_SECONDS", "nan", "must be finite, not nan"),
        ("TRACKING", "of", "unknown value 'of' (nearest: 'off')"),
        ("MIRROR", "/nowhere", "/nowhere is not a folder"),
    ],
)
def test_a_variable(name, value, message):
    refused(fedrepro("run fedlsa/mini/fedavg", **{f"FEDREPRO_{name}": value}), f"FEDREPRO_{name}: {message}")


STATUS, RUN, REPORT = "status", "run fedlsa/mini/fedavg", "report fedlsa"
FEDAVG = "pipeline/methods/fedavg.py"
LOCK, CLAIMS = "papers/fedlsa/dvc.lock", "papers/fedlsa/claims.csv"
NETWORK = "model: {name: lenet%s}\n    training: {rounds: 5"


@contextlib.contextmanager
def replaced(file: Path, before: str, after: str):
    """A file with other text; afterwards as before."""
    text = file.read_text(encoding="utf-8")
    assert before in text
    file.write_text(text.replace(before, after, 1), encoding="utf-8", errors="surrogateescape")
    repository.reread()
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")
        repository.reread()


@pytest.mark.parametrize(
    "path, before, after, command, message",
    [
        ("params.yaml", "seeds:", "sedes:", STATUS, "miniature: unknown key 'sedes' (nearest: 'seeds')"),
        (PAPER, "set: digits4_synth", "set: digit4_synth", RUN, "digits.data.set: unknown data set"),
        (PAPER, NETWORK % "", NETWORK % "t", RUN, "unknown model 'lenett' (nearest: 'lenet')"),
        (LOCK, "stages:", "<<<<<<< HEAD\nstages:", RUN, "dvc.lock:2: a merge conflict of git's; keep both"),
        ("dvc.yaml", "stages:", "stages: {", RUN, "'dvc.yaml', YAML file structure is corrupted"),
        (TABLE2, ",79.11,", ",7x.11,", REPORT, f"{TABLE2}:2: value: '7x.11' is not a number"),
        (TABLE2, "column,method,", "column,mehtod,", STATUS, f"{TABLE2}:1: the column 'method' is missing"),
        (FEDAVG, " ", "\udcfc", STATUS, "pipeline/methods/fedavg.py: (unicode error)"),  # not UTF-8
        (CLAIMS, "method=FedLSA,max", "method=FedLAS,max", REPORT, "claims.csv:2: L01a: unknown printed"),
    ],
)
def test_a_file(checkout, path, before, after, command, message):
    with replaced(checkout / path, before, after):
        refused(called(checkout, "pipeline", *command.split()), message)
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=checkout, capture_output=True)
        assert changed.stdout.decode().split() == ["M", path]
        assert not (checkout / ".cells/logs").exists()


def test_a_mirror_with_another_file(checkout, tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"cut")
    reply = called(checkout, "stages.data", "mnist", FEDREPRO_MIRROR=str(tmp_path))
    refused(reply, f"{tmp_path}/mnist.npz: sha256 ")
    assert "expected" in reply.stderr
    assert not (checkout / "data/mnist").exists()


def test_images_without_labels_to_train_on(checkout):
    called(checkout, "stages.data", "photo_patches", expect=0)
    with replaced(checkout / PAPER, "set: digit_domains, size: 20", "set: photo_patches"):
        refused(
            called(checkout, "stages.partition", "fedlsa/mini"),
            "miniature.scenario.data.set: 'photo_patches' has no labels: it can be public data only",
        )
    shutil.rmtree(checkout / "data/photo_patches")


@pytest.mark.parametrize(
    "words, folder, message",
    [
        ("stages.results rahfll", ".", "unknown paper 'rahfll'"),
        ("pipeline run fedlas", ".", "unknown stage 'fedlas' (nearest: 'fedlsa')"),
        ("pipeline run", "reports", "this folder has no dvc.yaml: "),
    ],
)
def test_what_is_not_there(checkout, words, folder, message):
    refused(called(checkout, *words.split(), cwd=checkout / folder), message)
    assert not (checkout / "papers/rahfll").exists()


def test_a_folder_outside(checkout, tmp_path):
    reply = called(checkout, "pipeline", "run", "fedlsa", cwd=tmp_path)
    refused(reply, "this folder lies in no checkout of FedRepro: go to one")
    assert not list(tmp_path.iterdir())


def test_an_archive_without_git(checkout, tmp_path):
    shutil.copytree(checkout, tmp_path / "archive", ignore=shutil.ignore_patterns(".git", ".cells"))
    reply = called(tmp_path / "archive", "pipeline", "run", "fedlsa/mini/fedavg")
    refused(reply, "not a git repository, which DVC needs: clone FedRepro with git instead of downloading")


def test_a_python_without_the_packages(checkout, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = [str(tmp_path / "bare/bin/python"), "-m", "pipeline", "status"]
    done = repository.run(checkout, *bare, expect=2, PYTHONPATH=str(checkout))
    refused(done, "the package 'click' is not installed in this Python")


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_python_that_is_too_old(checkout, tmp_path):
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo Python 3.9.1; else exit 1; fi\n')
    old.chmod(0o755)
    done = subprocess.run(["make", "install", f"PYTHON={old}"], cwd=checkout, capture_output=True, text=True)
    assert "error: FedRepro needs Python 3.11 to 3.13" in done.stderr
    assert done.returncode
    assert not (checkout / ".venv").exists()
