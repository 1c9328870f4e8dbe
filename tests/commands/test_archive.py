"""`fedrepro archive`: a paper as one zip that describes itself, and back by `fedrepro import`."""

import hashlib
import json
import shutil
import zipfile

import pytest
import yaml
from reporting import write_run
from repository import ROOT

from pipeline.cells.results import collect
from pipeline.commands import archive, bring, compare
from pipeline.errors import FedReproError, ParamError


@pytest.fixture
def packed(measured, tmp_path):
    """The archive of a measured paper."""
    file = tmp_path / "mine.zip"
    archive.archive("fedcrl", str(file), measured)
    return file


def described(file) -> dict[str, dict]:
    with zipfile.ZipFile(file) as pack:
        return {one["@id"]: one for one in json.loads(pack.read(archive.METADATA))["@graph"]}


def repacked(file, change) -> None:
    """With other content: change(name, content) gives the new one, None to leave it out."""
    with zipfile.ZipFile(file) as pack:
        contents = {name: pack.read(name) for name in pack.namelist()}
    with zipfile.ZipFile(file, "w") as pack:
        for name, content in contents.items():
            if (new := change(name, content)) is not None:
                pack.writestr(name, new)


def test_the_metadata_are_those_of_an_ro_crate(packed):
    graph = described(packed)
    assert graph[archive.METADATA]["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert graph[archive.METADATA]["about"] == {"@id": "./"}
    assert {"name", "description", "datePublished", "license"} <= graph["./"].keys()


def test_every_file_is_described_with_size_and_hash(packed):
    graph = described(packed)
    with zipfile.ZipFile(packed) as pack:
        names = {name for name in pack.namelist() if name != archive.METADATA}
        assert {part["@id"] for part in graph["./"]["hasPart"]} == names
        for name in names:
            content = pack.read(name)
            assert graph[name]["sha256"] == hashlib.sha256(content).hexdigest()
            assert graph[name]["contentSize"] == str(len(content))


def test_it_holds_citation_environment_and_the_partitions_of_every_seed(packed, measured):
    with zipfile.ZipFile(packed) as pack:
        citation = yaml.safe_load(pack.read("CITATION.cff"))
        environment = json.loads(pack.read("environment.json"))
        digests = json.loads(pack.read("partitions.json"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["references"][0]["type"] == "article"
    assert "torch" in environment["packages"]
    results = {str(cell): result for cell, result in collect(measured).items()}
    assert {cell: [*map(str, result["seeds"])] for cell, result in results.items()} == {
        cell: [*of_seeds] for cell, of_seeds in digests.items()
    }


def test_the_same_results_give_the_same_bytes(packed, measured, tmp_path):
    archive.archive("fedcrl", str(tmp_path / "again.zip"), measured)
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()


def test_what_can_be_made_again_stays_out(measured, tmp_path):
    folder = measured / "papers/fedcrl"
    for name in ("partitions/x", "extra-seeds/x", ".secret", "__pycache__/x.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    archive.archive("fedcrl", str(tmp_path / "x.zip"), measured)
    names = zipfile.ZipFile(tmp_path / "x.zip").namelist()
    assert not [name for name in names if "partitions/" in name or "extra" in name or "secret" in name]


def test_of_the_code_files_go_in_without_folders_and_compiled_modules(measured):
    folder = measured / "pipeline" / "inner"
    (folder / "__pycache__").mkdir(parents=True)
    for name in ("one.py", "__pycache__/one.cpython-311.pyc", "__pycache__/two.py"):
        (folder / name).touch()
    packed = {str(path) for path in archive.files_of("fedcrl", measured)}
    assert {name for name in packed if name.startswith("pipeline")} == {"pipeline/inner/one.py"}


def test_a_damaged_result_is_not_packed(measured, tmp_path):
    file = next((measured / "papers/fedcrl/runs").glob("*/*/result.json"))
    file.write_text(file.read_text()[:-20])
    with pytest.raises(FedReproError, match="result.json"):
        archive.archive("fedcrl", str(tmp_path / "x.zip"), measured)


def test_import_reads_it_back(root, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bring, "sync", lambda root: [])
    for method, values in {"fedavg": [60.0, 61.0], "ours": [64.0, 62.0]}.items():
        write_run(root, f"balanced/{method}", {"average": values})
    before = collect(root)
    packed = tmp_path / "mine.zip"
    archive.archive("fedcrl", str(packed), root)
    shutil.rmtree(root / "papers")  # as where there is no paper yet
    bring.bring(str(packed), None, root)
    assert collect(root) == before
    assert f"papers/fedcrl: {len(before)} results" in capsys.readouterr().out


def test_it_holds_what_the_stages_of_the_root_depend_on():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    read = {dep for stage in stages.values() for dep in stage.get("deps", [])}
    packed = {path.as_posix() for path in archive.files_of("fedlsa", ROOT)}
    lacking = {dep for dep in read if not any(name.startswith(dep) for name in packed)}
    assert lacking == {"reports/curves", "reports/inputs"}  # stages of the paper write into these


def test_a_cell_of_an_archive_is_compared_as_it_is(root, tmp_path):
    """By hand: 60 and 61 there. The paper that is here changes later, the archive does not."""
    write_run(root, "balanced/fedavg", {"average": [60.0, 61.0]})
    archive.archive("fedcrl", str(tmp_path / "theirs.zip"), root)
    write_run(root, "balanced/fedavg", {"average": [70.0, 71.0]})
    name = f"{tmp_path}/theirs.zip:fedcrl/balanced/fedavg"
    before = sorted((root / "papers").iterdir())
    found = compare.archived(name, None, root)
    assert found.by_seed == {0: 60.0, 1: 61.0}
    assert found.label == "FedAvg [theirs.zip]"
    assert compare.archived(name, (1,), root).by_seed == {1: 61.0}
    assert sorted((root / "papers").iterdir()) == before
    for other, seeds, error, says in (
        (name, (0, 7), FedReproError, "has no seed 7, but 0, 1"),
        (name.replace("fedcrl", "fedlsa"), None, ParamError, "has the paper 'fedcrl', not 'fedlsa'"),
        (name.replace("fedavg", "fedprox"), None, FedReproError, "the archive has no result of it"),
        (name.replace("fedavg", "fedavk"), None, FedReproError, "unknown method 'fedavk'"),
    ):
        with pytest.raises(error, match=says):
            compare.archived(other, seeds, root)
    with pytest.raises(ParamError, match="the first cell is one of this checkout"):
        compare.compare([name, "fedlsa/mini/fedavg"])
    repacked(
        tmp_path / "theirs.zip", lambda name, text: text.replace(b"60.", b"69.") if "runs/" in name else text
    )
    with pytest.raises(FedReproError, match="not the file that ro-crate-metadata.json names"):
        compare.archived(name, None, root)


def test_results_keep_the_name_of_their_paper(packed, measured):
    with pytest.raises(FedReproError, match="results are of the paper 'fedcrl' and stay so: --name fedcrl"):
        bring.bring(str(packed), "theirs", measured)
    assert not (measured / "papers/theirs").exists()


def refused(packed, measured, message):
    shutil.rmtree(measured / "papers/fedcrl")
    with pytest.raises(FedReproError, match=message):
        bring.bring(str(packed), None, measured)
    assert not (measured / "papers/fedcrl").exists()


def test_a_file_that_was_altered_is_refused(packed, measured):
    repacked(packed, lambda name, content: content + b"\n" * name.endswith("paper.yaml"))
    refused(packed, measured, "paper.yaml: not the file that ro-crate-metadata.json names")


def test_a_file_that_nothing_describes_is_refused(packed, measured):
    with zipfile.ZipFile(packed, "a") as pack:
        pack.writestr("papers/fedcrl/methods/more.py", "x = 1\n")
    refused(packed, measured, "more.py: not the file")


def test_a_name_that_leads_out_is_refused(packed, measured):
    with zipfile.ZipFile(packed, "a") as pack:
        pack.writestr("papers/fedcrl/../../out.py", "x = 1\n")
    refused(packed, measured, "leads out of the paper's folder")
    assert not (measured / "out.py").exists()


def test_a_hidden_file_is_refused(packed, measured):
    """Git and DVC read such files of a folder, and run what they name."""
    with zipfile.ZipFile(packed, "a") as pack:
        pack.writestr("papers/fedcrl/.git/config", "[core]\nfsmonitor = ./x\n")
    refused(packed, measured, "is hidden, as no file of a paper is")


def test_an_entry_whose_bytes_are_damaged_is_named(packed, measured):
    content = bytearray(packed.read_bytes())
    with zipfile.ZipFile(packed) as pack:
        entry = pack.getinfo("papers/fedcrl/paper.yaml")
    content[entry.header_offset + len(entry.filename) + 40] ^= 255
    packed.write_bytes(content)
    refused(packed, measured, "paper.yaml' cannot be read")


def test_a_zip_of_something_else_is_refused(measured, tmp_path):
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as pack:
        pack.writestr("a.txt", "x")
    with pytest.raises(FedReproError, match="expected one papers/<name>/paper.yaml, found 0"):
        bring.bring(str(file), None, measured)


def test_what_unpacks_to_too_much_is_refused(packed, measured, monkeypatch):
    monkeypatch.setattr(archive, "MOST_BYTES", 1000)
    refused(packed, measured, "unpacks to more than")
