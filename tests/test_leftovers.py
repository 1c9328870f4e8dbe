"""What editors, disks of other systems and strangers leave among our files."""

import os
import shutil

import pytest

from pipeline import place
from pipeline.cells import choices, results
from pipeline.cells.checkpoint import SeedFiles
from pipeline.commands import sync as command
from pipeline.errors import ParamError
from pipeline.schema import Cell, load_paper, method_names
from stages.results import _digest

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
    assert results.collect(measured) == known and results.survey(measured)[1] == {}
    assert list(choices.tuned_cells(measured)) == []
    assert _digest(folder, ["published/*.csv", "runs/mini/*/result.json"]) == before


@pytest.mark.parametrize("name", ["extra/dvc.yaml", "x.dvc", "published/table1.csv.dvc", ".hidden/dvc.yaml"])
def test_a_further_file_of_dvcs_is_refused(root, name, monkeypatch):
    ours = root / "papers/fedcrl/dvc.yaml"
    monkeypatch.setattr(command, "written", lambda root: {ours: "stages: {}\n"})
    assert command.sync(root) == [ours] and command.sync(root, check=True) == []
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
    assert saved.run() is None and saved.finished.with_name("seed-0.json.damaged").exists()
    assert "seed-0.json" in capsys.readouterr().err
    with pytest.raises(ParamError):
        Cell.parse("fedcrl/mini/._fedavg")
