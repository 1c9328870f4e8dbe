"""A cell of which only some clients are scored: five of thirty, drawn once for every seed."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from repository import edit, edited, stage

from pipeline.cells import loading, results
from pipeline.cells.experiment import Experiment
from pipeline.cells.inputs import dealt
from pipeline.cells.test_sets import sampled
from pipeline.commands import check
from pipeline.errors import ParamError
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.provenance.companions import check_clients
from pipeline.schema import Cell
from pipeline.training import evaluation, final_models, seeds
from pipeline.training.seeds import Job, SeedTraining, trained
from pipeline.training.trainer import plan

CELL = Cell("fedcrl", "mini", "fedavg")
PERSONAL = Cell("fedcrl", "mini", "perfedavg")


@pytest.fixture(scope="module")
def thirty(project):
    """Thirty clients, two rounds, one seed."""

    def change(document):
        scenario = document["miniature"]["scenario"]
        scenario["partition"] |= {"clients": 30, "beta": 1.0}
        scenario["training"]["rounds"] = 2
        scenario["evaluation"] = {"tests": "clients", "last": 1}
        scenario["seeds"] = [0]

    edit(project / "papers/fedcrl/paper.yaml", change)
    stage(project, "partition", "fedcrl/mini")
    return project


def experiment(root, cell=CELL, **changes) -> Experiment:
    """The cell with other values under `evaluation`."""
    known = Experiment.of(cell, root)
    protocol = dataclasses.replace(known.scenario.evaluation, **changes)
    return dataclasses.replace(known, scenario=dataclasses.replace(known.scenario, evaluation=protocol))


def training(root, cell, **changes) -> SeedTraining:
    return trained(Job(experiment(root, cell, **changes), 0, f"{cell.method}-{changes.get('sample')}"))


@pytest.mark.parametrize("cell", [CELL, PERSONAL], ids=str)
@pytest.mark.parametrize("hook", ["pre", "post"])
def test_the_means_are_those_of_the_sampled_clients_in_a_scoring_of_all(thirty, cell, hook):
    """Bit for bit, and the states of all rounds are the same."""
    every = training(thirty, cell)
    some = training(thirty, cell, sample=5)
    assert [row["state"] for row in some.rows] == [row["state"] for row in every.rows]
    scores = seeds._scores(every.method, every.state)
    of = every.world.whole, every.tests, "clients", scores
    _, accuracies = evaluation.measure(every.models(hook), *of)
    chosen = [accuracies[k] for k in some.sample]
    actual, per_client = evaluation.measure(some.models(hook, scored=True), *of, sample=some.sample)
    images = [len(every.tests[k].labels) for k in some.sample]
    hits = [round(accuracy * count / 100) for accuracy, count in zip(chosen, images)]
    assert actual == {
        "average": sum(chosen) / 5,
        "weighted": 100 * sum(hits) / sum(images),
        "clients_std": float(np.std(chosen)),
    }
    prefix = "" if hook == some.hook else f"{hook}."
    assert {name: some.rows[-1][prefix + name] for name in actual} == {
        name: round(value, 4) for name, value in actual.items()
    }
    if not prefix:
        assert [some.clients[k] for k in some.sample] == [round(accuracy, 4) for accuracy in chosen]
        assert [k for k, accuracy in enumerate(some.clients) if accuracy is not None] == [*some.sample]


def test_only_scored_clients_adapt_a_model(thirty, monkeypatch):
    adapted = []
    real = PerFedAvg._adapt

    def counted(self, model, images, labels, chosen):
        adapted.append(len(labels))
        return real(self, model, images, labels, chosen)

    some = training(thirty, PERSONAL, sample=5)
    monkeypatch.setattr(PerFedAvg, "_adapt", counted)
    some._row()
    assert adapted == [len(some.world.whole.clients[k].labels) for k in some.sample]


def test_the_sample_is_a_draw_of_the_seeds_and_of_nothing_else(thirty):
    images = [10] * 30
    draws = [sampled(5, images, seed) for seed in range(4)]
    assert draws[0] == training(thirty, CELL, sample=5).sample == training(thirty, PERSONAL, sample=5).sample
    assert len(set(draws)) == 4
    assert all(len(set(draw)) == 5 for draw in draws)
    assert set(sampled(5, [0] * 20 + images[:10], 0)) <= {*range(20, 30)}


def test_too_few_clients_with_test_images_are_one_line(thirty, monkeypatch):
    real = loading.load

    def few(*arguments):
        federation = real(*arguments)
        empty = [
            dataclasses.replace(test, images=test.images[:0], labels=test.labels[:0])
            for test in federation.tests[4:]
        ]
        return federation._replace(tests=(*federation.tests[:4], *empty))

    monkeypatch.setattr(loading, "load", few)
    where = "papers/fedcrl/paper.yaml: miniature.scenario.evaluation.sample"
    with pytest.raises(ParamError, match=f"{where}: is 5, and only 4 clients of seed 0 have test images"):
        loading.load_world(experiment(thirty, sample=5), 0)


@pytest.fixture
def scored(thirty):
    """The result of the cell with a sample and with another headline, as its stage leaves it."""

    def change(document):
        document["miniature"]["scenario"]["evaluation"] |= {"sample": 5, "headline": "average"}

    with edited(thirty / "papers/fedcrl/paper.yaml", change):
        stage(thirty, "train", str(CELL), FEDREPRO_WORKERS="1")
        yield thirty


def test_a_result_says_that_it_is_of_a_sample_and_passes_all_checks(scored):
    usable, problems = results.survey(scored)
    assert not problems.get(CELL)
    result = usable[CELL]
    assert (result["sample"], result["headline"]) == (5, "average")
    assert "Accuracies are over 5 clients of 30, drawn once for every seed." in result["warnings"]
    assert sum(accuracy is not None for accuracy in result["clients"][0]) == 5
    folder = CELL.folder(scored)
    check._result(CELL, folder / "result.json", scored)
    check_clients(folder.parent / "clients.csv", {CELL: result})
    other = [*result["clients"][0]]
    at = next(k for k, accuracy in enumerate(other) if accuracy is not None)
    free = next(k for k, accuracy in enumerate(other) if accuracy is None)
    other[at], other[free] = None, other[at]
    of = Experiment.of(CELL, scored)
    assert not list(check._of_clients(result, of))
    (wrong,) = check._of_clients(result | {"clients": [other]}, of)
    assert "is scored on" in wrong[1]
    run = json.loads(next((scored / ".cells").glob(f"{result['digest']}/seed-0.json")).read_text())
    planned = plan(of)
    assert planned._expected(planned.jobs[0]).clients.tests == dealt(of, 0).clients.tests
    assert sum(count > 0 for count in dealt(of, 0).clients.tests) == 5
    assert run["clients"] == result["clients"][0]


def test_exported_models_tell_the_headline_over_the_scored_clients(thirty, tmp_path, monkeypatch):
    """The file of every hook is one that takes each image for the first class."""

    def written(method, state, world, models, folder, hook):
        return {f"{hook}.pt2": {"hook": hook, "client": None, "any_number_of_images": True}}

    monkeypatch.setattr(final_models, "write_models", written)
    first_class = torch.eye(10)[0]
    monkeypatch.setattr(final_models.portable, "load", lambda *_: lambda x: first_class.expand(len(x), -1))
    some = training(thirty, CELL, sample=5, headline="average")
    card = final_models.write(some, some.job.experiment, tmp_path)
    measured = card["measured"][some.hook]
    tests = [some.tests[k].labels for k in some.sample]
    shares = [100 * float((labels == 0).double().mean()) for labels in tests]
    assert card["headline"] == "average"
    assert measured["average"] == pytest.approx(sum(shares) / 5, abs=1e-4)
    assert measured["average"] != pytest.approx(measured["weighted"], abs=0.01)
    assert [accuracy is None for accuracy in measured["clients"]] == [one is None for one in some.clients]
    text = (tmp_path / "README.md").read_text()
    assert f"average accuracy: **{measured['average']:.2f} %**" in text
    assert "It is over 5 clients of 30, drawn once for every seed." in text
