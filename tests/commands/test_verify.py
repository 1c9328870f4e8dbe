"""verify in a copy of the repository: code that walks the rounds of a result restores it, other code is
refused; and what a comparison makes of single values. `reproduce`: this machine's miniatures and the
committed ones, which stay as they are."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from repository import CELL, ROOT, commit, git, reread, restore, run

from pipeline.cells import stamps
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import MEANS, survey
from pipeline.commands import reproduce, status
from pipeline.commands.reproduce import compare, summary
from pipeline.commands.verify import Differs, NotHere, Walk, _trained, check_machine
from pipeline.errors import FedReproError
from pipeline.provenance import identity
from pipeline.schema import Cell
from pipeline.sealing import seal

SEEDS, FOLDER = "pipeline/training/seeds.py", "papers/fedcrl/runs/mini/fedprox"
ROUND = "self.state = self.method.round(self.state, self.world)"


@pytest.fixture(scope="module")
def trained(project, finished) -> Path:
    """The project with one trained cell of four rounds, and no other result."""
    restore(project, finished)
    for path in project.glob("papers/*/runs/*/*/"):
        if str(path.relative_to(project)) != FOLDER:
            shutil.rmtree(path)
    (project / "papers/fedcrl/verified.yaml").unlink(missing_ok=True)
    return project


@pytest.fixture
def planted(trained):
    """Change a file of the project; afterwards all is as it was."""
    originals = {}

    def plant(file: str, old: str, new: str) -> None:
        text = (trained / file).read_text()
        assert old in text
        originals.setdefault(file, text)
        (trained / file).write_text(text.replace(old, new))

    yield plant
    for file, text in originals.items():
        (trained / file).write_text(text)
    (trained / "papers/fedcrl/verified.yaml").unlink(missing_ok=True)


def verify(project: Path, *words: str, expect: int = 0) -> str:
    done = run(project, "python", "-m", "pipeline", "verify", *words, "--seconds", "300", expect=expect)
    return done.stdout + done.stderr


def state(project: Path) -> str:
    reread()
    result = status.read_result(Cell.parse(CELL), project)
    if not result:
        return "altered"
    return "stale" if status.stale(Cell.parse(CELL), result, project) else "done"


def test_a_harmless_change_is_walked_and_stamped(trained, planted):
    made = json.loads((trained / FOLDER / "result.json").read_text())["code"]
    planted(SEEDS, ROUND, "after = self.method.round(self.state, self.world)\n        self.state = after")
    assert state(trained) == "stale"
    verify(trained)
    stamp = yaml.safe_load((trained / "papers/fedcrl/verified.yaml").read_text())[CELL]
    assert (stamp["rounds"], stamp["how"], stamp["made"]) == ("1-4, 1-4 of 4", stamps.BITS, made)
    assert stamp["seed"] == "0, 1"
    assert stamp["code"] != made
    assert state(trained) == "done"
    cells = yaml.safe_load((trained / "papers/fedcrl/sources.yaml").read_text())["cells"]
    assert cells["mini"]["fedprox"] == made  # so that DVC has nothing to run


@pytest.mark.parametrize(
    "file, old, new, where",
    [
        (SEEDS, ROUND, ROUND + "\n        if number == 3:\n            " + ROUND, "round 3"),
        # the method's own ablation: its proximal term off
        ("pipeline/methods/fedprox.py", "return fit + weight *", "return fit + 0.0 *", "round 1"),
        (
            "pipeline/models/__init__.py",
            '"""Networks, all of one form',
            "import torch\ntorch.nn.Linear.forward = lambda self, x: "
            '1.0001 * torch.nn.functional.linear(x, self.weight, self.bias)\n"""Networks, all of one form',
            "round 1",
        ),
    ],
)
def test_a_change_of_numbers_is_named_and_nothing_is_stamped(trained, planted, file, old, new, where):
    planted(file, old, new)
    assert state(trained) == "stale"
    output = verify(trained, CELL, expect=1)
    line = next(line for line in output.splitlines() if "DIFFERENT" in line)
    assert CELL in line
    assert f"{where}:" in line
    entry = yaml.safe_load((trained / "papers/fedcrl/verified.yaml").read_text())[CELL]
    assert entry["how"].startswith(f"{stamps.REFUSED}seed ")
    assert stamps.reach(entry) == {}


