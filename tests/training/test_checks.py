"""Names of methods, scenarios, grids and tables."""

from pathlib import Path

import pytest
from repository import edit

from pipeline.errors import ParamError
from pipeline.training.checks import check_names


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
