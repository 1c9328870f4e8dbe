"""What a result depends on: the code that a method runs, the parameters, the data; and where it was made.

DVC tracks files, not imports. `code_digest` hashes the modules that a cell really runs, without comments and
docstrings, so that a new method or a reworded docstring leaves the other cells' results valid.
"""
import ast
import dataclasses
import hashlib
import json
import platform
import subprocess
import sys
import typing
from functools import cache
from importlib import metadata
from pathlib import Path

from pipeline import params
from pipeline.params import ROOT, Cell

# Modules that carry values or show them but compute no result. Default values that `params` holds
# enter through `_defaults`.
NEUTRAL = {"pipeline.params", "pipeline.errors", "pipeline.cli", "pipeline.devices", "pipeline.files", "pipeline.provenance",
           "pipeline.progress", "pipeline.tracking", "pipeline.results"}
TRAINING = "pipeline.training"
# Digest of a module -> of the form it had before a change that touches GPUs alone. On a CPU the two compute the same numbers bit for
# bit, so what the earlier one has computed there stays valid; `.ci/reports` and `make repro` retrain and compare.
SAME_ON_A_CPU = {
    # engine.public: streams wait for what they read, and are the same ones every time
    "3d71393cf5e7db8dc09f71e8c457215096d6ef83511bc47a164ba08faae19d08":
        "9b956d6fc10ad9f7e2bc2bc969b318711b20085fd20aff0f8e33db422c2a6c03",
    # data.tensors: the host goes on while constants are copied
    "954572a83cf6af510c49fd49304a2b52d75f27318885556b7b3e4efbe370f24b":
        "12b160d0829a5570c988cb090f8cbfd8d1d715658dbb29061169c20646a92bf3",
    # data.image_operations: the same for numbers
    "93a16f31a426de0ccab4af0ac3e9da88b2de127e6261563282fdd3f98b5bd5ed":
        "d44a839b1c2ea716cbfaf9b38a9a92655f5670906f3f2a98c354e657b987000a",
    # data.augmentations: the same for draws
    "c96c2ac6c474e5cd13c7d493199e83cd1b8399d62bacddca2e515464729f69ff":
        "7718311460264d5de06c1a4309d59d359038999707dc266ecdf16bcb8ef8029f",
    # engine.world: cuDNN is held to its deterministic kernels
    "2940da922a1e7bc4b05adc0520c258195ed5be6c26ec8a74a3409dd3ea8e6ce8":
        "4d7d2f4bcfd8716256a7a034be9dead2a225ef82d1ebfdac3f9234b21ea2b601",
    # methods.fedala: what a checkpoint brings to the GPU goes back
    "f7b26d40d5df964adaf9a2e8f09254d68285489ea151dbf4a9660e8b03cb9bd7":
        "1da8ee3b28b654156c7e59a896c9f93b8d430b201395f8be7f3f19bffffb2192",
    # methods.ktpfl: the same
    "8e56e53a7e8ded132cd1cb4a3e7756ad47c5570956f2722d7866402ffb575cca":
        "163a15e62359d42595c3c21bfdcdea2bf3d5b7be8a1a15a3fc8f8bd2068db9c6",
    # engine.handle: a line that says what cannot be stacked
    "465b93192477feede533a75ca29e2c1b81a60f02723e5fb0a7fc3ee775291c76":
        "09989a2999c1ebd8d15e76a048813408d154beee9937a4bfb20321af6622a074",
}


@cache
def code_digest(*modules: str, root: Path = ROOT) -> str:
    """sha256 over the modules and everything of `pipeline` that they import, comments and docstrings aside."""
    on_a_cpu = "pipeline.engine.stacked" not in modules
    closure: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _path(name, root)
        if path is None or name in closure or name in NEUTRAL:
            continue
        digest, imported = _module(path.read_text(encoding="utf-8"))
        closure[name] = SAME_ON_A_CPU.get(digest, digest) if on_a_cpu else digest
        waiting += imported
    return _sha256(closure | _defaults())


@cache
def _module(source: str) -> tuple[str, list[str]]:
    """(digest of what a module means, modules of this repository that it imports); methods share most modules."""
    tree = ast.parse(source)
    return hashlib.sha256(repr(_meaning(tree)).encode()).hexdigest(), _imports(tree)


