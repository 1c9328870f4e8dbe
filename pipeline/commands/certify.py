"""`fedrepro certify [cell or method ...]`: keep results valid over a change of code that does not change
them.

For the measured cells whose code is no longer that of their result, it takes the commit at which the result
was last valid into a temporary worktree, trains the quickest of the cells that go the same way through the
code, cut short (stages/short.py), under that code and under today's, and compares every value of the history,
the metrics and the models' states bit for bit. If they are equal, it adds an entry to equivalents.yaml, and
DVC has nothing to run. If not, it prints the first cell, round and value that differ, adds nothing and exits
with 1. The code must be committed, as an entry names commits.
"""
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline import files
from pipeline.cells import arithmetic, ledger, provenance, results
from pipeline.cells.progress import clock
from pipeline.commands.git import git
from pipeline.errors import FedReproError, ParamError, unknown
from pipeline.place import surroundings
from pipeline.schema import ROOT, Cell, shorten
from pipeline.sealing import content_hash

SHORT = "stages/short.py"
CODE = ("pipeline", "stages", "params.yaml", "papers/*/paper.yaml", "papers/*/methods/*")
TARGET = 4.0  # seconds that the four rounds of a short form may take, where images can be left out
BATCH, FLOOR = 16, 60.0  # batches are cut to BATCH where even two full ones take over FLOOR seconds
EVERY = 60.0  # seconds after which what is known to be equal is written, so that a kill loses little
TOGETHER = 6                                     # cells that share one process, which imports torch once
SHARED = ("data", "papers/*/partitions")         # what the worktrees borrow from this checkout


@dataclass(frozen=True)
class Row:
    """A measured cell, the digest of code that its result was made by (`old`), a commit that has it, and
    today's digest."""
    cell: Cell
    result: dict = field(compare=False)
    old: str
    commit: str
    new: str

    @property
    def code(self) -> tuple[str, str]:
        """The two digests that are to be called equal."""
        return self.old, self.new

    @property
    def plan(self) -> dict:
        """How it is cut short: rounds, share of the images, largest batch."""
        last = self.result["rounds"]
        rounds = sorted({1, 2, last - 1, last} & set(range(1, last + 1)))
        expected = self.result["seconds"][0] / last * len(rounds)
        share = min(1.0, TARGET / max(expected, 1e-9))
        batch = BATCH if expected * share > FLOOR or expected > 20 * FLOOR else 1 << 20
        return {"cell": str(self.cell), "rounds": rounds, "images": round(share, 4), "batch": batch,
                "executor": self.result["executor"],
                "precision": self.result["precision"]}


def certify(
    what: Iterable[str] = (),
    jobs: int = 1,
    valid_too: bool = False,
    since: str | None = None,
    root: Path = ROOT,
) -> int:
    """Compare, record and print the outcome; returns the exit code. `what`: cells, methods or papers, empty
    for every stale cell; `valid_too`: also cells that are valid; `since`: a commit to compare with, for
    results that were valid there."""
    begun, what = time.monotonic(), set(what)
    _check_names(what, root)
    commit = _clean_commit(root)
    if since:
        _check_commit(since, root)
    rows, lost = stale(what, since, valid_too, root)
    chosen, left = choose(rows, root)
    lost += [f"{row.cell}: {why}" for row, why in left]
    for line in lost:
        print(f"stale: {line}", file=sys.stderr)
    print(f"{len(rows)} cells to certify by {len(chosen)} comparisons" if rows else "nothing to certify",
          flush=True)
    tally, kept, saved = _Tally(chosen, left), [], time.monotonic()
    for row, outcome in _outcomes(chosen, commit, jobs, root):
        tally.add(row, outcome)
        if time.monotonic() - saved > EVERY:
            kept += record(tally.take(), commit, root)
            saved = time.monotonic()
    kept += record(tally.take(), commit, root)
    for line in tally.withheld:
        print(f"  not kept   {line}", flush=True)
    failed = 0
    for paper in sorted({row.cell.paper for row in kept}):
        failed |= subprocess.run(
            [sys.executable, "-m", "stages.sources", paper], cwd=root, env=surroundings(root)
        ).returncode
    print(f"{len(kept)} the same, {tally.different} different, {len(lost)} not compared, in "
          f"{clock(time.monotonic() - begun)}")
    return 1 if tally.different or lost or failed else 0