@pytest.fixture
def committed(trained, planted):
    """The commit of the project with its result; the history has other numbers than this machine gives, as of
    another processor."""
    path = trained / FOLDER / "history.csv"
    text = path.read_text()
    table = pd.read_csv(path)
    table["loss"] += 0.0001
    path.write_text(table.to_csv(index=False, lineterminator="\n"))
    result = json.loads((trained / FOLDER / "result.json").read_text())
    before = json.dumps(result)
    result["history"] = stamps.digest(path.read_bytes())
    (trained / FOLDER / "result.json").write_text(json.dumps(seal(result)))
    commit(trained)
    yield git(trained, "rev-parse", "HEAD")
    path.write_text(text)
    (trained / FOLDER / "result.json").write_text(before)
    shutil.rmtree(trained / ".git")


def test_on_another_processor_two_codes_are_compared(trained, planted, committed):
    planted(SEEDS, ROUND, "after = self.method.round(self.state, self.world)\n        self.state = after")
    assert "DIFFERENT" in verify(trained, CELL, expect=1)
    (trained / "papers/fedcrl/verified.yaml").unlink(missing_ok=True)
    assert "same bits as the code of" in verify(trained, CELL, "--code", committed)
    stamp = yaml.safe_load((trained / "papers/fedcrl/verified.yaml").read_text())[CELL]
    assert stamp["how"] == f"{stamps.FORMER} {committed}"
    assert state(trained) == "done"
    assert not [*(trained / ".cells").glob("commit-*")]


def test_an_ablation_has_other_bits_than_the_code_of_a_commit(trained, planted, committed):
    planted("pipeline/methods/fedprox.py", "return fit + weight *", "return fit + 0.0 *")
    assert "DIFFERENT" in verify(trained, CELL, "--code", committed, expect=1)
    assert state(trained) == "stale"


def test_a_result_that_the_commits_code_does_not_give_either_is_not_compared(trained, planted, committed):
    planted(SEEDS, ROUND, "after = self.method.round(self.state, self.world)\n        self.state = after")
    git(trained, "commit", "-qam", "code that gave no result")
    after = git(trained, "rev-parse", "HEAD")
    assert f"not count as that of {after[:8]}" in verify(trained, CELL, "--code", after, expect=1)


def test_an_altered_history_is_stale_for_status_and_report(trained):
    """The loss of the first seed's first round, by 0.0001."""
    path = trained / FOLDER / "history.csv"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    place, fields = lines[0].split(",").index("loss"), lines[2].split(",")
    fields[place] = str(round(float(fields[place]) + 0.0001, 4))
    path.write_text("".join([*lines[:2], ",".join(fields), *lines[3:]]))
    try:
        assert state(trained) != "done"
        assert Cell.parse(CELL) not in survey(trained)[0]
        assert "not walked" in verify(trained, CELL, expect=1)
    finally:
        path.write_text(text)
    assert state(trained) == "done"
    assert Cell.parse(CELL) in survey(trained)[0]


def test_walks_of_single_seeds_and_of_few_rounds_add_up(trained, planted):
    planted(SEEDS, ROUND, "after = self.method.round(self.state, self.world)\n        self.state = after")
    said = verify(trained, "--seed", "1", "--rounds", "1", expect=1)
    assert f"too short  {CELL}: 1 of the 3 rounds that a stamp needs" in said
    assert state(trained) == "stale"
    assert not (trained / "papers/fedcrl/verified.yaml").exists()
    said = verify(trained, "--seed", "1", "--rounds", "3")
    assert "verified: 1 of 2 seeds, rounds 1 to 3 of 4 (same bits" in said
    said = verify(trained, CELL, "--seed", "0")
    assert "verified: 2 of 2 seeds, rounds 1 to 3 of 4 (same bits" in said
    stamp = yaml.safe_load((trained / "papers/fedcrl/verified.yaml").read_text())[CELL]
    assert (stamp["seed"], stamp["rounds"]) == ("0, 1", "1-4, 1-3 of 4")


