"""papers/<paper>/params.yaml: values that a user varies, laid over paper.yaml, with DVC's commands."""

import csv
import json
import sys

import pytest
import yaml
from repository import commit, copy_of_the_repository, run, stage

from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import hyper_parameters, settings_of
from pipeline.errors import ParamError
from pipeline.schema import Cell, load_paper, papers, planned
from pipeline.schema.loader import overlay
from stages.sources import paper_digests

DVC = (sys.executable, "-m", "dvc")
VALUES = "papers/fedcrl/params.yaml"


def digests(root) -> dict:
    load_paper.cache_clear()
    return paper_digests("fedcrl", root)


def changed(before: dict, after: dict) -> set[tuple[str, str]]:
    return {
        (scenario, method)
        for scenario, cells in after["cells"].items()
        for method, digest in cells.items()
        if digest != before["cells"][scenario][method]
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = copy_of_the_repository(tmp_path_factory.mktemp("overlay"), "fedcrl")
    commit(folder)
    return folder


def write(copy, values: dict) -> None:
    (copy / VALUES).write_text(yaml.safe_dump(values))


def test_what_is_committed_changes_nothing():
    assert [overlay(name) for name in papers()] == [{}] * 5


def test_a_value_changes_the_cells_that_have_it(copy):
    write(copy, {})
    before = digests(copy)
    write(copy, {"methods": {"fedprox": {"mu": 0.5}, "moon": {"mu": None}}})
    after = digests(copy)
    assert Cell.parse("fedcrl/mini/fedprox").resolve(copy)[2] == {"mu": 0.5}
    assert changed(before, after) == {
        (cell.scenario, cell.method) for cell in planned("fedcrl", copy) if cell.method == "fedprox"
    }
    write(copy, {"settings": {"mini": {"seeds": [3], "training": {"optimiser": {"lr": 0.1}}}}})
    after = digests(copy)
    scenario = load_paper("fedcrl", copy).scenarios["mini"]
    assert (scenario.seeds, scenario.training.optimiser.lr, scenario.training.batch_size) == ([3], 0.1, 16)
    assert {scenario for scenario, _ in changed(before, after)} == {"mini", "across"}
    assert {key for key in after["partition"] if after["partition"][key] != before["partition"][key]} == {
        "mini",
        "across",
    }
    for wrong in ({"methods": {"fedprx": {"mu": 1}}}, {"method": {"fedprox": {"mu": 1}}}):
        write(copy, wrong)
        with pytest.raises(ParamError, match=f"{VALUES}: method"):
            digests(copy)


def test_a_changed_value_is_noted_under_its_tables_and_loses_its_source(copy):
    name = "cifar10-pat-2"
    cell = Cell("fedcrl", name, "fedprox")

    def sources():
        load_paper.cache_clear()
        experiment = Experiment.of(cell, copy)
        return {one.name: one.source for one in (*settings_of(experiment), *hyper_parameters(experiment))}

    write(copy, {})
    before, points = sources(), load_paper("fedcrl", copy).points(name)
    rate = load_paper("fedcrl", copy).scenarios[name].training.optimiser.lr
    write(
        copy,
        {
            "settings": {name: {"training": {"optimiser": {"lr": 0.123}}}},
            "methods": {"fedprox": {"mu": 0.5}},
        },
    )
    after = sources()
    changed = {"training.optimiser", "mu"}
    assert {key for key in before if before[key] != after[key]} == changed
    assert {after[key] for key in changed} == {f"changed by {VALUES}"}
    note = f"Changed by {VALUES}: training.optimiser.lr 0.123 in the place of {rate}."
    assert load_paper("fedcrl", copy).points(name) == [*points, note]
    write(copy, {})
    load_paper.cache_clear()


def test_dvc_sets_a_value_and_names_it(copy):
    """Without a training: the stage that digests the paper's cells runs."""
    write(copy, {"methods": {"fedprox": {"mu": None}}})
    stage(copy, "sources", "fedcrl")
    commit(copy)
    setting = f"{VALUES}:methods.fedprox.mu=0.5"
    run(copy, *DVC, "exp", "run", "-q", "-s", "-S", setting, "papers/fedcrl/dvc.yaml:sources")
    shown = json.loads(run(copy, *DVC, "params", "diff", "--json", "--targets", VALUES).stdout)
    assert shown == {VALUES: {"methods.fedprox.mu": {"old": None, "new": 0.5}}}
    digests(copy)
    assert Cell.parse("fedcrl/mini/fedprox").resolve(copy)[2] == {"mu": 0.5}
    header, *rows = csv.reader(run(copy, *DVC, "exp", "show", "--csv", "--only-changed").stdout.splitlines())
    column = [row[header.index(setting.partition("=")[0])] for row in rows]
    assert len(header) < 40
    assert column == ["0.5", "", "0.5"]


@pytest.mark.parametrize(
    "values, says",
    [
        ({"settings": {"mini": {"training": {"rounds": -1}}}}, "settings.mini.training.rounds: "),
        ({"settings": {"cifar10-pat-2": {"seeds": []}}}, "settings.cifar10-pat-2"),
        ({"methods": {"fedprox": {"label": 3}}}, "methods.fedprox.label: "),
    ],
)
def test_a_wrong_value_is_blamed_on_the_file_that_has_it(copy, values, says):
    write(copy, values)
    load_paper.cache_clear()
    with pytest.raises(ParamError, match=f"papers/fedcrl/params.yaml: {says}"):
        load_paper("fedcrl", copy)
    write(copy, {})
    load_paper.cache_clear()


def test_a_mistake_of_paper_yaml_is_not_blamed_on_the_overlay(copy):
    write(copy, {"settings": {"mini": {"training": {"rounds": 3}}}})
    paper = copy / "papers/fedcrl/paper.yaml"
    text = paper.read_text()
    try:
        paper.write_text(text + "\nunknown_key: 1\n")
        load_paper.cache_clear()
        with pytest.raises(ParamError, match="papers/fedcrl/paper.yaml: .*unknown_key"):
            load_paper("fedcrl", copy)
    finally:
        paper.write_text(text)
        write(copy, {})
        load_paper.cache_clear()
