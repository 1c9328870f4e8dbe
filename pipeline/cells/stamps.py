"""Read and write verified.yaml (stamps): earlier results that the current code was verified to reproduce.

`fedrepro verify` walks a result's trajectory again and writes the entry; `pipeline/provenance/identity.py`
and the pages read it. It counts for one result (`result`, its `self`) and one digest of code (`code`). An
entry that was edited by hand counts for nothing and is named on stderr.

    fedcrl/mini/fedprox: {code: <digest of the code that walked>, commit: ..., date: ..., history: <digest
      of history.csv>, how: 'replay, same bits', made: <digest of the code that trained>, processor: ...,
      result: <self of result.json>, rounds: '1-15, 1-9 of 15', seed: '0, 1', self: <sha256 of the rest>}

Only equal values count, over enough rounds to distinguish a method from its ablations. Former entries that
say `within rounding` or `ledger` are kept for the digest of the code that trained (`made`), and verify
nothing.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline import files
from pipeline.cells.documents import Result
from pipeline.errors import FedReproError, ParamError, warn
from pipeline.schema import ROOT, Cell, check, read_yaml, shorten
from pipeline.schema.checker import keys
from pipeline.sealing import is_sealed, seal

FILE = "verified.yaml"
HEADER = "# Results whose rounds today's code walked again. Written by `fedrepro verify` alone.\n"
# Every round's digest of the state, and every number.
BITS = "replay, same bits"
# Every number, to four decimals, of a history from before rounds had a digest of the state.
NUMBERS = "replay, same numbers"
# Begins what is said where not the stored rounds were compared, but those that a commit's code gives on the
# machine at hand: states and all. The commit follows, as whose the result counted.
FORMER = "same bits as the code of"
# Begins what is said of a walk that gave another number, which follows: the result does not count while the
# code stays as it was then.
REFUSED = "refused, "
# Rounds of a seed by which such a walk has refused every ablation of every method (docs/ablations.md): of
# fewer, a stamp is no evidence. Many methods begin with a round of plain training.
LEAST = {BITS: 3, NUMBERS: 4, FORMER: 3}
KEYS = dict.fromkeys(
    ("result", "made", "code", "history", "seed", "rounds", "how", "commit", "processor", "date", "self"), str
)


def of(cell: Cell, root: Path = ROOT) -> dict[str, Any] | None:
    """The cell's entry; None if there is none that can be trusted and verifies something."""
    entry = former(cell, root)
    return entry if entry and reach(entry) else None


def former(cell: Cell, root: Path = ROOT) -> dict[str, Any] | None:
    """The cell's entry, even if it verifies nothing any more; None if none can be trusted."""
    return read(cell.paper, root).get(str(cell))


def refusal(cell: Cell, root: Path = ROOT) -> dict[str, Any] | None:
    """The cell's entry if the last verification found another number."""
    entry = former(cell, root)
    return entry if entry and entry["how"].startswith(REFUSED) else None


def walked(entry: dict[str, Any]) -> dict[int, int]:
    """Seed -> the last round that was compared, from `rounds` such as `1-15, 1-9 of 15` and `seed` such as
    `0, 1`; empty if the two do not fit together."""
    spans, _, _ = entry["rounds"].partition(" of ")
    try:
        seeds = [int(seed) for seed in entry["seed"].split(",")]
        last = [int(span.partition("-")[2]) for span in spans.split(",")]
        return dict(zip(seeds, last, strict=True))
    except ValueError:
        return {}


def reach(entry: dict[str, Any]) -> dict[int, int]:
    """`walked` for the seeds with enough rounds to count as evidence; empty if nothing was compared."""
    rounds = entry["rounds"].partition(" of ")[2]
    if kind(entry["how"]) not in LEAST or not rounds.isdecimal():
        return {}
    least = needed(entry["how"], int(rounds))
    return {seed: last for seed, last in walked(entry).items() if last >= least}


