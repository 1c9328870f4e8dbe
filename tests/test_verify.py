"""verify in a copy of the repository: code that walks the rounds of a result restores it, other code is
refused; and what a comparison makes of single values."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from repository import CELL, reread, restore, run

from pipeline.cells import provenance, stamps
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import survey
from pipeline.commands import status
from pipeline.commands.verify import Differs, Walk
from pipeline.schema import Cell
from pipeline.sealing import seal

SEEDS, FOLDER = "pipeline/cells/seeds.py", "papers/fedcrl/runs/mini/fedprox"
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
    assert (stamp["rounds"], stamp["how"], stamp["made"]) == ("1-4 of 4", stamps.BITS, made)
    assert stamp["code"] != made and state(trained) == "done"
    cells = yaml.safe_load((trained / "papers/fedcrl/sources.yaml").read_text())["cells"]
    assert cells["mini"]["fedprox"] == made  # so that DVC has nothing to run


@pytest.mark.parametrize(
    "file, old, new, where",
    [
        (SEEDS, ROUND, ROUND + "\n        if number == 3:\n            " + ROUND, "round 3"),
        (
            "pipeline/models/__init__.py",
            '"""The papers\' networks',
            "import torch\ntorch.nn.Linear.forward = lambda self, x: "
            '1.0001 * torch.nn.functional.linear(x, self.weight, self.bias)\n"""The papers\' networks',
            "round 1",
        ),
    ],
)
def test_a_change_of_numbers_is_named_and_nothing_is_stamped(trained, planted, file, old, new, where):
    planted(file, old, new)
    assert state(trained) == "stale"
    output = verify(trained, CELL, expect=1)
    line = next(line for line in output.splitlines() if "DIFFERENT" in line)
    assert CELL in line and f"{where}:" in line
    assert not (trained / "papers/fedcrl/verified.yaml").exists()


def test_an_altered_history_is_stale_for_status_and_report(trained):
    """The loss of the first seed's first round, by 0.0001."""
    path = trained / FOLDER / "history.csv"
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    place, fields = lines[0].split(",").index("loss"), lines[2].split(",")
    fields[place] = str(round(float(fields[place]) + 0.0001, 4))
    path.write_text("".join([*lines[:2], ",".join(fields), *lines[3:]]))
    try:
        assert state(trained) != "done" and Cell.parse(CELL) not in survey(trained)[0]
        assert "not walked" in verify(trained, CELL, expect=1)
    finally:
        path.write_text(text)
    assert state(trained) == "done" and Cell.parse(CELL) in survey(trained)[0]


MACHINE = {"processor": "A", "torch": "2", "numpy": "2"}


def walk(made_on: dict, **row: float) -> Walk:
    result = {"seeds": [0], "versions": made_on, "rounds": 9, "seconds": [1.0]}
    rows = {number: {"seed": 0, "round": number, **row} for number in range(10)}
    actual = Walk(Cell.parse(CELL), result, 0, rows)
    actual.take({"machine": MACHINE})
    return actual


@pytest.mark.parametrize(
    "made_on, exact",
    [
        (MACHINE, True),
        (MACHINE | {"processor": "B"}, False),
        (MACHINE | {"torch": "3"}, False),
        (MACHINE | {"arithmetic": "portable"}, False),
        (MACHINE | {"processor": "B", "arithmetic": "portable"}, True),  # where both have it
    ],
)
def test_which_machines_must_agree_bit_for_bit(made_on, exact):
    actual = walk(made_on)
    if exact:
        actual.take({"machine": MACHINE | {"arithmetic": made_on.get("arithmetic", "")}})
    assert actual.exact is exact


@pytest.mark.parametrize(
    "row, name", [({"loss": 1.0001}, "loss"), ({"average": 50.01}, "average"), ({"state": "b" * 16}, "state")]
)
def test_on_one_processor_every_value_counts(row, name):
    recorded = {"loss": 1.0, "average": 50.0, "state": "a" * 16}
    actual = walk(MACHINE, **recorded)
    actual.take({"round": 1, **recorded, "a new metric": 3.0})
    assert actual.walked == 1
    with pytest.raises(Differs, match=f"round 2: {name} is"):
        actual.take({"round": 2, **recorded, **row})
    with pytest.raises(Differs, match=f"{name} is None"):
        actual.take({"round": 3, **recorded, name: None})


def test_on_another_processor_a_difference_may_grow_but_not_begin_large():
    actual = walk(MACHINE | {"processor": "B"}, loss=1.0, average=50.0, state="a" * 16)
    for number, loss in enumerate((1.0001, 1.0015, 1.02, 1.049), 1):
        actual.take({"round": number, "loss": loss, "average": 52.0, "state": "b" * 16})
    with pytest.raises(Differs, match="loss"):
        actual.take({"round": 5, "loss": 1.051, "average": 50.0})
    with pytest.raises(Differs, match="average"):
        actual.take({"round": 5, "loss": 1.0, "average": 66.0})
    with pytest.raises(Differs, match="loss"):
        walk(MACHINE | {"processor": "B"}, loss=1.0).take({"round": 1, "loss": 1.003})


ENTRY = dict.fromkeys(stamps.KEYS.keys() - {"self"}, "x") | {"rounds": "1-12 of 100", "seed": "0"}


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
    code = provenance.digest_of(experiment)
    stamps.write({cell: ENTRY | {"result": result["self"], "made": "m", "code": code}}, trained)
    older = seal(
        {key: value for key, value in result.items() if key not in ("code", "history")}
        | {"digest": provenance.cell_digest(experiment, result["partition"], code="m")}
    )
    assert provenance.verified(result, experiment) and not provenance.current(older, experiment)
    stamps.write({cell: ENTRY | {"result": older["self"], "made": "m", "code": code}}, trained)
    assert provenance.current(older, experiment)
    stamps.write({cell: ENTRY | {"result": older["self"], "made": "m", "code": "yesterday's"}}, trained)
    assert not provenance.current(older, experiment)
    (trained / "papers/fedcrl/verified.yaml").unlink()
    reread()
