"""Bad parameters: one line that names file and key, with the nearest known name."""

import dataclasses
import re
import shutil
from functools import reduce

import pytest
import yaml
from reporting import PAPER, small_repository
from repository import edit

from pipeline import methods
from pipeline.commands.migrate import migrate
from pipeline.errors import ParamError
from pipeline.files import write_text
from pipeline.report.across import excluded
from pipeline.schema import (
    ROOT,
    Cell,
    Data,
    Domains,
    Paper,
    Scenario,
    Training,
    check,
    load_paper,
    load_params,
    loader,
    papers,
    read_yaml,
)
from pipeline.schema.checker import Name
from pipeline.schema.paper import Miniature
from pipeline.schema.partitions import Partition
from pipeline.schema.scenario import Evaluation
from pipeline.training.checks import check_names

SCENARIO = {
    "data": {"set": "digits"},
    "partition": {"kind": "dirichlet", "clients": 5, "beta": 0.1},
    "model": {"name": "cnn2"},
    "training": {"rounds": 5, "batch_size": 16},
    "evaluation": {"tests": "clients"},
    "seeds": [0],
}
POOLED = {"rounds": 5, "batch_size": 8, "unseen": 1}
WEIGHTED_DOMAINS = {"tests": "domains", "headline": "weighted"}
SAMPLED_POOL = {"tests": "pooled", "sample": 2}
FIGURE = PAPER["figures"]["figure5"]
PATHOLOGICAL = {"kind": "pathological", "clients": 10**9, "classes": 2}
MANY = {"kind": "domains", "clients": {"digits": 10**9}, "share": 0.1}


