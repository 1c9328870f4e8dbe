"""Tuning: which configurations are tried, on which images, which is chosen; that no test image is seen."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import yaml
from repository import edit, edited, stage

import stages.split as split_stage
from pipeline.cells import choices, loading, results
from pipeline.cells.experiment import Experiment
from pipeline.commands import tune
from pipeline.commands.sync import written
from pipeline.commands.tune import targets
from pipeline.data import partition, store, validation
from pipeline.data.partition import Parts
from pipeline.errors import FedReproError, ParamError, TrainingError, WorkerError
from pipeline.provenance.identity import cell_digest
from pipeline.report.tunings import tunings
from pipeline.schema import RATE, ROOT, Cell, Trial, Tuned, load_paper, papers, planned, read_yaml
from pipeline.schema.discovery import SPACES
from pipeline.tracking import mlflow_runs
from pipeline.training import tuning
from pipeline.training.tuning import Axis, configurations, shares, space

CELL = Cell("fedcrl", "mini", "fedprox")


def test_configurations_and_the_choice_by_hand():
    assert [Axis("", 0.1, 10).at(share) for share in (0, 0.25, 0.5)] == [0.1, 0.316, 1.0]
    assert [Axis("", 1, 4, "linear").at(share, 0.01) for share in (0, 0.5)] == [0.01, 0.025]
    assert [Axis("", choices=[1, 5, 10]).at(share) for share in (0, 0.34, 0.999)] == [1, 5, 10]
    eight, three = configurations(CELL, 8), configurations(CELL, 3)
    assert eight[0] == ()
    assert eight[:3] == three
    assert len(set(eight)) == 8
    for changes in eight[1:]:
        assert list(dict(changes)) == [RATE, "mu"]
        assert 0.0003 <= dict(changes)[RATE] <= 0.03
        assert 0.001 <= dict(changes)["mu"] <= 1
    points = shares(3, 8, "a")
    assert (np.sort((points[:, 0] * 8).astype(int)) == np.arange(8)).all()  # one in each eighth
    assert np.array_equal(shares(1, 8, "a"), points[:, :1])
    assert not np.array_equal(shares(3, 8, "b"), points)
    assert choices.best([70.0, None, 80.0, 80.0]) == 2
    assert choices.best([80.0, 80.0]) == 0  # the row's values stay unless others are better


@pytest.mark.parametrize("paper", papers())
def test_every_tuned_method_has_a_space_and_all_learning_rates_are_the_same_multiples(paper):
    wanted = load_paper(paper).tuning
    for cell in (Cell(paper, scenario, method) for scenario in wanted for method in wanted[scenario].methods):
        (name, (axis, unit)), *_ = space(cell).items()
        assert axis.ends == [0.1, 10]
        assert name == RATE or cell.method in ("fednova", "perfedavg", "pfedme", "scaffold")
        mine = [dict(changes)[name] / unit for changes in configurations(cell, 8)[1:]]
        common = [axis.at(share) for (share,) in shares(1, 7, cell.paper, cell.partition)]
        assert mine == pytest.approx(common, rel=0.01)  # three digits


@pytest.mark.parametrize(
    "section, says",
    [
        ({"muu": {"low": 1, "high": 2, "source": ""}}, "fedprox: unknown key 'muu' (nearest: 'mu')"),
        ({"mu": {"low": -1, "high": 2, "scale": "linear", "source": ""}}, "fedprox.mu: must be at least 0"),
        ({"mu": {"choices": ["much"], "source": ""}}, "fedprox.mu: expected float, not 'much'"),
        ({"mu": {"low": 0, "high": 1, "source": ""}}, "fedprox.mu: 'low' must be above 0 where the scale is"),
        ({"mu": {"low": 2, "high": 1, "source": ""}}, "fedprox.mu: 'low' must be below 'high'"),
        ({"mu": {"low": 1, "high": 2, "choices": [1], "source": ""}}, "give either 'low' and 'high'"),
        ({"mu": {"low": 1, "high": 2}}, "fedprox.mu: the key 'source' is missing"),
        ({"learning_rate": "rate"}, "fedprox.learning_rate: unknown hyper-parameter 'rate'"),
        (None, "unknown section 'fedprox'"),
    ],
)
def test_a_wrong_space_is_one_line(section, says, monkeypatch):
    document = {key: value for key, value in read_yaml(ROOT / SPACES).items() if key != "fedprox"}
    wrong = document | ({"fedprox": section} if section else {})
    monkeypatch.setattr(tuning, "read_yaml", lambda path: wrong)
    with pytest.raises(ParamError, match=re.escape(says)) as error:
        space(CELL)
    assert str(error.value).startswith(f"{SPACES}: ")
    assert "\n" not in str(error.value)
    with pytest.raises(ParamError, match=re.escape(says)):  # before a stage trains
        targets(str(CELL))


def test_what_one_client_validates_on_no_client_trains_on():
    train = [np.arange(0, 40), np.arange(20, 60), np.arange(60, 63), np.arange(0)]  # two overlap
    clients = [("a", "x"), ("b", "x"), ("c", "y"), ("d", "y")]
    tests = {"x": np.arange(50, 60)}
    parts = Parts(clients, train, [np.arange(100, 104)] * 4, tests, heldout=np.arange(58, 70))
    forbidden = validation.tested([parts])
    assert forbidden.tolist() == [*range(50, 60), *range(100, 104)]
    actual = validation.split(parts, forbidden, np.random.default_rng(0))
    untuned, trained = (np.unique(np.concatenate(part)) for part in (actual.client_test, actual.train))
    assert not np.isin(trained, untuned).any()
    assert not np.isin(forbidden, [*untuned, *trained, *actual.heldout]).any()
    for before, now, mine in zip(train, actual.train, actual.client_test):
        assert np.array_equal(np.union1d(now, mine), np.setdiff1d(before, forbidden))
    assert [len(part) for part in actual.client_test][2:] == [0, 0]  # floor(0.25 * 3)
    assert 10 <= len(actual.client_test[0]) <= 17  # a quarter, and of the other's quarter what it has
    assert actual.domain_test["x"].tolist() == untuned.tolist()
    assert not len(actual.domain_test["y"])


@pytest.fixture(scope="module")
def short(project):
    """Two rounds; FedProx tries two configurations and is tested with seeds that no other cell has."""

    def two(document):
        document["tuning"]["mini"] |= {"configurations": 2, "test_seeds": [0, 5]}
        document["miniature"]["scenario"]["training"]["rounds"] = 2

    for committed in project.glob("papers/*/tuning/*/"):
        shutil.rmtree(committed)
    edit(project / "papers/fedcrl/paper.yaml", two)
    stage(project, "split", "fedcrl/mini")
    return project


@pytest.fixture
def alone(monkeypatch):
    """Seeds train in this process, so that what a test replaces counts."""
    monkeypatch.setenv("FEDREPRO_WORKERS", "1")
    monkeypatch.setenv("FEDREPRO_TRACKING", "off")
    loading._load.cache_clear()
    yield
    loading._load.cache_clear()


@pytest.fixture(scope="module")
def tuned(short) -> dict:
    stage(short, "tune", str(CELL), FEDREPRO_WORKERS="1")
    return choices.read(CELL, short)


def test_the_trial_partition_has_no_test_image_of_any_draw(short, monkeypatch):
    folder = short / "papers/fedcrl/partitions/mini"
    trial = folder.with_name("mini-trial")
    draws = [partition.read(partition.folder_of_draw(folder, draw))[0] for draw in (0, 1)]
    forbidden = validation.tested(draws)
    assert len(forbidden) > len(np.concatenate(draws[0].client_test))  # each draw tests on others
    assert not (trial / "seed-1").exists()  # the tuning trains with seed 0 alone

    paper, wanted = load_paper("fedcrl", short), choices.tuning_of(CELL, short)
    both = dataclasses.replace(paper, tuning={"mini": dataclasses.replace(wanted, seeds=[0, 1])})
    monkeypatch.setattr(split_stage, "ROOT", short)
    monkeypatch.setattr(split_stage, "load_paper", lambda name: both)
    before = (trial / "indices.npz").read_bytes()
    split_stage.split("fedcrl/mini")
    assert (trial / "indices.npz").read_bytes() == before
    for draw in (0, 1):
        actual = partition.verify(partition.folder_of_draw(trial, draw))[0]
        used = [*actual.train, *actual.client_test, *actual.domain_test.values(), actual.heldout]
        assert not np.isin(np.concatenate(used), forbidden).any()
        assert all(len(now) < len(before) for now, before in zip(actual.train, draws[draw].train))


def test_clients_with_too_few_images_cannot_be_tuned(short, monkeypatch):
    monkeypatch.setattr(split_stage, "ROOT", short)
    monkeypatch.setattr(validation, "SHARE", 0.0)
    with pytest.raises(ParamError, match="fedcrl/mini: no client has four training images, one to"):
        split_stage.split("fedcrl/mini")
    assert (short / "papers/fedcrl/partitions/mini-trial/meta.json").exists()


def test_a_choice_among_other_configurations_is_made_again(short, tuned, monkeypatch):
    wanted = choices.tuning_of(CELL, short)
    for change in ({"configurations": 3}, {"seeds": [0, 1]}):
        other = dataclasses.replace(wanted, **change)
        monkeypatch.setattr(choices, "tuning_of", lambda cell, root, other=other: other)
        with pytest.raises(FedReproError, match="fedprox.json: chosen among 2 configurations with seeds"):
            choices.tuned(CELL, short)


@pytest.fixture
def as_before(short, tmp_path):
    """What a test tunes anew is put back."""
    places = [short / ".cells", short / "papers/fedcrl/tuning"]
    for place in places:
        shutil.copytree(place, tmp_path / place.name)
    yield
    for place in places:
        shutil.rmtree(place)
        shutil.copytree(tmp_path / place.name, place)


def test_poisoned_test_images_change_no_choice_and_no_bit(short, tuned, alone, as_before, monkeypatch):
    folder = short / "papers/fedcrl/partitions/mini"
    draws = [partition.read(partition.folder_of_draw(folder, draw))[0] for draw in (0, 1)]
    used = partition.read(folder.with_name("mini-trial"))[0]
    original = store.verify

    def actual(at: np.ndarray) -> tuple:
        """Of the tuning, where the images of these indices are noise under wrong labels."""

        def poisoned(*arguments):
            stored = original(*arguments)
            images, labels = stored.images.copy(), stored.labels.copy()
            images[at] = np.random.default_rng(0).integers(0, 255, images[at].shape)
            labels[at] = (labels[at] + 1) % 10
            return dataclasses.replace(stored, images=images, labels=labels)

        monkeypatch.setattr(store, "verify", poisoned)
        loading._load.cache_clear()
        for one in tuned["configurations"]:
            shutil.rmtree(short / ".cells" / one["digest"])
        document = tuning.tune(CELL, short)
        files = [short / ".cells" / one["digest"] / "seed-0.json" for one in document["configurations"]]
        rows = [json.loads(path.read_text())["rows"] for path in files]
        return document["chosen"], [one["accuracy"] for one in document["configurations"]], rows

    clean = actual(np.empty(0, np.int64))
    assert actual(validation.tested(draws)) == clean
    assert actual(used.client_test[0]) != clean  # a client's validation images do count


def test_what_was_tried_before_is_not_trained_again(short, tuned, alone, monkeypatch):
    monkeypatch.setattr("pipeline.training.seeds.load_world", lambda *_: pytest.fail("trains"))
    again = tuning.tune(CELL, short)
    assert [one["accuracy"] for one in again["configurations"]] == [
        one["accuracy"] for one in tuned["configurations"]
    ]


def test_a_configuration_is_a_cell_with_its_values_on_the_tuning_seeds(tuned, short):
    ((number, one),) = list(enumerate(tuned["configurations"]))[1:]
    trial = Trial.of(CELL, tuple(one["changes"].items()), number=number, seeds=(0,))
    scenario, algorithm, hyper = trial.resolve()
    assert (algorithm, hyper, scenario.seeds) == ("fedprox", {"mu": one["values"]["mu"]}, [0])
    assert scenario.training.optimiser.lr == one["values"][RATE]
    assert scenario.evaluation.tests == "clients"
    assert str(trial) == "fedcrl/mini-trial/fedprox, configuration 1"
    assert trial.partition == "mini-trial"
    assert (
        tuned["configurations"][0] | {"changes": {}, "values": {RATE: 0.003, "mu": 0.01}}
        == tuned["configurations"][0]
    )
    assert cell_digest(Experiment.of(Tuned.of(CELL, ()), short), "partition") == cell_digest(
        Experiment.of(CELL, short), "partition"
    )


def test_what_diverges_is_not_chosen_and_a_killed_worker_is_no_divergence(
    short, tuned, as_before, monkeypatch
):
    def first_fails(error):
        def trained(trial, root, write):
            if trial.number == 0:
                raise error
            return {"measures": {"average": [50.0]}, "seconds": [1.0], "digest": "x"}

        return trained

    monkeypatch.setattr(tuning, "train_cell", first_fails(TrainingError("the training loss is nan")))
    document = tuning.tune(CELL, short)
    assert document["chosen"] == 1
    assert document["configurations"][0]["error"] == "the training loss is nan"
    (report,), _ = tunings(short)
    assert report.configurations == [None, 50.0]
    assert not report.same
    monkeypatch.setattr(tuning, "train_cell", first_fails(WorkerError("killed")))
    with pytest.raises(WorkerError):
        tuning.tune(CELL, short)
    assert choices.read(CELL, short) == document


@pytest.mark.parametrize(("headline", "chosen"), [(None, 0), ("average", 0), ("weighted", 1)])
def test_configurations_are_compared_by_the_headline_that_the_scenario_names(
    short, tuned, as_before, monkeypatch, headline, chosen
):
    """Of two configurations the first has the higher plain mean, the second the higher weighted one."""
    accuracies = [{"average": [60.0], "weighted": [50.0]}, {"average": [50.0], "weighted": [60.0]}]

    def trained(trial, root, write):
        return {"measures": accuracies[trial.number], "seconds": [1.0], "digest": "x"}

    def named(document):
        document["miniature"]["scenario"]["evaluation"]["headline"] = headline

    monkeypatch.setattr(tuning, "train_cell", trained)
    with edited(short / "papers/fedcrl/paper.yaml", named):
        document = tuning.tune(CELL, short)
    assert document["chosen"] == chosen


def test_the_choice_is_trained_and_reported(short, tuned, monkeypatch):
    for word in ("chosen", "published"):
        stage(short, "tune", str(CELL), word, FEDREPRO_WORKERS="1")
    (cell, result), (other, untuned) = results.of_tuning(CELL, short).items()
    assert cell.folder(short) == short / "papers/fedcrl/tuning/mini-tuned/fedprox"
    assert other.folder(short) == short / "papers/fedcrl/tuning/mini-published/fedprox"
    assert result["seeds"] == untuned["seeds"] == [0, 5]
    assert result["headline"] == "weighted"
    first = partition.read(short / "papers/fedcrl/partitions/mini")[1]["digest"]
    assert result["partition"] == untuned["partition"] == first
    assert "partitions" not in result | untuned  # of all
    assert other.resolve(short)[1:] == CELL.resolve(short)[1:]
    assert untuned["digest"] == cell_digest(Experiment.of(CELL, short), first)  # but the cell of the paper
    values = tuned["configurations"][tuned["chosen"]]["values"]
    assert {**cell.resolve(short)[2], RATE: cell.resolve(short)[0].training.optimiser.lr} == values
    (report,), _ = tunings(short)
    assert [*report.after.values()] == result["measures"]["weighted"]
    assert [*report.before.values()] == untuned["measures"]["weighted"]
    other_seeds = untuned | {"seeds": [0, 1]}
    monkeypatch.setattr("pipeline.report.tunings.of_tuning", lambda *_: {cell: result, other: other_seeds})
    (report,), _ = tunings(short)
    assert (sorted(report.before), sorted(report.after)) == ([0, 1], [0, 5])  # compared over the common one
    redrawn = untuned | {"partition": "f" * 64}
    monkeypatch.setattr("pipeline.report.tunings.of_tuning", lambda *_: {cell: result, other: redrawn})
    (report,), _ = tunings(short)
    assert report.after
    assert not report.before  # the same seeds on another partition are no pair
    assert report.configurations == choices.means(tuned["configurations"])
    assert not (short / "papers/fedcrl/runs/mini-tuned").exists()


def test_an_altered_choice_and_a_missing_one_are_one_line(short, tuned, tmp_path):
    file = choices.path(CELL, tmp_path)
    with pytest.raises(FedReproError, match="fedprox.json: no such file; `fedrepro tune fedcrl/mini/fed"):
        choices.read(CELL, tmp_path)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(tuned | {"chosen": 0 if tuned["chosen"] else 1}))
    with pytest.raises(FedReproError, match="fedprox.json: was altered"):
        choices.read(CELL, tmp_path)
    file.write_text("{")
    with pytest.raises(FedReproError, match="fedprox.json: not whole JSON") as error:
        choices.read(CELL, tmp_path)
    assert tunings(tmp_path) == ([], [str(error.value)])  # pages do without it, and name it


@pytest.mark.parametrize(
    "paper, name, at",
    [("fedcrl", "mini", "miniature.scenario"), ("fedlsa", "office-caltech", "scenarios.office-caltech")],
)
def test_more_seeds_of_a_scenario_try_no_configuration_again(paper, name, at):
    stages = read_yaml(ROOT / "papers" / paper / "tuning/dvc.yaml")["stages"]
    read = stages[f"tune-{name}"]["do"]["params"][0][f"papers/{paper}/paper.yaml"]
    written = read_yaml(ROOT / "papers" / paper / "paper.yaml")
    for key in at.split("."):
        written = written[key]
    actual = {key for key in read if key.startswith(at)}
    assert actual == {f"{at}.{key}" for key in written.keys() - {"seeds"}}
    assert f"tuning.{name}.seeds" in read


def test_the_command_names_the_stages_of_what_is_asked_for():
    names = [f"papers/fedcrl/tuning/dvc.yaml:{kind}-mini@fedprox" for kind in ("tuned", "published")]
    assert targets("fedcrl/mini/fedprox") == names
    assert len(targets("fedcrl/mini")) == 2 * len(load_paper("fedcrl").tuning["mini"].methods)
    assert targets("fedcrl")[: len(targets("fedcrl/mini"))] == targets("fedcrl/mini")
    # without separate seeds a tuning is compared with the scenario's cells
    assert len(targets("fedlsa/office-caltech")) == 34
    assert targets("fedlsa/office-caltech/fedsr") == [
        "papers/fedlsa/tuning/dvc.yaml:tuned-office-caltech@fedsr",
        "papers/fedlsa/grids/dvc.yaml:main@office-caltech-fedsr",
    ]
    for wrong, says in (
        ("fedcl", "unknown paper"),
        ("fedcrl/min", "unknown scenario 'min'"),
        ("fedcrl/mini/fedprix", "unknown method 'fedprix' (nearest: 'fedprox')"),
        ("fedcrl/mini/scaffold", "fedcrl/paper.yaml: tuning.mini.methods: unknown method 'scaffold'"),
        ("fedcrl/cifar10-dir-01", "fedcrl/paper.yaml: tuning: unknown scenario 'cifar10-dir-01'"),
    ):
        with pytest.raises(ParamError, match=re.escape(says)):
            targets(wrong)


def test_what_no_grid_runs_and_no_paper_asks_for_is_not_tuned(monkeypatch):
    left = [cell for cell in planned("fedcrl") if cell != CELL]
    monkeypatch.setattr("pipeline.commands.tune.planned", lambda key: left)
    with pytest.raises(ParamError, match="tuning.mini.methods: no grid runs 'fedprox' in this scenario"):
        targets("fedcrl/mini")
    assert targets("fedcrl/across")
    monkeypatch.setattr(tune, "papers", lambda: [])
    monkeypatch.setattr(tune.run, "main", pytest.fail)
    with pytest.raises(ParamError, match="no paper.yaml has the key 'tuning'"):
        tune.main([])


def test_a_tuning_is_a_run_of_mlflow_with_its_configurations_below(short, tuned, tmp_path, monkeypatch):
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("params.yaml", "papers/fedcrl/paper.yaml", "papers/fedcrl/tuning/mini/fedprox.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(short / name, tmp_path / name)
    assert mlflow_runs.import_results(tmp_path) == (1, 0)
    assert mlflow_runs.import_results(tmp_path) == (0, 1)
    client = mlflow.MlflowClient(mlflow_runs.uri(tmp_path))
    runs = client.search_runs([client.get_experiment_by_name("fedcrl").experiment_id])
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    below = sorted((run for run in runs if run is not parent), key=lambda run: run.info.run_name)
    assert [run.info.run_name for run in below] == [f"mini/fedprox/configuration {k}" for k in (0, 1)]
    assert {run.data.tags["mlflow.parentRunId"] for run in below} == {parent.info.run_id}
    assert [run.data.metrics["validation"] for run in below] == choices.means(tuned["configurations"])
    assert parent.data.params == below[tuned["chosen"]].data.params
    seconds = [sum(one["seconds"]) for one in tuned["configurations"]]
    lasted = [(run.info.end_time - run.info.start_time) / 1000 for run in (*below, parent)]
    assert lasted == pytest.approx([*seconds, sum(seconds)], abs=0.01)


OWN_SPACE = "fedprox:\n  mu: {low: 0.5, high: 0.6, source: decade}\n"


@pytest.fixture
def own_space(prepared, tmp_path):
    """A copy whose paper's folder has a search space of FedProx."""
    copy = shutil.copytree(prepared, tmp_path / "copy", symlinks=True)
    (copy / "papers/fedcrl/spaces.yaml").write_text(OWN_SPACE)
    return copy


