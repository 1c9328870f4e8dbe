"""The wheel, installed outside of any checkout: a project begins and runs with what it carries."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from repository import ROOT, commit, copy_of_the_repository, edit, git, run
from study_data import write_data


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what pip makes of the wheel; built without a network from a copy."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = copy_of_the_repository(folder / "copy", "none")
    pip, site = ("env", sys.executable, "-m", "pip", "--disable-pip-version-check"), folder / "site"
    run(copy, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", ".")
    (wheel,) = (copy / "dist").glob("*.whl")
    run(copy, *pip, "install", "--no-deps", "--no-compile", "--target", str(site), str(wheel))
    return site


def fedrepro(installed: Path, folder: Path, *words: str, expect: int = 0):
    settings = {"PYTHONPATH": str(installed), "FEDREPRO_TRACKING": "off"}
    return run(
        folder, "env", sys.executable, str(installed / "bin/fedrepro"), *words, expect=expect, **settings
    )


def test_a_project_runs_outside_of_a_checkout(installed, tmp_path):
    before = {path for path in installed.rglob("*") if "__pycache__" not in path.parts}
    assert {path.name for path in installed.glob("[!.]*") if "dist-info" not in path.name} == {
        "bin",
        "fedrepro",
    }
    assert "new project" in fedrepro(installed, tmp_path, "status", expect=2).stderr
    printed = fedrepro(installed, tmp_path, "new", "project", "mine").stdout
    assert printed.startswith("To run it:  cd mine && ")
    assert printed.endswith("fedrepro run\n")
    project = tmp_path / "mine"
    edit(project / "params.yaml", lambda document: document["miniature"].update(seeds=[0]))
    # as the command does in a project, with a `python` that begins warm
    code = {"PYTHONPATH": os.pathsep.join([str(project), str(installed)]), "FEDREPRO_TRACKING": "off"}
    run(project, sys.executable, "-m", "pipeline", "run", **code)
    assert "FedProx" in (project / "reports/mine.html").read_text()
    for method in ("fedavg", "fedprox"):
        result = json.loads((project / f"papers/mine/runs/mini/{method}/result.json").read_text())
        assert result["measures"]["weighted"][0] > 50
    fedrepro(installed, project, "new", "method", "ours", "--paper", "mine")
    run(project, sys.executable, "-m", "pytest", "-q", "papers/mine/tests/test_ours.py", PYTHONPATH="")
    assert {path for path in installed.rglob("*") if "__pycache__" not in path.parts} == before


def test_the_documented_lines_train_a_network_of_ones_own(installed, tmp_path):
    """docs/library.md in a process that has the wheel alone."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.DOTALL)
    code = f"import sys; sys.path.insert(0, {str(installed)!r})\n{code}"
    command = ("env", "-u", "PYTHONPATH", sys.executable, "-c", f"{code}print(fedrepro.__file__)")
    accuracy, file = run(tmp_path, *command).stdout.split()
    assert float(re.sub(r"[^\d.]", "", accuracy)) > 0.7
    assert file.startswith(str(installed))


@pytest.mark.parametrize(
    "study", [ROOT / "examples/own_study", ROOT / "tests/fedntd"], ids=lambda path: path.name
)
def test_a_study_runs_whole_in_a_project(installed, tmp_path, study):
    """Cells, claims, figure, page and tuning, with no line outside of its folder."""
    fedrepro(installed, tmp_path, "new", "project", "mine")
    project = tmp_path / "mine"
    commit(project)
    if study.name == "fedntd":
        write_data(project / "data/raw")
    shutil.copytree(study, project / "papers" / study.name)
    fedrepro(installed, project, "run", study.name)
    results = sorted((project / "papers" / study.name / "runs").glob("*/*/result.json"))
    page = (project / f"reports/{study.name}.html").read_text()
    claims = (study / "claims.csv").read_text().splitlines()[1:]
    assert len(results) > 3
    assert "data:image/svg+xml;base64," in page
    assert claims
    assert all(f'id="{claim.partition(",")[0]}"' in page for claim in claims)
    if "\ntuning:" in (study / "paper.yaml").read_text():
        fedrepro(installed, project, "tune", study.name)
        assert list((project / "papers" / study.name / "tuning").glob("*/*.json"))
    changed = {line.split()[-1] for line in git(project, "status", "--porcelain").splitlines()}
    made = {name for name in changed if not name.startswith("reports/")}
    assert made == {"dvc.lock", "sources.yaml", f"papers/{study.name}/"}