def forge(folder: Path, seed: int, points: float, clients: bool) -> None:
    """Add points to a seed's reported accuracies, and make means, digest and seal anew, as a forger would who
    leaves the digests of the states; also the `clients`' accuracies where asked."""
    result = json.loads((folder / "result.json").read_text())
    table = pd.read_csv(folder / "history.csv", dtype={"state": str})
    chosen = (table["seed"] == seed) & (table["round"] > result["rounds"] - result["last"])
    table.loc[chosen, ["average", "weighted"]] += points
    at = result["seeds"].index(seed)
    for part, last in {"measures": result["last"], **MEANS}.items():
        for name in ("average", "weighted"):
            values = table[table["seed"] == seed][name].dropna().to_numpy()
            result[part][name][at] = round(float(values[-last:].mean()), 4)
    if clients:
        result["clients"][at] = [value + points for value in result["clients"][at]]
    history = table.to_csv(index=False, lineterminator="\n").encode()
    (folder / "history.csv").write_bytes(history)
    (folder / "result.json").write_text(json.dumps(seal(result | {"history": stamps.digest(history)})))


@pytest.mark.parametrize("clients", [False, True], ids=["without a walk", "by a walk"])
def test_points_that_were_added_to_the_second_seed_are_refused(trained, clients):
    before = {file: (trained / FOLDER / file).read_bytes() for file in ("result.json", "history.csv")}
    forge(trained / FOLDER, 1, -5.0, clients)
    try:
        said = verify(trained, CELL, expect=1)
        wanted = f"DIFFERENT  {CELL}: seed 1, round" if clients else "average is"
        assert wanted in said
        if clients:  # today's code made it, and gives other numbers
            assert state(trained) == "stale"
            told = run(trained, "python", "-m", "pipeline", "explain", CELL).stdout
            assert "refused, seed 1, round" in " ".join(told.split())
    finally:
        (trained / "papers/fedcrl/verified.yaml").unlink(missing_ok=True)
        for file, content in before.items():
            (trained / FOLDER / file).write_bytes(content)


def test_a_seed_that_differs_withdraws_what_another_has_verified(trained, planted):
    planted(SEEDS, ROUND, ROUND + "\n        if self.job.seed == 1:\n            " + ROUND)
    verify(trained, CELL, "--seed", "0")
    assert state(trained) == "done"
    said = verify(trained, CELL, "--seed", "1", expect=1)
    assert "DIFFERENT" in said
    assert state(trained) == "stale"
    result = json.loads((trained / FOLDER / "result.json").read_text())
    assert status.not_verified(Cell.parse(CELL), result, trained).startswith("not verified since")


def test_what_the_training_prints_is_not_taken_for_its_numbers(trained, planted):
    planted(SEEDS, ROUND, f"print('round over')\n        {ROUND}")
    assert f"same       {CELL}: verified" in verify(trained, CELL, "--seed", "0")


MACHINE = {"processor": "A", "torch": "2", "numpy": "2"}


def walk(made_on: dict, **row: float) -> Walk:
    result = {"seeds": [0], "versions": made_on, "rounds": 9, "seconds": [1.0]}
    rows = {number: {"seed": 0, "round": number, **row} for number in range(10)}
    actual = Walk(Cell.parse(CELL), result, 0, rows)
    actual.take({"machine": MACHINE})
    return actual


@pytest.mark.parametrize(
    "here, there, said",
    [
        ({}, {}, ""),
        ({"arithmetic": "portable"}, {"arithmetic": "portable", "processor": "B"}, ""),
        ({}, {"processor": "B"}, "trained on B"),
        ({}, {"torch": "3"}, "trained on torch 3"),
        ({}, {"arithmetic": "portable"}, "trained on portable"),
        ({"arithmetic": "portable"}, {}, "trained on A"),
    ],
)
def test_where_the_bits_cannot_be_had_nothing_is_compared(here, there, said):
    if not said:
        check_machine(MACHINE | here, MACHINE | there)
        return
    with pytest.raises(NotHere, match=f"cannot be compared here; {said}.*; train again, or verify it there"):
        check_machine(MACHINE | here, MACHINE | there)


