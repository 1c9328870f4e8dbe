"""The final models of a seed, as other programs read them."""

import io
import json
import sys
from contextlib import redirect_stdout
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from repository import CELL, PARAMETERS, edited, python, run
from safetensors.torch import load_file

from pipeline.cells import loading, results
from pipeline.cells.experiment import Experiment
from pipeline.schema import Cell
from pipeline.tracking import mlflow_registry, mlflow_runs
from pipeline.training import final_models, seeds, trainer

# Pictures on which the code of the README is tried.
TRIED = 60
# A model takes more than a second: only the server's is written.
EXPORT = """
import sys
from pipeline.training import final_models
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
    assert card["same_state"]
    assert card["seed"] == 0
    assert card["scored"] == "deployed.pt2"
    assert card["measured"]["pre"]["weighted"] == card["measures"]["weighted"]
    assert card["measured"]["pre"]["clients"] == card["clients"]
    assert card["measured"]["post"]["weighted"] == card["measures"]["post.weighted"]
    readme = (exported / "README.md").read_text()
    assert f"**{card['measures']['weighted']:.2f} %**" in readme

    images, labels = (np.load(project / f"data/digits/{name}.npy") for name in ("images", "labels"))
    monkeypatch.chdir(exported)
    monkeypatch.syspath_prepend(str(exported))
    code, output = readme.split("```")[1].removeprefix("python"), io.StringIO()
    for picture in images[:TRIED]:
        Image.fromarray(picture.squeeze()).save("mine.png")
        with redirect_stdout(output):
            exec(code, {})
    right = np.array(output.getvalue().split(), int) == labels[:TRIED]
    # Some are of the training part; chance is 10 %.
    assert abs(100 * right.mean() - card["measures"]["weighted"]) < 15
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


def test_models_stay_on_request(project, reference, monkeypatch, tmp_path, capfd):
    """The last round alone is trained twice, and ends in the state of the result; MLflow's registry has the
    models, unless they were changed."""
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
        trainer.train_cell(Cell.parse(CELL), project)
    out = {"papers/fedcrl/final-models/mini/${item.method}": {"persist": True}}
    assert out in written["stages"]["mini"]["outs"]
    assert written["artifacts"]["mini-fedprox"] == {"path": "final-models/mini/fedprox", "type": "model"}
    cards = [json.loads((folder / f"seed-{seed}/card.json").read_text()) for seed in (0, 1)]
    assert numbers == [4, 4]
    assert all(card["same_state"] for card in cards)
    registered(project, monkeypatch, tmp_path, cards[0])
    damaged(project, monkeypatch, capfd)


LOADED = """
import sys
import mlflow, numpy as np
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/fedcrl.mini.fedprox@seed-0")
own = model.predict(np.load("images.npy"), params={"file": "trained-3.pt2"})
np.savez("scores.npz", scored=model.predict(np.load("images.npy")), own=own)
assert "pipeline" not in sys.modules
"""


def registered(project, monkeypatch, folder, card) -> None:
    """The registry has the scored models, which MLflow loads without this package."""
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cell = Cell.parse(CELL)
    finished = mlflow_runs.Finished({cell: results.collect(project)[cell]}, {}, {})
    for _ in range(2):  # the second one finds them there
        mlflow_runs.import_results(project, finished=finished)
    client = mlflow.MlflowClient(mlflow_runs.uri(project))
    versions = client.search_model_versions("name = 'fedcrl.mini.fedprox'")
    assert sorted(version.tags["seed"] for version in versions) == ["0", "1"]
    for version in versions:
        assert client.get_run(version.run_id).data.tags["seed"] == version.tags["seed"]

    indices = np.load(project / "papers/fedcrl/partitions/mini/indices.npz")
    tested = [indices[f"own_test.{client}"] for client in range(10)]
    images, labels = (np.load(project / f"data/digits/{name}.npy") for name in ("images", "labels"))
    np.save(folder / "images.npy", images[np.concatenate(tested)])
    run(folder, "env", sys.executable, "-c", LOADED, mlflow_runs.uri(project))
    scores = np.load(folder / "scores.npz")
    right = scores["scored"].argmax(1) == labels[np.concatenate(tested)]
    assert 100 * right.mean() == pytest.approx(card["measured"]["pre"]["weighted"], abs=0.001)
    of_client = slice(sum(map(len, tested[:3])), sum(map(len, tested[:4])))
    right = scores["own"].argmax(1)[of_client] == labels[tested[3]]
    assert 100 * right.mean() == pytest.approx(card["measured"]["post"]["clients"][3], abs=0.001)


def damaged(project, monkeypatch, capfd) -> None:
    """A file that is not what its card says is named, one of another result is left out."""
    cell = Cell.parse(CELL)
    result = results.collect(project)[cell]
    path = cell.final_models(project) / "seed-0/deployed.pt2"
    path.write_bytes(path.read_bytes()[:-1])
    names = []
    monkeypatch.setattr(mlflow_registry, "_register", lambda *given: names.append(given[2].name))
    client = SimpleNamespace(search_model_versions=lambda query: [])
    runs = {(result["self"], str(seed)): "id" for seed in (0, 1)}
    assert mlflow_registry.register(client, {cell: result}, lambda paper: runs, project) == 1
    assert names == ["seed-1"]
    assert "deployed.pt2 is not what its card.json says" in capfd.readouterr().err
    card = cell.final_models(project) / "seed-1/card.json"
    state = results.history(cell, project)[results.STATE].iloc[-1]
    card.write_text(card.read_text().replace(state, "0" * len(state)))
    assert mlflow_registry.register(client, {cell: result}, lambda paper: runs, project) == 0
