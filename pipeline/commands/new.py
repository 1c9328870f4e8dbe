"""`fedrepro new`: create a paper or a method that runs as it is, to be changed."""

import keyword
import re
from pathlib import Path

from pipeline.commands.sync import sync, written
from pipeline.errors import FedReproError, ParamError
from pipeline.files import write_text
from pipeline.schema import ROOT, check_name, load_paper, method_file, papers, shorten

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
  methods: [fedavg]
  scenario:
    data: {{set: digits, size: 16, channels: 1}}
    partition: {{kind: dirichlet, clients: 5, beta: 0.5}}
    model: {{name: cnn2, features: 128}}
    training: {{rounds: 5, batch_size: 16, optimiser: {{name: adam, lr: 0.003}}}}
    evaluation: {{tests: clients, last: 1}}

# The paper's scenarios, the rows of its tables, the cells to run, its tables and figures.
scenarios: {{}}

methods:
  fedavg: {{label: FedAvg}}

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


def paper(name: str, root: Path = ROOT) -> int:
    """Make papers/<name>: a miniature with FedAvg and one table, and its stages."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ParamError(
            f"new paper {name!r}: a folder's name, of small letters, digits, - and _, such as fedmine"
        )
    check_name(name)
    folder = root / "papers" / name
    if folder.exists():
        raise FedReproError(f"{shorten(folder)}: there is such a folder already")
    written(root)  # reports first what is wrong with another paper
    order = max((load_paper(key, root).order for key in papers(root)), default=0) + 1
    _write(folder / "paper.yaml", PAPER.format(name=name, order=order))
    _write(folder / "published" / "table1.csv", PUBLISHED.format(key=name))
    print("\n".join(f"{shorten(path)}: written" for path in sync(root)))
    print(f"To run it:  fedrepro run {name}")
    return 0


def method(name: str, paper: str | None = None, root: Path = ROOT) -> int:
    """Make the file of a method, of all papers or of one, and a test."""
    kind = "".join(part.capitalize() for part in name.split("_"))
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or keyword.iskeyword(kind):
        raise ParamError(
            f"new method {name!r}: a module's name, of small letters, digits and _, such as fedmine"
        )
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


def _round() -> str:
    """The lines of FedAvg's round, so that the file begins as what it is built on."""
    text = (ROOT / "pipeline" / "methods" / "fedavg.py").read_text(encoding="utf-8")
    match = re.search(r"def round\(.*?\n(.*?)\n\n", text, re.DOTALL)
    assert match is not None
    return match[1]


def _write(path: Path, text: str) -> None:
    write_text(path, text)
    print(f"{shorten(path)}: written")
