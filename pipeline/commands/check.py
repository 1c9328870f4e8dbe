"""`fedrepro check [paper ...]`: read every file on which results depend, and name those that are damaged.

It reads results, histories, tunings, stamps, tables of clients and DVC's lock files, and the names of
measures in paper.yaml: one that no result can ever have is an error. Partitions,
representations and data sets are read if they are on this machine. Every digest is computed from the bytes.
The exit code is 1 if a file is damaged or contradicts others.

Two kinds of results are listed that are no error: stale ones, which other code or parameters than today's
made, and those that count as today's through a stamp, since `fedrepro verify` has trained them again.
"""

import contextlib
import hashlib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from pipeline.cells import choices, inputs, plausible, results, stamps
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.commands import status
from pipeline.data import partition, store
from pipeline.errors import DAMAGED, FedReproError, ParamError, cause, unknown
from pipeline.place import check_code
from pipeline.provenance import companions, identity
from pipeline.report.named_measures import check_measures
from pipeline.schema import ROOT, Cell, papers, planned, read_yaml, shorten, visible
from pipeline.sealing import is_sealed

# Largest document that is read, in bytes. FedRepro never writes a larger one; it might not fit in memory.
LARGEST_DOCUMENT = 64 * 2**20
# At most so many stale cells are named in a line; the others are counted.
NAMED = 6


def check(wanted: Sequence[str] = (), root: Path = ROOT) -> int:
    """Print what is damaged, stale or verified by a stamp.

    wanted  keys of papers; empty: all papers
    root    folder of the repository

    Returns the exit code: 1 if something is damaged. Raises FedReproError for an unknown paper.
    """
    known = papers(root)
    for name in wanted:
        if name not in known:
            raise FedReproError(unknown("paper", name, known))

    keys = list(wanted or known)
    problems = [*_code(root), *_data(root)]
    for key in keys:
        problems += of_paper(key, root)

    for problem in problems:
        print(f"damaged: {problem}")
    for line in _stale_and_stamped(keys, root):
        print(line)
    noun = "file" if len(problems) == 1 else "files"
    print(f"{len(problems) or 'no'} damaged {noun} of {', '.join(keys)}")
    return 1 if problems else 0


def of_paper(key: str, root: Path = ROOT) -> Iterator[str]:
    """A line for each file in a paper's folder that is damaged or contradicts others.

    key   of the paper
    root  folder of the repository
    """
    folder = root / "papers" / key
    yield from _problem(folder / "paper.yaml", check_measures, key, root)
    for path in visible(root, f"papers/{key}/runs/*/*/result.json"):
        cell = Cell(key, *path.parts[-3:-1])
        yield from _problem(path, _result, cell, path, root)
    for path in visible(root, f"papers/{key}/tuning/*/*/result.json"):
        yield from _problem(path, _tuning_result, path)
    for path in visible(root, f"papers/{key}/tuning/*/*.json"):
        yield from _problem(path, choices.read, Cell(key, path.parent.name, path.stem), root)
    for path in visible(root, f"papers/{key}/runs/*/clients.csv"):
        yield from _problem(path, _clients, path, root)
    yield from _problem(folder / stamps.FILE, _stamps, key, root)
    yield from _problem(folder / "sources.yaml", check_sources, key, root)
    for pattern in ("dvc.lock", "*/dvc.lock"):
        for path in sorted(folder.glob(pattern)):
            yield from _problem(path, _lock, path)
    for path in sorted(folder.glob("partitions/**/meta.json")):
        yield from _problem(path, _partition, path.parent, key, root)
    for pattern in ("representations/*/*.npz", "figures/*.npz"):
        for path in sorted(folder.glob(pattern)):
            yield from _problem(path, check_arrays, path)


def _problem(path: Path, look: Callable[..., object], *arguments: object) -> Iterator[str]:
    """The error that a check of a file finds, in one line that names the file; nothing if the file is whole.

    path       of the file
    look       the check
    arguments  of the check
    """
    try:
        look(*arguments)
    except FileNotFoundError:
        yield f"{shorten(path)}: no such file"
    except FedReproError as error:
        yield str(error) if shorten(path.parent) in str(error) else f"{shorten(path)}: {error}"
    except (*DAMAGED, MemoryError, pd.errors.ParserError, yaml.YAMLError) as error:
        yield f"{shorten(path)}: cannot be read ({cause(error)})"