class _Tally:
    """Which pairs of digests are equal: those of which every way through their code was compared and agrees.
    `left`: rows whose way nobody compares."""

    def __init__(self, chosen: list[Row], left: list[tuple[Row, str]]):
        self.open = Counter(row.code for row in chosen)
        self.equal: dict[tuple[str, str], list[tuple[Row, dict]]] = {code: [] for code in self.open}
        self.doubtful = {row.code: row.cell for row, _ in left}
        self.different = 0
        self.due: list[tuple[Row, dict]] = []

    def add(self, row: Row, outcome: dict | str) -> None:
        self.open[row.code] -= 1
        if isinstance(outcome, dict):
            self.equal[row.code].append((row, outcome))
        else:
            self.different += 1
            self.doubtful[row.code] = row.cell
        if not self.open[row.code] and row.code not in self.doubtful:
            self.due += self.equal[row.code]

    def take(self) -> list[tuple[Row, dict]]:
        """What has become certain since the last call."""
        due, self.due = self.due, []
        return due

    @property
    def withheld(self) -> list[str]:
        """A line for each row that is equal while its code is not known to be."""
        return [f"{row.cell}: {self.doubtful[code]} goes another way through the same code, and is not known "
                "to stay the same" for code, rows in self.equal.items() if code in self.doubtful
                for row, _ in rows]


def _outcomes(rows: list[Row], commit: str, jobs: int, root: Path) -> Iterator[tuple[Row, dict | str]]:
    """`compare` with each row's commit, printed as it goes; a row whose commit has another code than its
    result's, by an entry of the ledger that does not count here, is different."""
    for old, group in _by_commit(rows).items():
        for row, outcome in compare(group, old, commit, jobs, root):
            if isinstance(outcome, dict) and outcome["old"] not in ledger.equal(row.old, root):
                outcome = (f"{old[:12]} has the result's code only by an entry of {ledger.FILE} "
                           "that does not count here")
            print(f"  DIFFERENT  {row.cell}: {outcome}" if isinstance(outcome, str)
                  else f"  same       {row.cell} ({outcome['values']} values)", flush=True)
            yield row, outcome


def record(pairs: list[tuple[Row, dict]], commit: str, root: Path = ROOT) -> list[Row]:
    """Write the pairs that the ledger does not have, an entry for each earlier commit; returns the rows."""
    for old in dict.fromkeys(row.commit for row, _ in pairs):
        fresh = [pair for row, pair in pairs
                 if row.commit == old and pair["new"] not in ledger.equal(pair["old"], root)]
        if fresh:
            ledger.append({"date": datetime.now(UTC).isoformat(timespec="seconds"), "from": old, "to": commit,
                           "machine": {"device": "cpu", **provenance.machine()},
                           "pairs": sorted(fresh, key=lambda pair: pair["cell"])}, root)
    return [row for row, _ in pairs]


# -- which cells ---------------------------------------------------------------------------------------------

def stale(
    what: Iterable[str], commit: str | None, valid_too: bool, root: Path = ROOT
) -> tuple[list[Row], list[str]]:
    """The measured cells that today's code is not known to give, and a line for each of them that has nothing
    to compare with. Where some are named, also the others that run their code: an entry of the ledger is for
    all of them."""
    rows, named, codes = [], set(what), set()
    lines: list[str] = []
    given: list[tuple[str, dict | None]] = [(commit, None)] if commit else []
    for path in sorted(root.glob("papers/*/runs/*/*/result.json")):
        cell = Cell(path.parts[-5], *path.parts[-3:-1])
        asked = not named or bool(named & {str(cell), cell.method, cell.paper})
        lost = lines if asked else []
        try:
            result = results.read(path)
        except FedReproError as error:
            lost.append(str(error))
            continue
        try:
            new = provenance.digest_of(cell, root, result["executor"])
        except FedReproError as error:               # such as a method that paper.yaml has no longer
            lost.append(f"{shorten(path)}: {error}")
            continue
        valid = provenance.trained_by(cell, ledger.equal(new, root), root)
        if valid and not valid_too:
            continue
        found = (
            None
            if result["device"] != "cpu"
            else _last_valid(cell, result, given or _commits(root, result), root)
        )
        if found is None:
            why = (
                f"it was trained on {result['device']}, which is not compared here"
                if result["device"] != "cpu"
                else "none of its commits has its code with today's parameters; train it again"
                + (" (this clone is shallow: git fetch --unshallow)" if _shallow(root) else "")
            )
            lost.append(f"{cell}: {why}")
        else:
            rows.append(Row(cell, result, *found, new))
            if asked:
                codes.add(rows[-1].code)
    return [row for row in rows if row.code in codes], lines


