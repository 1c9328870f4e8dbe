"""What a digest of code covers, and that what is left out changes no result."""

import ast
import dataclasses
import hashlib
import json
import sys
from pathlib import Path

import pytest
from loaded_modules import undigested
from repository import CELL, ROOT, copy_of_the_repository, forget, outputs, python, run

from pipeline import arithmetic
from pipeline.cells import stamps
from pipeline.cells.experiment import Experiment
from pipeline.errors import FedReproError
from pipeline.provenance import identity
from pipeline.provenance.definitions import Code
from pipeline.schema import Cell, check, load_paper, load_params
from stages import sources

LOOP = """from torch.optim import SGD as Steps

from lib.losses import loss

SECONDS = 20
NETWORKS = {"small": lambda: 1, "large": lambda: 2}

def train(name):
    \"\"\"Train.\"\"\"
    step = Steps(loss(NETWORKS[name]()))    # a step
    return step, SECONDS
"""
LOSSES = """SCALE = 0.5

def loss(x):
    from lib.inner import shift
    return shift(SCALE * x)

def unused(x):
    return x
"""
FILES = {
    "__init__": "",
    "loop": LOOP,
    "losses": LOSSES,
    "inner": "def shift(x):\n    return x + 1\n",
    "aside": "def f():\n    return 2\n",
}
ADAPTS = "import torch\ntorch.nn.Linear.forward = None\n"


def code(root: Path, files: dict[str, str], **more) -> Code:
    for name, text in files.items():
        path = root / "lib" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    networks = ["lib.loop:NETWORKS"] if "NETWORKS" in files["loop"] else []
    return Code(root, constants={"SECONDS"}, registries=networks, strict=True, **more)


def digest(root: Path, files: dict[str, str], **more) -> str:
    return code(root, files, **more).digest(("lib.loop:train",), frozenset({"small"}))


@pytest.mark.parametrize(
    "module, old, new, same",
    [
        ("loop", "a step", "one step", True),  # a comment
        ("loop", "Train.", "Train it.", True),  # a docstring
        ("loop", "SECONDS = 20", "SECONDS = 21", True),  # a constant that changes no result
        ("loop", "lambda: 2", "lambda: 3", True),  # a network that is not named
        ("loop", "lambda: 1", "lambda: 3", False),  # the one that is
        ("losses", "return x", "return -x", True),  # what is not used
        ("losses", "0.5", "0.500001", False),  # a constant two files away
        ("losses", "SCALE * x", "x * SCALE", False),
        ("loop", "step", "stride", True),  # a renamed variable
        ("inner", "x + 1", "x + 2", False),  # which a function imports
        ("inner", "", ADAPTS, False),
        ("__init__", "", ADAPTS, False),
        ("__init__", "", "import lib.aside\n", True),
        ("aside", "", ADAPTS, True),  # which nobody imports
        ("loop", "SGD", "Adam", False),  # another external function
        ("loop", "torch.optim", "other", False),
        ("losses", "", "import math\n_ = math.patch()\n", False),
        ("losses", "", "KINDS = tuple('ab')\n", True),
    ],
)
def test_what_a_digest_covers(tmp_path, module, old, new, same):
    """A text is replaced, or put before all."""
    changed = FILES[module].replace(old, new) if old else new + FILES[module]
    assert changed != FILES[module]
    before = digest(tmp_path / "a", FILES)
    assert (digest(tmp_path / "b", FILES | {module: changed}) == before) is same


def test_a_moved_definition_has_the_same_digest(tmp_path):
    moved = {"loop": LOOP.replace("lib.losses", "lib.place.terms"), "place/terms": LOSSES}
    inside = {"loop": LOSSES + LOOP.replace("from lib.losses import loss\n", "")}
    through = {"loop": LOOP.replace("lib.losses", "lib"), "__init__": "from .losses import loss\n"}
    several = enumerate(({}, moved, inside, through))
    assert len({digest(tmp_path / str(k), FILES | changed) for k, changed in several}) == 1


