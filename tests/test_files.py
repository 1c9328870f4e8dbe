"""Files are whole or absent; what editors, other systems and strangers leave among them; nothing is written
outside of the checkout, whatever `.cells` says, and no text of a CSV is a formula."""

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from official import names

from pipeline import files, place
from pipeline.cells import choices, results
from pipeline.clusters.node import Keeper
from pipeline.commands import sync as command
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import Cell, load_paper, method_names
from pipeline.training.checkpoint import SeedFiles
from stages.results import _digest


@pytest.fixture
def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_text_is_replaced_as_a_whole_and_json_is_sorted(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    files.write_text(target, "one\n")
    files.write_text(target, "zwei Ä\n")
    assert target.read_bytes() == "zwei Ä\n".encode()
    assert names(tmp_path) == ["deep/a.txt"]
    target = tmp_path / "a.json"
    files.write_json(target, {"b": 1, "a": [0.1]})
    assert target.read_text() == '{\n  "a": [\n    0.1\n  ],\n  "b": 1\n}\n'
    with pytest.raises(FedReproError, match="a.json.*not written"):
        files.write_json(target, {"a": float("nan")})
    assert json.loads(target.read_text()) == {"a": [0.1], "b": 1}


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, failure, monkeypatch):
    target = tmp_path / "a.txt"
    files.write_text(target, "old")

    def fail(path):
        raise failure

    monkeypatch.setattr(files, "sync", fail)
    with pytest.raises((FedReproError, KeyboardInterrupt)) as caught:
        files.write_text(target, "half")
    if isinstance(failure, OSError):
        assert str(caught.value).endswith(": No space left on device")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_write_clears_what_a_killed_one_left(tmp_path, dead_process):
    others = [
        f".a.txt.{os.getppid()}-{files.machine()}.new",
        f".a.txt.{dead_process}-elsewhere.new",
        f".b.a.txt.{dead_process}-{files.machine()}.new",
        "a.txt",
    ]
    for name in [f".a.txt.{dead_process}-{files.machine()}.new", *others]:
        (tmp_path / name).write_text("half, of another process, machine or file")
    old = tmp_path / f".a.txt.{os.getpid()}-{files.machine()}x.new"  # of a container that is gone
    old.write_text("half")
    os.utime(old, (1, 1))
    files.write_text(tmp_path / "a.txt", "whole")
    assert names(tmp_path) == sorted(others)
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_containers_of_one_name_and_start_are_told_apart(monkeypatch):
    names = set()
    for namespace in ("pid:[1]", "pid:[2]"):
        monkeypatch.setattr(os, "readlink", lambda path, namespace=namespace: namespace)
        names.add(files.machine.__wrapped__())
    assert len(names) == 2


def test_a_folder_is_replaced_as_a_whole(tmp_path, dead_process):
    target = tmp_path / "set"
    with files.replace_folder(target) as folder:
        (folder / "old").write_text("1")
    (tmp_path / f".set.{dead_process}-{files.machine()}.new").mkdir()
    (tmp_path / f".set.{dead_process}-{files.machine()}.old").mkdir()
    with files.replace_folder(target) as folder:
        (folder / "new").write_text("2")
        assert names(target) == ["old"]
    assert names(target) == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path):
    target = tmp_path / "set"
    with files.replace_folder(target) as folder:
        (folder / "old").write_text("1")
    with (
        pytest.raises(FedReproError, match="set: cannot be written: No space"),
        files.replace_folder(target) as folder,
    ):
        (folder / "half").write_text("2")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert names(tmp_path) == ["set/old"]


@pytest.fixture
def disk(monkeypatch):
    """What is synchronised and renamed meanwhile, in its order: names of files and folders."""
    events, sync, replace = [], os.fsync, os.replace

    def name(path):
        path = str(path)
        return "temporary" if path.endswith(".new") else path.rpartition("/")[2]

    def synchronised(handle):
        events.append(f"sync {name(os.readlink(f'/proc/self/fd/{handle}'))}")
        sync(handle)

    def replaced(old, new):
        events.append(f"rename {name(old)} {name(new)}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synchronised)
    monkeypatch.setattr(os, "replace", replaced)
    return events


def test_a_power_cut_leaves_the_old_or_the_new_text(tmp_path, disk):
    files.write_text(tmp_path / "a.txt", "1")
    assert disk == ["sync temporary", "rename temporary a.txt", f"sync {tmp_path.name}"]


def test_a_power_cut_leaves_the_old_or_the_new_folder(tmp_path, disk):
    with files.replace_folder(tmp_path / "set") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "x").write_text("1")
        (folder / "link").symlink_to("nowhere")
    renamed = disk.index("rename temporary set")
    assert disk[:renamed] == ["sync temporary", "sync x", "sync inner"]
    assert disk[renamed + 1 :] == [f"sync {tmp_path.name}"]