def _lacks(cell: Cell, root: Path) -> str:
    """What is wrong with the data and partitions of a cell in this checkout; empty if they are all here."""
    from pipeline.cells import inputs
    try:
        inputs.verify(cell, root)
        return ""
    except FedReproError as error:
        return str(error)


def _check_commit(name: str, root: Path) -> None:
    """ParamError for what is no commit of this clone."""
    try:                                              # with a dash before it, git would take it for an option
        git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    except FedReproError:
        raise ParamError(f"--from {name!r:.80}: not a commit of this clone") from None


def _check_names(names: Iterable[str], root: Path) -> None:
    """FedReproError for a name that is no measured cell, method or paper."""
    cells = {Cell(path.parts[-5], *path.parts[-3:-1]) for path in root.glob("papers/*/runs/*/*/result.json")}
    for name in sorted(names):
        known = (
            {str(cell) for cell in cells}
            if "/" in name
            else {part for cell in cells for part in (cell.method, cell.paper)}
        )
        if name not in known:
            raise FedReproError(unknown("measured cell, method or paper", name, known))


def choose(rows: list[Row], root: Path = ROOT) -> tuple[list[Row], list[tuple[Row, str]]]:
    """(rows to compare, rows whose way through the code nobody compares with what their data lack).

    One row for each pair of digests and each way through their code (`branches`), of those whose data are
    here the one that took least time: the others go the same way with other data and numbers."""
    ways = {row.cell: (*row.code, branches(row.cell, root)) for row in rows}
    lacking = {row.cell: _lacks(row.cell, root) for row in rows}
    cheapest: dict[tuple, Row] = {}
    for row in sorted(rows, key=lambda row: (row.result["seconds"][0] / row.result["rounds"], str(row.cell))):
        if not lacking[row.cell]:
            cheapest.setdefault(ways[row.cell], row)
    chosen = sorted(cheapest.values(), key=lambda row: str(row.cell))
    first = {row.code: str(row.cell) for row in reversed(chosen)}          # all of a code one after the other
    return (sorted(chosen, key=lambda row: first[row.code]),
            [(row, lacking[row.cell]) for row in rows if ways[row.cell] not in cheapest])


def branches(cell: Cell, root: Path = ROOT) -> str:
    """What of a cell's settings may choose between branches of one code: every text and switch, which numbers
    are 0, 1 or another, which optional settings there are; not which data they are for."""
    scenario, _, hyper = cell.resolve(root)
    values = asdict(replace(scenario, seeds=[0]))
    partition = values.pop("partition")
    for name in ("data", "public"):
        for key in ("set", "domains", "size"):
            (values[name] or {}).pop(key, None)
    models = (values.pop("models") or {}).values()
    values |= {"models": sorted({json.dumps(_kinds(model)) for model in models}),
               "heldout": partition.get("heldout") is not None}
    return json.dumps(_kinds([values, hyper]), sort_keys=True)


