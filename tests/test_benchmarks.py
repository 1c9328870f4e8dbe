"""docs/fidelity.md shows what benchmarks/against_originals.py measured, and every method is on it;
gpu_check.py stops at a wrong number and names it, and leaves rows without time out by name."""

import csv
import json
import re
import subprocess
import sys
import time
import warnings

import pytest
import torch

from benchmarks import against_originals as originals
from benchmarks import gpu_check, gpu_train, start_up
from benchmarks.originals import NOT_COMPARED
from pipeline import methods
from pipeline.cells.experiment import Experiment
from pipeline.commands.methods import documented
from pipeline.engine import federation as engine
from pipeline.errors import FedReproError
from pipeline.schema import ROOT, Cell

MEASURED = json.loads(originals.RESULTS.read_text())
ROWS = [row for entry in MEASURED.values() for row in entry["rows"]]


def test_pages_have_the_measured_numbers_and_all_methods():
    made = originals.PAGE.read_text()
    assert originals.with_tables(made, MEASURED, methods.method_names()) == made
    # `fedrepro methods --page` writes it.
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    assert text == documented()
    assert all(f"`{name}` |" in text for name in methods.method_names())
    compared = {row["method"] for row in ROWS}
    assert compared | NOT_COMPARED.keys() <= set(methods.method_names())
    assert not compared & NOT_COMPARED.keys()
    assert "| fedhalf | nobody has" in originals.tables(MEASURED, ["fedhalf", *methods.method_names()])


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    return start_up.grow(tmp_path_factory.mktemp("start up"), 20)


@pytest.mark.parametrize(
    "words, wanted",
    [
        (["status"], r"grown +20 +20 "),
        (["plan", "24"], "Nothing to plan"),
        (["run", "grown"], "nothing to do: 20 stages are up to date"),
    ],
)
def test_a_made_up_project_is_finished(grown, words, wanted):
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(
        command, cwd=grown, env=start_up.environment(grown), capture_output=True, text=True, check=True
    )
    assert re.search(wanted, done.stdout)


