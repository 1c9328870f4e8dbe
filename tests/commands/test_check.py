"""`fedrepro check` finds altered evidence: each kind of it, planted in a copy with one trained cell."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from repository import CELL

from pipeline.cells import stamps
from pipeline.cells.results import MEANS, parse_history
from pipeline.commands import check
from pipeline.errors import FedReproError
from pipeline.schema import Cell
from pipeline.sealing import seal

FOLDER = Cell.parse(CELL).folder(Path())
RESULT, HISTORY = FOLDER / "result.json", FOLDER / "history.csv"
CLIENTS = FOLDER.parent / "clients.csv"
STAMPS, LOCK = Path("papers/fedcrl/verified.yaml"), Path("papers/fedcrl/dvc.lock")
PARTITION = Path("papers/fedcrl/partitions/mini")
PICTURES = Path("papers/fedcrl/representations/mini/fedprox.npz")


@pytest.fixture(scope="module")
def whole(finished, tmp_path_factory) -> Path:
    """A checkout with one trained cell, its stamp and its lock, and no other result."""
    root = shutil.copytree(finished, tmp_path_factory.mktemp("check") / "copy", symlinks=True)
    for path in (*root.glob("papers/*/runs/*/*/"), *root.glob("papers/*/tuning/*/")):
        if path != root / FOLDER:
            shutil.rmtree(path)
    for path in (*root.glob("papers/*/runs/*/clients.csv"), *root.glob("papers/**/dvc.lock")):
        if path != root / CLIENTS:
            path.unlink()
    for path in root.glob("papers/*/tuning/*.json"):
        path.unlink()
    result = json.loads((root / RESULT).read_text())
    entry = dict.fromkeys(stamps.KEYS.keys() - {"self"}, "x") | {"result": result["self"], "how": stamps.BITS}
    entry |= stamps.spans({0: 4, 1: 2}, result["rounds"])
    (root / STAMPS).write_text(yaml.safe_dump({CELL: seal(entry)}))
    note(root)
    return root


def note(root: Path) -> None:
    """Have the lock file name the result as it is."""
    md5 = hashlib.md5((root / RESULT).read_bytes()).hexdigest()
    outs = [{"path": RESULT.as_posix(), "md5": md5}]
    (root / LOCK).write_text(yaml.safe_dump({"stages": {"mini@fedprox": {"outs": outs}}}))


@pytest.fixture
def problems(whole, tmp_path, monkeypatch) -> Callable[[], list[str]]:
    """What is found now; afterwards all is as it was. sources.yaml, which takes seconds, is left out."""
    monkeypatch.setattr(check, "check_sources", lambda key, root: None)
    files = [path for path in (whole / "papers").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    yield lambda: list(check.of_paper("fedcrl", whole))
    for path, content in before.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def resealed(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Change the result, and seal and note it as a forger would."""

    def plant(root: Path) -> None:
        document = json.loads((root / RESULT).read_text())
        change(document)
        (root / RESULT).write_text(json.dumps(seal(document)))
        note(root)

    return plant


def text(file: Path, change: Callable[[str], str]) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        before = (root / file).read_text()
        (root / file).write_text(change(before))
        assert (root / file).read_text() != before

    return plant


def in_history(change: Callable, means: bool = False) -> Callable[[Path], None]:
    """Change the history, and make its digest, the seal and the lock anew, and the means where asked."""

    def plant(root: Path) -> None:
        document = json.loads((root / RESULT).read_text())
        table = change(parse_history((root / HISTORY).read_bytes(), root / HISTORY))
        content = table.to_csv(index=False, lineterminator="\n").encode()
        (root / HISTORY).write_bytes(content)
        for part, last in ({"measures": document["last"]} | MEANS).items() if means else ():
            for name, each in document[part].items():
                for k, seed in enumerate(document["seeds"]):
                    values = table[table["seed"] == seed][name].dropna().to_numpy()
                    each[k] = round(float(values[-last:].mean()), 4)
        (root / RESULT).write_text(json.dumps(seal(document | {"history": stamps.digest(content)})))
        note(root)

    return plant


def points(table, seed: int, measure: str, added: float):
    table.loc[(table["seed"] == seed) & (table["round"] > 0), measure] += added
    return table


def as_the_first(table):
    """The rows of the first seed as those of the second."""
    one = table[table["seed"] == 0]
    return pd.concat([one, one.assign(seed=1)], ignore_index=True)


def quiet(document: dict) -> None:
    for name in ("up", "down", "bytes"):
        document["traffic"][name] = 0
        document["traffic_of_seeds"][name][1] = 0


def add(numbers: list[int]) -> None:
    numbers[0] += 1 if numbers[0] < 10 else -1


def at(table, seed: int, number: int, column: str, value: object):
    table.loc[(table["seed"] == seed) & (table["round"] == number), column] = value
    return table


def digit(content: str) -> str:
    """With one digit of the last line changed."""
    at = max(at for at, sign in enumerate(content) if sign.isdigit())
    return content[:at] + str((int(content[at]) + 1) % 10) + content[at + 1 :]


def arrays(file: Path, change: Callable[[dict], object]) -> Callable[[Path], None]:
    def plant(root: Path) -> None:
        with np.load(root / file) as read:
            held = {name: read[name] for name in read}
        change(held)
        np.savez(root / file, **held)

    return plant


