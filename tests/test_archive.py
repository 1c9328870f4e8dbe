"""`fedrepro archive`: a paper as one zip that describes itself, and back by `fedrepro import`."""

import hashlib
import json
import shutil
import zipfile

import pytest
import yaml
from reporting import write_run

from pipeline.cells.results import collect
from pipeline.commands import archive, bring
from pipeline.errors import FedReproError


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
    assert citation["cff-version"] == "1.2.0" and citation["references"][0]["type"] == "article"
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
    shutil.rmtree(root / "papers/fedcrl")
    bring.bring(str(packed), None, root)
    assert collect(root) == before
    assert f"papers/fedcrl: {len(before)} results" in capsys.readouterr().out


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


def test_a_zip_of_something_else_is_refused(measured, tmp_path):
    file = tmp_path / "x.zip"
    with zipfile.ZipFile(file, "w") as pack:
        pack.writestr("a.txt", "x")
    with pytest.raises(FedReproError, match="expected one papers/<name>/paper.yaml, found 0"):
        bring.bring(str(file), None, measured)


def test_what_unpacks_to_too_much_is_refused(packed, measured, monkeypatch):
    monkeypatch.setattr(archive, "MOST_BYTES", 1000)
    refused(packed, measured, "unpacks to more than")
