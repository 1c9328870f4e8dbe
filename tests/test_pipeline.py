"""The pipeline as a user runs it, in a copy: stages, kill -9, workers, DVC's view of a change."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from repository import (
    CELL,
    PARAMETERS,
    ROOT,
    commit,
    copy_of_the_repository,
    edit,
    edited,
    forget,
    git,
    outputs,
    run,
    stage,
)

from pipeline.cells import loading
from pipeline.cells.experiment import Experiment
from pipeline.models.compiled import unavailable
from pipeline.provenance import identity
from pipeline.schema import Cell, papers
from pipeline.training.cache import _committed
from pipeline.training.seeds import Job, train_seed


def test_a_cell_learns_and_records_where_it_comes_from(project, reference):
    result = json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
    assert result["seeds"] == [0, 1]
    assert result["rounds"] == 4
    assert result["traffic"]["up"] == result["traffic"]["down"] > 0
    first = reference[1].splitlines()[1].split(",")
    start = float(first[reference[1].splitlines()[0].split(",").index("weighted")])
    # four rounds are far better than the initial network
    assert min(result["measures"]["weighted"]) > start + 10
    assert result["data"]["source"] == "bundled"
    assert len(result["data"]["digest"]) == 64
    assert result["hook"] == "pre"
    assert len(result["clients"]) == 2
    assert len(result["clients"][0]) == 10
    assert set(result["measures"]) >= {"average", "weighted", "clients_std", "post.average"}


def test_a_kill_after_the_last_round_resumes(project, reference, monkeypatch):
    """Between the last round and the file: a method scored after training still has its models."""
    monkeypatch.setenv("FEDREPRO_CHECKPOINT_SECONDS", "0")
    cell = Cell("fedcrl", "mini", "ditto")
    whole = train_seed(Job(Experiment.of(cell, project), 0, "whole-ditto"))
    job = Job(Experiment.of(cell, project), 0, "stopped-ditto")
    with monkeypatch.context() as patch:
        patch.setattr(
            "pipeline.training.checkpoint.SeedFiles.finish",
            lambda *_: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            train_seed(job)
    resumed = train_seed(job)
    assert (resumed["rows"], resumed["clients"]) == (whole["rows"], whole["clients"])
    assert job.files.representations.exists()


def test_a_killed_parent_takes_its_workers_along(project, reference):
    """Workers of a parent that was killed end by themselves, and the next run has the same numbers."""
    forget(project)
    more = {"OMP_NUM_THREADS": "1", "FEDREPRO_WORKERS": "2", "FEDREPRO_CHECKPOINT_SECONDS": "0"}
    command = [sys.executable, "-m", "stages.train", CELL]
    process = subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL, env=os.environ | more)
    deadline = time.monotonic() + 120
    while not list(project.glob(".cells/*/seed-*.pt")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    stage(project, "train", CELL, FEDREPRO_WORKERS="2")  # waits for the lock that the workers still hold
    assert outputs(project) == reference


def change(project: Path, part: str, **values) -> None:
    """Other values under `part` of the miniature."""
    edit(project / PARAMETERS, lambda document: document["miniature"]["scenario"][part].update(values))


@pytest.mark.parametrize(
    "values, key", [({"clients": 5000}, "clients"), ({"clients": 40, "beta": 0.01, "tries": 5000}, "beta")]
)
def test_an_impossible_partition_leaves_the_old_one(project, reference, values, key):
    folder = project / "papers/fedcrl/partitions/mini"
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    change(project, "partition", **values)
    error = stage(project, "partition", "fedcrl/mini", expect=2).stderr
    assert f"miniature.scenario.partition.{key}: " in error
    assert error.count("\n") == 1
    assert len(before) == 4
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def draws(project: Path) -> dict[str, str]:
    """Folder of a draw -> its digest."""
    return {
        path.parent.name: json.loads(path.read_text())["digest"]
        for path in sorted((project / "papers/fedcrl/partitions/mini").rglob("meta.json"))
    }


def test_every_seed_has_its_draw_and_is_trained_on_it(project, reference):
    """Seed 0's is the one that all seeds had before; a seed's folder under .cells goes with its draw."""
    result = json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
    digests = draws(project)
    assert digests["mini"] == "91b97e3c2698e029ee0055bf3b81d106d49644deb29ef478205c624359dfcc66"
    assert digests.keys() == {"mini", "seed-1"}
    assert result["partition"] == digests["mini"]
    assert result["partitions"] == [digests["mini"], digests["seed-1"]]
    experiment = Experiment.of(Cell.parse(CELL), project)
    sizes = [loading.load(experiment, seed).clients for seed in (0, 1)]
    assert [len(client.labels) for client in sizes[0]] != [len(client.labels) for client in sizes[1]]
    (first,), (second,) = (list(project.glob(f".cells/*/seed-{seed}.json")) for seed in (0, 1))
    assert first.parent != second.parent


def test_stacked_seeds_keep_to_their_draws(project, reference):
    """Two seeds in one stack, each on its images: the losses of each trained alone, to rounding."""
    forget(project)
    stage(project, "train", CELL, FEDREPRO_EXECUTOR="stacked")
    actual, alone = (pd.read_csv(io.StringIO(text)) for text in (outputs(project)[1], reference[1]))
    assert actual["loss"].to_numpy() == pytest.approx(alone["loss"].to_numpy(), rel=1e-2, nan_ok=True)
    assert (abs(actual["weighted"] - alone["weighted"]) < 1).all()
    by_seed = [alone[alone["seed"] == seed]["loss"].to_numpy()[1:] for seed in (0, 1)]
    assert (abs(by_seed[0] / by_seed[1] - 1) > 2e-2).any()


def test_a_training_with_compiled_convolutions_is_another_result(project, reference):
    """The result names its executor, has a digest of its own, and its numbers to rounding."""
    why = unavailable()
    if why:
        pytest.skip(why)
    forget(project)
    stage(project, "train", CELL, FEDREPRO_EXECUTOR="compiled")
    result = json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
    assert result["executor"] == "compiled"
    experiment = Experiment.of(Cell.parse(CELL), project)
    assert identity.digest_of(experiment, "compiled") != identity.digest_of(experiment, "sequential")
    actual, by_torch = (pd.read_csv(io.StringIO(text)) for text in (outputs(project)[1], reference[1]))
    assert list(actual["state"]) != list(by_torch["state"])
    assert actual["loss"].to_numpy() == pytest.approx(by_torch["loss"].to_numpy(), rel=1e-2, nan_ok=True)


def test_a_paper_can_fix_one_draw_for_all_seeds(project, reference):
    """Seed 0's file of before is valid, seed 1 is trained too, on the same data in this process."""
    before = set(project.glob(".cells/*/seed-*.json"))
    change(project, "partition", fixed=True)
    stage(project, "partition", "fedcrl/mini")
    assert draws(project).keys() == {"mini"}
    stage(project, "train", CELL)
    result = json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
    new = set(project.glob(".cells/*/seed-*.json")) - before
    assert {path.name for path in new} == {"seed-1.json"}
    assert new.pop().with_name("seed-0.json") in before
    assert "partitions" not in result
    assert [row for row in outputs(project)[1].splitlines() if row.startswith("0,")] == [
        row for row in reference[1].splitlines() if row.startswith("0,")
    ]
    experiment = Experiment.of(Cell.parse(CELL), project)
    assert loading.load(experiment, 0) is loading.load(experiment, 1)
    change(project, "partition", fixed=False)
    done = stage(project, "train", CELL, expect=2)
    assert "partitions/mini/seed-1/meta.json is missing" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy as a fresh clone has it: results and locks in git, no data, no partitions."""
    folder = tmp_path_factory.mktemp("clone")
    # with the history of the repository
    run(folder, "git", "clone", "-q", "--no-checkout", str(ROOT), ".")
    return copy_of_the_repository(folder)


def test_a_fresh_clone_trains_nothing_for_what_git_lacks(clone):
    """Data and partitions are made again, and are what the committed cells were trained on."""
    lines = run(clone, sys.executable, "-m", "dvc", "repro", "--dry").stdout.splitlines()
    names = [line.split("'")[1] for line in lines if line.startswith("Running stage")]
    missing = {name for name in names if not name.endswith(("sources", "results", "report"))}
    groups = {name.partition("@")[0].rpartition(":")[2] for name in missing}
    assert groups == {"data", "corrupted", "partition-mini"}
    assert len(run(clone, sys.executable, "-m", "dvc", "status").stdout.splitlines()) < 100


def test_the_dvc_extension_of_vs_code_reads_a_fresh_clone(clone):
    """By the commands that it calls, extension/src/cli/dvc/reader.ts of iterative/vscode-dvc, whose output it
    parses as JSON."""

    def dvc(*words: str) -> str:
        done = run(clone, sys.executable, "-m", "dvc", *words)
        assert not done.stderr
        return done.stdout

    assert dvc("root").strip() == "."
    assert "papers/fedlsa/dvc.yaml" not in dvc("stage", "list")
    assert "data@digits" in dvc("stage", "list")
    workspace, head = json.loads(dvc("exp", "show", "--rev", "HEAD", "--json"))
    for row in (workspace, head):
        assert not row["error"]
        assert "error" not in str(row["data"]["metrics"])
        metrics, params = row["data"]["metrics"], row["data"]["params"]
        assert metrics["reports/metrics/fedlsa.json"]["data"]["fedlsa"] > 50
        assert params["papers/fedlsa/paper.yaml"]["data"]["methods"]["fedprox"]["mu"] > 0
    status = json.loads(dvc("data", "status", "--granular", "--unchanged", "--json"))
    assert set(status) <= {"not_in_cache", "uncommitted", "committed", "unchanged", "git"}
    plots = json.loads(dvc("plots", "diff", "HEAD", "-o", ".dvc/tmp/plots", "--split", "--json"))
    assert not plots.get("errors")
    assert len(plots["data"]) == len(papers(clone))
    for curves in plots["data"].values():
        rows = curves[0]["anchor_definitions"]["<DVC_METRIC_DATA>"]
        assert {row["rev"] for row in rows} == {"HEAD", "workspace"}
    assert "papers/fedlsa/dvc.yaml:mini@fedlsa" in dvc("dag", "--md")


def test_another_mu_re_runs_fedprox_of_that_paper_alone(clone):
    stages = [f"papers/fedcrl/dvc.yaml:mini@{name}" for name in ("fedprox", "fedavg")]
    with edited(clone / PARAMETERS, lambda d: d["methods"]["fedprox"].update(mu=0.5)):
        status = json.loads(run(clone, sys.executable, "-m", "dvc", "status", "--json", *stages).stdout)
    cells = {
        name: change["changed deps"][PARAMETERS]
        for name, changes in status.items()
        if "@" in name
        for change in changes
        if PARAMETERS in change.get("changed deps", {})
    }
    assert cells == {"papers/fedcrl/dvc.yaml:mini@fedprox": {"methods.fedprox": "modified"}}


def test_a_cell_that_gets_a_seed_keeps_the_committed_ones(project, reference):
    """On a new machine: seed 0 comes from git, seed 1 is trained, and both are those of one run."""
    cell = Cell.parse(CELL)
    with edited(project / PARAMETERS, lambda d: d["miniature"]["scenario"].update(seeds=[0])):
        stage(project, "train", CELL)
    commit(project, "papers/fedcrl/runs/mini/fedprox")
    history = cell.folder(project) / "history.csv"
    whole = history.read_text()
    assert _committed(cell, project) is not None
    for text, trusted in ((re.sub(r"\d\d\.\d+", "99.9", whole), False), (whole, True)):  # altered in git
        history.write_text(text)
        git(project, "commit", "-qam", "another history")
        assert (_committed(cell, project) is not None) == trusted
    shutil.rmtree(project / ".cells")
    shutil.rmtree(cell.folder(project))  # as DVC does before the stage
    output = stage(project, "train", CELL).stderr
    assert outputs(project) == reference
    assert "seed 0 is in git" in output
    assert "seed 1 is" not in output
    shutil.rmtree(project / ".cells")
    # A tuning compares with the same cell under another name, with these seeds on the draw of seed 0.
    two = {"test_seeds": [0, 1]}
    with edited(project / PARAMETERS, lambda document: document["tuning"]["mini"].update(two)):
        output = stage(project, "tune", CELL, "published").stderr
    for place in (project / ".git", *project.glob("papers/fedcrl/*/mini-published")):
        shutil.rmtree(place)
    assert "seed 0 is in git" in output
    assert "seed 1 is" not in output
