"""The final models of a seed, as other programs read them."""

import io
import json
import sys
from contextlib import redirect_stdout

import numpy as np
import torch
from PIL import Image
from repository import CELL, edit, run
from safetensors.torch import load_file

from pipeline.cells import evaluation, loading
from pipeline.cells.experiment import Experiment
from pipeline.schema import Cell

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


def test_another_state_than_the_results_is_named(project, reference):
    edit(project / "papers/fedcrl/paper.yaml", lambda document: document["methods"]["fedprox"].update(mu=0.5))
    assert "ANOTHER state" in export(project, CELL, expect=1).stdout
    assert "--seed: 7" in export(project, CELL, "--seed", "7", expect=2).stderr