def _bounded(path: Path) -> bytes:
    """The bytes of a document; FedReproError where it is larger than any that is written here."""
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise FedReproError(f"{shorten(path)}: {path.stat().st_size >> 20} MiB, no document is as large")
    return path.read_bytes()


# -- what is read --------------------------------------------------------------------------------------------


def _code(root: Path) -> Iterator[str]:
    """Whether the code can be read."""
    yield from _problem(root / "pipeline", check_code, root)


def _data(root: Path) -> Iterator[str]:
    """A line for each data set on this machine that is damaged."""
    for path in sorted((root / "data").glob("*/meta.json")):
        if (path.parent / "labels.npy").exists():
            yield from _problem(path, store.verify, path.parent)


def _result(cell: Cell, path: Path, root: Path) -> None:
    """A result with its history: seal, digest, means, ranges, and that the numbers fit together."""
    document = results.read(path, _bounded(path))
    _bounded(path.with_name("history.csv"))
    table = results.checked_history(cell, document, root)
    results.check_plausible(document, table, path.with_name("history.csv"))
    try:
        experiment = Experiment.of(cell, root)
    except ParamError:  # paper.yaml no longer has the cell
        return
    for seed, wrong in _of_clients(document, experiment):
        raise FedReproError(
            f"{shorten(path)}: seed {seed}: {wrong}; the file was altered, run the cell again"
        )


def _of_clients(document: Result, experiment: Experiment) -> Iterator[tuple[int, str]]:
    """Accuracies of clients that their images rule out.

    Yields (seed, what is wrong) for each seed whose partition is on this machine.
    """
    kind = experiment.scenario.evaluation.tests
    if not identity.current(document, experiment):
        return  # stale: today's setting may score, or divide the images, in another way
    digests = results.partitions(document)
    for k, (seed, digest) in enumerate(zip(document["seeds"], digests, strict=True)):
        try:
            if inputs.inputs(experiment, seed)["digest"] != digest:
                continue  # the partition here is another one than the result's
            dealt = inputs.dealt(experiment, seed)
        except (*DAMAGED, FedReproError):
            continue  # the partition is not here, or damaged, which has a line of its own

        accuracies = document["clients"][k]
        run: dict[str, Any] = {"clients": accuracies}
        holdings = document.get("holdings")
        if holdings:
            run["holdings"] = {"images": holdings["images"][k], "classes": holdings["classes"][k]}

        last = {name: by_seed[k] for name, by_seed in document["final"].items()}
        expected = plausible.Expected(
            document["rounds"], dealt.classes, document["hook"], kind, dealt.clients
        )
        wrong = plausible.of_holdings(run, expected)
        wrong = wrong or plausible.of_clients_last(last, accuracies, kind, dealt.clients)
        if wrong:
            yield seed, wrong


def _tuning_result(path: Path) -> None:
    """A result of a tuning with its history."""
    document = results.read(path, _bounded(path))
    history = path.with_name("history.csv")
    content = _bounded(history)
    if document.get("history") not in (None, stamps.digest(content)):
        raise FedReproError(f"{shorten(history)}: not what was written with result.json; run the cell again")
    table = results.parse_history(content, history)
    results.check_history(document, table, history)
    results.check_plausible(document, table, history)


def _stamps(key: str, root: Path) -> None:
    """A paper's verified.yaml: the seal of every entry."""
    path = root / "papers" / key / stamps.FILE
    _bounded(path)
    for cell, entry in read_yaml(path).items():
        if not isinstance(entry, dict) or "self" not in entry or not is_sealed(entry):
            raise FedReproError(f"{shorten(path)}: {cell}: was edited by hand; verify the cell again")


