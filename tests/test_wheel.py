"""The wheel, installed outside of any checkout: a project begins and runs with what it carries."""

import json
import os
import sys
from pathlib import Path

import pytest
from repository import copy_of_the_repository, edit, run


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
    fedrepro(installed, tmp_path, "new", "project", "mine")
    project = tmp_path / "mine"
    edit(project / "params.yaml", lambda document: document["miniature"].update(seeds=[0]))
    # as the command does in a project, with a `python` that begins warm
    code = {"PYTHONPATH": os.pathsep.join([str(project), str(installed)]), "FEDREPRO_TRACKING": "off"}
    run(project, sys.executable, "-m", "pipeline", "run", "mine", **code)
    assert "FedProx" in (project / "reports/mine.html").read_text()
    for method in ("fedavg", "fedprox"):
        result = json.loads((project / f"papers/mine/runs/mini/{method}/result.json").read_text())
        assert result["measures"]["weighted"][0] > 50
    fedrepro(installed, project, "new", "method", "ours", "--paper", "mine")
    run(project, sys.executable, "-m", "pytest", "-q", "papers/mine/tests/test_ours.py", PYTHONPATH="")
    assert {path for path in installed.rglob("*") if "__pycache__" not in path.parts} == before
