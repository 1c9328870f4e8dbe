"""benchmarks/gpu_check.py stops at a wrong number and names it; rows without time are left out by name."""

import json
import subprocess
import time

import pytest
import torch

from benchmarks import gpu_check, gpu_train

HOUR = 3600.0
CPU = torch.device("cpu")


def run(orders, out, seconds=HOUR) -> dict:
    """What lies in the file at the end."""
    gpu_check.run(orders, {}, out, time.monotonic() + seconds)
    return json.loads(out.read_text())


def slow() -> dict:
    while True:
        pass


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
    assert document["stopped"].startswith("agreement: scaffold:") and document["stopped"] in ended.value.code
    assert list(document["agreement"]) == ["fedavg", "fedprox"] and "growth" not in document
    assert torch.get_default_dtype() == torch.float32


def test_an_error_is_named_in_the_file(tmp_path):
    with pytest.raises(SystemExit):
        run({"steps": [("first", lambda: 1 / 0)]}, tmp_path / "out.json")
    assert "steps: first: ZeroDivisionError" in json.loads((tmp_path / "out.json").read_text())["stopped"]


def test_a_row_without_time_or_memory_is_left_out(tmp_path):
    rows = run(growth(), tmp_path / "out.json", 0.3)["growth"]
    assert "of the time" in rows["first"]["left_out"] and "out of memory" in rows["second"]["left_out"]
    assert rows["third"]["seconds"] == 1.0


def test_a_table_without_speed_says_so_and_is_not_planned(tmp_path, monkeypatch):
    monkeypatch.undo()
    name, scenario, works = next(gpu_check._scenarios())
    monkeypatch.setattr(
        gpu_check, "_scenarios", lambda: iter([(name, scenario, works), ("other", None, [1])])
    )
    monkeypatch.setattr(gpu_check, "_shape", lambda scenario: "cnn" if scenario else "resnet")
    tables = gpu_check.tables({"cnn": {"operations_per_second": 2.0}, "resnet": {"left_out": "time"}})
    assert tables[name]["hours"] == sum(works) / 2 / 3600 and "resnet" in tables["other"]["left_out"]
    (tmp_path / "check.json").write_text(json.dumps({"tables": tables}))
    assert gpu_train.speeds(tmp_path / "check.json") == {name: 2.0}


def test_pfllib_is_left_out_by_what_it_lacks(tmp_path, monkeypatch):
    refusal = subprocess.CompletedProcess([], 1, stderr="Traceback\nPFLlib needs ujson\n")
    monkeypatch.setattr(gpu_check.subprocess, "run", lambda *_, **__: refusal)
    rows = run({"pfllib": gpu_check.pfllib(CPU, tmp_path)}, tmp_path / "out.json")["pfllib"]
    assert [row["left_out"] for row in rows.values()] == ["PFLlib needs ujson"] * 2
