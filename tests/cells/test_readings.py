"""Readings and sources: what a cell runs where a paper is silent, and where its values come from."""

import typing

import pytest

from pipeline import methods
from pipeline.cells.experiment import Experiment
from pipeline.cells.readings import (
    Reading,
    Section,
    _of,
    described,
    filled,
    hyper_parameters,
    readings_of,
    sections,
    settings_of,
)
from pipeline.errors import ParamError
from pipeline.report.study import Study, readings_by_methods, values
from pipeline.schema import Cell, check, load_paper, papers
from pipeline.schema.paper import Source

PAPERS = papers()


def choices(hint) -> set[str]:
    """What a Literal, a bool or an optional of these may be; empty for a number."""
    if hint is bool:
        return {"True", "False"}
    if typing.get_origin(hint) is typing.Literal:
        return set(map(str, typing.get_args(hint)))
    actual = (
        set().union(*map(choices, typing.get_args(hint))) if type(None) in typing.get_args(hint) else set()
    )
    return actual | {"None"} if actual else set()


@pytest.mark.parametrize("algorithm", methods.method_names())
def test_every_option_has_a_reading_and_every_number_a_source(algorithm):
    """A choice has a reading for each of its values unless the paper varies it; a number has a source."""
    actual = described(algorithm)
    hints = typing.get_type_hints(type(actual), include_extras=True)
    readings, numbers_, varied = (_of(actual, part) for part in ("readings", "values", "varied"))
    for name in vars(actual):
        if name in varied:
            assert name not in readings, name
        elif wanted := choices(hints[name]):
            assert readings[name].forms.keys() == wanted, name
        else:
            assert name in numbers_, name


def test_readings_are_about_what_there_is():
    options: dict[str, set] = {}
    for method in map(described, methods.method_names()):
        for kind in type(method).__mro__:
            options.setdefault(kind.__name__, set()).update(vars(method))
    assert sections().keys() <= options.keys()
    for name, section in sections().items():
        for topic, entry in section.readings.items():
            assert entry is None or not entry.forms or topic in options[name], (name, topic)
            assert entry is None or entry.when.keys() <= options[name], (name, topic)
        assert {*section.values, *section.varied} <= options[name], name


@pytest.mark.parametrize("paper", PAPERS)
def test_every_value_of_a_row_has_a_source(paper):
    document = load_paper(paper)
    for method in document.methods:
        for scenario in document.scenarios:
            experiment = Experiment.of(Cell(paper, scenario, method))
            assert methods.load(experiment.algorithm, experiment.hyper, method)
            lost = [setting.name for setting in hyper_parameters(experiment) if not setting.source]
            assert not lost, (scenario, method, lost)


@pytest.mark.parametrize(
    "section, message",
    [
        ({"readings": {"x": {"paper": "p", "why": "w"}}}, "f: FedX.readings.x: give either 'forms' or 'run'"),
        ({"readings": {"x": {"paper": "p", "why": "w", "runs": "r"}}}, "f: FedX.readings.x: unknown key"),
        (
            {"readings": {"x": {"paper": "p", "why": "w", "forms": {"a": True}}}},
            "x.forms.a: expected str, not",
        ),
        ({"values": {"x": {"cdoe": "MOON"}}}, "f: FedX.values.x: unknown key 'cdoe' .nearest: 'code'"),
        ({"values": {"x": {}}}, "f: FedX.values.x: give 'paper', 'code' or 'choice'"),
    ],
)
def test_a_wrong_entry_is_named(section, message):
    with pytest.raises(ParamError, match=message):
        check(dict[str, Section], {"FedX": section}, "f:")


def of(text: str) -> Experiment:
    return Experiment.of(Cell.parse(text))


def about(cell: str, words: str, **resolved) -> list[Reading]:
    """The readings of a cell whose paper says these words."""
    options = resolved and vars(described(cell.rpartition("/")[2])) | resolved
    return [one for one in readings_of(of(cell), options or None) if words in one.paper]


def test_a_reading_says_what_the_cell_runs_and_what_gives_the_other_form():
    (clip,) = about("fedcrl/cifar10-dir-01/fedcrl", "line 22")
    assert clip == Reading(clip.paper, "trained parameters are not clipped", clip.why, "clip_params: true")
    (clipped,) = about("fedcrl/cifar10-dir-01/fedcrl", "line 22", clip_params=True)
    assert clipped.run.endswith("clipped to [0, 1]")  # as a result says itself
    forms = sections()["RAHFL"].readings["acc_source"].forms
    (one,) = about("rahfl/corrupted-1/rahfl-test", "generic test")
    assert one.run == forms["test_corrupted"]
    assert one.why.startswith("released code: ")
    assert one.option == "; ".join(f"acc_source: {name}" for name in forms if name != "test_corrupted")


