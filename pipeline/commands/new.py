"""`fedrepro new`: generate a working template of a paper, a method or a paper's component, with a test."""

import contextlib
import io
import keyword
import re
import shutil
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from pipeline.commands.sync import sync, written
from pipeline.data.registry import sets
from pipeline.errors import FedReproError, ParamError
from pipeline.files import replace_folder, write_text
from pipeline.git import git
from pipeline.place import HOME
from pipeline.schema import ROOT, check_name, functions, load_paper, method_file, papers, shorten
from pipeline.schema.discovery import partition_kinds

PAPER = """# {name} as data: its scenarios, methods, tables and figures. What each key means:
# pipeline/schema; how to go on: docs/adding-a-paper.md.
name: "{name}"           # as the paper spells its method
title: The paper's title
authors: Its authors
reference: Where it appeared (year)
idea: What its method does, in one sentence.
order: {order}

# The protocol on scikit-learn's handwritten digits, small enough for a laptop: `dvc repro` runs it. Seeds
# are in params.yaml.
miniature:
  methods: [{names}]
  scenario:
    data: {{set: digits, size: 16, channels: 1}}
    partition: {{kind: dirichlet, clients: 5, beta: 0.5}}
    model: {{name: cnn2, features: 128}}
    training: {{rounds: 5, batch_size: 16, optimiser: {{name: adam, lr: 0.003}}}}
    evaluation: {{tests: clients, last: 1}}

# The paper's scenarios, the rows of its tables, the cells to run, its tables and figures.
scenarios: {{}}

methods:
{rows}

grids: {{}}

tables:
  table1:
    number: "1"
    title: Test accuracy
    published: table1.csv
    blocks:
      label skew|Digits: {{scenario: mini}}
    columns: {{Acc.: weighted}}
"""
PUBLISHED = """paper,table,setting,dataset,column,method,value,std,note
{key},1,label skew,Digits,Acc.,FedAvg,,,a number of the paper goes before the last two commas
"""
ROWS = {"fedavg": "{label: FedAvg}", "fedprox": "{label: FedProx, mu: 0.01}"}
METHOD = '''"""{kind}: in one line what it does (Authors, year, Algorithm 1)."""
from dataclasses import dataclass

from pipeline.engine.state import State
from pipeline.engine.world import World
from pipeline.methods.fedavg import FedAvg


@dataclass(frozen=True)
class {kind}(FedAvg):
    """What is minimised or averaged, as the paper's equation has it. Fields are hyper-parameters:
    `mu: NonNegative = 0.1`."""

    def round(self, state: State, world: World) -> State:
{body}
'''
TEST = '''"""{kind}: the identities that its paper promises."""
from federation import image_world, run, same

from pipeline import methods
from pipeline.methods.fedavg import FedAvg


def test_as_begun_it_is_fedavg():
    """To be replaced: what the method gives where its term is switched off."""
    method = methods.load("{name}", {{}}, "test"{paper})
    assert same(run(method, image_world()).model, run(FedAvg(), image_world()).model)
'''


@dataclass(frozen=True)
class Part:
    """What a paper defines in another file: how the file begins, an entry of it and a test of that.

    use: the line of a scenario in paper.yaml that names it
    """

    file: str
    head: str
    entry: str
    test: str
    use: str


PARTS = {
    "data": Part(
        "data.py",
        '''"""Data sets, each called as its variable."""

from pipeline.data.registry import Canonical, DataSet
''',
        """
{name} = DataSet(
    "{kind}",
    shape=[28, 28, 1],
    classes=10,
    canonical=Canonical("arrays", {{"{name}.npz": ""}}, page="the address where a person finds it"),
)
""",
        """from pipeline.data.registry import find


def test_its_files():
    assert [file.name for file in find("{name}").canonical.official] == ["{name}.npz"]
""",
        "data: {{set: {name}}}",
    ),
    "model": Part(
        "models.py",
        '''"""Networks: functions that give a module with output (B, width), and the width."""

from torch import nn
''',
        '''

def {name}(channels: int, size: int) -> tuple[nn.Module, int]:
    """One layer of 64 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 64), nn.ReLU()), 64
''',
        """import torch

from pipeline.models import build
from pipeline.schema import Model


def test_it_scores_every_class():
    network = build(Model("{name}", paper="{paper}"), channels=1, size=16, classes=10)
    assert network(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
""",
        "model: {{name: {name}}}",
    ),
    "partition": Part(
        "partitions.py",
        '''"""Kinds of partition, whose fields are their keys in paper.yaml."""

from dataclasses import dataclass

import numpy as np

from pipeline.schema import Pooled
''',
        '''

@dataclass(frozen=True)
class {kind}(Pooled):
    """Equal parts of the shuffled images."""

    kind = "{name}"

    def cut(self, pool, indices, rng):
        return np.array_split(rng.permutation(indices), self.clients)
''',
        """import numpy as np

from pipeline.data.partition import partition
from pipeline.data.parts import Pool
from pipeline.schema.discovery import partition_kinds


def test_every_image_belongs_to_one_client():
    pool = Pool(np.arange(60) % 10, np.zeros(60, int), np.zeros(60, bool), ["all"], 10)
    parts = partition(partition_kinds("{paper}")["{name}"](clients=3), pool, "test")
    assert sorted(np.concatenate([*parts.train, *parts.client_test])) == list(range(60))
""",
        "partition: {{kind: {name}, clients: 10}}",
    ),
    "metric": Part(
        "metrics.py",
        '''"""Metrics in percent, of every client's pipeline.cells.metrics.Predictions."""
''',
        '''

def {name}(clients):
    """Accuracy of the worst client."""
    return min(client.accuracy for client in clients)
''',
        """import torch

from pipeline.cells.metrics import Predictions
from pipeline.schema import ROOT, load_module


def test_the_worst_client_counts():
    metrics = load_module("papers.{paper}.metrics", ROOT / "papers/{paper}/metrics.py")
    scores = torch.eye(2)[:, None]
    clients = [Predictions(str(k), "all", scores[k], torch.tensor([0])) for k in range(2)]
    assert metrics.{name}(clients) == 0
""",
        "evaluation: {{metrics: [{name}]}}",
    ),
}