def changed(path: str, value):
    document = yaml.safe_load(yaml.safe_dump(SCENARIO))
    *parents, last = path.split(".")
    at = document
    for key in parents:
        at = at[key]
    at[last] = value
    document["evaluation"] |= {"tests": "pooled"} if value is POOLED else {}
    return document


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("training.rounds", 0, "f: s.training.rounds: must be at least 1, not 0"),
        ("training.rounds", 2.5, "f: s.training.rounds: expected int, not 2.5"),
        ("training.rounds", True, "f: s.training.rounds: expected int, not True"),
        ("training.round", 3, "f: s.training: unknown key 'round' .nearest: 'rounds'"),
        ("training.optimiser", {"name": "adagrad"}, "optimiser.name: unknown value 'adagrad'"),
        ("training.optimiser", {"lr": 0}, "optimiser.lr: must be above 0, not 0"),
        ("training.optimiser", {"lr": float("nan")}, "optimiser.lr: must be finite"),
        ("training.optimiser", {"lr": "1e-3"}, "optimiser.lr: expected float, not '1e-3'"),
        ("training.optimiser", {"name": "adam", "momentum": 0.9}, "momentum belongs to sgd"),
        ("partition.kind", "dirichlett", "f: s.partition.kind: unknown kind .* .nearest: 'dirichlet'"),
        ("partition.kind", ["dirichlet"], "f: s.partition.kind: unknown kind"),
        ("partition", {"kind": "domains", "clients": {}}, "'partition' has no client"),
        ("partition", {"clients": 5}, "f: s.partition: expected a mapping with the key 'kind'"),
        ("partition.beta", 0, "f: s.partition.beta: must be above 0"),
        ("partition.train_share", 1.5, "f: s.partition.train_share: must be at most 1"),
        ("data", "digits", "f: s.data: expected a mapping, not 'digits'"),
        ("data.channels", 2, "f: s.data.channels: unknown value '2'"),
        ("data.channels", True, "f: s.data.channels: unknown value 'True'"),
        ("data.channels", 1.0, "f: s.data.channels: unknown value '1.0'"),
        ("model", None, "give either 'model' or 'models'"),
        ("seeds", [], "'seeds' must be different whole numbers"),
        ("seeds", [1, 1], "'seeds' must be different whole numbers"),
        ("seeds", [-1], r"f: s.seeds\[0\]: must be at least 0"),
        ("evaluation.last", 0, "evaluation.last: must be at least 1"),
        ("evaluation.last", 6, "f: s: 'evaluation.last' reports the mean over 6 rounds"),
        ("corruption", 0.5, "f: s: 'corruption' chooses among the official training images"),
        ("evaluation.tests", "domain", "unknown value 'domain' .nearest: 'domains'"),
        ("evaluation.headline", "median", "f: s.evaluation.headline: unknown value 'median'"),
        (
            "evaluation",
            WEIGHTED_DOMAINS,
            "f: s.evaluation: 'headline' is weighted, and with 'tests: domains'",
        ),
        ("evaluation", SAMPLED_POOL, "f: s.evaluation: 'sample' needs every client's test part"),
        ("evaluation.sample", 0, "f: s.evaluation.sample: must be at least 1, not 0"),
        ("evaluation.sample", 5, "f: s: 'evaluation.sample' is 5, of 5 clients"),
        ("training.participation", 0, "f: s.training.participation: must be at least 1, not 0"),
        ("training.participation", 1.2, "f: s.training.participation: must be at most 1, not 1.2"),
        ("training.participation", "few", "f: s.training.participation: expected float, not 'few'"),
        ("training.participation", 11, "f: s: 'training.participation' is 11, of 5 clients"),
        ("training.unseen", 5, "f: s: 'training.unseen' is 5, of 5 clients"),
        ("training.unseen", [3], r"f: s.training.unseen\[0\]: expected str, not 3"),
        ("training.adaptation", 3, "f: s.training: 'adaptation' is of clients that come at the end"),
        ("training", POOLED, "f: s: 'training.unseen' needs every client's test part"),
        ("data.size", 10**6, "f: s.data.size: must be at most"),
        ("partition.beta", 1e300, "f: s.partition.beta: must be at most"),
        ("partition.samples", 10**12, "f: s.partition.samples: must be at most"),
        ("partition.seed", 10**18, "f: s.partition.seed: must be at most"),
        ("training.rounds", 10**7, "f: s.training.rounds: must be at most"),
        ("training.batch_size", 10**18, "f: s.training.batch_size: must be at most"),
        ("training.local_epochs", 10**10, "f: s.training.local_epochs: must be at most"),
        ("training.optimiser", {"lr": 1e300}, "optimiser.lr: must be at most"),
        ("training.optimiser", {"weight_decay": 1e31}, "optimiser.weight_decay: must be at most"),
        ("model.features", 10**9, "f: s.model.features: must be at most"),
        ("model.projector", 10**9, "f: s.model.projector: must be at most"),
        ("partition.clients", 10**9, "f: s.partition.clients: must be at most"),
        ("partition", PATHOLOGICAL, "f: s.partition.clients: must be at most"),
        ("partition", MANY, "f: s.partition.clients.digits: must be at most"),
    ],
)
def test_bad_scenario(path, value, message):
    with pytest.raises(ParamError, match=message):
        check(Scenario, changed(path, value), "f: s")


@pytest.mark.parametrize(
    ("tests", "headline", "measure"),
    [
        ("clients", None, "weighted"),
        ("clients", "average", "average"),
        ("clients", "weighted", "weighted"),
        ("domains", None, "average"),
        ("pooled", "average", "average"),
        ("cross", None, "average"),
    ],
)
def test_the_headline_is_the_mean_that_the_scenario_names_or_that_of_its_test_sets(tests, headline, measure):
    given = {"tests": tests} if headline is None else {"tests": tests, "headline": headline}
    assert check(Evaluation, given, "f").measure == measure


@pytest.mark.parametrize("unseen", [2, 0.4, ["client0", "client3"]])
def test_a_sample_is_of_the_clients_that_train(unseen):
    """Of five clients two come after the last round."""
    document = changed("training.unseen", unseen)
    document["evaluation"] |= {"sample": 2}
    assert check(Scenario, document, "f: s").evaluation.sample == 2
    document["evaluation"] |= {"sample": 3}
    with pytest.raises(ParamError, match="f: s: 'evaluation.sample' is 3, of 3 clients"):
        check(Scenario, document, "f: s")


