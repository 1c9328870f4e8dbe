"""docs/questions.md: every command is executed on a small trained study, and its answer is the right one."""

import csv
import io
import json
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from repository import ROOT, commit, copy_of_the_repository, edit, git, run
from scipy import stats

TEXT = (ROOT / "docs/questions.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^fedrepro (.*)$", TEXT, re.MULTILINE)
METHODS = ["fedlsa", "fedavg", "fedprox", "moon", "fpl"]
# The rounds of the study; so many are the fewest that its evaluation takes.
ROUNDS = 2
INTERVAL = re.compile(r"95 % interval (-?[\d.]+) to (-?[\d.]+), (\d+) seeds")
BY_SEED = re.compile(r"^  by seed (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """A copy with one paper, whose shortened miniature has been trained and committed."""
    copy = copy_of_the_repository(tmp_path_factory.mktemp("answers") / "copy", "fedlsa")
    paper = copy / "papers/fedlsa"
    shutil.rmtree(paper / "runs/mini")
    edit(paper / "params.yaml", lambda values: values["settings"]["mini"]["training"].update(rounds=ROUNDS))
    edit(paper / "paper.yaml", shorten)
    commit(copy)
    ask(copy, "run fedlsa/mini --jobs 4")
    git(copy, "add", "-A")
    git(copy, "commit", "-qm", "trained")
    return copy


def shorten(values: dict) -> None:
    """Five methods on a tenth of the images; what the paper measures of others goes with them."""
    values["miniature"]["methods"] = METHODS
    values["miniature"]["scenario"]["partition"]["share"] = 0.1


def ask(folder: Path, line: str) -> str:
    """What a command of the document prints in a checkout."""
    assert line in COMMANDS
    return execute(folder, line)


def execute(folder: Path, line: str) -> str:
    words = [sys.executable, "-m", "pipeline", *shlex.split(line)]
    return run(folder, *words, FEDREPRO_TRACKING="off").stdout


def result(study: Path, method: str) -> dict:
    return json.loads((study / f"papers/fedlsa/runs/mini/{method}/result.json").read_text())


def accuracies(study: Path, method: str) -> list[float]:
    measured = result(study, method)
    return measured["measures"][measured["headline"]]


def differences(printed: str) -> list[list[float]]:
    """The differences of each printed comparison, by seed."""
    found = BY_SEED.findall(printed)
    return [[float(part.partition(": ")[2]) for part in line.split(", ")] for line in found]


def check_interval(printed: str, by_seed: list[float]) -> None:
    """By scipy's t distribution; the printed differences are rounded to 0.01."""
    low, high = stats.ttest_1samp(by_seed, 0).confidence_interval(0.95)
    first, last, count = INTERVAL.search(printed).groups()
    bounds = sorted([abs(low), abs(high)]) if low * high > 0 else [low, high]
    assert [float(first), float(last)] == pytest.approx(bounds, abs=0.1)
    assert int(count) == len(by_seed)


def test_who_is_better_on_seeds_of_my_choice(study):
    before = result(study, "fedlsa")
    printed = ask(study, "compare fedlsa/mini/fedlsa fedlsa/mini/fedavg --seeds 7,8,9")
    (by_seed,) = differences(printed)
    assert re.search(r"by seed 7: .*, 8: .*, 9: ", printed)
    assert np.std(by_seed) > 0
    check_interval(printed, by_seed)
    assert result(study, "fedlsa") == before


def test_another_rate_and_more_epochs_side_by_side(study):
    line = "compare fedlsa/mini/fedavg --set training.optimiser.lr=0.01 --set training.local_epochs=3"
    printed = ask(study, line)
    slower, same = differences(printed)
    assert "FedAvg (training.optimiser.lr 0.01)" in printed
    assert "local_epochs 3" in printed
    assert any(slower)
    assert not any(same)  # the study has three epochs
    rows = [one for one in printed.splitlines() if one.startswith("FedAvg") and "±" in one]
    assert len(rows) == 3
    assert f"{fmean(accuracies(study, 'fedavg')):.2f}" in rows[0]


def test_csv_and_latex(study):
    line = "compare fedlsa/mini/fedlsa fedlsa/mini/fedavg --csv compared.csv --latex compared.tex"
    ask(study, line)
    (row,) = csv.DictReader((study / "compared.csv").open())
    of_first, of_second = accuracies(study, "fedlsa"), accuracies(study, "fedavg")
    assert float(row["difference"]) == pytest.approx(fmean(of_first) - fmean(of_second), abs=1e-4)
    low, high = stats.ttest_rel(of_first, of_second).confidence_interval(0.95)
    assert [float(row["low"]), float(row["high"])] == pytest.approx([low, high], abs=1e-3)
    cells = (study / "compared.tex").read_text().split("\\midrule\n")[1].splitlines()[0].split(" & ")
    assert cells[2] == f"${fmean(of_first) - fmean(of_second):+.1f}$"
    assert cells[4] == "2 \\\\"


def test_every_number_of_every_seed_and_round_as_a_table(study):
    ask(study, "export results fedlsa --csv results.csv")
    table = pd.read_csv(study / "results.csv")
    assert [*table] == ["paper", "scenario", "method", "seed", "round", "measure", "value", "hook"]
    mini = table[(table["scenario"] == "mini") & (table["method"] == "moon") & (table["hook"] == "pre")]
    last = mini[(mini["measure"] == "average") & (mini["round"] > 0)].groupby("seed")["value"].mean()
    assert [*last] == pytest.approx(result(study, "moon")["measures"]["average"], abs=1e-3)
    assert set(mini["round"]) == {*range(ROUNDS + 1)}


def test_who_has_which_images(study):
    printed = ask(study, "explain fedlsa/mini --clients")
    kept = [
        int(row["train"]) for row in csv.DictReader((study / "papers/fedlsa/runs/mini/clients.csv").open())
    ]
    assert all(re.search(rf"\b{count}\b", printed.replace(",", "")) for count in kept)
    shutil.rmtree(study / "papers/fedlsa/partitions")  # as a fresh clone has none
    ask(study, "export partition fedlsa/mini clients --format pfllib")
    config = json.loads((study / "clients/config.json").read_text())
    held = [sum(count for _, count in client) for client in config["Size of samples for labels in clients"]]
    assert held == kept


def test_the_model_in_plain_pytorch(study, tmp_path):
    ask(study, "export model fedlsa/mini/fedavg --to models/mine")
    folder = study / "models/mine"
    card = json.loads((folder / "card.json").read_text())
    # The average over domains is the study's number; here that of the seed which is exported.
    assert card["measured"]["pre"]["average"] == pytest.approx(accuracies(study, "fedavg")[0], abs=15)
    assert (
        f"**{card['measures'][result(study, 'fedavg')['headline']]:.2f} %**"
        in (folder / "README.md").read_text()
    )
    code = (folder / "README.md").read_text().split("```")[1].removeprefix("python")
    images = np.load(study / "data/digit_domains/images.npy")
    Image.fromarray(images[0].squeeze()).save(folder / "mine.png")
    alone = shutil.copytree(folder, tmp_path / "elsewhere")
    assert "pipeline" not in code
    printed = run(alone, "env", sys.executable, "-c", code).stdout
    assert any(name in printed for name in card["classes"])


def test_further_rounds(study):
    printed = ask(study, "compare fedlsa/mini/fedavg --set training.rounds=30")
    assert "FedAvg (training.rounds 30)" in printed
    (longer,) = [one for one in printed.splitlines() if one.startswith("FedAvg (training.rounds 30)")]
    assert float(longer.split()[3]) > fmean(accuracies(study, "fedavg")) + 5


def test_why_a_cell_is_stale(study):
    counts = ask(study, "status fedlsa").splitlines()
    assert counts[0].split()[:3] == ["cells", "done", "stale"]
    cells, done, stale = map(int, counts[1].split()[1:4])
    assert cells > done > len(METHODS)
    assert stale > 0
    printed = ask(study, "explain fedlsa/pacs-64/fedlsa")
    assert re.search(r"^state: +stale: measured with other code", printed, re.MULTILINE)
    assert re.search(r"^differs: +\S", printed, re.MULTILINE)


def test_hours_on_another_device(study):
    """No cell of the copy was trained on it, so that there is no rate."""
    printed = ask(study, "status fedlsa --device h200")
    (row,) = [one for one in printed.splitlines() if one.startswith("fedlsa ")]
    assert printed.splitlines()[0].endswith("hours left")
    assert row.endswith(" unknown")


def test_several_cards(study):
    """Nothing is left to do: the fixture has called this command."""
    assert re.search(r"nothing to do|0 of \d+ stages run", ask(study, "run fedlsa/mini --jobs 4"))


def test_an_archive_and_what_another_group_does_with_it(study, tmp_path):
    assert "fedlsa.zip" in ask(study, "archive fedlsa")
    name = "papers/fedlsa/runs/mini/fedavg/result.json"
    with zipfile.ZipFile(study / "fedlsa.zip") as pack:
        crate = json.loads(pack.read("ro-crate-metadata.json"))
        packed = json.load(io.BytesIO(pack.read(name)))
    assert {one["@id"] for one in crate["@graph"]} >= {"./", name}
    assert packed == result(study, "fedavg")
    shutil.copy(study / "fedlsa.zip", study / "theirs.zip")
    printed = ask(study, "compare fedlsa/mini/fedavg theirs.zip:fedlsa/mini/fedavg")
    assert "FedAvg and FedAvg [theirs.zip] have the same accuracy (2 seeds)" in printed
    other = copy_of_the_repository(tmp_path / "other", "none")
    commit(other)
    shutil.copy(study / "fedlsa.zip", other / "theirs.zip")
    ask(other, "import theirs.zip")
    assert result(other, "fedavg") == packed


def test_half_an_hour_on_a_laptop(study):
    printed = ask(study, "plan 0.5 fedlsa")
    assert printed.startswith("Nothing to plan: no claim could be settled in this time.")
    assert re.search(r"^Left out, \d+ claims: their data are not here", printed, re.MULTILINE)


def test_five_curves(study):
    (line,) = [one for one in COMMANDS if "--plot" in one]
    ask(study, line)
    drawn = (study / "curves.svg").read_text()
    for label in ("FedLSA", "FedAvg", "FedProx", "MOON", "FPL"):
        assert f"<!-- {label} (2 seeds) -->" in drawn


def test_every_command_of_the_document_is_executed_here():
    code = Path(__file__).read_text()
    assert len(COMMANDS) == 17
    for line in COMMANDS:
        assert f'"{line}"' in code or "--plot" in line
