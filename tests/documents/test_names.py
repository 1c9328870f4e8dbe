"""What the documents name exists: files, commands and options, targets of make, keys, functions.

The test reads what stands in backticks, the blocks of shell commands and the blocks of YAML. Names that a
reader chooses are in the short lists of exceptions below. CHANGELOG.md may name what is gone.
"""

import ast
import dataclasses
import re
import shlex
import subprocess
import types
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

import click
import pytest
import yaml
from repository import ROOT

from pipeline.cells.declarations import Declaration
from pipeline.commands.cli import main
from pipeline.schema import MINIATURES, folders, load_paper
from pipeline.schema.loader import Params
from pipeline.schema.paper import Paper
from pipeline.schema.partitions import KINDS
from pipeline.schema.scenario import Scenario

PATTERNS = ["*.md", "docs/**/*.md", "benchmarks/*.md", "examples/**/*.md", "papers/*/*.md"]
DOCUMENTS = [p for pattern in PATTERNS for p in sorted(ROOT.glob(pattern)) if p.name != "CHANGELOG.md"]
SPAN = re.compile(r"`([^`]+)`")
BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

# A reader's own papers, scenarios and methods, which the pages add or take as an example.
OWN_PAPERS = {"toy", "mine", "mypaper", "own_study", "mnist"}
OWN_SCENARIOS = {"digits-dir-1", "digits-halved", "shapes"}
OWN_METHODS = {"fedhalf", "fedmine"}
# Files that a page lets a reader make, and files of other programs.
OWN_FILES = {
    "papers/toy/",
    "papers/toy/paper.yaml",
    "papers/toy/published/table1.csv",
    "papers/toy/claims.csv",
    "papers/fedcrl/partitions.py",
    "pipeline/methods/fedhalf.py",
    "reports/toy.html",
    "reports/own_study.html",
    "fedlsa.zip",
    "/tmp/fedrepro-UID",
    ".dvc/tmp/rwlock",
    "dataset/MNIST",
    "usercustomize.py",
    "train/<class>/<image>",
    "test/...",
    "<domain>/<class>/<image>",
}
# Folders that a reader names in a command.
OWN_FOLDERS = {"models", "clients"}
# Options of other programs, and what has them.
OTHERS_OPTIONS = {"--allow-missing": "dvc repro", "--only-changed": "dvc exp show"}
# Names with a dot that belong to other programs.
OTHERS_NAMES = ("torch.", "nn.", "json.", "core.hardlink_lock")

# A path: parts of letters, digits and placeholders, with a slash or the ending of a file.
PATH = re.compile(r"[\w.<>*/-]+")
ENDINGS = "py yaml yml md md.j2 csv json lock html svg toml pt2 safetensors npz txt db zip ipynb cff".split()
# A part of a path that stands for any: <paper>, PAPER, K, UID.
PLACE = re.compile(r"<[^>]*>|\b[A-Z][A-Z0-9]*\b(?!\.)")
DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?", re.DOTALL)
KEY = re.compile(r"(?!lambda)([a-z]\w*): \S.*", re.DOTALL)
# What a document calls an object, and its class with those from which it inherits.
OBJECTS = {
    "world": [("pipeline/engine/world.py", "World"), ("pipeline/engine/federation.py", "Federation")],
    "model": [("pipeline/engine/handle.py", "Handle")],
    "job": [("pipeline/clusters/cluster.py", "Sent")],
}
# First parts of measures and of keys of result.json, whose second part is a name of its own.
MEASURES = {"run", "metric", "unseen", "memory"}
OWN_METRICS = {"worst_client"}


@cache
def tracked() -> list[str]:
    """Files and folders of the repository, as git has them."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = listed.stdout.split()
    above = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    return sorted({*files, *above})


def sources() -> list[str]:
    """The program's modules."""
    return [name for name in tracked() if re.match(r"(pipeline|stages|benchmarks|fedrepro)/.*\.py$", name)]


@cache
def statements(path: str) -> list[ast.stmt]:
    return ast.parse((ROOT / path).read_text(encoding="utf-8")).body


@cache
def words_of_the_program() -> set[str]:
    """The parts of all texts in the program, cut at slashes, at spaces and at what an f-string fills in.

    The names of the files that it makes are among them.
    """
    texts = (
        text
        for name in sources()
        for text in re.findall(r'"([^"\n]*)"', (ROOT / name).read_text(encoding="utf-8"))
    )
    return {word for text in texts for word in re.split(r"[/\s]+|{[^}]*}", text)}


# Files.


def looks_like_a_path(name: str) -> bool:
    if not PATH.fullmatch(name) or name.startswith("-"):
        return False
    return (
        "/" in name.rstrip("/") or name.endswith("/") or name.rpartition(".")[2] in ENDINGS and name[0] != "."
    )


