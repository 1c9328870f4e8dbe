"""Every method's scored models, written, then loaded in a process that cannot import the package."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from all_methods import algorithm_of, name, of, world_for
from federation import watched

from pipeline.engine.handle import Handle
from pipeline.methods import method_names
from pipeline.training import final_models, portable

# Both clients have images; a round is enough, since other weights give other answers.
SIZES = (20, 33)
ROUNDS = 1
# By these, answers depend on drawn numbers, of which an exported model has others.
DRAWS = {"fedsr"}
# Every method as it is, and options by which one predicts otherwise.
EXPORTED = [
    *map(of, method_names()),
    of("fedproto", averaging=True),
    of("fedtgp", candidates="own"),
    of("fedproc", normalise_features=True),
    of("fedpcl", averaging=False, ce=False, inference="local_prototype"),
]


def test_the_truth_of_tensors_is_noted_and_then_repeated():
    with portable._Truths() as truths:
        noted = [bool(torch.tensor(True)), bool(torch.tensor(False))]
        truths.repeated = 0
        repeated = [bool(torch.tensor(False)), bool(torch.tensor(True))]
    assert noted == truths.noted == [True, False]
    assert repeated == noted


# The answers to each client's images by each file, as a reader of the card gets them.
READER = """
import json, sys
from pathlib import Path
sys.modules["pipeline"] = None  # an import of it is an error
import numpy, torch
answers = {}
for card in sorted(Path(sys.argv[1]).glob("*/card.json")):
    answers[card.parent.name] = each = []
    for name, images, any_number in json.loads(card.read_text()):
        model, images = torch.export.load(card.parent / name).module(), torch.from_numpy(numpy.load(images))
        with torch.no_grad():
            scores = model(images) if any_number else torch.cat([model(one) for one in images.split(1)])
        each.append(scores.argmax(1).tolist())
print(json.dumps(answers))
"""


def scored_models(method, state, trained, world):
    if method.headline == "pre":
        return method.deployed(state, world)
    return method.after_training(state, trained.models)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """{number of a method: ([each client's answers here], [the same by its files], names of the files)}."""
    place, here = tmp_path_factory.mktemp("models"), {}
    patch = pytest.MonkeyPatch()
    patch.setattr(final_models, "_write_onnx", lambda *_: None)
    for number, method in enumerate(EXPORTED):
        world = world_for(method, SIZES)
        state, trained = watched(method, world, ROUNDS)
        models = scored_models(method, state, trained, world)
        (folder := place / str(number)).mkdir()
        written = final_models.write_models(method, state, world, models, folder, method.headline)
        names, mine, asked = [*written], [], []
        for k, client in enumerate(world.clients):
            np.save(file := folder / f"{k}.npy", client.images.contiguous().numpy())
            used = names[k % len(names)]
            asked.append([used, str(file), written[used]["any_number_of_images"]])
            with torch.inference_mode():
                handle = Handle(world.network(k, models[k]), client=k)
                mine.append(method.scores(handle, client.images, state).argmax(1).tolist())
        (folder / "card.json").write_text(json.dumps(asked))
        here[number] = mine, names
    patch.undo()
    command = [sys.executable, "-c", READER, str(place)]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    there = json.loads(done.stdout)
    return {number: (mine, there[str(number)], names) for number, (mine, names) in here.items()}


@pytest.mark.parametrize("number", range(len(EXPORTED)), ids=list(map(name, EXPORTED)))
def test_the_written_model_answers_as_the_scored_one(exported, number):
    mine, theirs, _ = exported[number]
    if algorithm_of(EXPORTED[number]) in DRAWS:
        assert [len(each) for each in theirs] == [*SIZES]
    else:
        assert theirs == mine


@pytest.mark.parametrize(
    ("algorithm", "files"),
    [
        ("fedavg", ["deployed.pt2"]),
        ("feddyn", ["deployed.pt2"]),
        ("ditto", ["trained-0.pt2", "trained-1.pt2"]),
        ("fedbn", ["deployed-0.pt2", "deployed-1.pt2"]),
        ("fedper", ["deployed-0.pt2", "deployed-1.pt2"]),
    ],
)
def test_a_model_that_all_clients_share_is_written_once(exported, algorithm, files):
    number = next(n for n, method in enumerate(EXPORTED) if algorithm_of(method) == algorithm)
    assert exported[number][2] == files