def test_start_up_writes_a_row_for_every_size_and_a_figure(tmp_path):
    start_up.main(["--cells", "10", "20", "--out", str(tmp_path)])
    with open(tmp_path / "start_up.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["cells"] for row in rows] == ["10", "20"]
    assert all(float(row[command]) > 0 for row in rows for command in start_up.COMMANDS)
    assert "</svg>" in (tmp_path / "start_up.svg").read_text(encoding="utf-8")


def test_what_was_measured_is_explained():
    for row in ROWS:
        assert row["verdict"] == "equal" or row["remark"], row
        assert row["verdict"] in ("equal", "reading", "their error"), row
        if row["verdict"] == "equal" and row["effect"] is not None:
            assert row["effect"] > 1e3 * row["difference"], row
    assert set(MEASURED) == {repository for repository, _ in originals.known().values()}
    for entry in MEASURED.values():
        assert len(entry["commit"]) == 40
        assert entry["machine"]["processor"]
        assert entry["machine"]["torch"]


def test_a_folder_that_is_no_checkout_gets_one_line(tmp_path):
    with pytest.raises(FedReproError, match="none of .*TsingZ0/PFLlib"):
        originals.identified(tmp_path)
    mark = originals.known()["pfllib"][1]
    (tmp_path / mark).parent.mkdir(parents=True)
    (tmp_path / mark).touch()
    assert originals.identified(tmp_path) == "pfllib"
    with pytest.raises(FedReproError, match="no git checkout"):
        originals.commit(tmp_path)


def test_what_compares_finds_a_difference(monkeypatch):
    """A method beside itself is equal, beside another is not."""
    monkeypatch.setattr(engine, "build", engine.build)  # the federation puts a separate network there
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    try:
        from benchmarks.originals import federation

        torch.set_default_dtype(torch.float64)
        table, world = federation.Table(), federation.world()
        fedavg, alone = federation.ours("fedavg", world), federation.ours("local", world)
        table.add("fedavg", "models", fedavg, federation.ours("fedavg", world).models[1:], without=alone)
        table.add("local", "models", alone, fedavg.models[1:])
    finally:
        torch.set_default_dtype(default)
        torch.set_num_threads(threads)
    assert [row.verdict for row in table.rows] == ["equal", "unexplained"]
    assert table.rows[0].difference == 0
    assert table.rows[0].effect == table.rows[1].difference > 0.01


HOUR = 3600.0
CPU = torch.device("cpu")


def run(orders, out, seconds=HOUR) -> dict:
    """What lies in the file at the end."""
    gpu_check.run(orders, {}, out, time.monotonic() + seconds)
    return json.loads(out.read_text())


def slow() -> dict:
    while True:
        pass


class Held(torch.Tensor):
    """A value that never ends to be copied."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return slow() if func is torch.Tensor.copy_ else super().__torch_function__(func, types, args, kwargs)


def slow_to_load() -> dict:
    return torch.nn.Linear(1, 1).load_state_dict(
        {"weight": torch.zeros(1, 1).as_subclass(Held), "bias": torch.zeros(1)}
    )


def full() -> dict:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


def growth() -> dict:
    return {"growth": {"first": slow, "second": full, "third": lambda: {"seconds": 1.0}}.items()}


@pytest.fixture(autouse=True)
def no_tables(monkeypatch):
    monkeypatch.setattr(gpu_check, "_scenarios", lambda: iter(()))


def test_a_wrong_number_ends_it_and_is_named_in_the_file(tmp_path, monkeypatch):
    def trained(scenario, algorithm, hyper, device, executor):
        wrong = executor == "stacked" and algorithm == "scaffold"
        return [torch.tensor([1.0, 2.0 + 1e-4 * wrong], dtype=torch.float64)]

    monkeypatch.setattr(gpu_check, "_trained", trained)
    with pytest.raises(SystemExit) as ended:
        run({"agreement": gpu_check.agreement(CPU)} | growth(), out := tmp_path / "out.json")
    document = json.loads(out.read_text())
    assert document["stopped"].startswith("agreement: scaffold:")
    assert document["stopped"] in ended.value.code
    assert list(document["agreement"]) == ["fedavg", "fedprox"]
    assert "growth" not in document
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("order", [gpu_check.repeats, gpu_check.kinds, gpu_check.steps, gpu_check.growth])
def test_every_row_of_an_order_is_measured_on_a_cpu(order, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "FEW", 4)
    rows = run({order.__name__: order(CPU)}, tmp_path / "out.json")[order.__name__]
    assert rows
    assert not [row["left_out"] for row in rows.values() if "left_out" in row]


def test_time_that_is_over_while_a_model_is_loaded_ends_the_row_and_not_the_check(tmp_path):
    """torch makes an error of its own of what is raised there."""
    orders = {"growth": {"first": slow_to_load, "second": lambda: {"seconds": 1.0}}.items()}
    rows = run(orders, tmp_path / "out.json", 1.0)["growth"]
    assert "of the time" in rows["first"]["left_out"]
    assert rows["second"]["seconds"] == 1.0


def test_clients_by_dirichlet_have_the_mean_and_the_largest_size_of_the_partition():
    sizes = gpu_check._dirichlet_sizes(20, 200)
    assert sum(sizes) / len(sizes) == pytest.approx(200, abs=1)
    assert 200 / max(sizes) == pytest.approx(gpu_check.DIRICHLET, abs=0.01)


def test_the_speed_of_a_table_is_that_of_its_clients_sizes_and_colours(monkeypatch):
    """Of a Dirichlet partition clients wait for the largest, so that its hours must be measured so."""
    seen = []

    def rounds(device, model, optimiser, sizes, side, batch, channels):
        seen.append((len(sizes), max(sizes) > sum(sizes) / len(sizes), side, channels))
        yield 2.0

    cells = [Experiment.of(Cell.parse(name)) for name in ("fedcrl/mini/fedavg", "fedlsa/mini/fedavg")]
    scenarios = [one.scenario for one in cells]
    monkeypatch.setattr(gpu_check, "_rounds", rounds)
    monkeypatch.setattr(gpu_check, "_scenarios", lambda: ((str(one), one, []) for one in scenarios))
    rows = {shape: measure() for shape, measure in gpu_check.speeds(CPU)}
    assert [" Dirichlet clients" in shape for shape in rows] == [True, False]
    assert [" px grey" in shape for shape in rows] == [True, False]
    sides = [one.data.size for one in scenarios]
    clients = [min(one.clients, gpu_check.MOST_CLIENTS) for one in scenarios]
    assert seen == [(clients[0], True, sides[0], 1), (clients[1], False, sides[1], 3)]
    assert all(row["operations_per_second"] > 0 for row in rows.values())


def test_a_run_that_differs_from_its_repetition_is_told(monkeypatch):
    values = iter([[torch.tensor([1.0])], [torch.tensor([1.5])]])
    monkeypatch.setattr(gpu_check, "_trained", lambda *_: next(values))
    row = gpu_check._repeated(AnyCell(), CPU, deterministic=False)
    assert not row["same_bits"]
    assert row["difference"] == 0.5


class AnyCell:
    def resolve(self):
        return None, "fedavg", {}


@pytest.mark.parametrize("deterministic", [True, False])
def test_operations_without_a_deterministic_algorithm_are_named(monkeypatch, deterministic):
    """torch is asked for them in this comparison alone."""
    asked = []

    def trained(*_):
        asked.append(torch.are_deterministic_algorithms_enabled())
        if asked[-1]:
            warnings.warn(
                "pool_backward_cuda does not have a deterministic implementation, but you set", stacklevel=1
            )
        warnings.warn("something else", stacklevel=1)
        return [torch.tensor([1.0])]

    monkeypatch.setattr(gpu_check, "_trained", trained)
    row = gpu_check._repeated(AnyCell(), CPU, deterministic=deterministic)
    assert asked == [deterministic, deterministic]
    assert row["without_deterministic_algorithm"] == ["pool_backward_cuda"] * deterministic
    assert row["deterministic_algorithms"] == deterministic
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_error_is_named_in_the_file(tmp_path):
    with pytest.raises(SystemExit):
        run({"steps": [("first", lambda: 1 / 0)]}, tmp_path / "out.json")
    assert "steps: first: ZeroDivisionError" in json.loads((tmp_path / "out.json").read_text())["stopped"]


def test_a_row_without_time_or_memory_is_left_out(tmp_path):
    rows = run(growth(), tmp_path / "out.json", 0.3)["growth"]
    assert "of the time" in rows["first"]["left_out"]
    assert "out of memory" in rows["second"]["left_out"]
    assert rows["third"]["seconds"] == 1.0


def test_a_table_without_speed_says_so_and_is_not_planned(tmp_path, monkeypatch):
    monkeypatch.undo()
    name, scenario, works = next(gpu_check._scenarios())
    monkeypatch.setattr(
        gpu_check, "_scenarios", lambda: iter([(name, scenario, works), ("other", None, [1])])
    )
    monkeypatch.setattr(gpu_check, "_shape", lambda scenario: "cnn" if scenario else "resnet")
    tables = gpu_check.tables({"cnn": {"operations_per_second": 2.0}, "resnet": {"left_out": "time"}})
    assert tables[name]["hours"] == sum(works) / 2 / 3600
    assert "resnet" in tables["other"]["left_out"]
    (tmp_path / "check.json").write_text(json.dumps({"tables": tables}))
    assert gpu_train.speeds(tmp_path / "check.json") == {name: 2.0}


def test_pfllib_is_left_out_by_what_it_lacks(tmp_path, monkeypatch):
    refusal = subprocess.CompletedProcess([], 1, stderr="Traceback\nPFLlib needs ujson\n")
    monkeypatch.setattr(gpu_check.subprocess, "run", lambda *_, **__: refusal)
    rows = run({"pfllib": gpu_check.pfllib(CPU, tmp_path)}, tmp_path / "out.json")["pfllib"]
    assert [row["left_out"] for row in rows.values()] == ["PFLlib needs ujson"] * 2
