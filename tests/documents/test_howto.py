"""docs/adding-*.md, followed word for word in a copy of the repository: what they add runs."""

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from repository import RESULTS, ROOT, commit, copy_of_the_repository, edit, python, run, search_path, stage

from pipeline.schema import Cell

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(page: str) -> list[tuple[str, dict, str]]:
    """(language, what stands after it, content) of every code block of a page, in its order."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [
        (language, dict(word.split("=", 1) for word in shlex.split(about)), content)
        for language, about, content in FENCE.findall(text)
    ]


# Commands whose work a later page's can do as well.
RUNS = re.compile(r"^fedrepro (run|report) (.*)\n", re.MULTILINE)


def follow(page: str, project: Path, later: list[str] | None = None, first: Sequence[str] = ()) -> list[str]:
    """Do what a page says; what its commands printed.

    later  takes what the page would run, which is then not run
    first  is run with what the page runs
    """
    printed = []
    for language, about, content in steps(page):
        if "file" in about:
            path = project / about["file"]
            assert not (ROOT / about["file"]).exists(), f"{page} makes {path.name}, which is there"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            if path.suffix == ".py":  # CONTRIBUTING.md asks for it
                run(project, sys.executable, "-m", "ruff", "check", "--quiet", about["file"])
        elif "at" in about or "set" in about:
            edit(project / about["into"], partial(put, about, shortened(yaml.safe_load(content))))
        elif "into" in about:
            path, mark = project / about["into"], about["after"]
            before, actual, after = path.read_text().partition(mark + "\n")
            assert actual, f"{about['into']} has no line that ends with {mark!r}"
            path.write_text(before + actual + content + after)
        else:
            assert language == "sh", f"{page}: a block of {language} that nobody follows"
            if later is not None:
                later += [
                    cell for verb, cells in RUNS.findall(content) if verb == "run" for cell in cells.split()
                ]
                content = RUNS.sub("", content)
            content = content.replace("fedrepro run ", f"fedrepro run {' '.join(first)} ")
            path = os.pathsep.join([str(project.parent / "bin"), search_path()])
            more = {"PYTHONDONTWRITEBYTECODE": "", "FEDREPRO_TRACKING": "off", "PATH": path}
            done = run(project, "bash", "-euo", "pipefail", "-c", content, **more)
            printed.append(done.stdout)
    return printed


def shortened(value):
    """The same settings with one seed and at most two rounds."""
    if not isinstance(value, dict):
        return value
    short = {"rounds": 2, "last": 1, "seeds": [0]}
    return {name: short.get(name, shortened(inside)) for name, inside in value.items()}


def put(about: dict, value, document) -> None:
    """Add to the mapping or list at a place (`at=a.b`), or replace keys there (`set=a.b`); none: the top."""
    for key in filter(None, about.get("at", about.get("set")).split(".")):
        document = document[key]
    if isinstance(document, list):
        document += value
    else:
        assert "set" in about or not document.keys() & value.keys(), "a key that is there already"
        document |= value


@pytest.fixture
def project(tmp_path, request) -> Path:
    """A committed copy with one paper, a miniature of one round, and the tests' helpers and its command."""
    paper, command = getattr(request, "param", "fedcrl"), tmp_path / "bin" / "fedrepro"
    # the README shows results
    copy = copy_of_the_repository(tmp_path / "copy", paper, without=[*RESULTS, "README.md"])
    command.parent.mkdir()
    command.write_text('#!/bin/sh\nexec python -m pipeline "$@"\n')
    command.chmod(0o755)
    (copy / "tests").mkdir()
    for path in (ROOT / "tests").glob("*.py"):
        if not path.name.startswith("test_"):
            (copy / "tests" / path.name).write_text(path.read_text())

    def shorten(document):
        scenario = document["miniature"]["scenario"]
        scenario["training"]["rounds"], scenario["evaluation"]["last"], scenario["seeds"] = 1, 1, [0]

    edit(copy / f"papers/{paper}/paper.yaml", shorten)
    commit(copy)
    return copy