def project(name: str) -> int:
    """Make a folder with this code, the settings of its stages and a paper of two methods, in a new git
    repository."""
    from fedrepro import files  # of an installation alone: a project has no such folder

    target = Path(name)
    _check_folder("project", target.name)
    if target.exists():
        raise FedReproError(f"{target}: there is such a file or folder already")
    with replace_folder(target.resolve()) as new:
        for file in files(HOME):
            (new / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(HOME / file, new / file)
        with contextlib.redirect_stdout(io.StringIO()):
            paper(target.name, new, tuple(ROWS))
        git(new, "init", "--quiet")
    print(f"To run it:  cd {target} && fedrepro run")
    return 0


def paper(name: str, root: Path = ROOT, methods: tuple[str, ...] = ("fedavg",)) -> int:
    """Make papers/<name>: a miniature with methods of ROWS and one table, and its stages."""
    _check_folder("paper", name)
    folder = root / "papers" / name
    if folder.exists():
        raise FedReproError(f"{shorten(folder)}: there is such a folder already")
    written(root)  # reports first what is wrong with another paper
    order = max((load_paper(key, root).order for key in papers(root)), default=0) + 1
    rows = "\n".join(f"  {method}: {ROWS[method]}" for method in methods)
    text = PAPER.format(name=name, order=order, names=", ".join(methods), rows=rows)
    _write(folder / "paper.yaml", text)
    _write(folder / "published" / "table1.csv", PUBLISHED.format(key=name))
    print("\n".join(f"{shorten(path)}: written" for path in sync(root)))
    print(f"To run it:  fedrepro run {name}")
    return 0


def method(name: str, paper: str | None = None, root: Path = ROOT) -> int:
    """Make the file of a method, of all papers or of one, and a test."""
    kind = _class_name("method", name)
    if paper:
        load_paper(paper, root)
    folder, tests = (
        (root / "papers" / paper / "methods", root / "papers" / paper / "tests")
        if paper
        else (root / "pipeline" / "methods", root / "tests")
    )
    file, test = folder / f"{name}.py", tests / f"test_{name}.py"
    if there := [path for path in (method_file(name, paper, root), file, test) if path and path.exists()]:
        raise FedReproError(f"{shorten(there[0])}: there is such a file already")
    _write(file, METHOD.format(kind=kind, body=_round()))
    _write(test, TEST.format(kind=kind, name=name, paper=f', "{paper}"' if paper else ""))
    sync(root)
    row = f"papers/{paper or '<paper>'}/paper.yaml"
    print(
        f"To run it:  a row `{name}: {{label: {kind}}}` under `methods` of {row}, and `{name}` in its "
        "`miniature.methods`;\n"
        f"            then fedrepro run {paper or '<paper>'}/mini/{name}"
    )
    print(f"To test it: python -m pytest {shorten(test)}")
    return 0


def part(what: str, name: str, paper: str, root: Path = ROOT) -> int:
    """Add an entry to the file of a part of a paper, a key of PARTS, and make a test of it."""
    kind, made = _class_name(what, name), PARTS[what]
    load_paper(paper, root)
    folder = root / "papers" / paper
    file, test = folder / made.file, folder / "tests" / f"test_{name}.py"
    known: Container[str] = functions(paper, file.stem, root)
    if what in ("data", "partition"):
        known = sets(root) if what == "data" else partition_kinds(paper, root)
    if name in known:
        raise FedReproError(f"{shorten(file)}: there is {name!r} already")
    if test.exists():
        raise FedReproError(f"{shorten(test)}: there is such a file already")
    words = {"name": name, "kind": kind, "paper": paper}
    text = file.read_text(encoding="utf-8") if file.exists() else made.head
    _write(file, text + made.entry.format(**words))
    _write(test, made.test.format(**words))
    sync(root)
    print(f"To use it:  `{made.use.format(**words)}` in a scenario of papers/{paper}/paper.yaml")
    print(f"To test it: python -m pytest {shorten(test)}")
    return 0


def _check_folder(what: str, name: str) -> None:
    """ParamError for what cannot name a paper's folder."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ParamError(
            f"new {what} {name!r}: a folder's name, of small letters, digits, - and _, such as fedmine"
        )
    check_name(name)


def _class_name(what: str, name: str) -> str:
    """`fed_mine` -> FedMine; ParamError for what cannot be a name in Python."""
    kind = "".join(part.capitalize() for part in name.split("_"))
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or keyword.iskeyword(kind):
        raise ParamError(
            f"new {what} {name!r}: a module's name, of small letters, digits and _, such as fedmine"
        )
    return kind


def _round() -> str:
    """The lines of FedAvg's round, so that the file begins as what it is built on."""
    text = (ROOT / "pipeline" / "methods" / "fedavg.py").read_text(encoding="utf-8")
    match = re.search(r"def round\(.*?\n(.*?)\n\n", text, re.DOTALL)
    assert match is not None
    return match[1]


def _write(path: Path, text: str) -> None:
    write_text(path, text)
    print(f"{shorten(path)}: written")
