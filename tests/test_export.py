"""The final models of a seed, as other programs read them."""

import io
import json
import sys
from contextlib import redirect_stdout

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from repository import CELL, edit, run
from safetensors.torch import load_file

from pipeline.cells import evaluation, loading, seeds, training
from pipeline.cells.experiment import Experiment
from pipeline.schema import Cell, load_paper

SCORES = lambda network, images, client: network(images)  # noqa: E731


def export(project, *words: str, expect: int = 0):
    return run(project, sys.executable, "-m", "pipeline", "export", "model", *words, expect=expect)


def test_the_models_are_those_that_were_measured(project, reference, monkeypatch):
    """By the code on the card, on the images of a client and on another picture."""
    assert "the state of the result" in export(project, CELL, "--to", "models/x").stdout
    folder = project / "models/x"
    card = json.loads((folder / "card.json").read_text())
    assert len(card["files"]) == 11 and card["same_state"] and card["seed"] == 0
    images, labels = (np.load(project / f"data/digits/{name}.npy") for name in ("images", "labels"))
    Image.fromarray(images[0].squeeze()).save(folder / "mine.png")
    monkeypatch.chdir(folder)
    code, output = (folder / "README.md").read_text().split("```")[1].removeprefix("python"), io.StringIO()
    with redirect_stdout(output):
        exec(code, {})
    assert output.getvalue().strip() == str(labels[0])
    world, tests = loading.load_world(Experiment.of(Cell.parse(CELL), project), 0)
    model = load_file("server.safetensors")
    measured, clients = evaluation.measure(world.everyone(model), world, tests, "clients", SCORES)
    assert round(measured["weighted"], 4) == card["measures"]["weighted"]
    assert [round(value, 4) for value in clients] == card["clients"]
    assert not torch.equal(load_file("client-3.safetensors")["head.bias"], model["head.bias"])
    assert not (project / ".cells/models").exists() or not [*(project / ".cells/models").iterdir()]


def test_onnx_scores_as_the_model_does(project, reference):
    pytest.importorskip("onnxscript")
    reference_of = pytest.importorskip("onnx.reference").ReferenceEvaluator
    export(project, CELL, "--to", "models/onnx")
    onnx = reference_of(str(project / "models/onnx/server.onnx"))
    world, _ = loading.load_world(Experiment.of(Cell.parse(CELL), project), 0)
    images = world.clients[0].images[:7]
    scores = world.outputs(0, load_file(project / "models/onnx/server.safetensors"), images)
    assert torch.allclose(torch.tensor(onnx.run(None, {"images": images.numpy()})[0]), scores, atol=1e-4)


def test_another_state_than_the_results_is_named(project, reference):
    edit(project / "papers/fedcrl/paper.yaml", lambda document: document["methods"]["fedprox"].update(mu=0.5))
    assert "ANOTHER state" in export(project, CELL, expect=1).stdout
    assert "--seed: 7" in export(project, CELL, "--seed", "7", expect=2).stderr


def test_models_stay_on_request(project, reference, monkeypatch):
    """The last round alone is trained twice, and ends in the state of the result."""
    folder, numbers = project / "papers/fedcrl/final-models/mini/fedprox", []
    assert not folder.exists()
    edit(
        project / "papers/fedcrl/paper.yaml", lambda text: text["miniature"]["scenario"].update(keep="models")
    )
    run(project, sys.executable, "-m", "pipeline", "sync")
    written = yaml.safe_load((project / "papers/fedcrl/dvc.yaml").read_text())
    assert {"papers/fedcrl/final-models/mini/${item.method}": {"persist": True}} in written["stages"]["mini"][
        "outs"
    ]
    assert written["artifacts"]["mini-fedprox"] == {"path": "final-models/mini/fedprox", "type": "model"}
    monkeypatch.setenv("FEDREPRO_WORKERS", "2")  # whose rounds this process does not see
    monkeypatch.setenv("FEDREPRO_TRACKING", "off")
    before = seeds.SeedTraining.round
    monkeypatch.setattr(seeds.SeedTraining, "round", lambda self, n: (numbers.append(n), before(self, n))[1])
    load_paper.cache_clear()
    training.train_cell(Cell.parse(CELL), project)
    cards = [json.loads((folder / f"seed-{seed}/card.json").read_text()) for seed in (0, 1)]
    assert numbers == [4, 4] and all(card["same_state"] for card in cards)