def _lock(path: Path) -> None:
    """A lock file of DVC: that it can be read, and that each result.json has the hash that it names."""
    document = yaml.load(_bounded(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    base = path.parent
    for name, stage in document["stages"].items():
        top = _top(base)
        for out in stage.get("outs", []):
            file = top / out["path"]
            if file.name != "result.json" or not file.is_file():
                continue
            # MD5, as DVC names files by it.
            digest = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
            if digest != out["md5"]:
                raise FedReproError(f"{shorten(path)}: {name}: {out['path']} is another file by now")


def _top(folder: Path) -> Path:
    """The root of the checkout, to which the paths of a paper's stages are relative.

    folder  inside of the checkout
    """
    return next(above for above in (folder, *folder.parents) if (above / "papers").is_dir())


def _partition(place: Path, key: str, root: Path) -> None:
    """A partition: its digest and, if its data set is on this machine, that it fits that and the scenario."""
    name = place.relative_to(root / "papers" / key / "partitions").parts[0]
    cell = next((cell for cell in planned(key, root) if cell.partition == name), None)
    if cell is not None:
        experiment = Experiment.of(cell, root)
        if (root / "data" / experiment.scenario.data.set / "labels.npy").exists():
            try:
                inputs.load(experiment, place)
            except ParamError as error:
                raise FedReproError(f"{error}; `fedrepro run {cell}` deals it for today's scenario") from None
            return
    partition.verify(place)


def _clients(path: Path, root: Path) -> None:
    """The table of a scenario's clients, and that its results were trained on them."""
    _bounded(path)
    files = visible(root, f"papers/{path.parts[-4]}/runs/{path.parts[-2]}/*/result.json")
    of_scenario = {}
    for file in files:
        with contextlib.suppress(FedReproError):  # it has a line of its own
            of_scenario[Cell(path.parts[-4], *file.parts[-3:-1])] = results.read(file)
    companions.check_clients(path, of_scenario)


def check_sources(key: str, root: Path = ROOT) -> None:
    """Raise FedReproError if sources.yaml is not what today's code, results and stamps give.

    key   of the paper
    root  folder of the repository
    """
    from stages.sources import paper_digests  # the stage that writes it

    path = root / "papers" / key / "sources.yaml"
    _bounded(path)
    if read_yaml(path) != paper_digests(key, root):
        again = f"python -m stages.sources {key}"
        raise FedReproError(f"{shorten(path)}: not of today's code, results and stamps: `{again}`")


def check_arrays(path: Path) -> None:
    """Raise FedReproError if an archive of arrays is damaged, or unpacks to more than FedRepro writes."""
    companions.check_archive(path)
    with zipfile.ZipFile(path) as archive:
        name = archive.testzip()
        if name is not None:
            raise FedReproError(f"{shorten(path)}: {name} was altered")


# -- what is printed -----------------------------------------------------------------------------------------


def _stale_and_stamped(keys: Sequence[str], root: Path) -> Iterator[str]:
    """A line for each cause of stale results, then a line for each paper about what its stamps cover."""
    # Cause -> cells.
    stale: dict[str, list[str]] = defaultdict(list)
    # Paper -> numbers of results, seeds and rounds: in all, and of those that were trained again.
    stamped: dict[str, Counter[Any]] = defaultdict(Counter)
    for key in keys:
        for path in visible(root, f"papers/{key}/runs/*/*/result.json"):
            cell = Cell(key, *path.parts[-3:-1])
            result = status.read_result(cell, root)
            if not result:
                continue  # listed as damaged
            if status.stale(cell, result, root):
                why = status.cause(cell, result, root)
                if status.not_verified(cell, result, root):
                    why += ", not verified any more"
                stale[why].append(str(cell))
                continue

            stamp = identity.verified(result, Experiment.of(cell, root))
            if stamp:
                reach = stamps.reach(stamp)
                seeds = len(result["seeds"])
                stamped[key].update(
                    cells=1,
                    seeds=len(reach),
                    all_seeds=seeds,
                    walked=sum(reach.values()),
                    rounds=result["rounds"] * seeds,
                )
    for why, cells in sorted(stale.items()):
        more = f" and {len(cells) - NAMED} more" if len(cells) > NAMED else ""
        yield f"stale by {why}: {len(cells)}: {', '.join(cells[:NAMED])}{more}"

    for key, counts in stamped.items():
        share = 100 * counts["walked"] / counts["rounds"]
        yield (
            f"{key}: {counts['cells']} results rest on a stamp: {counts['seeds']} of {counts['all_seeds']} "
            f"seeds, {share:.0f} % of their rounds"
        )
