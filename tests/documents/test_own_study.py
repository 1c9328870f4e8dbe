"""A study in one folder, examples/own_study: a table and a signal, with networks of its own."""

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from repository import ROOT, commit, copy_of_the_repository, edited, git, outputs, python, run, stage
from sklearn.datasets import load_breast_cancer

from pipeline.clusters.local import FORKS
from pipeline.training.tuning import Axis, shares

STUDY = ROOT / "examples/own_study"
# What the networks get, of all clients together: mean and deviation of a column, or channel.
NORMALISED = """
import json, torch
from pipeline.cells import loading
from pipeline.cells.experiment import Experiment
from pipeline.schema import Cell
found = {}
for scenario in ("tumours", "lines"):
    federation = loading.load(Experiment.of(Cell("own_study", scenario, "fedavg")), 0)
    x = torch.cat([client.images for client in federation.clients]).double().transpose(0, 1).flatten(1)
    found[scenario] = [x.mean(1).abs().max().item(), (x.std(1, correction=0) - 1).abs().max().item(), len(x)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A committed copy without papers, and the study, not committed, that has run and is tuned."""
    copy = copy_of_the_repository(tmp_path_factory.mktemp("study") / "copy", "none")
    commit(copy)
    shutil.copytree(STUDY, copy / "papers/own_study")
    assert run(copy, "git", "status", "--porcelain").stdout == "?? papers/\n"
    fedrepro(copy, "run", "own_study")
    fedrepro(copy, "tune", "own_study")
    return copy


def fedrepro(project: Path, *words: str, expect: int = 0):
    return run(project, sys.executable, "-m", "pipeline", *words, expect=expect, FEDREPRO_TRACKING="off")


def results(project: Path) -> dict[tuple[str, str], dict]:
    files = (project / "papers/own_study/runs").glob("*/*/result.json")
    return {file.parts[-3:-1]: json.loads(file.read_text()) for file in files}


def test_every_cell_learns_and_the_page_shows_it(project):
    page, trained = (project / "reports/own_study.html").read_text(), results(project)
    assert len(trained) == 6
    for (scenario, _), result in trained.items():
        assert fmean(result["measures"]["average"]) > {"tumours": 80, "lines": 45}[scenario]
        for measure in ("average", "metric.balanced_error"):
            assert f"{fmean(result['measures'][measure]):.2f}" in page
    assert all(f'id="{claim}"' in page for claim in ("S1", "S2"))
    (picture,) = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)
    assert b"<svg" in base64.b64decode(picture)


def test_run_forks_the_cells_of_grids_and_trains_the_same_bits(project):
    log = project / ".cells/logs/papers_own_study_grids_dvc.yaml_main@tumours-fedprox.log"
    forked = outputs(project, "own_study/tumours/fedprox")
    assert ("Running stage" in log.read_text()) == (not FORKS)
    stage(project, "train", "own_study/tumours/fedprox", FEDREPRO_FORCE="1", FEDREPRO_TRACKING="off")
    assert outputs(project, "own_study/tumours/fedprox") == forked


def test_samples_are_stored_as_they_are_and_normalised_by_what_clients_train_on(project):
    stored = np.load(project / "data/tumours/images.npy")
    assert np.array_equal(stored, load_breast_cancer().data.astype(np.float32))
    meta = json.loads((project / "data/lines/meta.json").read_text())
    assert meta["dtype"] == "float32"
    assert meta["shape"][1:] == [3, 128]
    assert len(meta["classes"]) == 4
    found = json.loads(python(project, NORMALISED).stdout)
    for scenario, columns in (("tumours", 30), ("lines", 3)):
        mean, deviation, count = found[scenario]
        assert mean < 1e-5
        assert deviation < 1e-5
        assert count == columns


def test_the_search_space_is_the_studys(project):
    tuned = json.loads((project / "papers/own_study/tuning/tumours/fedprox.json").read_text())
    tried = [one["values"]["mu"] for one in tuned["configurations"]]
    points = shares(2, 2, "own_study", "tumours")
    assert tried == [0.1, *(Axis("", 0.01, 10).at(point) for _, point in points)]
    final = json.loads((project / "papers/own_study/tuning/tumours-tuned/fedprox/result.json").read_text())
    assert final["resolved"]["mu"] == tried[tuned["chosen"]]