def _kinds(value: Any) -> Any:
    """The value with numbers other than 0 and 1 alike."""
    if isinstance(value, dict):
        return {key: _kinds(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_kinds(inner) for inner in value]
    if isinstance(value, (bool, str)) or value in (None, 0, 1):
        return value
    return "number"


def _last_valid(cell: Cell, result: dict, commits: Iterable[tuple[str, dict | None]],
                root: Path) -> tuple[str, str] | None:
    """(digest of code, commit) of the first commit that trained or holds the result and whose sources.yaml
    has the digest of the code that made it."""
    for commit, entry in commits:
        code, precise = _recorded(commit, cell, root), result["precision"]
        if (
            code
            and (entry is None or _covers(entry, code, root))
            and _has_result(commit, cell, result, root)
            and provenance.cell_digest(cell, result["partition"], precise, root, code=code)
            == result["digest"]
        ):
            return code, git(root, "rev-parse", commit)
    return None


def _covers(entry: dict, code: str, root: Path) -> bool:
    """Does an entry of the ledger say that the code of its later commit gives what this code gives? The
    commit's own sources.yaml may still be that of the code before."""
    return not {pair[side] for pair in entry["pairs"] for side in ("old", "new")}.isdisjoint(
        ledger.equal(code, root))


def _commits(root: Path, result: dict) -> Iterator[tuple[str, dict | None]]:
    """Commits to look at: the one that trained, if it has the short form, those of the ledger, each with its
    entry, from the newest, then every one that changed a sources.yaml."""
    trained = result["git"].get("commit")
    if trained and not result["git"].get("dirty") and _holds(trained, SHORT, root):
        yield trained, None
    yield from ((entry["to"], entry) for entry in reversed(ledger.entries(root)))
    written = git(root, "log", "--format=%H", "--", "sources.yaml", "papers/*/sources.yaml")
    yield from ((commit, None) for commit in written.split())


@cache
def _holds(commit: str, file: str, root: Path) -> bool:
    try:
        return bool(git(root, "ls-tree", "--name-only", commit, "--", file))
    except FedReproError:                             # a commit that this clone does not have
        return False


def _has_result(commit: str, cell: Cell, result: dict, root: Path) -> bool:
    """Was the result trained at the commit, or is it in its tree? Otherwise the parameters there may
    differ."""
    if result["git"].get("commit") == commit:
        return True
    try:
        return (
            json.loads(
                git(root, "show", f"{commit}:{(cell.folder(root) / 'result.json').relative_to(root)}")
            )["digest"]
            == result["digest"]
        )
    except (FedReproError, ValueError, KeyError):
        return False


def _recorded(commit: str, cell: Cell, root: Path) -> str | None:
    """The digest of a cell's code in a commit's sources.yaml; None where it has none."""
    own = _sources(commit, f"papers/{cell.paper}/sources.yaml", root)
    # Before version 0.2 there was one file for all papers.
    methods = own["cells"] if own else _sources(commit, "sources.yaml", root).get(cell.paper, {})
    found = methods.get(cell.scenario)
    # Still earlier, a method had one digest for all scenarios.
    return found.get(cell.method) if isinstance(found, dict) else methods.get(cell.method)


@cache
def _sources(commit: str, file: str, root: Path) -> dict:
    try:
        return yaml.safe_load(git(root, "show", f"{commit}:{file}")) or {}
    except (FedReproError, yaml.YAMLError):
        return {}


def _by_commit(rows: list[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.commit, []).append(row)
    return groups


# -- comparing -----------------------------------------------------------------------------------------------

def compare(
    rows: list[Row], old: str, new: str, jobs: int, root: Path = ROOT
) -> Iterator[tuple[Row, dict | str]]:
    """Train every row under two commits: (row, the ledger's pair if both agree, else the first
    difference)."""
    with _worktree(old, root) as before, _worktree(new, root) as after, ThreadPoolExecutor(jobs) as pool:
        parts = list(_parts(rows))
        futures = [
            (part, pool.submit(_train, before, part), pool.submit(_train, after, part)) for part in parts
        ]
        try:
            for part, one, other in futures:
                for row in part:
                    first, second = (side.result().get(str(row.cell), {}) for side in (one, other))
                    yield row, _difference(row, first, second, root)
        finally:
            pool.shutdown(cancel_futures=True)                # Ctrl-C waits for no more than what has begun


def _parts(rows: list[Row]) -> Iterator[list[Row]]:
    """Rows that one process can train: some at a time, of one arithmetic, which is fixed when torch is
    loaded."""
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.result["versions"].get("arithmetic"), []).append(row)
    for group in groups.values():
        yield from (group[i:i + TOGETHER] for i in range(0, len(group), TOGETHER))


def _train(tree: Path, rows: list[Row]) -> dict[str, dict]:
    """What the short forms of the cells give under the code of a worktree: cell -> answer of
    stages/short.py."""
    if not (tree / SHORT).exists():
        why = "it is from before the ledger of equal code; train the cell again"
        return {str(row.cell): {"error": why} for row in rows}
    plan = tree / ".cells" / f"plan-{content_hash({'plan': [row.plan for row in rows]})[:12]}.json"
    files.write_json(plan, [row.plan for row in rows])
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("FEDREPRO_") and key != "PYTHONDONTWRITEBYTECODE"
    }
    done = subprocess.run(
        [sys.executable, SHORT, str(plan)],
        cwd=tree,
        text=True,
        capture_output=True,
        env=kept
        | {"PYTHONPATH": str(tree)}
        | arithmetic.environment(rows[0].result["versions"].get("arithmetic"))
        | {"OMP_NUM_THREADS": "1", "FEDREPRO_TRACKING": "off"},
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = {
        str(row.cell): {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1]} for row in rows
    }
    return failed | {answer["cell"]: answer for answer in answers}


