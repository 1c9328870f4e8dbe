"""What a digest of code covers, the ledger of equal code, and that constants which are left out change no
result."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from repository import CELL, ROOT, copy_of_the_repository, forget, outputs, stage

from pipeline.cells import ledger, provenance
from pipeline.cells.definitions import Code
from pipeline.schema import Cell, load_paper, load_params
from pipeline.sealing import seal


def write(root: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


LOOP = """from lib.losses import loss
SECONDS = 20
NETWORKS = {"small": lambda: 1, "large": lambda: 2}

def train(name):
    \"\"\"Train.\"\"\"
    step = loss(NETWORKS[name]())    # a step
    return step, SECONDS
"""
LOSSES = """SCALE = 0.5

def loss(x):
    return SCALE * x

def unused(x):
    return x
"""


def digest(root: Path, *named: str) -> str:
    return Code(
        root,
        constants={"SECONDS"},
        registries={"lib.loop:NETWORKS"} if "NETWORKS" in (root / "lib/loop.py").read_text() else (),
    ).digest(["lib.loop:train"], named)


@pytest.mark.parametrize("module, old, new, same", [
    ("lib__loop", "a step", "one step", True),                           # a comment
    ("lib__loop", "Train.", "Train it.", True),                          # a docstring
    ("lib__loop", "SECONDS = 20", "SECONDS = 21", True),                 # a constant that changes no result
    ("lib__loop", "lambda: 2", "lambda: 3", True),                       # a network that is not named
    ("lib__loop", "lambda: 1", "lambda: 3", False),                      # the one that is
    ("lib__losses", "return x", "return -x", True),                      # what is not used
    ("lib__losses", "0.5", "0.500001", False),                           # a constant two files away
    ("lib__losses", "SCALE * x", "x * SCALE", False),
    ("lib__loop", "step", "stride", False)])  # a renamed variable, which certify restores
def test_what_a_digest_covers(tmp_path, module, old, new, same):
    texts = {"lib__loop": LOOP, "lib__losses": LOSSES}
    before = digest(write(tmp_path / "a", **texts), "small")
    assert (
        digest(write(tmp_path / "b", **texts | {module: texts[module].replace(old, new)}), "small") == before
    ) == same


def test_a_moved_definition_has_the_same_digest(tmp_path):
    before = digest(write(tmp_path / "a", lib__loop=LOOP, lib__losses=LOSSES), "small")
    moved = write(
        tmp_path / "b", lib__loop=LOOP.replace("lib.losses", "other.place.terms"), other__place__terms=LOSSES
    )
    inside = write(tmp_path / "c", lib__loop=LOSSES + LOOP.replace("from lib.losses import loss", ""))
    through = write(tmp_path / "d", lib__loop=LOOP.replace("lib.losses", "lib"), lib__terms=LOSSES)
    (through / "lib" / "__init__.py").write_text("from .terms import loss\n")
    assert digest(moved, "small") == digest(inside, "small") == digest(through, "small") == before


def test_two_functions_of_one_name_are_told_apart(tmp_path):
    """The same text, but the name stands for another function that is in use elsewhere too."""
    texts = {"lib__a": "def f():\n    return 1\n", "lib__b": "def f():\n    return 2\n"}
    loop = "from lib.{} import f\nfrom lib import a, b\n\ndef train():\n    return f(), a.f(), b.f()\n"
    one, other = (digest(write(tmp_path / name, lib__loop=loop.format(name), **texts)) for name in "ab")
    assert one != other


def test_what_acts_on_import_and_what_functions_import_counts(tmp_path):
    def of(effect: str, inner: str) -> str:
        return digest(
            write(
                tmp_path / f"{effect}{inner}",
                lib__loop="def train():\n    from lib.inner import f\n    return f()\n",
                lib__inner=f"import torch\ntorch.flag({effect})\n\ndef f():\n    return {inner}\n",
            )
        )
    assert len({of("1", "1"), of("2", "1"), of("1", "2")}) == 3


def test_a_cell_counts_what_its_scenario_names(tmp_path):
    """A line in a network, an augmentation or an executor concerns the cells that use it."""
    clone = copy_of_the_repository(tmp_path)
    cells = {
        "lenet": Cell("fedlsa", "mini", "fedavg"),
        "networks": Cell("fcclplus", "mini", "fcclplus"),
        "views": Cell("rahfl", "mini", "rahfl"),
    }

    def digests() -> dict[str, str]:
        for function in (provenance._code, provenance._digest_of, load_paper, load_params):
            function.cache_clear()
        return {name: provenance.digest_of(cell, clone) for name, cell in cells.items()} | {
            "stacked": provenance.digest_of(cells["lenet"], clone, "stacked")}

    before = digests()
    for path, old, new, changed in (
        ("pipeline/models/googlenet.py", "STEM = 192", "STEM = 193", set()),
        ("pipeline/models/mobile.py", "SHUFFLENET_GROUPS = ", "SHUFFLENET_GROUPS = 1 + ", {"networks"}),
        (
            "pipeline/data/augmentations.py",
            "WIDTH, DEPTH, SEVERITY = 3, 3, 3",
            "WIDTH, DEPTH, SEVERITY = 3, 3, 4",
            {"views"},
        ),
        ("pipeline/engine/lockstep.py", "STOP_SECONDS = 30.0", "STOP_SECONDS = 31.0", {"stacked"}),
        ("pipeline/engine/phase.py", "return 2 if any", "return 3 if any", set(before)),
        ("pipeline/cells/seeds.py", "CHECKPOINT_SECONDS = 20.0", "CHECKPOINT_SECONDS = 21.0", set()),
    ):
        text = (clone / path).read_text()
        assert old in text
        (clone / path).write_text(text.replace(old, new))
        now = digests()
        assert {name for name in before if now[name] != before[name]} == changed, path
        (clone / path).write_text(text)


def test_the_checkpoint_interval_changes_no_result(project, reference):
    """Every constant of provenance.CONSTANTS has a test like this one."""
    assert provenance.CONSTANTS == {"CHECKPOINT_SECONDS"}
    forget(project)
    stage(project, "train", CELL, FEDREPRO_WORKERS="1", FEDREPRO_CHECKPOINT_SECONDS="0")
    assert outputs(project) == reference


# -- the ledger ----------------------------------------------------------------------------------------------

PAIR = {
    "cell": "fedcrl/mini/fedavg",
    "old": "a" * 64,
    "new": "b" * 64,
    "rounds": [1, 2],
    "values": 10,
    "same": "c" * 64,
}


def entry(commit: str, *pairs: dict, **changed) -> dict:
    return seal(
        {
            "date": "2026-11-22T00:00:00+00:00",
            "from": commit,
            "to": commit,
            "machine": {"device": "cpu"},
            "pairs": [*pairs],
        }
        | changed
    )


@pytest.fixture
def repository(tmp_path) -> tuple[Path, str]:
    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    return tmp_path, git("rev-parse", "HEAD")


def equal(root: Path, *entries: dict, of: str = "b" * 64) -> list[str]:
    (root / ledger.FILE).write_text(yaml.safe_dump({"entries": [*entries]}))
    ledger.forget()
    return ledger.equal(of, root)


def test_equals_are_found_along_chains_the_oldest_first(repository):
    root, commit = repository
    later = entry(
        commit, PAIR | {"old": "b" * 64, "new": "d" * 64}, PAIR | {"old": "x" * 64, "new": "y" * 64}
    )
    assert equal(root, entry(commit, PAIR), later, of="d" * 64) == ["a" * 64, "b" * 64, "d" * 64]
    assert equal(root, entry(commit, PAIR), of="z" * 64) == ["z" * 64]


@pytest.mark.parametrize("change, message", [
    (lambda e: e | {"date": "2027"}, "entry 1: 'self' is not the hash of the rest; it was edited by hand"),
    (lambda e: e | {"pairs": [PAIR | {"new": "e" * 64}]}, "entry 1: 'self' is not the hash"),
    (lambda e: seal(e | {"from": "1" * 40}), "entry 1: this clone does not have the commit 111111111111 of "
                                             "'from' (in a shallow clone: git fetch"),
    (lambda e: {k: v for k, v in e.items() if k != "to"}, "entry 1: the key 'to' is missing"),
    (lambda e: seal(e | {"pairs": [{"cell": "a/b/c"}]}), "entry 1: pair 1: the key 'old' is missing"),
    (lambda e: seal(e | {"pairs": [PAIR | {"olld": 1}]}), "entry 1: pair 1: unknown key 'olld'"),
    (lambda e: "edited", "entry 1: expected a mapping, found 'edited'")])
def test_an_entry_that_cannot_be_trusted_counts_for_nothing(repository, capsys, change, message):
    root, commit = repository
    assert equal(root, change(entry(commit, PAIR)), of="b" * 64) == ["b" * 64]
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and "counts as stale" in said


def test_an_appended_entry_is_read_back(repository):
    """Pairs of the same commits and machine go on in one entry, which is sealed anew."""
    root, commit = repository
    equal(root)
    for processor, cell in (("p", "b"), ("p", "a"), ("q", "c")):
        ledger.append({"date": "now", "from": commit, "to": commit, "machine": {"processor": processor},
                       "pairs": [PAIR | {"cell": cell}]}, root)
    found = ledger.entries(root)
    assert [[pair["cell"] for pair in one["pairs"]] for one in found] == [["a", "b"], ["c"]]
    assert (root / ledger.FILE).read_text().count("\n  - {cell: ") == 3         # a pair a line


def test_an_entry_that_was_edited_is_not_gone_on_with(repository):
    """It would be sealed, and so certified, with what was edited."""
    root, commit = repository
    equal(root, entry(commit, PAIR) | {"pairs": [PAIR | {"new": "e" * 64}]})
    ledger.append({"date": "now", "from": commit, "to": commit, "machine": {"device": "cpu"},
                   "pairs": [PAIR | {"cell": "other"}]}, root)
    assert [pair["cell"] for one in ledger.entries(root) for pair in one["pairs"]] == ["other"]


def test_a_result_counts_under_an_equal_digest(project, reference, monkeypatch):
    cell, today = Cell.parse(CELL), provenance.digest_of(Cell.parse(CELL), project)
    monkeypatch.setattr(ledger, "_neighbours", lambda root: {"0" * 64: [today], today: ["0" * 64]})
    assert ledger.equal(today, project)[0] == "0" * 64
    # the oldest is another, but the result was made by this one
    assert provenance.code_of(cell, project) == today
    result = json.loads((cell.folder(project) / "result.json").read_text())
    assert provenance.made_by(result | {"device": "NVIDIA"}, cell, ["0" * 64, today], project) == today
    assert provenance.made_by(result | {"digest": "1" * 64}, cell, ["0" * 64, today], project) is None
    shutil.rmtree(cell.folder(project))  # DVC takes it away before the stage runs
    assert provenance.code_of(cell, project) in ("0" * 64, today)
    stage(project, "train", CELL)


PRINT = """import json, sys
from pipeline.cells import arithmetic
arithmetic.adopt(sys.argv[1] or None)
import torch
print(json.dumps([arithmetic.in_use(), torch.backends.cpu.get_cpu_capability()]))
"""


def test_portable_arithmetic_is_in_use_and_recorded(project, reference):
    def said(name: str) -> list[str]:
        clean = {
            key: value
            for key, value in os.environ.items()
            if key not in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
        }
        return json.loads(
            subprocess.run(
                [sys.executable, "-c", PRINT, name],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
                env=clean,
            ).stdout
        )
    assert said("")[0] == ""
    if "avx2" in provenance._processor():
        assert said("portable") == ["portable", "AVX2"]
        assert (
            json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())["versions"][
                "arithmetic"
            ]
            == "portable"
        )


def test_the_commits_of_another_repository_are_not_asked_for(repository, capsys):
    """In which a copy without its git lies."""
    root, commit = repository
    copy = root / "copy"
    copy.mkdir()
    elsewhere = seal(entry(commit, PAIR) | {"from": "1" * 40})
    assert equal(copy, elsewhere) == ["a" * 64, "b" * 64] and not capsys.readouterr().err
    assert equal(root, elsewhere) == ["b" * 64] and capsys.readouterr().err