def test_a_file_system_that_synchronises_no_folder_is_used_all_the_same(tmp_path, monkeypatch):
    sync = os.fsync

    def refusing(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(handle)

    monkeypatch.setattr(os, "fsync", refusing)
    files.write_text(tmp_path / "a.txt", "1")
    assert (tmp_path / "a.txt").read_text() == "1"


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_disk_that_fails_while_synchronising_is_one_line(tmp_path, monkeypatch, what):
    files.write_text(tmp_path / "a.txt", "old")

    def failing(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}") == (what == "folder"):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(FedReproError, match="a.txt: cannot be written: Input/output error"):
        files.write_text(tmp_path / "a.txt", "new")
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == ("old" if what == "file" else "new")


def test_a_seed_of_a_worker_is_on_the_disk_before_its_checkpoint_goes(tmp_path, disk):
    cell = tmp_path / ".cells" / "x"
    cell.mkdir(parents=True)
    (cell / "seed-0.pt").touch()
    Keeper(str(tmp_path)).save("x/seed-0.json", b"{}")
    assert disk == ["sync temporary", "rename temporary seed-0.json", "sync x"]
    assert names(cell) == ["seed-0.json"]


LEFT = ("._fedavg.py", ".#other.py", "fedavg~", "fedavg copy.py", "fedavg (1).py", "-x.py", "fed.avg.py")


def test_a_method_is_a_file_whose_name_a_method_can_have(tmp_path):
    folder = tmp_path / "pipeline" / "methods"
    folder.mkdir(parents=True)
    for name in ("fedavg.py", "base.py", "_steps.py", *LEFT):
        (folder / name).write_text("")
    (folder / "dangling.py").symlink_to("nowhere")
    (folder / "folder.py").mkdir()
    assert method_names(root=tmp_path) == ["fedavg"]


def test_hidden_copies_of_results_are_none(measured):
    known, folder = results.collect(measured), measured / "papers/fedcrl"
    before = _digest(folder, ["published/*.csv", "runs/mini/*/result.json"])
    shutil.copytree(folder / "runs/mini", folder / "runs/.ipynb_checkpoints")
    shutil.copytree(folder / "runs/mini/fedavg", folder / "runs/mini/._fedavg")
    (folder / "tuning/mini").mkdir(parents=True)
    (folder / "tuning/mini/._fedprox.json").write_bytes(b"\0\5\26\7")
    (folder / "published/._table1.csv").write_bytes(b"\0\5\26\7")
    assert results.collect(measured) == known
    assert results.survey(measured)[1] == {}
    assert list(choices.tuned_cells(measured)) == []
    assert _digest(folder, ["published/*.csv", "runs/mini/*/result.json"]) == before


@pytest.mark.parametrize("name", ["extra/dvc.yaml", "x.dvc", "published/table1.csv.dvc", ".hidden/dvc.yaml"])
def test_a_further_file_of_dvcs_is_refused(root, name, monkeypatch):
    ours = root / "papers/fedcrl/dvc.yaml"
    monkeypatch.setattr(command, "written", lambda root: {ours: "stages: {}\n"})
    assert command.sync(root) == [ours]
    assert command.sync(root, check=True) == []
    path = root / "papers/fedcrl" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("stages: {x: {cmd: touch pwned}}\n")
    for check in (True, False):
        with pytest.raises(ParamError, match=name):
            command.sync(root, check)


@pytest.mark.parametrize("special", ["device", "pipe"])
@pytest.mark.parametrize("name", ["claims.csv", "published/table1.csv", "runs/mini/fedavg/result.json"])
def test_what_is_no_file_is_refused_by_name(measured, name, special):
    path = measured / "papers/fedcrl" / name
    path.unlink(missing_ok=True)
    if special == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    load_paper.cache_clear()
    with pytest.raises(ParamError, match=name):
        load_paper("fedcrl", measured)


@pytest.mark.parametrize("name", [".cells/jobs/x.json", "data/digits/meta.json", "reports/templates/x.j2"])
def test_what_is_no_file_is_refused_by_every_command(tmp_path, monkeypatch, name):
    monkeypatch.setattr(place, "HOME", tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / "data/raw").mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / "data/raw/pipe")
    place.begin()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ParamError, match=name):
        place.begin()