def needed(how: str, rounds: int) -> int:
    """Number of rounds of a seed that a verification must have compared.

    rounds: of the cell
    """
    return min(LEAST[kind(how)], rounds)


def kind(how: str) -> str:
    """`how` without the commit that may follow."""
    return FORMER if how.startswith(f"{FORMER} ") else how


def spans(walked: dict[int, int], rounds: int) -> dict[str, str]:
    """`seed` and `rounds` of an entry; the reverse of `walked`. `rounds`: that the cell has."""
    seeds = sorted(walked)
    reach = ", ".join(f"1-{walked[seed]}" for seed in seeds)
    return {"seed": ", ".join(map(str, seeds)), "rounds": f"{reach} of {rounds}"}


@cache
def _kind() -> type:
    """Of an entry; made once, which takes longer than a check."""
    return keys(KEYS)


@cache
def read(paper: str, root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """Cell -> entry. One line on stderr names the first that cannot be trusted."""
    good, bad = {}, []
    for cell, entry in _listed(paper, root).items():
        try:
            check(_kind(), entry, f"papers/{paper}/{FILE}: {cell}:")
            if not is_sealed(entry):
                raise ParamError(f"papers/{paper}/{FILE}: {cell}: was edited by hand")
        except FedReproError as error:
            bad.append(str(error))
        else:
            good[cell] = entry
    if bad:
        others = f" (and {len(bad) - 1} further entries are not counted)" if len(bad) > 1 else ""
        warn(f"{bad[0]}{others}; verify the cell again")
    return good


def _listed(paper: str, root: Path) -> dict:
    path = root / "papers" / paper / FILE
    return read_yaml(path) if path.exists() else {}


def write(entries: dict[Cell, dict[str, Any]], root: Path = ROOT) -> None:
    """Seal entries in the place of earlier ones; those of cells without a result go."""
    for paper in dict.fromkeys(cell.paper for cell in entries):
        fresh = {str(cell): seal(entry) for cell, entry in entries.items() if cell.paper == paper}
        valid = {
            name: entry
            for name, entry in (_listed(paper, root) | fresh).items()
            if (Cell.parse(name).folder(root) / "result.json").exists()
        }
        text = yaml.safe_dump(valid, default_flow_style=None, width=10_000)
        files.write_text(root / "papers" / paper / FILE, HEADER + text)
    read.cache_clear()


def words(stamp: dict[str, Any], seeds: int) -> str:
    """`verified: 3 of 12 seeds, rounds 1 to 20 of 100 (same bits, at 1a2b3c4d, 2026-11-26)`; `verified by
    numbers, not by states` where the result has no digests of states. `seeds`: that the result has. Of seeds
    that were walked differently far, the fewest rounds."""
    compared, last = reach(stamp), stamp["rounds"].partition(" of ")[2]
    claim = "verified by numbers, not by states" if stamp["how"] == NUMBERS else "verified"
    counted = f"{len(compared)} of {seeds} {'seed' if seeds == 1 else 'seeds'}"
    how = stamp["how"].removeprefix("replay, ")
    if kind(how) == FORMER:
        # the first digits of the commit
        how = how[: len(FORMER) + 9]
    return (
        f"{claim}: {counted}, rounds 1 to {min(compared.values())} of {last} "
        f"({how}, at {stamp['commit'][:8]}, {stamp['date'][:10]})"
    )


def digest(history: bytes) -> str:
    """The digest of history.csv that results and stamps record."""
    return hashlib.sha256(history).hexdigest()[:16]


def check_history(cell: Cell, result: Result, content: bytes, root: Path = ROOT) -> None:
    """FedReproError where the content of history.csv is not what was written with the result. A history from
    before results had its digest is as its stamp says, where it has one."""
    stamp = former(cell, root) or {}
    stamped = stamp.get("history") if stamp.get("result") == result["self"] else None
    written = result.get("history") or stamped
    if written and written != digest(content):
        file = shorten(cell.folder(root) / "history.csv")
        raise FedReproError(f"{file}: not what was written with result.json; run the cell again")
