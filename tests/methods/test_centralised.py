"""The centralised ceiling: one model trained on all clients' images, and where pages show it."""

import pytest
import torch
from federation import CNN4, image_clients, image_world, run, same, training, watched
from reporting import write_run
from repository import edit

from pipeline.cells.experiment import Experiment
from pipeline.cells.results import collect
from pipeline.engine.phase import Client
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.methods import load
from pipeline.methods.centralised import Centralised, merged, pooled
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.local import Local
from pipeline.report.across import labels_of
from pipeline.report.page import scenario_tab
from pipeline.report.study import studies
from pipeline.schema import Cell, Model, Optimiser, load_paper, papers, planned, printed
from pipeline.schema.discovery import CEILING
from pipeline.training.checks import runnable

SETTINGS = [
    (CNN4, {}),
    (Model("cnn2", dropout=0.4), {"optimiser": Optimiser("adam", 0.003), "local_epochs": 2}),
    (Model("cnn3_bn"), {"batch_size": 8}),
]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("model, setting", SETTINGS, ids=["plain", "dropout", "batchnorm"])
def test_it_is_the_training_of_one_client_with_everyones_images(model, setting, executor, monkeypatch):
    """Also where the first client has none."""
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    clients, settings = image_clients((0, 20, 33, 7), model), training(**setting)
    images, labels = (torch.cat([getattr(c, part) for c in clients]) for part in ("images", "labels"))
    whole = Client(clients[1].name, "only", model, images, labels)
    actual = run(Centralised(), World.create(clients, settings, 10, 0), 2)
    wanted = run(FedAvg(), World.create([whole], settings, 10, 0), 2)
    assert len(labels) == 60
    assert same(actual.model, wanted.model)


def test_its_loss_is_that_of_all_clients():
    w = World.create(image_clients((0, 20, 33), CNN4), training(), 10, 0)
    trained = watched(Centralised(), w)[1]
    (loss,) = [value for value in trained.losses if value == value]
    assert trained.mean_loss(w.sizes) == loss


def test_every_client_holds_its_model_after_training():
    w = World.create(image_clients((0, 20, 33), CNN4), training(), 10, 0)
    state, trained = watched(Centralised(), w)
    held = Centralised().after_training(state, trained.models)
    assert len(held) == 3
    assert all(model is state.model for model in held)


def test_before_the_first_round_nobody_holds_a_trained_model():
    assert Centralised().after_training(Centralised().init(image_world()), None) is None


def test_nothing_is_sent():
    assert Centralised().traffic(image_world()) == (0, 0)


def test_it_is_pretrained_where_clients_are():
    clients = image_clients((20, 33), CNN4)
    one = World.create([merged(tuple(clients))], training(pretraining=2), 10, 0)
    actual = run(Centralised(), World.create(clients, training(pretraining=2), 10, 0))
    assert same(actual.model, run(Local(), one).models[0])
    assert not same(actual.model, run(Centralised(), World.create(clients, training(), 10, 0)).model)


def test_images_are_pooled_once():
    w = image_world()
    assert pooled(w.at(1)).clients[0] is pooled(w.at(2)).clients[0]


def test_a_pooled_world_keeps_the_whole_one():
    w = image_world()
    assert pooled(w).sizes == (60, 0, 0)
    assert w.sizes == (20, 33, 7)
    assert pooled(w).whole is w


def test_a_row_that_gives_one_network_can_be_run_where_clients_hold_several():
    method, mini = load(CEILING, {}, "here"), load_paper("rahfl").scenarios["mini"]
    assert method.requires - mini.provides == {"one network"}
    assert not method.supports
    assert runnable(Experiment.of(Cell("rahfl", "mini", CEILING))) == method


def test_different_networks_are_refused():
    clients = image_clients((20, 33), [CNN4, Model("cnn2")])
    with pytest.raises(TrainingError, match="the clients hold different networks: cnn2, cnn4"):
        Centralised().init(World.create(clients, training(), 10, 0))


@pytest.mark.parametrize("key", papers())
def test_every_paper_asks_for_it_without_a_row(key):
    paper = load_paper(key)
    cells = [cell for cell in planned(key) if paper.algorithm(cell.method) == CEILING]
    assert Cell(key, "mini", CEILING) in cells
    assert len(cells) > 1
    for cell in cells:
        assert isinstance(runnable(Experiment.of(cell)), Centralised)
    assert not {*cells} & {*printed(key)}


def test_it_is_shown_and_neither_marked_nor_ranked(root):
    def add(document):
        document["methods"][CEILING] = {"label": "Centralised"}
        document["miniature"]["methods"].append(CEILING)

    edit(root / "papers/fedcrl/paper.yaml", add)
    for method, value in (("fedavg", 60.0), ("ours", 50.0), (CEILING, 90.0)):
        write_run(root, f"mini/{method}", {"average": [value, value + 1]})
    actual = studies(collect(root), root)
    panel = scenario_tab(actual["fedcrl"], "mini").panel
    marks = {row.name: row.values[0].mark for row in panel.rows}
    assert marks["Centralised"] == ""
    assert marks["FedAvg"] == "best"
    assert CEILING not in labels_of(actual.values())