def test_a_papers_own_space_counts_before_the_common_one(own_space):
    axes = space(CELL, own_space)
    assert axes["mu"][0].ends == [0.5, 0.6]
    assert [*axes] == [RATE, "mu"]
    assert space(Cell("fedcrl", "mini", "fedavg"), own_space).keys() == {RATE}


def test_dvc_knows_the_file_of_the_space(own_space):
    def wanted(document):
        document["tuning"] = {"mini": {"configurations": 2, "seeds": [0], "methods": ["fedavg", "fedprox"]}}

    edit(own_space / "papers/fedcrl/paper.yaml", wanted)
    (text,) = (text for path, text in written(own_space).items() if path.parent.name == "tuning")
    stages = yaml.safe_load(text)["stages"]
    assert stages["tune-mini"]["foreach"] == {
        "fedavg": {"algorithm": "fedavg", "spaces": SPACES},
        "fedprox": {"algorithm": "fedprox", "spaces": "papers/fedcrl/spaces.yaml"},
    }
    assert {"${item.spaces}": ["${item.algorithm}"]} in stages["tune-mini"]["do"]["params"]


def test_tune_runs_the_tuning_and_both_cells(monkeypatch):
    """`run` writes the stages that paper.yaml has asked for since, see tests/commands/test_run.py."""
    ran = []
    monkeypatch.setattr(tune.run, "main", lambda stages, jobs, force: ran.append(stages) or 0)
    assert tune.main(["fedcrl/mini/fedprox"]) == 0
    (stages,) = ran
    assert [stage.partition(":")[2] for stage in stages] == [
        "tuned-mini@fedprox",
        "published-mini@fedprox",
    ]