def test_the_exported_model_classifies_rows_of_the_table(project):
    fedrepro(project, "export", "model", "own_study/tumours/fedavg", "--to", "models/mine")
    folder = project / "models/mine"
    card = json.loads((folder / "card.json").read_text())
    indices = np.load(project / "papers/own_study/partitions/tumours/indices.npz")
    tested = np.concatenate([indices[f"own_test.{client}"] for client in range(4)])
    np.save(folder / "mine.npy", np.load(project / "data/tumours/images.npy")[tested])
    labels = np.load(project / "data/tumours/labels.npy")[tested]
    code = (folder / "README.md").read_text().split("```")[1].removeprefix("python")
    printed = run(folder, "env", sys.executable, "-c", code).stdout
    right = [card["classes"].index(name) for name in re.findall(r"'(\w+)'", printed)] == labels
    assert 100 * right.mean() == pytest.approx(card["measured"]["pre"]["weighted"], abs=0.01)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"data": {"set": "tumours"}},
            "scenarios.tumours.data.normalise: 'half' is of images, and tumours holds float32 of shape (30,)",
        ),
        (
            {"data": {"set": "tumours", "normalise": "raw", "size": 16}},
            "scenarios.tumours.data: 'size' and 'channels' are of images: leave them out",
        ),
        (
            {"model": {"name": "lenet"}},
            "the network 'lenet' is of images: define one in papers/own_study/models.py",
        ),
        (
            {"public": {"set": "lines", "size": 10}},
            "public.set: lines holds float32 of shape (3, 128), expected float32 of shape (30,)",
        ),
        (
            {"data": {"set": "tumours", "normalise": "standard", "augmentation": "crop_flip"}},
            "scenarios.tumours.data: 'augmentation' needs images, and with 'normalise: standard' there",
        ),
        (
            {"public": {"set": "tumours", "size": 10, "augmentation": "weak"}},
            "scenarios.tumours: 'public.augmentation' needs images, and with 'data.normalise: standard'",
        ),
        (
            {"evaluation": {"tests": "clients", "last": 1, "attack": {"eps": 0.1, "step": 0.1, "steps": 1}}},
            "scenarios.tumours: 'evaluation.attack' needs images in [0, 1]",
        ),
    ],
    ids=["normalise", "size", "network", "public", "augmentation", "views", "FGSM"],
)
def test_what_needs_images_is_refused_in_one_line(project, change, message):
    with edited(
        project / "papers/own_study/paper.yaml",
        lambda document: document["scenarios"]["tumours"].update(change),
    ):
        done = fedrepro(project, "run", "own_study/tumours/fedavg", expect=2)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert re.match(r"error: papers/own_study/paper.yaml(:\d+)?: ", done.stderr)


def test_corruption_of_signals_is_refused_in_one_line(project):
    with edited(
        project / "papers/own_study/paper.yaml",
        lambda document: document["scenarios"]["lines"].update(corruption=0.5),
    ):
        done = fedrepro(project, "run", "own_study/lines/fedavg", expect=2)
    assert re.fullmatch(
        r"error: papers/own_study/paper.yaml(:\d+)?: scenarios.lines: 'corruption' needs images, and with "
        r"'data.normalise: standard' there are none\n",
        done.stderr,
    )


def test_dvc_shows_the_study_and_a_second_clone_pulls_it_without_a_word(project, tmp_path):
    """All is pushed and pulled: what was never made here is in no cache."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(project, first, symlinks=True)
    dvc(first, "remote", "add", "--default", "store", str(tmp_path / "store"))
    commit(first)
    assert not dvc(first, "push").stderr
    git(tmp_path, "clone", "-q", str(first), str(second))
    pulled = dvc(second, "pull")
    assert not pulled.stderr
    assert {"data/lines/", "data/tumours/"} <= set(pulled.stdout.split())
    assert "not in cache" not in dvc(second, "status", "-R", "papers/own_study").stdout


def dvc(project: Path, *words: str):
    return run(project, sys.executable, "-m", "dvc", *words)


@pytest.mark.parametrize("name", ["corrupt", "features"])
def test_a_stage_of_images_names_the_file_and_the_key_that_say_otherwise(project, name):
    done = stage(project, name, "lines", expect=2)
    why = "dtype: expected images, and lines holds float32 of shape (3, 128)"
    assert done.stderr == f"error: data/lines/meta.json: {why}\n"
    assert not [*(project / "data").glob("lines-*")]


@pytest.mark.parametrize("method, needs", [("fedavg_plus", "pixels in [0, 1]"), ("aughfl", "images")])
def test_a_method_that_needs_images_says_so(project, method, needs):
    def change(document):
        document["methods"][method] = {}
        document["grids"]["main"]["methods"].append(method)

    with edited(project / "papers/own_study/paper.yaml", change):
        done = fedrepro(project, "run", f"own_study/tumours/{method}", expect=2)
    assert f"methods.{method}: {method} needs {needs}, which the scenario 'tumours' does not" in done.stderr