def test_two_functions_of_one_name_are_told_apart(tmp_path):
    """The same text, but the name stands for another function that is in use elsewhere too."""
    texts = {"a": "def f():\n    return 1\n", "b": "def f():\n    return 2\n"}
    loop = "from lib.{} import f\nfrom lib import a, b\n\ndef train():\n    return f(), a.f(), b.f()\n"
    one, other = (digest(tmp_path / name, texts | {"loop": loop.format(name)}) for name in "ab")
    assert one != other


def test_what_acts_in_a_module_that_is_only_imported_counts(tmp_path):
    imported = FILES | {"__init__": "import lib.aside\n"}
    assert digest(tmp_path / "a", imported) != digest(tmp_path / "b", imported | {"aside": ADAPTS})


@pytest.mark.parametrize("line", ["from lib.aside import *", "import importlib"])
@pytest.mark.parametrize("call", ["importlib.import_module('lib.aside')", "eval('1')", "loss()"])
def test_what_cannot_be_followed_is_refused(tmp_path, line, call):
    loop = f"{line}\nfrom lib.losses import loss\n\ndef train():\n    return {call}\n"
    if line == "import importlib" and call == "loss()":
        digest(tmp_path, FILES | {"loop": loop})
        return
    with pytest.raises(FedReproError, match="lib/loop.py"):
        digest(tmp_path, FILES | {"loop": loop})
    if "*" not in line:
        digest(tmp_path, FILES | {"loop": loop}, dynamic={"lib.loop:train"})


def test_of_a_shallow_entry_only_its_statements_count(tmp_path):
    def of(name: str, **changed: str) -> str:
        return code(tmp_path / name, FILES | changed).digest(("lib.aside:f",), shallow=("lib.loop:train",))

    before = of("a")
    assert of("b", losses=LOSSES.replace("SCALE * x", "2 * x")) == before
    assert of("c", loop=LOOP.replace("step, SECONDS", "2 * step, SECONDS")) != before