@pytest.mark.parametrize("name", ["papers/fedcrl/runs/mini", "papers/fedcrl/dvc.yaml", ".cells/x"])
def test_a_link_that_leads_out_is_refused(root, tmp_path_factory, monkeypatch, name):
    """What a stage writes or removes there would be another's."""
    outside = tmp_path_factory.mktemp("outside")
    monkeypatch.setattr(command, "written", lambda root: {})
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(root / "papers")
    command.sync(root)
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(ParamError, match=f"{name}: a link"):
        command.sync(root)


def test_links_to_files_and_folders_are_read(measured):
    folder = measured / "papers/fedcrl"
    (folder / "partitions").symlink_to(measured)
    os.replace(folder / "published/table1.csv", measured / "elsewhere.csv")
    (folder / "published/table1.csv").symlink_to(measured / "elsewhere.csv")
    (folder / "gone").symlink_to("nowhere")
    load_paper.cache_clear()
    assert load_paper("fedcrl", measured).name


def test_what_is_hidden_or_a_pipe_is_set_aside(tmp_path, capsys):
    saved = SeedFiles(tmp_path / ("0" * 64), 0)
    saved.folder.mkdir(parents=True)
    os.mkfifo(saved.finished)
    assert saved.run() is None
    assert saved.finished.with_name("seed-0.json.damaged").exists()
    assert "seed-0.json" in capsys.readouterr().err
    with pytest.raises(ParamError):
        Cell.parse("fedcrl/mini/._fedavg")


NAMES = [
    *("../../escaped", "{}/absolute", "x/../../escaped", "x/y/seed-0.pt", "x/seed-0.py", "x/places.json"),
    *("kept/1-x/places.json", "seed-0.pt", "..", "", "x/seed-0.pt\n", "x/seed--1.pt", "./x/seed-0.pt"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_saves_files_of_cells_alone(tmp_path, name):
    root = tmp_path / "root"
    keeper = Keeper(str(root))
    with pytest.raises(ValueError):
        keeper.save(name.format(tmp_path), b"x")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


PATHS = ["{0}/told", "{1}/.cells/told", "{1}/.cells/logs/../told", "logs/told", "", "{1}/.cells/logs/"]


@pytest.mark.parametrize("path", PATHS)
def test_a_worker_tells_logs_alone(tmp_path, path):
    root = tmp_path / "root"
    (root / ".cells/logs").mkdir(parents=True)
    keeper = Keeper(str(root))
    keeper.tell(f"{root}/.cells/logs/stage.log", b"fine")
    with pytest.raises(ValueError):
        keeper.tell(path.format(tmp_path, root), b"x")
    (root / ".cells/logs/linked.log").symlink_to(tmp_path / "told")
    with pytest.raises(OSError):
        keeper.tell(f"{root}/.cells/logs/linked.log", b"x")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["stage.log"]


@pytest.mark.parametrize("folder", ["..", "../..", "/etc", "a/b", ""])
def test_a_worker_is_given_seeds_of_cells_alone(tmp_path, folder):
    with pytest.raises(ValueError):
        Keeper(str(tmp_path)).begin("cell", "node", [folder])


FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "=cmd|' /C calc'!A0", "\t=1"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_of_a_table_is_a_formula(text):
    table = pd.DataFrame({"label": [text], text: [-1.5]})
    header, row = csv.reader(io.StringIO(results.as_csv(table), newline=""))
    assert header == ["label", f"'{text}"]
    assert row[0] == f"'{text}"
    assert float(row[1]) == -1.5
    assert list(table.columns) == ["label", text]


@pytest.mark.parametrize("text", ["-1.5", "+3", "FedAvg", "", "a=b", "'=1"])
def test_other_texts_stay_as_they_are(text):
    assert files.as_text(text) == text
    assert files.as_text("\r=1") == "'\r=1"


def test_a_file_that_has_the_text_already_is_not_touched(tmp_path):
    path = tmp_path / "page.html"
    files.renew_text(path, "one\n")
    before = path.stat()
    files.renew_text(path, "one\n")
    assert path.stat().st_ino == before.st_ino
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    files.renew_text(path, "two\n")
    assert path.read_text() == "two\n"
