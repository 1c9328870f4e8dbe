"""certify in a copy of the repository: code that gives the same bits restores the results, code that does not
is refused."""
import contextlib
import json
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from repository import copy_of_the_repository, edit, run, stage

from pipeline.commands import certify as compare_module
from pipeline.commands.certify import Row, _covers, _Tally
from pipeline.schema import Cell

# FedProx's term is the one that is altered; with mu = 0 the same code has no term.
METHODS = ("fedavg", "fedprox", "fedprox-none")


def git(project: Path, *arguments: str) -> str:
    return run(project, "git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments).stdout.strip()


def commit(project: Path, message: str) -> str:
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", message)
    return git(project, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A repository of its own with three cells of FedCRL's miniature, short, and trained by DVC; nothing else
    was run."""
    copy = copy_of_the_repository(tmp_path_factory.mktemp("certified"))

    def shorten(document):
        mini = document["miniature"]
        (
            mini["scenario"]["training"]["rounds"],
            mini["scenario"]["evaluation"]["last"],
            mini["scenario"]["seeds"],
        ) = 6, 2, [0]
        mini["methods"] = [*METHODS]
        document["methods"]["fedprox-none"] = {"algorithm": "fedprox", "label": "FedProx, none", "mu": 0.0}
    edit(copy / "papers/fedcrl/paper.yaml", shorten)
    for runs in copy.glob("papers/*/runs/*/"):
        shutil.rmtree(runs)
    (copy / "equivalents.yaml").write_text("entries: []\n")
    git(copy, "init", "-q")
    commit(copy, "code")
    stage(copy, "sources")
    run(copy, "python", "-m", "pipeline", "sync")
    stage(copy, "sources", "fedcrl")
    commit(copy, "sources")
    run(
        copy,
        "dvc",
        "repro",
        "-q",
        *(f"papers/fedcrl/dvc.yaml:mini@{method}" for method in METHODS),
        FEDREPRO_WORKERS="2",
    )
    commit(copy, "results")
    return copy


def certify(project: Path, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess:
    return run(project, "python", "-m", "pipeline", "certify", *arguments, expect=expect)


COMPARE = """import sys, yaml
sys.path.insert(0, '.')
from stages import sources; sources.sources('fedcrl')
now = yaml.safe_load(open('papers/fedcrl/sources.yaml'))['cells']['mini']
stages = yaml.safe_load(open('papers/fedcrl/dvc.lock'))['stages']
then = {m: stages[f'mini@{m}']['params']['papers/fedcrl/sources.yaml'][f'cells.mini.{m}'] for m in %r}
print(*(m for m in then if then[m] != now[m]))"""


def changed(project: Path) -> list[str]:
    """Cells that DVC would run: what sources.yaml says of them now is not what dvc.lock has."""
    return run(project, "python", "-c", COMPARE % (METHODS,)).stdout.split()


def replace(project: Path, file: str, old: str, new: str) -> None:
    path = project / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_results_outlive_a_change_that_does_not_change_them(project):
    assert changed(project) == []
    git(project, "mv", "pipeline/losses.py", "pipeline/terms.py")  # a module moves: no digest changes
    for path in [*project.glob("pipeline/**/*.py")]:
        path.write_text(path.read_text().replace("pipeline.losses import", "pipeline.terms import"))
    commit(project, "a module moved")
    assert changed(project) == []
    assert "nothing to certify" in certify(project).stdout
    replace(
        project,
        "pipeline/engine/phase.py",
        "def least_batch(*networks: nn.Module) -> int:",
        "def least_batch(*found: nn.Module) -> int:",
    )
    # renamed
    replace(
        project,
        "pipeline/engine/phase.py",
        "any(map(has_batchnorm, networks))",
        "any(map(has_batchnorm, found))",
    )
    replace(project, "pipeline/methods/fedavg.py", "return State(model=world.average(models))",
            "average = world.average(models)\n        return State(model=average)")          # reworded
    assert changed(project) == [*METHODS]
    assert "commit the code first" in certify(project, expect=2).stderr
    now = commit(project, "a variable renamed")
    trained = json.loads((project / "papers/fedcrl/runs/mini/fedavg/result.json").read_text())
    said = certify(project).stdout
    assert "3 the same, 0 different" in said and changed(project) == []
    # as it was trained
    assert json.loads((project / "papers/fedcrl/runs/mini/fedavg/result.json").read_text()) == trained != now
    commit(project, "certified")
    assert "re-earned" in certify(project, "--check").stdout


def test_a_cell_without_its_data_is_not_called_different(project):
    file, place = "pipeline/methods/fedprox.py", project / "papers/fedcrl/partitions/mini"
    original, away = (project / file).read_text(), place.rename(place.with_name("away"))
    replace(project, file, "self.mu *", "1.000001 * self.mu *")
    commit(project, "another loss, no partition")
    done = certify(project, expect=1)
    assert "fedcrl/mini/fedprox: papers/fedcrl/partitions/mini" in done.stderr
    assert "DIFFERENT" not in done.stdout and "0 the same, 0 different, 2 not compared" in done.stdout
    away.rename(place)
    (project / file).write_text(original)
    commit(project, "the loss as it was, and the partition")
    assert changed(project) == []


@pytest.mark.parametrize("asked", [(), ("fedprox-none",)])
def test_a_constant_that_changes_a_loss_is_refused(project, asked):
    """FedProx without its term runs the same code and stays the same, which says nothing of FedProx."""
    file = "pipeline/methods/fedprox.py"
    original, ledger = (project / file).read_text(), (project / "equivalents.yaml").read_text()
    replace(project, file, "self.mu *", "1.000001 * self.mu *")
    commit(project, "another loss")
    done = certify(project, *asked, expect=1)
    assert "DIFFERENT  fedcrl/mini/fedprox: round 1: state " in done.stdout
    assert "not kept   fedcrl/mini/fedprox-none: fedcrl/mini/fedprox goes another way" in done.stdout
    assert "0 the same, 1 different" in done.stdout
    assert (project / "equivalents.yaml").read_text() == ledger and changed(project) == [*METHODS[1:]]
    (project / file).write_text(original)
    commit(project, "the loss as it was")
    assert changed(project) == []


def test_an_entry_about_other_commits_is_refused(project):
    """Sealed by somebody who knows how, but its commits have other code."""
    code = (
        "from pipeline.cells import ledger; from pipeline.sealing import seal; import yaml; "
        "d = yaml.safe_load(open('equivalents.yaml')); e = d['entries'][0]; e['pairs'] = [p | {'old': 'f' * "
        "64} for p in e['pairs']]; "
        "open('equivalents.yaml', 'w').write(yaml.safe_dump({'entries': [seal(e)]}))"
    )
    original = (project / "equivalents.yaml").read_text()
    run(project, "python", "-c", code)
    said = certify(project, "--check", expect=2).stderr
    (project / "equivalents.yaml").write_text(original)
    assert "the digest of its code at" in said and said.count("\n") == 1


def test_what_cannot_be_certified_costs_one_line(project, tmp_path):
    assert (
        "unknown measured cell, method or paper 'fedporx' (nearest: 'fedprox')"
        in certify(project, "fedporx", expect=2).stderr
    )
    shallow = tmp_path / "shallow"
    run(tmp_path, "git", "clone", "-q", "--depth", "1", f"file://{project}", str(shallow))
    done = certify(shallow, expect=1)                              # its ledger's commits are not there
    assert "0 the same" in done.stdout and "counts as stale" in done.stderr
    assert "this clone is shallow: git fetch --unshallow" in done.stderr


def row(method: str, new: str) -> Row:
    return Row(Cell("fedcrl", "mini", method), {}, "old", "commit", new)


def test_a_pair_is_certain_once_all_its_ways_agree():
    """And is written then: a kill loses what is still open."""
    first, second, failed, other, lone = (row(*one) for one in (
        ("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "z")))
    tally = _Tally([first, second, failed, other, lone], [(row("f", "z"), "its data are not here")])
    tally.add(first, {"pair": 1})
    assert tally.take() == []
    tally.add(second, {"pair": 2})
    assert tally.take() == [(first, {"pair": 1}), (second, {"pair": 2})] and tally.take() == []
    tally.add(failed, "round 1: loss 1.0 -> 2.0")
    tally.add(other, {"pair": 3})
    tally.add(lone, {"pair": 4})
    assert tally.take() == [] and tally.different == 1
    assert [line.split(" goes")[0] for line in tally.withheld] == [
        "fedcrl/mini/d: fedcrl/mini/c", "fedcrl/mini/e: fedcrl/mini/f"]


def test_an_entry_stands_for_its_commit_only_where_it_names_the_code(tmp_path):
    """Its later commit may hold a sources.yaml that is older than its code."""
    entry = {"pairs": [{"old": "a", "new": "b"}]}
    assert [_covers(entry, code, tmp_path) for code in "abc"] == [True, True, False]


def test_a_comparison_that_is_stopped_begins_no_further_training(monkeypatch):
    begun, released, end = [], threading.Event(), ThreadPoolExecutor.shutdown

    def train(tree, part):
        begun.append(tree)
        if len(begun) == 1:
            raise KeyboardInterrupt
        released.wait()

    def shutdown(pool, wait=True, *, cancel_futures=False):
        end(pool, wait=False, cancel_futures=cancel_futures)
        released.set()
        end(pool)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown)
    monkeypatch.setattr(compare_module, "_worktree", lambda commit, root: contextlib.nullcontext(commit))
    monkeypatch.setattr(compare_module, "_parts", lambda rows: [[one] for one in rows])
    monkeypatch.setattr(compare_module, "_train", train)
    with pytest.raises(KeyboardInterrupt):
        list(compare_module.compare([row("fedavg", "a")] * 5, "before", "after", jobs=1))
    assert len(begun) <= 2
