"""`fedrepro new`: write a working example of a paper, a method or a part of a paper, with a test."""

import contextlib
import io
import keyword
import re
import shlex
import shutil
from collections.abc import Container
from importlib.util import find_spec
from pathlib import Path
from string import Template

from pipeline.commands.options import installed, interpreter
from pipeline.commands.sync import sync, written
from pipeline.data.registry import sets
from pipeline.errors import FedReproError, ParamError
from pipeline.files import replace_folder, write_text
from pipeline.findings_file import GONE, GONE_COLUMNS
from pipeline.git import git
from pipeline.place import HOME
from pipeline.schema import ROOT, functions, load_paper, papers, shorten
from pipeline.schema.discovery import method_file, partition_kinds
from pipeline.schema.loader import check_name

TEMPLATES = Path(__file__).with_name("templates")
# Methods that a new paper may have: method -> its row in paper.yaml.
ROWS = {"fedavg": "{label: FedAvg}", "fedprox": "{label: FedProx, mu: 0.01}"}
# method -> its row in params.yaml, with what a user may vary.
VARIED = {"fedavg": "{}", "fedprox": "{mu: null}"}
# Parts that a paper may define: (its file, the line of a scenario in paper.yaml that names an entry of it).
PARTS = {
    "data": ("data.py", "data: {set: $name}"),
    "model": ("models.py", "model: {name: $name}"),
    "partition": ("partitions.py", "partition: {kind: $name, clients: 10}"),
    "metric": ("metrics.py", "evaluation: {metrics: [$name]}"),
}


def _template(file: str, **values: object) -> str:
    """A template with values in the place of its $names."""
    text = (TEMPLATES / f"{file}.txt").read_text(encoding="utf-8")
    return Template(text).substitute({name: str(value) for name, value in values.items()})