def file_exists(name: str) -> bool:
    """Whether git has a file or folder of this name, from the root or from a folder in it.

    Files that the program makes are not in git: then the program has to name each part.
    """
    if name in OWN_FILES:
        return True
    pattern = PLACE.sub("*", name.strip("/"))
    regex = re.escape(pattern).replace(r"\*", "[^/\n]*")
    if re.search(f"^(.*/)?{regex}$", "\n".join(tracked()), re.MULTILINE):
        return True
    parts = [part.replace("*", "") for part in pattern.split("/")]
    return {part for part in parts if part} <= words_of_the_program() | {"papers"}


# Cells.


def cell_problem(name: str) -> str | None:
    """What of PAPER/SCENARIO/METHOD or a part of it does not exist."""
    paper, *rest = name.rpartition(":")[2].split("/")
    if paper in OWN_PAPERS or PLACE.fullmatch(paper):
        return None
    if paper not in folders():
        return f"paper {paper}"
    known = load_paper(paper)
    scenarios = {*MINIATURES, *known.scenarios, *OWN_SCENARIOS}
    for part, names in zip(rest, (scenarios, {*known.methods, *OWN_METHODS}), strict=False):
        if part not in names and not PLACE.fullmatch(part):
            return f"{part} in {paper}"
    return None


def is_cell(name: str) -> bool:
    return bool(re.fullmatch(r"[\w<>-]+(/[\w<>-]+){1,2}", name)) and name.partition("/")[0] in folders()


# Commands.


@cache
def options() -> set[str]:
    """Of all commands of `fedrepro`."""

    def of(command: click.Command) -> Iterator[str]:
        yield from (name for parameter in command.params for name in parameter.opts)
        for inner in getattr(command, "commands", {}).values():
            yield from of(inner)

    return {*of(main), "--help", "--version"}


# A call of `fedrepro` or `make` within a line, up to a pipe, a redirection, a comment or the next command.
CALL = re.compile(r"(?:^|(?<=\s))(?<!-t )(fedrepro .*?|make .*?)(?=$|[|;#]|&&|<|> )")


def command_problems(line: str) -> Iterator[str]:
    """What of the calls of `fedrepro` and `make` in a line does not exist."""
    for call in CALL.findall(line):
        program, *words = shlex.split(call)
        if program == "make":
            yield from (f"make {word}" for word in words if "=" not in word and word not in targets())
        else:
            yield from fedrepro_problems(words)


def fedrepro_problems(words: list[str]) -> Iterator[str]:
    """What of the words of a call of `fedrepro` does not exist: a command, an option or a cell."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            yield f"command {words[0]}"
            return
        command = command.commands[words.pop(0)]
    allowed = {name for parameter in command.params for name in parameter.opts} | {"--help", "--version"}
    yield from (f"{word} of {command.name}" for word in words if word[:2] == "--" and word not in allowed)
    cells = [word for word in words if re.fullmatch(r"[\w-]+(/[\w-]+){1,2}", word)]
    for cell in cells:
        problem = None if cell.partition("/")[0] in OWN_FOLDERS else cell_problem(cell)
        if problem:
            yield problem


@cache
def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def script_problems(line: str) -> Iterator[str]:
    """What of a call of this repository's own programs does not exist: the file, or an option in its text."""
    for call in re.findall(r"(?:python |^)(-m (?:stages|pipeline)\.\S+|\S+\.py\b.*|tests/\S+.*)", line):
        name, *words = call.removeprefix("-m ").split()
        name = name.replace(".", "/") + ".py" if call.startswith("-m ") else name
        places = [path for path in tracked() if path == name or path.endswith(f"/{name}")]
        if name in OWN_FILES:
            continue
        if not places:
            yield name
            continue
        programs = [path for path in tracked() if path.startswith(places[0]) and path.endswith(".py")]
        text = "".join((ROOT / path).read_text(encoding="utf-8") for path in programs)
        found = (word for word in words if word.startswith("--"))
        yield from (f"{word} of {name}" for word in found if f'"{word}"' not in text)


# Keys.


