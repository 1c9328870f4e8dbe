"""Shared by all tests: one thread per process, and the fixtures of several files."""

import fcntl
import os
import shutil
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable
from pathlib import Path

import kinds
import pytest
import warm
from browsing import browser  # noqa: F401  (a fixture)
from official import server  # noqa: F401  (a fixture)
from reporting import BALANCED, small_repository, write_run
from repository import CELL, copy_of_the_repository, edit, outputs, restore, stage

from pipeline.provenance import definitions
from pipeline.provenance.syntax import parsed

# Their few tests take longest: they begin first, so that no process waits for the last one.
SLOW = {"test_howto", "test_study", "test_own_study", "test_wheel", "test_examples"}


def pytest_configure(config):
    """The processes of the tests share one server of warm interpreters, which imports while they collect."""
    if config.getoption("numprocesses", None):
        config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
        if sys.platform == "linux":
            os.environ[warm.SHARED] = str(warm.begin())


def pytest_itemcollected(item):
    """Mark what `make test` leaves to `make test-rest`."""
    kinds.mark(item)


def pytest_collection_modifyitems(config, items):
    """Tests that share what is made once for a file, or the committed pages, stay in one process, and begin
    before the others, which are dealt out singly.

    The scheduler reads groups from names. xdist 3.8 no longer writes them there with pytest 9.2
    (pytest-dev/pytest-xdist#1386).
    """
    if not config.getoption("loadgroup", False):
        return
    grouped = set()
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs
        group = "committed" if "committed" in definitions else item.path.stem
        if group == "committed" or any(actual[-1].scope == "module" for actual in definitions.values()):
            item._id = type(item.id).parse(f"{item.nodeid}@{group}")
            grouped.add(item.nodeid)
    items.sort(key=lambda item: (item.path.stem not in SLOW, item.nodeid not in grouped))


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


@pytest.fixture(scope="session", autouse=True)
def parsed_once():
    """Modules of equal text are parsed once, in whichever small repository they lie.

    To parse the pipeline takes seconds. Every digest is still computed from these trees.
    """
    with pytest.MonkeyPatch.context() as patch:
        by_name = lambda source, package, file: parsed(source, package, Path(file).name)  # noqa: E731
        patch.setattr(definitions, "parsed", by_name)
        yield


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id) -> Callable[[str, Callable[[Path], object]], Path]:
    """`made_once(name, make)`: a folder that `make` fills, one for all processes of the tests; not to be
    changed."""
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        place, unfinished = base / name, base / f"{name}-unfinished"
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                make(unfinished)
                unfinished.rename(place)
        return place

    return folder


@pytest.fixture(scope="session")
def prepared(made_once) -> Path:
    """A copy with one paper, the bundled digits prepared and its short miniature partitioned; not to be
    changed."""

    def shorten(document):
        scenario = document["miniature"]["scenario"]
        scenario["training"]["rounds"], scenario["evaluation"]["last"] = 4, 2

    def make(copy: Path):
        edit(copy_of_the_repository(copy, "fedcrl") / "papers/fedcrl/paper.yaml", shorten)
        stage(copy, "data", "digits")
        stage(copy, "partition", "fedcrl/mini")

    return made_once("prepared", make)


@pytest.fixture(scope="session")
def finished(prepared, made_once) -> Path:
    """The same with a cell trained in one go, one seed after the other."""

    def make(copy: Path):
        shutil.copytree(prepared, copy, symlinks=True)
        stage(copy, "train", CELL, FEDREPRO_WORKERS="1")

    return made_once("finished", make)


@pytest.fixture(scope="module")
def project(prepared, tmp_path_factory) -> Path:
    return shutil.copytree(prepared, tmp_path_factory.mktemp("project") / "copy", symlinks=True)


@pytest.fixture(scope="session")
def expected(finished) -> tuple[str, str]:
    """Metrics and history of the finished cell."""
    return outputs(finished)


@pytest.fixture
def reference(project, finished, expected) -> tuple[str, str]:
    """The same; the cell is finished in the project, whatever an earlier test left there."""
    restore(project, finished)
    return expected