def project(name: str) -> int:
    """Make a folder with this code, the settings of its stages and a paper of two methods, as a new git
    repository; returns the exit code.

    name  path of the folder, whose last part names the paper

    Raises ParamError for a name that no paper may have, and FedReproError if the folder exists.
    """
    from fedrepro import files  # of an installation alone: a project has no such folder

    target = Path(name)
    _check_folder("project", target.name)
    _check_free(target)
    with replace_folder(target.resolve()) as new:
        for file in files(HOME):
            (new / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(HOME / file, new / file)
        with contextlib.redirect_stdout(io.StringIO()):
            paper(target.name, new, tuple(ROWS))
        write_text(new / GONE, ",".join(GONE_COLUMNS) + "\n")  # the stage of the report depends on it
        git(new, "init", "--quiet")
    print(f"To run it:  cd {shlex.quote(name)} && {installed(elsewhere=True)} run")
    return 0


def paper(name: str, root: Path = ROOT, methods: tuple[str, ...] = ("fedavg",)) -> int:
    """Make papers/<name>: paper.yaml with a miniature and one table, params.yaml, and the stages; returns the
    exit code.

    name     of the folder
    root     folder of the repository
    methods  of the miniature, keys of ROWS

    Raises ParamError for a name that no paper may have, and FedReproError if the folder exists.
    """
    _check_folder("paper", name)
    folder = root / "papers" / name
    _check_free(folder)
    written(root)  # reports first what is wrong with another paper
    order = max((load_paper(key, root).order for key in papers(root)), default=0) + 1
    rows = "\n".join(f"  {method}: {ROWS[method]}" for method in methods)
    text = _template("paper.yaml", name=name, order=order, names=", ".join(methods), rows=rows)
    _write(folder / "paper.yaml", text)
    varied = "\n".join(f"  {method}: {VARIED[method]}" for method in methods)
    _write(folder / "params.yaml", _template("params.yaml", name=name, varied=varied))
    _write(folder / "published" / "table1.csv", _template("table1.csv", key=name))
    print("\n".join(f"{shorten(path)}: written" for path in sync(root)))
    print(f"To run it:  {installed()} run {name}")
    return 0


def method(name: str, paper: str | None = None, root: Path = ROOT) -> int:
    """Make the file of a method and a test; returns the exit code.

    name   of the method, as a Python module
    paper  in whose folder the method is; None: in pipeline/methods, for all papers
    root   folder of the repository

    Raises ParamError for a name that is none in Python, and FedReproError if one of the files exists.
    """
    kind = _class_name("method", name)
    if paper:
        load_paper(paper, root)
    code = root / "papers" / paper if paper else root / "pipeline"
    tests = code / "tests" if paper else root / "tests" / "methods"
    file = code / "methods" / f"{name}.py"
    test = tests / f"test_{name}.py"
    _check_free(method_file(name, paper, root), file, test)
    # The file begins with FedAvg's round, which a method usually changes.
    text = (ROOT / "pipeline" / "methods" / "fedavg.py").read_text(encoding="utf-8")
    [body] = re.findall(r"def round\(.*?\n(.*?)\n\n", text, re.DOTALL)
    _write(file, _template("method.py", kind=kind, body=body))
    argument = f', "{paper}"' if paper else ""
    _write(test, _template("test_method.py", kind=kind, name=name, paper=argument))
    sync(root)
    row = f"papers/{paper or '<paper>'}/paper.yaml"
    print(f"To run it:  a row `{name}: {{label: {kind}}}` under `methods` of {row},")
    print(
        f"            `{name}` in its `miniature.methods`; {installed()} run {paper or '<paper>'}/mini/{name}"
    )
    print(f"To test it: {_pytest(test)}")
    return 0


def cluster(name: str, root: Path = ROOT) -> int:
    """Make the class of a cluster and a test, and add it to the table of clusters; returns the exit code.

    The class trains cells as processes of this machine. It is the example of docs/adding-a-cluster.md.

    name  of the cluster, as a Python module
    root  folder of the repository

    Raises ParamError for a name that is none in Python, and FedReproError if one of the files exists or the
    table is not found.
    """
    kind = _class_name("cluster", name)
    file = root / "pipeline" / "clusters" / f"{name}.py"
    test = root / "tests" / "clusters" / f"test_{name}.py"
    table = root / "pipeline" / "clusters" / "__init__.py"
    _check_free(file, file.with_suffix(""), test)
    before, begin, after = table.read_text(encoding="utf-8").partition("CLUSTERS = {\n")
    if not begin:
        raise FedReproError(f"{shorten(table)}: expected a line `CLUSTERS = {{`")
    _write(file, _template("cluster.py", kind=kind, name=name))
    _write(test, _template("test_cluster.py", kind=kind, name=name))
    row = f'    "{name}": Kind("pipeline.clusters.{name}:{kind}", ("cancel",)),\n'
    _write(table, before + begin + row + after)
    print(f"To run it:  {installed()} run --on {name} <paper>/mini/<method>")
    print(f"To test it: {_pytest(test)}")
    return 0


def part(what: str, name: str, paper: str, root: Path = ROOT) -> int:
    """Add an entry to the file of a part of a paper, and make a test of it; returns the exit code.

    what   a key of PARTS
    name   of the entry, as in Python
    paper  key of the paper
    root   folder of the repository

    Raises ParamError for a name that is none in Python, and FedReproError if the entry or the test exists.
    """
    words = {"name": name, "kind": _class_name(what, name), "paper": paper}
    module, use = PARTS[what]
    load_paper(paper, root)
    folder = root / "papers" / paper
    file = folder / module
    test = folder / "tests" / f"test_{name}.py"
    known: Container[str] = functions(paper, file.stem, root)
    if what in ("data", "partition"):
        known = sets(root) if what == "data" else partition_kinds(paper, root)
    if name in known:
        raise FedReproError(f"{shorten(file)}: there is {name!r} already")
    _check_free(test)
    head, entry = _template(f"{what}.py", **words).split("%%\n")
    before = file.read_text(encoding="utf-8") if file.exists() else head
    _write(file, before + entry)
    _write(test, _template(f"test_{what}.py", **words))
    sync(root)
    print(f"To use it:  `{Template(use).substitute(words)}` in a scenario of papers/{paper}/paper.yaml")
    print(f"To test it: {_pytest(test)}")
    return 0


def _pytest(test: Path) -> str:
    """The command that runs a test, after the one that installs pytest if that is missing."""
    install = "" if find_spec("pytest") else f"{interpreter()} -m pip install pytest && "
    return f"{install}{interpreter()} -m pytest {shorten(test)}"


def _check_free(*paths: Path | None) -> None:
    """FedReproError if one of these files or folders exists."""
    for path in paths:
        if path and path.exists():
            what = "folder" if path.is_dir() else "file"
            raise FedReproError(f"{shorten(path)}: there is such a {what} already")


def _check_folder(what: str, name: str) -> None:
    """ParamError for a name that a paper's folder cannot have. `what` is for the message."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ParamError(f"new {what} {name!r}: a folder's name, of small letters, digits, - and _")
    check_name(name)


def _class_name(what: str, name: str) -> str:
    """`fed_mine` -> FedMine; ParamError for a name that is none in Python. `what` is for the message."""
    kind = "".join(part.capitalize() for part in name.split("_"))
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or keyword.iskeyword(kind):
        raise ParamError(f"new {what} {name!r}: a module's name, of small letters, digits and _")
    return kind


def _write(path: Path, text: str) -> None:
    """Write a file, and say so."""
    write_text(path, text)
    print(f"{shorten(path)}: written")