def flipped(file: Path) -> Callable[[Path], None]:
    """With a byte of its middle inverted."""

    def plant(root: Path) -> None:
        content = bytearray((root / file).read_bytes())
        content[len(content) // 2] ^= 0xFF
        (root / file).write_bytes(bytes(content))

    return plant


PLANTS = {
    "a result's digit": text(RESULT, lambda t: t.replace('"rounds": 4', '"rounds": 5')),
    "a result without seal": text(RESULT, lambda t: t.replace('"self"', '"other"')),
    "a result that was cut": text(RESULT, lambda t: t[: len(t) // 2]),
    "a result of another cell": resealed(lambda d: d.update(cell="fedcrl/mini/fedavg")),
    "an accuracy above 100": resealed(lambda d: d["measures"]["average"].__setitem__(0, 454.86)),
    "a client's accuracy above 100": resealed(lambda d: d["clients"][0].__setitem__(0, 454.86)),
    "a reported mean": resealed(lambda d: d["measures"]["average"].__setitem__(1, 50.0)),
    "the mean of the last round": resealed(lambda d: d["final"]["average"].__setitem__(0, 50.0)),
    "a client's accuracy": resealed(lambda d: d["clients"][1].__setitem__(0, d["clients"][1][0] / 2 + 1)),
    "a client less": resealed(lambda d: d["clients"][0].pop()),
    "a client less in all": resealed(lambda d: [each.pop() for each in d["clients"]]),
    "a seed more": resealed(lambda d: d["seeds"].append(7)),
    "a seed twice": resealed(lambda d: d.update(seeds=[0, 0])),
    "a round more": resealed(lambda d: d.update(rounds=5)),
    "a round less": resealed(lambda d: d.update(rounds=3)),
    "a hook that is none": resealed(lambda d: d.update(hook="middle")),
    "another device's text": resealed(lambda d: d.update(device=7)),
    "a history's digit": text(HISTORY, digit),
    "a history that was cut": text(HISTORY, lambda t: t[: len(t) // 2]),
    "a round that is missing": in_history(lambda t: t[t["round"] != 2]),
    "a round twice": in_history(lambda t: t.loc[[*t.index, t.index[-1]]]),
    "a column that is missing": in_history(lambda t: t.drop(columns="loss")),
    "five points of the second seed": in_history(lambda t: points(t, 1, "average", -5.0), means=True),
    "a spread": in_history(lambda t: points(t, 0, "clients_std", 0.5), means=True),
    "more than 100 % in a history": in_history(lambda t: points(t, 0, "weighted", 100.0)),
    "a state that is no digest": in_history(lambda t: t.assign(state="none")),
    "a last accuracy that is missing": in_history(lambda t: at(t, 1, 4, "average", np.nan), means=True),
    "a state that is missing": in_history(lambda t: at(t, 1, 2, "state", np.nan)),
    "one state for all rounds": in_history(lambda t: t.assign(state="0" * 16)),
    "one seed as another": in_history(as_the_first, means=True),
    "a state of another seed": in_history(lambda t: at(t, 1, 3, "state", t["state"][3])),
    "a measure that the other seed lacks": in_history(lambda t: at(t, 1, 4, "sketch", 50.0)),
    "a client that sends nothing": resealed(quiet),
    "another torch": resealed(lambda d: d["versions"].update(torch="1.4.0")),
    "clients of the second seed in another order": resealed(lambda d: d["clients"][1].reverse()),
    "the second seed's images in another order": resealed(lambda d: d["holdings"]["images"][1].reverse()),
    "a class more of the second seed": resealed(lambda d: add(d["holdings"]["classes"][1])),
    "clients in another order": resealed(lambda d: d["clients"][0].reverse()),
    "a stamp": text(STAMPS, lambda t: t.replace("1-4", "1-3")),
    "a stamp without seal": text(STAMPS, lambda t: t.replace("self:", "other:")),
    "a stamp file that is none": text(STAMPS, lambda t: "{"),
    "a client's count of images": text(CLIENTS, digit),
    "a table of clients without a column": text(CLIENTS, lambda t: t.replace("train", "images")),
    "a client less in the table": text(CLIENTS, lambda t: t[: t.rstrip().rindex("\n") + 1]),
    "a lock of another file": text(LOCK, lambda t: t.replace("md5: ", "md5: 0")),
    "a lock that was cut": text(LOCK, lambda t: t[:9]),
    "an index of the partition": arrays(
        PARTITION / "indices.npz", lambda a: a["train.0"].__setitem__(0, a["train.1"][0])
    ),
    "an archive of the partition": flipped(PARTITION / "indices.npz"),
    "a description of the partition": text(PARTITION / "meta.json", lambda t: t.replace('"0"', '"9"', 1)),
    "a representation": flipped(PICTURES),
}


def test_there_are_as_many_plants_as_were_tried():
    assert len(PLANTS) >= 26


def test_what_is_whole_has_no_problem(problems):
    assert problems() == []


@pytest.mark.parametrize("plant", PLANTS)
def test_altered_evidence_is_one_line(whole, problems, plant):
    PLANTS[plant](whole)
    found = problems()
    assert found
    assert all("\n" not in line and "papers/fedcrl" in line for line in found)


def test_sources_that_are_not_of_todays_code_are_named(whole):
    file = whole / "papers/fedcrl/sources.yaml"
    before = file.read_text()
    file.write_text(before.replace("fedprox: ", "fedprox: 0"))
    with pytest.raises(FedReproError, match="papers/fedcrl/sources.yaml: .*python -m stages.sources fedcrl"):
        check.check_sources("fedcrl", whole)
    file.write_text(before)