def method_digest(algorithm: str, root: Path = ROOT, executor: str = "sequential") -> str:
    """Digest of the code that trains and evaluates one algorithm. The world looks its executor up by name, so it is named here."""
    return code_digest(TRAINING, f"pipeline.engine.{executor}", f"pipeline.methods.{algorithm}", root=root)


def cell_digest(cell: Cell, partition_digest: str, precision: str = "fp32", root: Path = ROOT,
                executor: str = "sequential") -> str:
    """What a seed of this cell depends on; the list of seeds is left out, so that one more seed trains one more."""
    scenario, algorithm, hyper = cell.resolve(root)
    values = dataclasses.asdict(dataclasses.replace(scenario, seeds=[0]))
    values["partition"] |= {"kind": scenario.partition.kind, "fixed": False}     # which draw it is stands in the partition's digest
    return _sha256({"scenario": _without_neutral(values), "algorithm": algorithm, "hyper": hyper,
                    "partition": partition_digest, "code": method_digest(algorithm, root, executor),
                    **({} if precision == "fp32" else {"precision": precision})})


def all_digests(root: Path = ROOT) -> dict:
    """The content of sources.yaml: {paper: {method: digest}} and one digest for each other kind of stage."""
    digests: dict = {stage: code_digest(f"stages.{stage}", root=root) for stage in ("data", "partition", "features", "corrupt", "contact_sheet", "figures", "report", "results")}
    known = {path.stem for path in (root / "pipeline" / "methods").glob("*.py")}
    for name in params.PAPERS:
        paper = params.load_paper(name, root)
        algorithms = {key: (values or {}).get("algorithm", key) for key, values in paper.methods.items()}
        digests[name] = {key: method_digest(algorithm, root) for key, algorithm in sorted(algorithms.items())
                         if algorithm in known}
    return digests


def machine() -> dict:
    """Versions and platform, recorded with every result."""
    packages = ("torch", "torchvision", "numpy", "pandas")
    return {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}", "processor": _processor(),
            **{name: metadata.version(name) for name in packages}}


def _processor() -> str:
    """Name and vector instructions of the processor, as Linux tells: another one rounds sums otherwise."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    return " ".join([known.get("model name", ""), *sorted({"avx2", "avx512f", "amx_tile"} & set(known.get("flags", "").split()))])


def git_state(root: Path = ROOT) -> dict:
    """Commit of the work tree and whether code or parameters differ from it; empty outside a repository."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout.strip()
    try:
        return {"commit": git("rev-parse", "HEAD"),
                "dirty": bool(git("status", "--porcelain", "--", "pipeline", "stages", "params.yaml", "papers/*/paper.yaml"))}
    except (OSError, subprocess.CalledProcessError):
        return {}


def _path(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def _imports(tree: ast.AST) -> list[str]:
    """Modules of this repository that a module imports: `import a.b`, `from a import b` (b may be a module)."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in found if name.split(".")[0] == "pipeline"]


def _meaning(node):
    """The tree as nested tuples, without docstrings, positions and empty fields; equal on Python 3.11 to 3.13."""
    if isinstance(node, list):
        return tuple(_meaning(item) for item in node)
    if not isinstance(node, ast.AST):
        return node
    fields = dict(ast.iter_fields(node))
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = fields["body"][1:]
    return (type(node).__name__, tuple((k, _meaning(v)) for k, v in fields.items() if v not in (None, [])))


def _defaults() -> dict:
    """Default values of the scenario's schema. Neutral ones (None, False, 0, "") are left out, so that a new
    optional key leaves old results valid; changing a default that means something does not."""
    found, waiting = {}, [params.Scenario]
    while waiting:
        kind = waiting.pop()
        for f in dataclasses.fields(kind):
            if f.default is not dataclasses.MISSING and f.default:
                found[f"{kind.__name__}.{f.name}"] = repr(f.default)
        for hint in typing.get_type_hints(kind).values():
            candidates = [hint, *typing.get_args(hint)]
            waiting += [k for k in candidates if dataclasses.is_dataclass(k)]
    return found


def _without_neutral(value):
    """Nested mappings without None and False: an optional key that is not used says nothing."""
    if not isinstance(value, dict):
        return value
    return {k: _without_neutral(v) for k, v in value.items() if v is not None and v is not False}


def _sha256(document) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()