def rows(project: Path, page: str, label: str) -> list[str]:
    """The texts of a page's table rows that begin with a label."""
    actual = re.findall("<tr.*?</tr>", (project / "reports" / page).read_text(), re.DOTALL)
    texts = [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in actual]
    return [text for text in texts if re.match(rf"{re.escape(label)}\b", text)]


DIGESTS = (
    "import json; from stages.sources import paper_digests; "
    "print(json.dumps(paper_digests('fedcrl')['cells']))"
)


def result_of(project: Path, cell: str) -> dict:
    return json.loads((Cell.parse(cell).folder(project) / "result.json").read_text())


def shows(project: Path, cell: str, label: str) -> bool:
    """Whether a row of this label has the cell's accuracy."""
    mean = f"{fmean(result_of(project, cell)['measures']['weighted']):.2f}"
    return any(mean in row for row in rows(project, "fedcrl.html", label))


def test_adding_a_method_a_scenario_a_network_and_a_partition(project):
    """Three pages, one run of all their cells and one report."""
    before, later = json.loads(python(project, DIGESTS).stdout), []
    of_method = follow("adding-a-method.md", project, later)
    of_scenario = follow("adding-a-scenario.md", project, later)
    commit(project)
    of_network = follow("adding-a-network.md", project, first=later)
    assert later == [
        f"fedcrl/{name}" for name in ("mini/fedhalf", "digits-dir-1/fedavg", "digits-dir-1/fedcrl")
    ]
    a_method(project, of_method)
    a_scenario(project, of_scenario)
    a_network_and_a_partition(project, of_network)
    after = json.loads(python(project, DIGESTS).stdout)
    assert after.pop("digits-halved")
    assert after.pop("digits-dir-1")
    assert [cells.pop("fedhalf") for cells in after.values() if "fedhalf" in cells]
    assert after == before
    edit(project / "papers/fedcrl/paper.yaml", lambda d: d["methods"]["fedhalf"].update(rate=1.5))
    error = stage(project, "train", "fedcrl/mini/fedhalf", expect=2).stderr
    assert "methods.fedhalf.rate: must be at most 1" in error
    edit(project / "papers/fedcrl/paper.yaml", lambda d: d["methods"]["fedhalf"].update(rate=0.5))
    edit(
        project / "papers/fedcrl/paper.yaml",
        lambda d: d["scenarios"]["digits-halved"]["partition"].update(ratoi=1),
    )
    error = stage(project, "partition", "fedcrl/digits-halved", expect=2).stderr
    assert "digits-halved.partition: unknown key 'ratoi'" in error


def a_method(project: Path, printed: list[str]) -> None:
    assert "5 passed" in printed[-3]
    assert "`fedhalf` |" in (project / "docs/methods.md").read_text()
    assert "| fedhalf | nobody has" in (project / "docs/fidelity.md").read_text()
    on_a_card = json.loads(printed[-1])
    assert on_a_card["equal"]
    assert not on_a_card["waits"]
    result = result_of(project, "fedcrl/mini/fedhalf")
    assert result["hyper"] == {"rate": 0.5}
    assert result["rounds"] == 1
    assert shows(project, "fedcrl/mini/fedhalf", "FedHalf")


def a_scenario(project: Path, printed: list[str]) -> None:
    names = [f"papers/fedcrl/grids/dvc.yaml:main@digits-dir-1-{method}" for method in ("fedavg", "fedcrl")]
    assert not printed[0]
    assert set(names) < set(printed[1].split())
    text = (project / "reports/fedcrl.html").read_text()
    assert "Bundled digits, practical, Dir(1), 10 clients" in text
    for method, label in (("fedavg", "FedAvg"), ("fedcrl", "FedCRL")):
        assert shows(project, f"fedcrl/digits-dir-1/{method}", label)
    status = ("python", "-m", "pipeline", "status", "fedcrl", "--stages", "digits-dir-1")
    left = run(project, *status).stdout.split()
    assert len(left) == 15
    assert set(left) < set(printed[1].split())
    assert not set(left) & set(names)


