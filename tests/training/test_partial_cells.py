"""A cell whose scenario has some clients take part in a round and keeps others until the last one."""

import dataclasses
import io
import json
import re

import pandas as pd
import pytest
from repository import edit, outputs, stage

from pipeline.cells import loading
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import survey
from pipeline.engine.state import pack
from pipeline.errors import ParamError
from pipeline.schema import Cell, load_paper
from pipeline.training import seeds
from pipeline.training.checkpoint import fingerprint
from pipeline.training.checks import runnable
from pipeline.training.seeds import Job, train_seed

CELL = Cell("fedcrl", "mini", "fedrep")


@pytest.fixture(scope="module")
def partial(project):
    """Three of the eight clients that train take part in a round; two come at the end."""

    def change(document):
        document["miniature"]["scenario"]["training"] |= {"participation": 3, "unseen": 0.2, "adaptation": 2}

    edit(project / "papers/fedcrl/paper.yaml", change)
    stage(project, "train", str(CELL), FEDREPRO_WORKERS="1")
    return project


def changed(root, **changes) -> Experiment:
    """The cell with other values under `training`."""
    experiment = Experiment.of(CELL, root)
    training = dataclasses.replace(experiment.scenario.training, **changes)
    return dataclasses.replace(
        experiment, scenario=dataclasses.replace(experiment.scenario, training=training)
    )


def test_history_and_result_tell_who_took_part_and_the_newcomers_accuracy(partial):
    result = json.loads((CELL.folder(partial) / "result.json").read_text())
    history = pd.read_csv(io.StringIO(outputs(partial, str(CELL))[1]))
    assert result["participants"] == 3
    assert set(history["participants"]) == {0, 3}
    assert [len(accuracies) for accuracies in result["clients"]] == [8, 8]
    last = history["round"] == 4
    assert history["unseen.weighted"][last].notna().all()
    assert history["unseen.weighted"][~last].isna().all()
    assert result["measures"]["unseen.weighted"] == history["unseen.weighted"][last].tolist()
    assert "participants" not in result["measures"]
    actual, problems = survey(partial)
    assert CELL in actual
    assert CELL not in problems
    features = loading.load_world(Experiment.of(CELL, partial), 0)[0].scalars("features")
    assert result["traffic"]["up"] == result["traffic"]["down"] == features  # of one that takes part


def test_the_training_data_of_unseen_clients_reach_no_model(partial, monkeypatch):
    """With other images they get other models; all that was trained before is the same bits."""
    late = loading._unseen(changed(partial), 0, loading.load(Experiment.of(CELL, partial), 0))
    ends, real, load = [], seeds._newcomers, loading.load

    def poisoned(*arguments):
        actual = load(*arguments)
        return actual._replace(
            clients=tuple(
                dataclasses.replace(client, images=-client.images) if k in late else client
                for k, client in enumerate(actual.clients)
            )
        )

    def watched(job, method, state):
        ends.append(fingerprint(pack(state)))
        return real(job, method, state)

    monkeypatch.setattr(seeds, "_newcomers", watched)
    runs = [train_seed(Job(Experiment.of(CELL, partial), 0, "as-it-is"))]
    monkeypatch.setattr(loading, "load", poisoned)
    runs.append(train_seed(Job(Experiment.of(CELL, partial), 0, "poisoned")))
    assert len(late) == 2
    assert ends[0] == ends[1]
    rows = [
        [{name: value for name, value in row.items() if "unseen" not in name} for row in run["rows"]]
        for run in runs
    ]
    assert rows[0] == rows[1]
    assert runs[0]["clients"] == runs[1]["clients"]
    assert runs[0]["rows"][-1]["unseen.weighted"] != runs[1]["rows"][-1]["unseen.weighted"]


def test_who_is_unseen(partial):
    """A draw of the seed's, the same for every method; or the named ones."""
    actual = loading.load(Experiment.of(CELL, partial), 0)
    names = [client.name for client in actual.clients]
    draws = [loading._unseen(changed(partial), seed, actual) for seed in range(4)]
    assert len(set(draws)) > 1
    assert all(len(late) == 2 for late in draws)

    def left(unseen):
        world, tests = loading.load_world(changed(partial, unseen=unseen), 0)
        assert [client.name for client in world.clients] == [test.name for test in tests]
        return [client.name for client in world.clients]

    assert left(0.2) == [name for k, name in enumerate(names) if k not in draws[0]]
    assert left([names[3], names[1]]) == [name for k, name in enumerate(names) if k not in (1, 3)]
    world, tests = loading.load_newcomers(changed(partial, unseen=[names[3]]), 0)
    assert [client.name for client in world.clients] == [test.name for test in tests] == [names[3]]
    assert (world.training.local_epochs, world.training.participation, world.round) == (2, None, 4)
    assert loading.load_newcomers(changed(partial, unseen=None, adaptation=None), 0) is None
    with pytest.raises(ParamError, match="miniature.scenario.training.unseen: unknown client 'nobody'"):
        left(["nobody"])
    with pytest.raises(ParamError, match="training.unseen: seed 0 has no client left that trains"):
        left(names)


@pytest.mark.parametrize(
    ("method", "changes", "demand", "key"),
    [
        ("fedala", {"unseen": None, "adaptation": None}, "partial participation", "participation"),
        ("lgfedavg", {"participation": None}, "unseen clients", "unseen"),
    ],
)
def test_a_method_without_a_rule_is_refused(partial, monkeypatch, method, changes, demand, key):
    monkeypatch.setitem(load_paper("fedcrl", partial).scenarios, "mini", changed(partial, **changes).scenario)
    output = f"methods.{method}: {method} does not support {demand}, which the scenario 'mini' asks for by "
    with pytest.raises(ParamError, match=re.escape(f"{output}`training.{key}`")):
        runnable(Experiment.of(Cell("fedcrl", "mini", method), partial))