def test_a_cell_counts_what_its_scenario_names(tmp_path):
    """A line in a network, an augmentation or an executor concerns the cells that use it."""
    clone = copy_of_the_repository(tmp_path, "fedlsa", "fcclplus", "rahfl")
    cells = {
        "lenet": (Cell("fedlsa", "mini", "fedavg"), "sequential"),
        "networks": (Cell("rahfl", "corrupted-05", "base"), "sequential"),
        "views": (Cell("rahfl", "mini", "rahfl"), "sequential"),
        "stacked": (Cell("fedlsa", "mini", "fedavg"), "stacked"),
    }

    def digests(names=tuple(cells)) -> dict[str, str]:
        for function in (identity._code, load_paper, load_params):
            function.cache_clear()
        return {
            name: identity.digest_of(Experiment.of(cell, clone), executor)
            for name, (cell, executor) in cells.items()
            if name in names
        }

    before = digests()
    every = {"lenet"}  # what any cell trains with: looked at in one
    for path, old, new, changed in (
        ("models/mobile.py", "SHUFFLENET_GROUPS = ", "SHUFFLENET_GROUPS = 1 + ", {"networks"}),
        ("data/augmentations.py", "SEVERITY = 3, 3, 3", "SEVERITY = 3, 3, 4", {"views"}),
        ("training/lockstep.py", "join(timeout=1.0)", "join(timeout=2.0)", {"stacked"}),
        ("engine/phase.py", "return 2 if any", "return 3 if any", every),
        # what training runs
        ("schema/scenario.py", "partition.fixed else seed", "partition.fixed else seed + 1", every),
        ("methods/__init__.py", "root), hyper, where)", "root), hyper | {1: 2}, where)", every),
        ("methods/__init__.py", "import importlib\n", "import importlib\nprint.a = None\n", every),
        ("engine/optimisers.py", "torch.optim.sgd import", "torch.optim.adam import", every),
        ("models/__init__.py", "Network(features, head, dropout,", "Network(features, head, 0.0,", every),
        ("training/seeds.py", "self.method.round(self.state", "self.method.round(2 * self.state", every),
        ("cells/inputs.py", "partition.verify(place)", "partition.read(place)", every),
        # and what it does before
        ("../stages/train.py", "check_environment()", "check_environment(), 1", every),
        ("arithmetic.py", '"MKL_CBWR": "COMPATIBLE"', '"MKL_CBWR": "AVX2"', every),
        ("devices.py", "64 * 2**20", "32 * 2**20", every),
        ("training/trainer.py", "    keep_memory()\n", "    keep_memory()\n    torch.set_x(2)\n", every),
        ("training/trainer.py", "signal.SIG_IGN)", "signal.SIG_DFL)", every),
        # wherever it runs
        ("../stages/_stage.py", "        function(**arguments)", "        function(**arguments), 1", every),
        ("place.py", "    check_root()\n", "    check_root()\n    os.environ['A'] = '1'\n", every),
        ("clusters/worker.py", "import json\n", "import json\n\nprint.a = None\n", every),
        ("clusters/worker.py", "(Cell.parse(cell))", "(Cell.parse(cell), write=False)", every),
        (
            "training/cache.py",
            "self.executor.run(phase)\n        seconds",
            "self.executor.run(2)\n        seconds",
            every,
        ),
        ("training/checkpoint.py", "seal({**run, **marked})", "seal({**run, 'loss': 1, **marked})", every),
    ):
        text = changed_file(clone / "pipeline" / path, old, new)
        now = digests(every if changed is every else before)
        assert {name for name in now if now[name] != before[name]} == changed, path
        (clone / "pipeline" / path).write_text(text)
    for path, old, new in (  # harmless: what no cell uses, new entries of registries and of the schema, texts
        ("models/googlenet.py", "STEM = 192", "STEM = 193"),
        ("training/seeds.py", "CHECKPOINT_SECONDS = 20.0", "CHECKPOINT_SECONDS = 21.0"),
        ("engine/environment.py", '"compiled": "Compiled"', '"compiled": "Compiled", "new": "New"'),
        ("models/__init__.py", '"cnn3_bn": cnn3_bn,', '"cnn3_bn": cnn3_bn, "new": cnn3_bn,'),
        ("data/partition.py", '"domains": domains', '"new": subset, "domains": domains'),
        (
            "data/partition.py",
            '    "iid": label_skew.iid',
            '    "new": label_skew.iid,\n    "iid": label_skew.iid',
        ),
        ("data/sets.yaml", "photo_patches:", "new: {title: New, shape: [1, 1, 1]}\nphoto_patches:"),
        ("training/evaluation.py", "MEASURES = {", 'MEASURES = {"new": by_client, '),
        ("schema/scenario.py", "    seeds: list", "    new: bool = False\n    seeds: list"),
        ("schema/partitions.py", 'kind = "pathological"', 'kind = ""\n    def draw(self): 0'),
        ("training/trainer.py", '"""Leave the error', '"""It leaves the error'),
        ("training/seeds.py", "start = Pretraining(", "assert self.rows == []\n        start = Pretraining("),
        ("training/trainer.py", "-> Iterator[Run]:", "-> Iterator:"),
    ):
        changed_file(clone / "pipeline" / path, old, new)
    assert digests() == before