def key_exists(parts: list[str], kind: typing.Any) -> bool:
    """Whether a key such as `training.optimiser.lr` is one of a dataclass of the schema."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if not parts or kind is typing.Any:
        return True
    if origin is typing.Annotated:
        return key_exists(parts, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return any(key_exists(parts, each) for each in arguments)
    if origin is list:
        return key_exists(parts, arguments[0])
    if origin is dict:
        return key_exists(parts[1:], arguments[1])
    if not dataclasses.is_dataclass(kind):
        return False
    kinds = list(kind.variants().values()) if hasattr(kind, "variants") else [kind]
    hints = [typing.get_type_hints(each, include_extras=True) for each in kinds]
    return any(parts[0] in hint and key_exists(parts[1:], hint[parts[0]]) for hint in hints)


# What the keys of a document are: of paper.yaml, of a scenario, of params.yaml, of a declared experiment.
ROOTS = (Paper, Scenario, Params, Declaration)


@cache
def all_keys() -> set[str]:
    """Every key that a dataclass of the schema or a partition has."""
    seen: set[type] = set()

    def of(kind: typing.Any) -> Iterator[str]:
        yield from (name for argument in typing.get_args(kind) for name in of(argument))
        if not dataclasses.is_dataclass(kind) or kind in seen:
            return
        seen.add(kind)
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            yield name
            yield from of(hint)

    return {name for kind in (*ROOTS, *KINDS.values()) for name in of(kind)} | {"kind", "settings"}


# Definitions.


def members(body: list[ast.stmt]) -> set[str]:
    """Names that the statements of a module or class define.

    They are functions, classes, constants, fields, and the attributes that methods give to `self`.
    """
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                names.add(inner.attr)
    return names


def members_of_class(path: str, name: str) -> set[str]:
    bodies = (node.body for node in statements(path) if isinstance(node, ast.ClassDef) and node.name == name)
    return members(next(bodies))


def modules(parts: list[str]) -> list[str]:
    """Files of the module or package with this name, from the root or within pipeline/."""
    path = "/".join(parts)
    return [
        name
        for name in sources()
        if any(f"/{name}".endswith(f"/{path}{end}") for end in (".py", "/__init__.py"))
    ]


def definition_exists(name: str) -> bool:
    """Whether `module.function` or `object.member` is defined in this repository."""
    *first, last = name.split(".")
    if name.partition(".")[0] in OBJECTS:
        return any(last in members_of_class(path, owner) for path, owner in OBJECTS[first[0]])
    if modules([*first, last]):
        return True
    return any(last in members(statements(path)) for path in modules(first))


# All of it.


def problems(text: str) -> list[str]:
    """What a document names that does not exist."""
    text = COMMENT.sub("", text)
    found: list[str] = []
    for language, about, content in BLOCK.findall(text):
        if language == "sh":
            for line in content.replace("\\\n", " ").splitlines():
                found += [*command_problems(line), *script_problems(line)]
        if language == "yaml" and "into=" not in about:
            document = yaml.safe_load(content)
            found += [f"key {name}" for name in document if name not in all_keys() | OWN_METHODS]
    for span in (" ".join(span.split()) for span in SPAN.findall(BLOCK.sub("", text))):
        found += span_problems(span)
    return found


def span_problems(span: str) -> list[str]:
    """What a span in backticks names that does not exist."""
    first = span.split()[0]
    dotted = DOTTED.fullmatch(span)
    if first.startswith("--"):
        return [] if first in options() | OTHERS_OPTIONS.keys() | benchmark_options() else [f"option {first}"]
    if is_cell(span):
        return [bad for bad in [cell_problem(span)] if bad]
    if looks_like_a_path(span):
        return [] if file_exists(span) else [f"file {span}"]
    if key := KEY.fullmatch(span):
        return [] if key[1] in all_keys() or key[1].partition("-")[0] in OWN_METHODS else [f"key {key[1]}"]
    if dotted and not span.startswith(OTHERS_NAMES):
        return [] if dotted_exists(dotted[1]) else [f"name {span}"]
    return [*command_problems(span), *script_problems(span)]


def dotted_exists(name: str) -> bool:
    """Whether a name with dots is a key, a definition, or a text in the program, such as a column."""
    parts = name.split(".")
    if parts[0] == "state":  # a state has what its method puts there
        return True
    if parts[0] in MEASURES:
        return (
            parts[1] in words_of_the_program() or bool(PLACE.fullmatch(parts[1])) or parts[1] in OWN_METRICS
        )
    in_a_key = any(key_exists(parts, kind) for kind in ROOTS)
    return in_a_key or definition_exists(name) or name in words_of_the_program()


@cache
def benchmark_options() -> set[str]:
    scripts = [name for name in tracked() if re.match(r"(benchmarks|tests/chaos)/.*\.py$", name)]
    texts = ((ROOT / name).read_text(encoding="utf-8") for name in scripts)
    return {option for text in texts for option in re.findall(r'"(--[a-z-]+)"', text)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_exists(path):
    assert problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "`stacked.py`",
        "`pipeline/engine/stackd/`",
        "`.cells/beginings/`",
        "`papers/<paper>/extra-seed/`",
        "`fedrepro explan`",
        "`fedrepro export models fedlsa/mini/fedavg`",
        "`fedrepro run fedlsa/mini --sedes 7`",
        "`fedrepro run fedlsa/mini/fedavgg`",
        "`--sedes`",
        "`make tests`",
        "`training.local_epoch`",
        "`miniature.other`",
        "`participaton: 0.2`",
        "`place.begun`",
        "`world.averages`",
        "`pipeline.report.tunings.tuning()`",
        "`pipeline.reports.tunings`",
        "`fedlsa/office-caltec`",
        "`python -m stages.trian fedlsa/mini/fedavg`",
        "`python benchmarks/ablations.py --documents`",
        "```sh\nfedrepro statuss fedlsa\n```",
        "```sh\nsource x && fedrepro plan 10 --job 2\n```",
        "```yaml\ntunning:\n  mini: {}\n```",
    ],
)
def test_a_wrong_name_is_found(wrong):
    assert len(problems(wrong)) == 1, problems(wrong)