@pytest.mark.parametrize(
    "cell, words, count",
    [
        ("fcclplus/digits/fcclplus", "Eq. 14", 1),
        ("fcclplus/digits/fcclplus-ce", "Eq. 14", 0),  # nothing is distilled
        ("fcclplus/digits/feddf", "for all approaches", 1),
        ("rahfl/corrupted-05-dirichlet/fedmd", "from the entire training dataset", 1),
        ("rahfl/corrupted-05/fedmd", "from the entire training dataset", 0),
        ("fedcrl/mini/fedavg", "", 1),  # the paper's are about other scenarios
    ],
)
def test_a_reading_is_told_where_it_holds(cell, words, count):
    assert len(about(cell, words)) == count


def test_a_reading_holds_for_some_values_of_an_option():
    cell = "fcclplus/digits/fcclplus"
    assert about(cell, "Table 7")
    assert not about(cell, "Table 7", mu=0.002)


def test_values_have_their_rows_source_or_their_methods():
    values = {one.name: one for one in hyper_parameters(of("fedcrl/emnist-dir-01/moon"))}
    assert (values["mu"].value, values["buffer"].value) == (1.0, 1)
    assert values["mu"].source.startswith("released code: QinbinLi/MOON, README")
    assert values["tau"].source == "released code: QinbinLi/MOON, main.py"
    small = {one.name: one.source for one in settings_of(of("fedcrl/digits-partial/fedavg"))}
    assert small["partition.beta"] == small["seeds"] == small["training.rounds"] == "our choice"
    assert small["training.batch_size"] == "Table I"  # as in the paper
    assert settings_of(of("fedcrl/mini/moon")) == hyper_parameters(of("fedcrl/mini/local")) == []
    assert str(Source("a", "b", "c")) == "a; released code: b; our choice: c"


def test_readings_have_one_number_each_and_values_a_source():
    study = Study.of("fedcrl", {})
    groups = readings_by_methods(study)
    every = dict(one for several in groups.values() for one in several)
    assert len(every) == len({*every.values()})
    assert "R1" in dict(groups["all methods"])
    assert sorted(every, key=lambda number: int(number[1:])) == [f"R{i + 1}" for i in range(len(every))]
    (clip,) = [one for one in every.values() if "line 22" in one.paper]
    assert study.readings[clip][0] == "fedcrl"
    # Defaults too: FedProto's lambda, which paper.yaml does not write for every data set.
    lines = values(Study.of("fedccl", {}))
    assert all(line.source for line in lines)
    actual = {(line.rows, line.name): line.value for line in lines}
    assert actual["FedProto", "lam"]
    assert actual["", "training.rounds"]


def test_a_text_takes_measured_numbers_of_its_and_of_other_scenarios():
    mini, other = Cell("fedcrl", "mini", "fedavg"), Cell("fedcrl", "cifar10-dir-01", "fedavg")
    results = {
        mini: {"seeds": [0, 1], "measures": {"average": [70.0, 71.0], "post.average": [60.0, 60.0]}},
        other: {"seeds": [1], "measures": {"average": [50.0]}},
    }
    text = "{fedavg average}, {fedavg post.average}, {cifar10-dir-01 fedavg average}, {fedcrl average}"
    output = filled(text, "notes.mini", "fedcrl", results.get, "mini")
    assert output == "70.5, 60.0, 50.0, not yet measured"
    # a difference is over the seeds that both have: 71 - 50, not 70.5 - 50
    text = (
        "{fedavg average - fedavg post.average}, {fedavg average - cifar10-dir-01 fedavg average}, "
        "{fedavg average - fedcrl average}, {cifar10-dir-01 fedavg average - fedavg average}"
    )
    output = filled(text, "notes.mini", "fedcrl", results.get, "mini")
    assert output == "10.5, 21.0, not yet measured, −21.0"
    for wrong, name in (
        ("{fedavg avg}", "measure 'avg'"),
        ("{fedavgg average}", "method 'fedavgg'"),
        ("{fedavg average - fedavg avg}", "measure 'avg'"),
        ("{cifar9 fedavg average}", "scenario 'cifar9'"),
    ):
        with pytest.raises(ParamError, match=f"papers/fedcrl/paper.yaml: notes.mini: unknown {name}"):
            filled(wrong, "notes.mini", "fedcrl", results.get, "mini")
