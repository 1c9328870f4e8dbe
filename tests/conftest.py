"""Shared by all tests: one thread per process, and the fixtures of several files."""

import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
from browsing import browser  # noqa: F401  (a fixture)
from official import server  # noqa: F401  (a fixture)
from reporting import BALANCED, small_repository, write_run
from repository import CELL, copy_of_the_repository, edit, outputs, stage

from pipeline.schema import Cell


def pytest_collection_modifyitems(items):
    """Tests that share what is made once for a file stay in one process; all others are dealt out singly."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.values()
        if any(actual[-1].scope == "module" for actual in definitions):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture
def root(tmp_path):
    return small_repository(tmp_path)


@pytest.fixture
def measured(root):
    """The same with two of three methods run in one of two scenarios, and with a miniature."""
    for method, measures in BALANCED.items():
        write_run(root, f"balanced/{method}", measures)
        write_run(root, f"mini/{method}", measures)
    return root


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    """A copy with the bundled digits prepared and one short miniature partitioned; not to be changed."""
    copy = copy_of_the_repository(tmp_path_factory.mktemp("prepared"))

    def shorten(document):
        scenario = document["miniature"]["scenario"]
        scenario["training"]["rounds"], scenario["evaluation"]["last"] = 4, 2

    edit(copy / "papers/fedcrl/paper.yaml", shorten)
    stage(copy, "data", "digits")
    stage(copy, "partition", "fedcrl/mini")
    return copy


@pytest.fixture(scope="session")
def finished(prepared, tmp_path_factory) -> Path:
    """The same with a cell trained in one go, one seed after the other."""
    copy = shutil.copytree(prepared, tmp_path_factory.mktemp("finished") / "copy", symlinks=True)
    stage(copy, "train", CELL, FEDREPRO_WORKERS="1")
    return copy


@pytest.fixture(scope="module")
def project(prepared, tmp_path_factory) -> Path:
    return shutil.copytree(prepared, tmp_path_factory.mktemp("project") / "copy", symlinks=True)


@pytest.fixture(scope="module")
def reference(project, finished) -> tuple[str, str]:
    """Metrics and history of the cell, which is then finished in the project."""
    for name in (".cells", Cell.parse(CELL).folder(Path())):
        shutil.copytree(finished / name, project / name, dirs_exist_ok=True)
    return outputs(project)
