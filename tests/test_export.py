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
from repository import CELL, PARAMETERS, edited, python, run
from safetensors.torch import load_file

from pipeline.cells import final_models, loading, seeds, training
from pipeline.cells.experiment import Experiment
from pipeline.schema import Cell

# A model takes more than a second: only the server's is written.
EXPORT = """
import sys
from pipeline.cells import final_models
from pipeline.commands import export
write = final_models._write_onnx
final_models._write_onnx = lambda *args: args[-1].stem == "deployed" and write(*args)
sys.exit(export.model(sys.argv[1], None, sys.argv[2]))
"""


@pytest.fixture
def exported(project, reference):
    """The folder of an exported seed."""
    folder = project / "models/x"
    assert "the state of the result" in python(project, EXPORT, CELL, str(folder)).stdout
    assert not (project / ".cells/models").exists() or not [*(project / ".cells/models").iterdir()]
    return folder


def test_the_models_are_those_that_were_measured(project, exported, monkeypatch):
    """By accuracies on the card, which are of the files; by the code beside them, on a picture; as ONNX."""
    card = json.loads((exported / "card.json").read_text())
    assert [*card["files"]] == ["deployed.pt2", *(f"trained-{k}.pt2" for k in range(10))]
    assert card["same_state"] and card["seed"] == 0 and card["scored"] == "deployed.pt2"
    assert card["measured"]["pre"]["weighted"] == card["measures"]["weighted"]
    assert card["measured"]["pre"]["clients"] == card["clients"]
    assert card["measured"]["post"]["weighted"] == card["measures"]["post.weighted"]
    readme = (exported / "README.md").read_text()
    assert f"**{card['measures']['weighted']:.2f} %**" in readme

    images, labels = (np.load(project / f"data/digits/{name}.npy") for name in ("images", "labels"))
    Image.fromarray(images[0].squeeze()).save(exported / "mine.png")
    monkeypatch.chdir(exported)
    monkeypatch.syspath_prepend(str(exported))
    code, output = readme.split("```")[1].removeprefix("python"), io.StringIO()
    with redirect_stdout(output):
        exec(code, {})
    assert output.getvalue().strip() == str(labels[0])
    assert "pipeline" not in (exported / "predict.py").read_text()

    world, _ = loading.load_world(Experiment.of(Cell.parse(CELL), project), 0)
    model = load_file("deployed.safetensors")
    assert not torch.equal(load_file("trained-3.safetensors")["head.bias"], model["head.bias"])
    pytest.importorskip("onnxscript")
    reference_of = pytest.importorskip("onnx.reference").ReferenceEvaluator
    images = world.clients[0].images[:7]
    (scores,) = reference_of("deployed.onnx").run(None, {"images": images.numpy()})
    assert torch.allclose(torch.tensor(scores), world.outputs(0, model, images), atol=1e-4)


def test_another_state_than_the_results_is_named(project, reference):
    """In a process of its own: one that has trained cannot fork the next test's training any more."""
    with edited(project / PARAMETERS, lambda document: document["methods"]["fedprox"].update(mu=0.5)):
        done = python(project, EXPORT, CELL, str(project / "models/y"), expect=1)
    assert "ANOTHER state" in done.stdout


def test_models_stay_on_request(project, reference, monkeypatch):
    """The last round alone is trained twice, and ends in the state of the result."""
    folder, numbers = project / "papers/fedcrl/final-models/mini/fedprox", []
    assert not folder.exists()
    monkeypatch.setenv("FEDREPRO_WORKERS", "2")  # whose rounds this process does not see
    monkeypatch.setenv("FEDREPRO_TRACKING", "off")
    before = seeds.SeedTraining.round
    monkeypatch.setattr(final_models, "_write_onnx", lambda *_: None)
    monkeypatch.setattr(seeds.SeedTraining, "round", lambda self, n: (numbers.append(n), before(self, n))[1])
    keep = {"keep": "models"}
    with edited(project / PARAMETERS, lambda document: document["miniature"]["scenario"].update(keep)):
        run(project, sys.executable, "-m", "pipeline", "sync")
        written = yaml.safe_load((project / "papers/fedcrl/dvc.yaml").read_text())
        training.train_cell(Cell.parse(CELL), project)
    out = {"papers/fedcrl/final-models/mini/${item.method}": {"persist": True}}
    assert out in written["stages"]["mini"]["outs"]
    assert written["artifacts"]["mini-fedprox"] == {"path": "final-models/mini/fedprox", "type": "model"}
    cards = [json.loads((folder / f"seed-{seed}/card.json").read_text()) for seed in (0, 1)]
    assert numbers == [4, 4] and all(card["same_state"] for card in cards)
