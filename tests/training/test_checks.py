"""Names of methods, scenarios, grids and tables."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from repository import edit

from pipeline.cells.experiment import Experiment
from pipeline.errors import ParamError
from pipeline.models import compiled
from pipeline.schema import Cell
from pipeline.training import checks
from pipeline.training.checks import check_environment, check_names, runnable


def changed(root: Path, change) -> None:
    edit(root / "papers/fedcrl/paper.yaml", change)


@pytest.mark.parametrize(
    "kind, change",
    [
        ("methods.FedAvg", lambda d: d["methods"].update(FedAvg={"label": "two", "algorithm": "fedavg"})),
        ("scenarios.Balanced", lambda d: d["scenarios"].update(Balanced=d["scenarios"]["balanced"])),
        ("grids.Main", lambda d: d["grids"].update(Main=d["grids"]["main"])),
        ("tables.TABLE1", lambda d: d["tables"].update(TABLE1=d["tables"]["table1"] | {"number": "9"})),
        ("grids.Runs", lambda d: d["grids"].update(Runs=d["grids"]["main"] | {"separate_file": True})),
    ],
)
def test_names_that_differ_by_case_alone_are_refused(root, kind, change):
    changed(root, lambda document: document["methods"]["ours"].update(algorithm="fedavg"))
    check_names("fedcrl", root)
    changed(root, change)
    with pytest.raises(ParamError, match=kind):
        check_names("fedcrl", root)


def test_a_folder_that_differs_from_another_by_case_alone_is_refused(root, monkeypatch):
    changed(root, lambda document: document["methods"]["ours"].update(algorithm="fedavg"))
    monkeypatch.setattr(checks, "folders", lambda root: ["FedCRL", "fedcrl"])
    with pytest.raises(ParamError, match="the folder.*same name as 'FedCRL'"):
        check_names("fedcrl", root)


@pytest.mark.parametrize("domain", ["average", "inter.one"])
def test_a_domain_with_the_name_of_a_measure_is_refused(root, monkeypatch, domain):
    of_domains = SimpleNamespace(set="any", domains=(domain,))
    scenario = SimpleNamespace(data=of_domains, partition=SimpleNamespace(names=()))
    monkeypatch.setattr(checks, "load_paper", lambda key, root: SimpleNamespace(scenarios={"one": scenario}))
    places = [place for place, why in checks._measures("fedcrl", root) if repr(domain) in why]
    assert places == ["scenarios.one.data.domains"]


def test_a_metric_that_nobody_defines_is_refused(root):
    changed(root, lambda d: d["scenarios"]["balanced"].setdefault("evaluation", {}).update(metrics=["none"]))
    with pytest.raises(ParamError, match="unknown metric 'none'"):
        runnable(Experiment.of(Cell("fedcrl", "balanced", "fedavg"), root))


def test_another_value_of_what_is_kept_is_refused(monkeypatch):
    monkeypatch.setenv("FEDREPRO_KEEP", "everything")
    with pytest.raises(ParamError, match="FEDREPRO_KEEP: unknown value 'everything'"):
        check_environment(here=False)


def test_an_executor_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("FEDREPRO_EXECUTOR", "magic")
    with pytest.raises(ParamError, match="magic"):
        check_environment()


def test_an_executor_that_cannot_be_built_is_refused_before_anything_trains(monkeypatch):
    monkeypatch.setenv("FEDREPRO_EXECUTOR", "compiled")
    monkeypatch.setattr(compiled, "unavailable", lambda: "compiled convolutions: no compiler")
    with pytest.raises(ParamError, match="FEDREPRO_EXECUTOR: compiled convolutions: no compiler"):
        check_environment()