def changed_file(file: Path, old: str, new: str) -> str:
    """Replace in a file; what it held before."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    return text


def test_the_table_of_data_sets_counts_in_their_stage(monkeypatch):
    before = sources.stage_digests()
    table = sources.read_yaml(ROOT / "pipeline/data/sets.yaml")
    table["mnist"]["canonical"]["files"]["train-images-idx3-ubyte.gz"] = "md5:" + "0" * 32
    monkeypatch.setattr(sources, "read_yaml", lambda path: table)
    after = sources.stage_digests()
    assert {stage for stage in after if after[stage] != before[stage]} == {"data"}


def test_each_constant_that_changes_no_result_has_a_test():
    """CHECKPOINT_SECONDS: the next test. EXECUTORS: the digest counts the module of the executor that trains,
    as test_pipeline.py and the changes of engine/ above show."""
    assert identity.CONSTANTS == {"CHECKPOINT_SECONDS", "EXECUTORS"}


def test_neither_the_checkpoint_interval_nor_missing_libraries_change_a_result(project, reference):
    """The training stage runs on a machine with torch, torchvision, numpy, pandas, PyYAML and Jinja2
    alone."""
    forget(project)
    # Pillow comes with torchvision
    blocked = "dvc mlflow pydantic rich sklearn scipy matplotlib skimage timm imagecorruptions".split()
    code = (
        f"import sys; blocked = {blocked}; loaded = [n for n in sys.modules if n.split('.')[0] in blocked]; "
        "sys.modules.update(dict.fromkeys(blocked + loaded)); "
        "import runpy; runpy.run_module('stages.train', run_name='__main__')"
    )
    python(project, code, CELL, FEDREPRO_WORKERS="1", FEDREPRO_CHECKPOINT_SECONDS="0")
    assert outputs(project) == reference


PRINT = """import json, sys
from pipeline import arithmetic
arithmetic.adopt(sys.argv[1] or None)
import torch
print(json.dumps([arithmetic.in_use(), torch.backends.cpu.get_cpu_capability()]))
"""


def test_portable_arithmetic_is_in_use_and_recorded(project, reference):
    unset = dict.fromkeys(arithmetic.PORTABLE, "")
    assert json.loads(python(ROOT, PRINT, "", **unset).stdout)[0] == ""
    if "avx2" in identity._processor():
        cold = run(ROOT, sys.executable, "-c", PRINT, "portable").stdout
        assert json.loads(cold) == ["portable", "AVX2"]
        result = json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
        assert result["versions"]["arithmetic"] == "portable"


def test_a_machine_is_described_in_texts_as_results_take_them(monkeypatch):
    """Also where a trial on a GPU has chosen how shapes are convolved."""
    from pipeline.engine.stacked import convolution

    monkeypatch.setattr(convolution, "used", {"8 3 5": True, "8 6 5": False})
    described = check(dict[str, str], identity.machine(), "versions")
    assert described["convolutions"] == "8 3 5 im2col; 8 6 5 grouped"


# What would notice a change of a module that no digest covers: a test by file and name.
NOTICED = {
    "pipeline.errors": "test_mistakes.py:test_words",
    "pipeline.files": "test_resume.py:",
    "pipeline.sealing": "test_trust.py:",
    "pipeline.schema.cell": "test_provenance.py:test_values_that_the_schema_gives_are_part_of_a_cells_digest",
    "pipeline.schema.loader": "test_params.py:",
    "pipeline.schema.discovery": "test_discovery.py:",
    "pipeline.schema.documents": "test_params.py:test_bad_yaml",
    "pipeline.schema.paper": "test_params.py:",
    "pipeline.training.cache": "test_resume.py:",
    "pipeline.provenance.modules": "test_provenance.py:test_what_a_training_loads_is_recorded_and_known",
    "pipeline.provenance.normal_form": "test_normal_form.py:test_a_real_change_is_another_digest",
    "pipeline.cells.plausible": "test_verify.py:test_points_that_were_added_to_the_second_seed_are_refused",
    "pipeline.provenance.private_methods": "test_normal_form.py:test_a_real_change_is_another_digest",
    "pipeline.provenance.syntax": "test_provenance.py:test_what_a_digest_covers",
    "pipeline.source_code": "test_loading.py:test_bytecode_that_carries_a_hash_is_refused",
    "pipeline.provenance.code_digests": "test_code_digests.py:test_it_is_the_digest_of_the_code",
    "pipeline.provenance.definitions": "test_provenance.py:test_what_a_digest_covers",
    "pipeline.training.checkpoint": "test_resume.py:",
    "pipeline.training.progress": "test_progress.py:test_an_event_of_another_shape_is_none",
    "pipeline.provenance.identity": "test_provenance.py:test_a_cell_counts_what_its_scenario_names",
    "pipeline.cells.quick_check": "test_quick_check.py:",
    "pipeline.cells.results": "test_trust.py:",
    "pipeline.cells.stamps": "test_verify.py:test_a_stamp_is_of_one_result_and_of_one_code",
    "pipeline.tracking.mlflow_runs": "test_tracking.py:",
}


def test_every_neutral_module_has_a_test():
    assert NOTICED.keys() == identity.NEUTRAL
    for module, where in NOTICED.items():
        file, name = where.split(":")
        (path,) = (ROOT / "tests").rglob(file)
        tests = [
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        assert tests, module
        assert not name or name in tests, module


def test_what_a_training_loads_is_recorded_and_known(project, reference):
    """Every module of the repository that a training loads is covered by the cell's digest, or is one of
    those of which tests say that they change no number."""
    result = json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
    experiment = Experiment.of(Cell.parse(CELL), project)
    loaded = result["modules"]
    assert {
        "stages._stage",
        "pipeline.training.seeds",
        "pipeline.methods.fedprox",
    } <= loaded.keys()
    assert undigested(experiment.cell, loaded, result["executor"], project) == []
    for name, text in loaded.items():
        base = project.joinpath(*name.split("."))
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        assert hashlib.sha256(file.read_bytes()).hexdigest().startswith(text)


def test_a_result_has_the_digest_of_each_definition_and_each_parameter(project, reference):
    result = json.loads((project / "papers/fedcrl/runs/mini/fedprox/result.json").read_text())
    experiment = Experiment.of(Cell.parse(CELL), project)
    definitions = identity.definitions_in(result["digests"])
    assert definitions == identity.parts_of(experiment, result["executor"])
    assert "pipeline.methods.fedprox:FedProx.loss" in definitions
    assert result["digests"]["parameters"]["training.rounds"] == 4


def test_values_that_the_schema_gives_are_part_of_a_cells_digest():
    experiment = Experiment.of(Cell.parse(CELL))
    scenario = experiment.scenario
    longer = dataclasses.replace(scenario, training=dataclasses.replace(scenario.training, rounds=99))
    several = scenario, scenario.with_networks({"dropout": 0.1}, "here"), longer
    several = [dataclasses.replace(experiment, scenario=one) for one in several]
    assert len({identity.cell_digest(one, "partition", code="code") for one in several}) == 3


def test_a_forced_training_under_a_stamp_keeps_the_digest_that_dvc_has(project, reference, monkeypatch):
    """DVC has noted the earlier code's digest before the stage runs."""
    cell = Cell.parse(CELL)
    experiment = Experiment.of(cell, project)
    today = identity.digest_of(experiment)
    monkeypatch.setattr(stamps, "of", lambda cell, root: {"result": "gone", "made": "m" * 64, "code": today})
    monkeypatch.setattr(identity, "noted", lambda paper, root: {CELL: "m" * 64})
    result = json.loads((cell.folder(project) / "result.json").read_text())
    file = cell.folder(project) / "result.json"
    away = file.rename(file.with_name("away"))
    assert identity.code_of(experiment) == "m" * 64
    away.rename(file)
    digest = identity.cell_digest(experiment, result["partition"], code="m" * 64)
    forced = result | {"digest": digest}
    assert identity.current(forced, experiment)
    assert not identity.current(forced | {"code": "another"}, experiment)


def test_a_headline_and_a_sample_are_parameters_only_where_they_are_given():
    """Results from before these keys have today's parameters; a given key makes another cell."""
    experiment = Experiment.of(Cell("fedcrl", "mini", "fedavg"))
    recorded = json.loads((experiment.folder / "result.json").read_text())["digests"]["parameters"]
    today = identity.flat(identity.parameters(experiment, "fp32"))
    assert today == recorded
    digest = identity.cell_digest(experiment, "partition", code="code")
    for key, value in (("headline", "average"), ("sample", 3)):
        protocol = dataclasses.replace(experiment.scenario.evaluation, **{key: value})
        scenario = dataclasses.replace(experiment.scenario, evaluation=protocol)
        other = dataclasses.replace(experiment, scenario=scenario)
        now = identity.flat(identity.parameters(other, "fp32"))
        assert now == today | {f"evaluation.{key}": value}
        assert identity.cell_digest(other, "partition", code="code") != digest