def a_network_and_a_partition(project: Path, printed: list[str]) -> None:
    assert {line.split()[-1] for line in printed[0].splitlines() if line[:2] in (" M", "??")} == {
        f"papers/fedcrl/{name}"
        for name in "models.py partitions.py metrics.py figures.py templates/ paper.yaml".split()
    }
    result = result_of(project, "fedcrl/digits-halved/fedavg")
    assert result["traffic"]["up"] == 400 * 64 + 64 + 64 * 32 + 32 + 32 * 10 + 10
    assert result["measures"]["metric.worst_client"] == pytest.approx([min(result["clients"][0])], abs=1e-3)
    page = (project / "reports/fedcrl.html").read_text()
    assert "<h2>Worst client</h2>" in page
    assert "data:image/svg+xml;base64," in page
    listed = (project / "papers/fedcrl/splits/digits-halved.csv").read_text()
    assert listed == (project / "clients/clients.csv").read_text()
    counts = (project / "papers/fedcrl/runs/digits-halved/clients.csv").read_text().splitlines()[1:]
    sizes = [int(row.split(",")[2]) for row in counts]
    assert all(abs(b - 0.7 * a) < 3 for a, b in zip(sizes, sizes[1:]))


@pytest.mark.parametrize("project", ["fedlsa"], indirect=True)
def test_adding_a_data_set(project):
    printed = follow("adding-a-data-set.md", project)
    assert printed[1].splitlines()[-1] == "canonical [120, 24, 24, 3] ['dark', 'light']"
    result = json.loads((project / "papers/fedlsa/runs/shapes/fedavg/result.json").read_text())
    assert result["data"]["set"] == "shapes"
    assert result["data"]["source"] == "canonical"
    page = (project / "reports/fedlsa.html").read_text()
    assert "papers/fedlsa/runs/shapes/fedavg/result.json" in page
    assert result["digest"][:8] in page
    # The archive not fetched: the page's manual step is what the error says.
    (project / "data/raw/shapes/shapes.zip").unlink()
    assert "shapes.zip into data/raw/shapes/" in stage(project, "data", "shapes", expect=2).stderr


def test_adding_a_paper(project):
    printed = follow("adding-a-paper.md", project)
    # one folder, nothing central
    assert printed[0].partition(" run toy\n")[2] == "?? papers/toy/\n"
    assert printed[1].startswith("papers/toy/dvc.yaml: written, as paper.yaml says\n")
    assert run(project, "python", "-m", "pipeline", "sync", "--check").stdout == ""
    assert re.search(r"^toy +4 +4 +\. +\. +\. +\.$", printed[-1], re.MULTILINE)
    for scenario in ("mini", "digits-dir-05"):
        for method, label, published in (("fedavg", "FedAvg", "88"), ("fedprox", "FedProx", "89")):
            result = json.loads((project / f"papers/toy/runs/{scenario}/{method}/result.json").read_text())
            assert any(
                f"{fmean(result['measures']['weighted']):.2f}" in row
                and (scenario == "mini" or published in row)
                for row in rows(project, "toy.html", label)
            )
    assert "toy.html" in (project / "reports/index.html").read_text()
    # the column of ours
    spread = json.loads((project / "papers/toy/runs/digits-dir-05/fedavg/result.json").read_text())
    page = (project / "reports/toy.html").read_text()
    assert "Spread over clients" in page
    assert f"{fmean(spread['measures']['clients_std']):.2f}" in page


def test_adding_a_cluster(project):
    printed = follow("adding-a-cluster.md", project)
    for method in ("fedavg", "fedprox"):
        assert (project / f"papers/fedcrl/runs/mini/{method}/result.json").exists()
        assert not list((project / ".cells/jobs").glob(f"*{method}*"))
        log = project / f".cells/logs/papers_fedcrl_dvc.yaml_mini@{method}.log"
        assert "Running stage" not in log.read_text()  # which a stage of this machine prints
    assert (project / ".cells/jobs").is_dir()
    assert "6 of 6 stages run" in printed[0]
    assert run(project, "python", "-m", "mypy", "pipeline/clusters/background.py").stdout.startswith(
        "Success"
    )
