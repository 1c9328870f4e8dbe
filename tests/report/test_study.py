"""A study in one folder, tests/fedntd: method, data sets, network, metric, figure, section, table, claims."""

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from statistics import fmean

import pytest
from repository import RESULTS, ROOT, commit, copy_of_the_repository, git, python, run
from study_data import write_data

from pipeline.commands.bring import bring, trust
from pipeline.errors import FedReproError
from pipeline.provenance.identity import git_state
from pipeline.report.writing import render

DIGESTS = "import json; from stages.sources import paper_digests; print(json.dumps(paper_digests('fedcrl')))"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A committed copy with one paper, and the study, not committed, that has run."""
    folder = tmp_path_factory.mktemp("study") / "copy"
    copy = copy_of_the_repository(folder, "fedcrl", without=RESULTS)
    commit(copy)
    write_data(copy / "data" / "raw")
    before = json.loads(python(copy, DIGESTS).stdout)
    shutil.copytree(ROOT / "tests/fedntd", copy / "papers/fedntd")
    assert run(copy, "git", "status", "--porcelain").stdout == "?? papers/fedntd/\n"
    assert json.loads(python(copy, DIGESTS).stdout) == before
    run(copy, sys.executable, "-m", "pipeline", "run", "fedntd", FEDREPRO_TRACKING="off")
    return copy


def results(project: Path) -> dict[tuple[str, str], dict]:
    files = (project / "papers/fedntd/runs").glob("*/*/result.json")
    return {file.parts[-3:-1]: json.loads(file.read_text()) for file in files}


def test_the_page_has_table_claims_figure_and_section(project):
    page, trained = (project / "reports/fedntd.html").read_text(), results(project)
    for result in trained.values():
        for measure in ("weighted", "metric.worst_client"):
            assert f"{fmean(result['measures'][measure]):.2f}" in page
    assert re.search(r'id="N2"', page)
    assert page.count("Worst client") > 1
    (picture,) = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)
    assert b"<svg" in base64.b64decode(picture)
    section = page.partition("<h2>Worst clients</h2>")[2].partition("</section>")[0]
    assert section.count("<tr>") == 7
    assert section.count("<td>fedntd</td>") == 2


def test_a_template_cannot_put_active_html_into_the_page(measured):
    file = measured / "papers/fedcrl/templates/attack.md"
    file.parent.mkdir()
    file.write_text(
        "<script>alert(1)</script> [a](javascript:alert(1)) ![b](https://example.org/b.png)\n\n"
        "{{ '<img src=x onerror=alert(1)>' }}\n"
    )
    render(["fedcrl"], measured)
    page = (measured / "reports/fedcrl.html").read_text()
    section = page.partition("<h2>Attack</h2>")[2].partition("</sec")[0]
    assert set(re.findall("<(/?\\w+)", section)) == {"p", "/p", "a", "/a"}
    assert re.findall('href="(.*?)"', section) == ["https://example.org/b.png"]
    file.write_text("{{ results.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(FedReproError, match="papers/fedcrl/templates/attack.md: SecurityError: "):
        render(["fedcrl"], measured)


def test_what_somebody_else_has_measured_is_imported_whole_or_not_at_all(project, tmp_path, capsys):
    """The study moves into another repository, from which it comes back."""
    project = shutil.copytree(project, tmp_path / "copy", symlinks=True)
    paper, elsewhere, trained = project / "papers/fedntd", tmp_path / "fedntd", results(project)

    def refused(source: Path, message: str) -> None:
        with pytest.raises(FedReproError, match=message):
            bring(str(source), None, project)
        assert not list((project / "papers").glob(".import*"))

    refused(paper, "papers/fedntd: exists")
    shutil.move(paper, elsewhere)
    before = git(project, "status", "--porcelain")
    bring(str(elsewhere), None, project)
    trust("fedntd", project)
    assert "papers/fedntd: 6 results of 12 seeds" in capsys.readouterr().out
    assert results(project) == trained
    assert not (paper / "partitions").exists()
    shutil.rmtree(paper)

    (elsewhere / "notes").symlink_to("/etc/hostname")
    refused(elsewhere, "fedntd/notes: a link")
    (elsewhere / "notes").unlink()
    commit(elsewhere)
    bring(str(elsewhere), None, project)
    trust("fedntd", project)
    assert results(project) == trained
    state = git_state(project, "fedntd")
    assert state["paper_commit"] == git(elsewhere, "rev-parse", "HEAD")
    assert not state["paper_dirty"]
    assert git(paper, "status", "--porcelain") == "?? .gitignore"
    (paper / "metrics.py").write_text("")
    assert git_state(project, "fedntd")["paper_dirty"]
    shutil.rmtree(paper)

    result = elsewhere / "runs/kmnist/fedavg/result.json"
    result.write_text(result.read_text().replace('"rounds": 3', '"rounds": 4'))
    git(elsewhere, "commit", "-qam", "altered")
    refused(elsewhere, "papers/fedntd/runs/kmnist/fedavg/result.json: 'self' is not the hash")
    assert not paper.exists()
    assert git(project, "status", "--porcelain") == before