def test_keys_that_go_together():
    document = changed("seeds", [0])
    del document["training"]["rounds"]
    with pytest.raises(ParamError, match="f: s.training: the key 'rounds' is missing"):
        check(Scenario, document, "f: s")
    given = {"rounds": 2, "batch_size": 8}
    for share in (1.0, 1, 0.5):  # 1.0 is everyone, 1 is one client
        assert repr(check(Training, {**given, "participation": share}, "f").participation) == repr(share)
    base = {"kind": "domains", "clients": {"a": 2}}
    assert check(Partition, {**base, "share": 0.5}, "f") == Domains({"a": 2}, share=0.5)
    assert check(Partition, {**base, "share": {"a": 0.5}}, "f").share == {"a": 0.5}
    with pytest.raises(ParamError, match="f.share.a: must be at most 1, not 2"):
        check(Partition, {**base, "share": {"a": 2}}, "f")
    base = {"kind": "subset", "sizes": {"a": 2}}
    assert check(Partition, {**base, "test": "random", "test_share": 0.3}, "f").test_share == 0.3
    for wrong in ({"test": "random"}, {"test_share": 0.3}):
        with pytest.raises(ParamError, match="f: 'test_share' belongs to"):
            check(Partition, {**base, **wrong}, "f")
    document = changed("partition", {"kind": "subset", "sizes": {"M": 10, "U": 10}})
    del document["model"]
    document["models"] = {"M": {"name": "resnet10"}, "V": {"name": "resnet12"}}
    with pytest.raises(ParamError, match=r"\['M', 'V'\], 'partition.sizes' names \['M', 'U'\]"):
        check(Scenario, document, "f: s")


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: 1\na: 2\n", "x.yaml:2: the key .a. is given twice"),
        ("a: [1, 2\n", "x.yaml:.*expected .,. or .."),
        ("a: !!python/object/apply:os.system ['true']\n", "x.yaml:1: could not determine a constructor"),
        ("a: 1\nb: 2024-13-45\n", "x.yaml:2: '2024-13-45' is no timestamp"),
        ("a: !!timestamp x\n", "x.yaml:1: 'x' is no timestamp"),
        ("a: !!bool x\n", "x.yaml:1: 'x' is no bool"),
        ("a: !!int x\n", "x.yaml:1: 'x' is no int"),
        (f"a: {'9' * 5000}\n", "x.yaml:1: '9+ is no int"),
        (f"a: {10**18 * 10}\n", "x.yaml:1: '10+' is no int"),
        ("a: " + "[" * 100_000, "x.yaml:1: more than 50 levels"),
        ("a: &a [*a]\n", "x.yaml:1: .a is inside itself"),
        ("[]\n", r"x.yaml: expected a mapping, not \[\]"),
        ("a: \x00\n", "x.yaml: .*characters are not allowed"),
        ("a:\n\t- b\n", "x.yaml:2: a tab; YAML is indented with spaces"),
        ("<<<<<<< HEAD\na: 1\n", ".*: a merge conflict of git's"),
    ],
)
def test_bad_yaml(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ParamError, match=message) as raised:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("first, further", [("[x]", "[{}]"), ("{k: 1}", "{{<<: [{}]}}")])
def test_aliases_of_aliases_are_counted_before_they_are_written_out(tmp_path, first, further):
    """Ten levels of nine aliases each: 3.5 thousand million values in 1 kB."""
    lines = [f"a{i}: &a{i} " + further.format(", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 11)]
    (tmp_path / "x.yaml").write_text("\n".join([f"a0: &a0 {first}", *lines]))
    with pytest.raises(ParamError, match="x.yaml:[4-7]: more than 100,000 values, aliases too"):
        read_yaml(tmp_path / "x.yaml")


HOSTILE = ["x; touch PWNED; #", "x/../../../ESCAPED", "..", "", "-rf", "a.b", "a\n", "a" * 101]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_becomes_no_path_and_no_command(name):
    for part in ("scenarios", "methods", "grids", "tables", "figures"):
        paper = PAPER | {part: {**PAPER[part], name: next(iter(PAPER[part].values()))}}
        with pytest.raises(ParamError, match=f"f: {part}: must be a name of letters"):
            check(Paper, paper, "f:")
    with pytest.raises(ParamError, match="expected <paper>/<scenario>/<method>"):
        Cell.parse(f"fedcrl/mini/{name}")
    with pytest.raises(ParamError):
        check(Data, {"set": name}, "f: data")


@pytest.mark.parametrize(
    "place, value, message",
    [
        ("tables.table2.rows.Averaged", "fedavgg", "unknown method 'fedavgg' .nearest: 'fedavg'"),
        ("figures.figure3.scenarios", ["balancd"], "unknown scenario 'balancd' .nearest: 'balanced'"),
        ("methods.ours.scenarios", {"skewd": {}}, "unknown scenario 'skewd' .nearest: 'skewed'"),
        ("figures.figure5", FIGURE | {"kind": "sweep"}, "a figure of kind 'sweep' needs 'over'"),
        ("figures.figure5", FIGURE | {"kind": "curves", "over": ["tau"]}, "a figure of kind 'sweep' needs"),
        (
            "figures.figure5",
            FIGURE | {"kind": "pairs", "measures": ["loss"]},
            "a figure of kind 'pairs' needs",
        ),
        ("figures.figure5.kind", "swep", "unknown value 'swep' .nearest: 'sweep'"),
    ],
)
def test_what_a_paper_may_not_hold_is_named(tmp_path, place, value, message):
    def put(paper):
        *parents, last = place.split(".")
        reduce(dict.__getitem__, parents, paper)[last] = value

    edit(small_repository(tmp_path) / "papers/fedcrl/paper.yaml", put)
    with pytest.raises(ParamError, match=f"papers/fedcrl/paper.yaml: {place}: {message}"):
        load_paper("fedcrl", tmp_path)


def test_keys_of_0_1_0_work_once_they_are_migrated(tmp_path):
    def old(paper):
        paper["beside"] = ["skewed"]
        paper["grids"]["main"] |= {"apart": True, "beside": True}
        paper["tables"]["table1"] |= {"marks": ["rank"], "beside": {"rounds": "run.rounds"}}
        paper["sources"] = {"settings": {key: {"own": "why"} for key in ("seeds", "model")}}

    edit(small_repository(tmp_path) / "papers/fedcrl/paper.yaml", old)
    with pytest.raises(ParamError, match="papers/fedcrl/paper.yaml: the key 'beside' is now"):
        load_paper("fedcrl", tmp_path)
    migrate(root=tmp_path)
    paper = load_paper("fedcrl", tmp_path)
    assert paper.extra_scenarios == ["skewed"]
    assert paper.sources.settings["seeds"].choice == "why"
    assert paper.grids["main"].separate_file
    assert paper.grids["main"].supplementary
    assert paper.tables["table1"].also == {"rounds": "run.rounds"}


def test_a_sweeps_values_hold_in_every_scenario_and_end_the_label(tmp_path):
    row = {"label": "Ours", "lam": 1.0, "scenarios": {"mini": {"lam": 2.0, "k": 3}}, "sweep": {"lam": 0.1}}

    def swept(paper):
        paper["methods"]["ours"] = row | {"algorithm": "fedavg"}

    edit(small_repository(tmp_path) / "papers/fedcrl/paper.yaml", swept)
    paper = load_paper("fedcrl", tmp_path)
    assert paper.label("ours") == "Ours (lambda 0.1)"
    assert Cell("fedcrl", "mini", "ours").resolve(tmp_path)[2] == {"lam": 0.1, "k": 3}
    assert paper.methods["ours"]["scenarios"]["mini"]["lam"] == 0.1


def test_merge_keys_and_powers_of_ten_work_and_a_missing_file_is_named(tmp_path):
    """To YAML 1.1, 1e-2 is text."""
    (tmp_path / "x.yaml").write_text("base: &b {lr: 1, b: 1e5}\nuse: {<<: *b, lr: 1e-2, d: 539868e7c9}\n")
    assert read_yaml(tmp_path / "x.yaml")["use"] == {"lr": 0.01, "b": 1e5, "d": "539868e7c9"}
    with pytest.raises(ParamError, match="nothing.yaml: no such file"):
        read_yaml(tmp_path / "nothing.yaml")


def test_the_projects_parameters():
    assert papers() == ("fedccl", "fcclplus", "fedlsa", "rahfl", "fedcrl")
    assert load_params().miniature.seeds
    for paper, miniature in ((key, load_paper(key).miniature) for key in papers()):
        assert load_paper(paper).scenarios["mini"] == miniature.scenario
        mine = {Cell(paper, "mini", method).resolve()[1] for method in miniature.methods}
        others = [Cell(paper, "across", method).resolve()[1] for method in miniature.others]
        assert len({*others}) == len(others)
        assert not mine & {*others}
        assert mine <= {*methods.method_names()}
        possible = {name for name in methods.method_names() if not excluded(name, miniature.scenario)}
        assert mine | {*others} == mine | possible
    scenario, mini = Cell("fedccl", "across", "fedsr").resolve()[0], load_paper("fedccl").miniature.scenario
    assert dataclasses.replace(scenario, model=mini.model) == mini


@pytest.mark.parametrize("key", ["true", "null", "false"])
def test_a_method_that_yaml_reads_as_another_value_is_refused(tmp_path, key):
    file = tmp_path / "x.yaml"
    file.write_text(f"{key}: {{label: x}}\n")
    with pytest.raises(ParamError, match="x: methods: YAML reads a key as .*: put it in quotes"):
        check(dict[Name, dict], read_yaml(file), "x: methods")


@pytest.mark.parametrize("others", [["fedavg"], ["fedprox", "fedprox"]])
def test_a_method_is_asked_for_once(others):
    with pytest.raises(ParamError, match=f"params.yaml: m: 'others' holds {others[0]} twice, or also in"):
        check(Miniature, {"scenario": SCENARIO, "methods": ["fedavg"], "others": others}, "params.yaml: m")


GRID = {"scenarios": [], "methods": []}
# Names that a domain's accuracy cannot have beside our columns and measures.
OURS = ("average", "loss", "seed", "round", "state", "participants", "fgsm", "post.average", "intra.AVG")
OURS += ("memory", "x.loss", "metric.recall", "..")


def put(place, value):
    """A change that puts a value, or a copy of what stands at another place, into a document."""
    part, name = place.split(".")

    def change(document):
        of, _, key = value.partition(".") if isinstance(value, str) else ("", "", "")
        document[part][name] = document[of][key] if of else value

    return change


def one_stage_for_two_cells(document):
    document["methods"] |= {name: {"algorithm": "fedavg", "label": name} for name in ("x", "64-x")}
    document["grids"]["twice"] = {"scenarios": ["pacs", "pacs-64"], "methods": ["x", "64-x"]}


def domain_called(name):
    """The miniature's first domain under another printed name."""

    def change(document):
        scenario = document["miniature"]["scenario"]
        clients = scenario["partition"]["clients"]
        names = [name, *list(clients)[1:]]
        scenario["data"]["domains"] = dict(zip(names, clients))
        scenario["partition"]["clients"] = dict(zip(names, clients.values()))

    return change


def row(**values):
    return lambda document: document["methods"]["fedsr"].update(values)


def digits(part, **values):
    return lambda document: document["scenarios"]["digits"][part].update(values)


def tuned(**values):
    return lambda document: document["tuning"]["office-caltech"].update(values)


def sources(**values):
    return lambda document: document.update(sources=values)


def reading(**values):
    one = {"paper": "p", "run": "r", "why": "w"} | values
    return lambda document: document.update(readings=[one])


@pytest.mark.parametrize(
    "change, message",
    [
        *(
            (domain_called(name), f"miniature.scenario.data.domains: a measure is called {name!r}")
            for name in OURS
        ),
        *(
            (domain_called(name), f"miniature.scenario: {name!r} is no name of a domain or client")
            for name in ("", " ", "a\nb", "x ")
        ),
        (put("scenarios.Office-Caltech-Trial", "scenarios.pacs"), "scenarios.Office-Caltech-Trial: the"),
        (domain_called("AVG"), "miniature.scenario.partition: the mean over clients is called 'AVG'"),
        (put("grids.mini", GRID), "grids.mini: a stage of the paper has this name"),
        (put("grids.figure1", GRID), "grids.figure1: a stage of the paper has this name"),
        (put("grids.tuning", GRID | {"separate_file": True}), "grids.tuning: a folder of the paper has"),
        (put("figures.report", "figures.figure1"), "figures.report: a stage of the paper"),
        (put("scenarios.miniature", "scenarios.pacs"), "scenarios.miniature: the miniature"),
        (put("scenarios.office-caltech-trial", "scenarios.pacs"), "scenarios.office-caltech-trial: the"),
        (put("figures.claims", "figures.figure1"), "figures.claims: a section of the paper"),
        (put("figures.table2", "figures.figure1"), "figures.table2: a section of the"),
        (row(label="FedProx"), "methods.fedsr.label: fedprox has"),
        (lambda d: d["tables"]["table3"].update(number="2"), "tables.table3.number: table2 has '2' already"),
        (one_stage_for_two_cells, "grids: fedlsa/pacs/64-x and fedlsa/pacs-64/x would both be the stage"),
        (row(label=5), "methods.fedsr.label: expected str, not 5"),
        (row(algorithm="a/b"), "methods.fedsr.algorithm: must be a name"),
        (row(scenarios=5), "methods.fedsr.scenarios: expected a mapping"),
        (row(sweep=5), "methods.fedsr.sweep: expected a mapping"),
        (lambda d: d["scenarios"].update(mini=SCENARIO), "scenarios.mini: the miniature has this name"),
        (lambda d: d["tables"]["table3"].update(published="../x.csv"), "tables.table3.published: must be a"),
        (lambda d: d.update(title="a\x07"), "title: holds the control character U+0007"),
        (lambda d: d.update(beside=[]), "the key 'beside' is now 'extra_scenarios'"),
        (lambda d: d["miniature"]["methods"].append("fedvag"), "miniature.methods: unknown method 'fedvag'"),
        (lambda d: d["grids"]["main"]["scenarios"].append("psca"), "grids.main.scenarios: unknown scenario"),
        (digits("data", set="digit4"), "scenarios.digits.data.set: unknown data set 'digit4'"),
        (digits("data", domains={"M": "minst"}), "scenarios.digits.data.domains: unknown domain 'minst'"),
        (digits("partition", clients={"MINST": 1}), "scenarios.digits.partition.clients: unknown domain"),
        (tuned(seeds=[]), "tuning.office-caltech.seeds: must be 0 or some of the scenario's [0"),
        (tuned(seeds=[0, 99]), "tuning.office-caltech.seeds: must be 0 or some of the scenario's [0"),
        (tuned(test_seeds=[3, 3]), "tuning.office-caltech: 'test_seeds' must be different whole numbers"),
        (sources(methods={"fedavgg": {}}), "sources.methods: unknown method 'fedavgg' (nearest"),
        (sources(settings={"training.round": {"choice": "x"}}), "sources.settings.training.round:"),
        (reading(scenarios=["digit"]), "readings[0].scenarios"),
        (reading(why=None), "readings[0].why: "),
    ],
)
def test_a_wrong_name_or_one_that_something_else_has_is_refused(tmp_path, change, message):
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "papers/fedlsa").mkdir(parents=True)
    document = read_yaml(ROOT / "papers/fedlsa/paper.yaml")
    change(document)
    (tmp_path / "papers/fedlsa/paper.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(ParamError, match=re.escape(f"papers/fedlsa/paper.yaml: {message}")):
        check_names("fedlsa", tmp_path)


def test_the_overlay_is_read_once_until_a_file_changes(tmp_path, monkeypatch):
    read, folder = [], tmp_path / "papers" / "mine"
    monkeypatch.setattr(loader, "read_yaml", lambda path: read.append(path.name) or read_yaml(path))
    write_text(folder / "paper.yaml", "methods: {fedavg: {}}\n")
    assert loader.overlay("mine", tmp_path) == {}
    assert not read
    write_text(folder / "params.yaml", "methods: {fedavg: {lr: 1}}\n")
    loader.overlay("mine", tmp_path)["methods"].clear()  # a caller's copy
    assert loader.overlay("mine", tmp_path) == {"methods": {"fedavg": {"lr": 1}}}
    assert read == ["params.yaml", "paper.yaml"]
    write_text(folder / "params.yaml", "methods: {fedavg: {lr: 2}}\n")
    assert loader.overlay("mine", tmp_path) == {"methods": {"fedavg": {"lr": 2}}}
    write_text(folder / "paper.yaml", "methods: {fedprox: {}}\n")
    with pytest.raises(ParamError, match="unknown key 'fedavg'"):
        loader.overlay("mine", tmp_path)