def test_a_training_that_the_system_ends_says_nothing(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    one = walk(MACHINE)
    one.result |= {"executor": "sequential", "precision": "fp32"}
    with pytest.raises(NotHere, match="was ended by signal 9; verify it again"):
        _trained(one, 9.0, 2, tmp_path)


def test_a_result_of_another_processor_is_not_walked(trained, planted):
    planted(SEEDS, ROUND, "after = self.method.round(self.state, self.world)\n        self.state = after")
    file = trained / FOLDER / "result.json"
    before, result = file.read_text(), json.loads(file.read_text())
    for machine in [result["versions"], *result.get("machines", [])]:
        machine["torch"] = "2.9"
    file.write_text(json.dumps(seal(result)))
    try:
        said = verify(trained, CELL, expect=1)
        assert f"{CELL}: cannot be compared here; trained on torch 2.9" in said
        assert not (trained / "papers/fedcrl/verified.yaml").exists()
    finally:
        file.write_text(before)


@pytest.mark.parametrize(
    "row, name", [({"loss": 1.0001}, "loss"), ({"average": 50.01}, "average"), ({"state": "b" * 16}, "state")]
)
def test_every_value_counts(row, name):
    recorded = {"loss": 1.0, "average": 50.0, "state": "a" * 16}
    actual = walk(MACHINE, **recorded)
    actual.take({"round": 1, **recorded, "a new metric": 3.0})
    assert actual.walked == 1
    with pytest.raises(Differs, match=f"round 2: {name} is"):
        actual.take({"round": 2, **recorded, **row})
    with pytest.raises(Differs, match=f"{name} is None"):
        actual.take({"round": 3, **recorded, name: None})


ENTRY = dict.fromkeys(stamps.KEYS.keys() - {"self"}, "x") | {
    "rounds": "1-12 of 100",
    "seed": "0",
    "how": stamps.BITS,
}


@pytest.mark.parametrize("how", ["replay, within rounding", "ledger", "refused, seed 1"])
def test_a_stamp_without_equal_numbers_verifies_nothing(tmp_path, how):
    path = tmp_path / "papers/fedcrl/verified.yaml"
    path.parent.mkdir(parents=True)
    entry = seal(ENTRY | {"how": how})
    path.write_text(yaml.safe_dump({CELL: entry}))
    reread()
    assert stamps.of(Cell.parse(CELL), tmp_path) is None
    assert stamps.former(Cell.parse(CELL), tmp_path) == entry


@pytest.mark.parametrize(
    "how, seeds, rounds, counted",
    [
        (stamps.BITS, "0", "1-2 of 100", {}),
        (stamps.BITS, "0", "1-3 of 100", {0: 3}),
        (stamps.BITS, "0, 3", "1-1, 1-9 of 100", {3: 9}),
        (stamps.BITS, "0", "1-1 of 1", {0: 1}),
        (stamps.NUMBERS, "0", "1-3 of 100", {}),
        (stamps.NUMBERS, "0, 3", "1-4, 1-5 of 100", {0: 4, 3: 5}),
        (f"{stamps.FORMER} 1a2b3c4d", "0", "1-3 of 100", {0: 3}),
        (f"{stamps.FORMER} 1a2b3c4d", "0", "1-2 of 100", {}),
        (stamps.BITS, "0", "all", {}),
    ],
)
def test_a_stamp_counts_for_as_many_rounds_as_refuse_an_ablation(tmp_path, how, seeds, rounds, counted):
    entry = seal(ENTRY | {"how": how, "seed": seeds, "rounds": rounds})
    path = tmp_path / "papers/fedcrl/verified.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump({CELL: entry}))
    reread()
    assert stamps.reach(entry) == counted
    assert stamps.of(Cell.parse(CELL), tmp_path) == (entry if counted else None)


def test_a_stamp_without_states_says_so():
    entry = ENTRY | {"commit": "1a2b3c4d5e", "date": "2026-11-26T08:00:00"}
    assert stamps.words(entry, 12).startswith(
        "verified: 1 of 12 seeds, rounds 1 to 12 of 100 (same bits, at 1a2b"
    )
    said = stamps.words(entry | {"how": stamps.NUMBERS}, 12)
    assert said.startswith(
        "verified by numbers, not by states: 1 of 12 seeds, rounds 1 to 12 of 100 (same numbers"
    )


@pytest.mark.parametrize(
    "changed",
    [
        lambda e: e | {"rounds": "1-100 of 100"},
        lambda e: {k: v for k, v in e.items() if k != "made"},
        lambda e: seal(e | {"more": "y"}),
        lambda e: "edited",
    ],
)
def test_a_stamp_that_was_edited_counts_for_nothing(tmp_path, capsys, changed):
    path = tmp_path / "papers/fedcrl/verified.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump({CELL: changed(seal(ENTRY)), "fedcrl/mini/local": seal(ENTRY)}))
    reread()
    assert stamps.of(Cell.parse(CELL), tmp_path) is None
    assert stamps.of(Cell.parse("fedcrl/mini/local"), tmp_path) == seal(ENTRY)
    assert CELL in capsys.readouterr().err


def test_a_stamp_is_of_one_result_and_of_one_code(trained):
    cell, file = Cell.parse(CELL), trained / FOLDER / "result.json"
    result = json.loads(file.read_text())
    experiment = Experiment.of(cell, trained)
    code = identity.digest_of(experiment)
    stamps.write({cell: ENTRY | {"result": result["self"], "made": "m", "code": code}}, trained)
    older = seal(
        {key: value for key, value in result.items() if key not in ("code", "history")}
        | {"digest": identity.cell_digest(experiment, result["partition"], code="m")}
    )
    assert identity.verified(result, experiment)
    assert not identity.current(older, experiment)
    stamps.write({cell: ENTRY | {"result": older["self"], "made": "m", "code": code}}, trained)
    assert identity.current(older, experiment)
    stamps.write({cell: ENTRY | {"result": older["self"], "made": "m", "code": "yesterday's"}}, trained)
    assert not identity.current(older, experiment)
    (trained / "papers/fedcrl/verified.yaml").unlink()
    reread()


@pytest.fixture
def here(tmp_path) -> Path:
    """A clone whose commit has FedCRL's miniature, nothing trained yet."""
    shutil.copytree(ROOT / "papers/fedcrl/runs/mini", tmp_path / "papers/fedcrl/runs/mini")
    commit(tmp_path)
    return tmp_path


def move(root: Path, method: str, points: float, **versions: str) -> None:
    """Let a cell of the miniature have come out otherwise."""
    folder = Cell("fedcrl", "mini", method).folder(root)
    result = json.loads((folder / "result.json").read_text())
    result["measures"][result["headline"]] = [
        value + points for value in result["measures"][result["headline"]]
    ]
    result["versions"] |= versions
    (folder / "result.json").write_text(json.dumps(seal(result)))
    if points:
        (folder / "history.csv").write_text((folder / "history.csv").read_text() + "\n")


def test_the_same_bits(here):
    actual = compare(here, ["fedcrl"])
    assert len(actual) == 17
    assert all(one.same_bits for one in actual)
    lines = summary(actual)
    assert "(committed: " not in lines[0]
    assert "17 of 17 cells" in lines[1]
    assert len(lines) == 2


def test_another_processor_is_normal(here):
    for one in compare(here, ["fedcrl"]):
        method = Cell.parse(one.cell).method
        move(here, method, {"fedprox": 0.9, "moon": -1.5}.get(method, 0.0), processor="AMD EPYC")
    actual = compare(here, ["fedcrl"])
    moved = {one.cell: round(one.difference, 4) for one in actual if not one.same_bits}
    assert moved == {"fedcrl/mini/fedprox": 0.9, "fedcrl/mini/moon": -1.5}
    lines = summary(actual)
    assert "AMD EPYC; processor AMD EPYC (committed: " in lines[0]
    assert "15 of 17 cells" in lines[1]
    assert [line.split(":")[0].strip() for line in lines[2:]] == ["fedcrl/mini/moon", "fedcrl/mini/fedprox"]


def test_a_paper_whose_miniature_git_does_not_have_is_compared_with_nothing(here):
    assert compare(here, ["rahfl"]) == []
    assert summary([]) == ["Measured:      git has no number of these miniatures to compare with"]


def _killed():
    raise KeyboardInterrupt


def test_the_clone_follows_the_commits_and_keeps_what_was_trained(tmp_path, capsys, monkeypatch):
    (tmp_path / ".gitignore").write_text("/reproduction/\n/.cells/\n")
    (tmp_path / "result").write_text("committed")
    commit(tmp_path)
    clone = reproduce.prepare(tmp_path)
    (clone / "result").write_text("of this machine")
    (clone / ".cells").mkdir()
    (tmp_path / "result").write_text("edited")
    assert reproduce.prepare(tmp_path) == clone
    assert (clone / "result").read_text() == "of this machine"
    assert "1 uncommitted changes take no part" in capsys.readouterr().out
    git(tmp_path, "commit", "-qam", "two")
    reproduce.prepare(tmp_path)
    assert (
        (clone / "result").read_text() == "edited"
        and not (clone / ".cells").exists()  # what was trained for another commit
    )
    (clone / ".cells").mkdir()
    reproduce.prepare(tmp_path, again=True)
    assert not (clone / ".cells").exists()
    (clone / ".cells").mkdir()
    git(tmp_path, "commit", "-qm", "three", "--allow-empty")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # killed before its checkout
        patch.setattr(
            reproduce,
            "git",
            lambda folder, what, *rest: git(folder, what, *rest) if what != "checkout" else _killed(),
        )
        reproduce.prepare(tmp_path)
    reproduce.prepare(tmp_path)
    assert git(clone, "rev-parse", "HEAD") == git(tmp_path, "rev-parse", "HEAD")
    assert not (clone / ".cells").exists()
    assert git(tmp_path, "status", "--porcelain") == ""


def test_a_paper_is_reproduced_alone(here, tmp_path_factory, monkeypatch, capsys):
    """Without a name every paper."""
    rahfl = "papers/rahfl/runs/mini"
    shutil.copytree(ROOT / rahfl, here / rahfl)
    commit(here)
    calls: list = []
    monkeypatch.setattr(reproduce, "ROOT", tmp_path_factory.mktemp("root"))
    monkeypatch.setattr(reproduce, "prepare", lambda root, again: here)
    monkeypatch.setattr(reproduce.subprocess, "run", _recording(calls, subprocess.run))
    assert reproduce.reproduce(["rahfl"], jobs=2) == 0
    assert calls.pop() == ["rahfl/mini", "--force", "--jobs", "2"]
    assert "16 of 16 cells of the miniatures have the same bits" in capsys.readouterr().out
    reproduce.reproduce()
    assert calls.pop() == ["--force"]
    assert "33 of 33 cells" in capsys.readouterr().out
    with pytest.raises(FedReproError, match=r"unknown paper 'fedclr' \(nearest: 'fedcrl'\)"):
        reproduce.reproduce(["rahfl", "fedclr"])
    monkeypatch.setattr(reproduce, "load_paper", lambda name: SimpleNamespace(miniature=None))
    with pytest.raises(FedReproError, match="papers/rahfl/paper.yaml: miniature: missing"):
        reproduce.reproduce(["rahfl"])
    assert not calls


def _recording(calls: list, run):
    """`subprocess.run`, but for the command that trains, whose arguments are written down."""

    def recorded(command, **options):
        if command[1:4] != ["-m", "pipeline", "run"]:
            return run(command, **options)
        calls.append(command[4:])
        return subprocess.CompletedProcess(command, 0)

    return recorded