def _difference(row: Row, one: dict, other: dict, root: Path) -> dict | str:
    """The ledger's pair, or a line about the first value that is not the same."""
    for side, answer in (("earlier", one), ("today's", other)):
        if "values" not in answer:
            return f"the {side} code fails: {answer.get('error', 'no answer')}"
    for (where, name, before), (there, what, after) in zip(one["values"], other["values"]):
        if (where, name) != (there, what):
            return f"{where}: {name} stands where today's code has {there}: {what}"
        if before != after and not before != before != after != after:           # NaN counts as equal to NaN
            return f"{where}: {name} {before} -> {after}"
    if len(one["values"]) != len(other["values"]):
        return f"{len(one['values'])} values before, {len(other['values'])} today"
    if other["code"] != row.new:
        return f"the digest of its code is {other['code']}, not {row.new}"
    return {
        "cell": str(row.cell),
        "old": one["code"] or _recorded(row.commit, row.cell, root),
        "new": row.new,
        "rounds": row.plan["rounds"],
        "values": len(one["values"]),
        "same": content_hash({"values": one["values"]}),
    }


@contextmanager
def _worktree(commit: str, root: Path) -> Iterator[Path]:
    """The files of a commit in a temporary folder, with this checkout's data and partitions."""
    with tempfile.TemporaryDirectory(prefix="fedrepro-certify-") as folder:
        tree = Path(folder, "tree")
        git(root, "worktree", "add", "--detach", str(tree), commit)
        try:
            for pattern in SHARED:
                for path in root.glob(pattern):
                    _borrow(path, tree / path.relative_to(root))
            yield tree
        finally:
            git(root, "worktree", "remove", "--force", str(tree))


def _borrow(source: Path, target: Path) -> None:
    """Links in `target` to the folders in `source`."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir() and not (target / path.name).exists():
            (target / path.name).symlink_to(path)


# -- the ledger checked --------------------------------------------------------------------------------------

def check(entry: int, jobs: int, root: Path = ROOT) -> int:
    """Compare a random pair of an entry again, one whose data are here, and check its digests against its
    commits; returns the exit code."""
    import random
    entries = ledger.entries(root)
    if not entries:
        print("the ledger is empty: nothing to re-earn")
        return 0
    if not 0 <= entry <= len(entries):
        raise FedReproError(f"--check {entry}: the ledger has {len(entries)} entries that count")
    found = [
        (one, pair)
        for one in ([entries[entry - 1]] if entry else entries)
        for pair in one["pairs"]
        if _here(Cell.parse(pair["cell"]), root)
    ]
    if not found:
        raise FedReproError("--check: the data of no pair are here; make the miniature's first: fedrepro run")
    one, pair = random.SystemRandom().choice(found)
    cell = Cell.parse(pair["cell"])
    print(f"drawn: {cell}, {one['from'][:12]} and {one['to'][:12]}, entry of {one['date']}", flush=True)
    result = results.read(cell.folder(root) / "result.json")
    row = Row(cell, result, pair["old"], one["from"], pair["new"])
    ((_, outcome),) = compare([row], one["from"], one["to"], jobs, root)
    if isinstance(outcome, str):
        raise FedReproError(
            f"{ledger.FILE}: {cell} between {one['from'][:12]} and {one['to'][:12]}: {outcome}"
        )
    if outcome["old"] != pair["old"]:
        raise FedReproError(
            f"{ledger.FILE}: {cell}: the digest of its code at {one['from'][:12]} is {outcome['old']}, not "
            f"{pair['old']}"
        )
    if (
        one["machine"].get("processor") == provenance.machine()["processor"]
        and outcome["same"] != pair["same"]
        and outcome["rounds"] == pair["rounds"]
    ):
        print(
            "note: the values are equal under both commits, but not those that the ledger has; the data or "
            "the short form have changed"
        )
    print(f"re-earned: {outcome['values']} values the same under both commits")
    return 0


def _here(cell: Cell, root: Path) -> bool:
    """Are the cell's result, data and partitions in this checkout?"""
    return (cell.folder(root) / "result.json").exists() and not _lacks(cell, root)


# -- git -----------------------------------------------------------------------------------------------------

def _clean_commit(root: Path) -> str:
    """Today's commit; FedReproError where code or parameters differ from it."""
    if changed := git(root, "status", "--porcelain", "--", *CODE):
        raise FedReproError(
            "commit the code first, since an entry names commits; changed: "
            f"{', '.join(line[3:] for line in changed.splitlines())}"
        )
    return git(root, "rev-parse", "HEAD")


def _shallow(root: Path) -> bool:
    return git(root, "rev-parse", "--is-shallow-repository") == "true"
