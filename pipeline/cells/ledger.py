"""The ledger of equal code, `equivalents.yaml`: which digests of code were run side by side and gave the same
bits.

`fedrepro certify` writes it and `provenance` reads it, so that a result outlives a change of code that does
not change it. An entry is sealed by its own hash and names two commits. An entry that was edited by hand, or
whose commits this clone does not have, is reported on stderr and ignored: the results that rest on it are
stale. (A copy without git cannot look commits up; there only the seal is checked.)

    entries:
    - date: '2026-11-22T04:40:00+00:00'
      from: <commit>                # whose code the results had
      to: <commit>                  # whose code was compared with it
      machine: {processor: ..., torch: ..., device: cpu, executor: sequential, ...}
      pairs:
      - {cell: fedcrl/mini/fedprox, old: <digest>, new: <digest>, rounds: [1, 2, 14, 15], values: 512, same:
        <sha256 of what both gave>}
      self: <sha256 of the rest>
"""
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline import files
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import ROOT, check_keys, read_yaml
from pipeline.sealing import is_sealed, seal

FILE = "equivalents.yaml"
HEADER = ("# Code that was run beside earlier code and gave the same bits. "
          "Written by `fedrepro certify` alone: pipeline/cells/ledger.py.\n")
KEYS = {"date": str, "from": str, "to": str, "machine": dict, "pairs": list, "self": str}
PAIR = {"cell": str, "old": str, "new": str, "rounds": list, "values": int, "same": str}


def equal(digest: str, root: Path = ROOT) -> list[str]:
    """The digests of code that are known to give what this one gives, itself among them; the oldest entry's
    first."""
    found, known = [digest], _neighbours(root)
    for one in found:
        found += [other for other in known.get(one, []) if other not in found]
    order = {one: place for place, one in enumerate(known)}
    return sorted(found, key=lambda one: order.get(one, len(order)))


def certified(digest: str, root: Path = ROOT) -> dict[str, Any] | None:
    """The last entry in which code of this digest was compared with earlier code; None where it never was."""
    return next(
        (
            entry
            for entry in reversed(_good_entries(root))
            if any(pair["new"] == digest for pair in entry["pairs"])
        ),
        None,
    )


@cache
def _neighbours(root: Path) -> dict[str, list[str]]:
    """digest -> those that were compared with it, in the order of the file."""
    found: dict[str, list[str]] = {}
    for entry in _good_entries(root):
        for pair in entry["pairs"]:
            for one, other in ((pair["old"], pair["new"]), (pair["new"], pair["old"])):
                found.setdefault(one, []).append(other)
    return found


@cache
def _good_entries(root: Path) -> list[dict[str, Any]]:
    return entries(root)


def entries(root: Path = ROOT) -> list[dict[str, Any]]:
    """The valid entries. If any is invalid, one line on stderr gives the reason for the first of them."""
    listed, good, bad = _read(root), [], []
    missing = _missing_commits(
        root,
        [
            entry[side]
            for entry in listed
            for side in ("from", "to")
            if isinstance(entry, dict) and side in entry
        ],
    )
    for number, entry in enumerate(listed, 1):
        try:
            _check(entry, f"{FILE}: entry {number}:", missing)
        except FedReproError as error:
            bad.append(error)
        else:
            good.append(entry)
    if bad:
        others = f" (and {len(bad) - 1} further entries are not counted)" if len(bad) > 1 else ""
        print(f"warning: {bad[0]}{others}; what rests on it counts as stale", file=sys.stderr, flush=True)
    return good


def _read(root: Path) -> list:
    path = root / FILE
    if not path.exists():
        return []
    listed = read_yaml(path).get("entries")
    if not isinstance(listed, list):
        raise ParamError(f"{FILE}: expected a list under the key 'entries'")
    return listed


def _check(entry: Any, where: str, missing: set[str]) -> None:
    check_keys(entry, KEYS, where)
    for place, pair in enumerate(entry["pairs"], 1):
        check_keys(pair, PAIR, f"{where} pair {place}:")
    if not is_sealed(entry):
        raise ParamError(f"{where} 'self' is not the hash of the rest; it was edited by hand")
    for side in ("from", "to"):
        if entry[side] in missing:
            raise ParamError(f"{where} this clone does not have the commit {entry[side][:12]} of '{side}' "
                             "(in a shallow clone: git fetch --unshallow)")


def _missing_commits(root: Path, commits: list[str]) -> set[str]:
    """Those that the repository at `root` lacks; none where there is no repository to ask, or only another
    one in which this copy lies."""
    wanted = [commit for commit in dict.fromkeys(commits) if isinstance(commit, str) and "\n" not in commit]

    def git(*arguments: str, given: str = "") -> list[str]:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True, input=given)
        return done.stdout.splitlines()
    try:
        if git("rev-parse", "--show-prefix") != [""]:
            return set()
        said = git("cat-file", "--batch-check=%(objecttype)",
                   given="".join(f"{commit}^{{commit}}\n" for commit in wanted))
    except (OSError, subprocess.CalledProcessError):
        return set()
    return {commit for commit, answer in zip(wanted, said, strict=True) if answer != "commit"}


def append(entry: dict[str, Any], root: Path = ROOT) -> None:
    """Seal an entry and append it, or put its pairs into the last entry, where that is of the same commits
    and machine. Others stay as they are, invalid ones included."""
    listed = _read(root)
    if listed and _goes_on(listed[-1], entry):
        last = listed.pop()
        entry = {**entry, "pairs": sorted(last["pairs"] + entry["pairs"], key=lambda pair: pair["cell"])}
    listed.append(seal(entry))
    files.write_text(
        root / FILE,
        HEADER
        + yaml.dump({"entries": listed}, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True),
    )
    forget()


def _goes_on(last: Any, entry: dict[str, Any]) -> bool:
    try:
        return is_sealed(last) and all(last[key] == entry[key] for key in ("from", "to", "machine"))
    except (TypeError, KeyError):
        return False


def forget() -> None:
    """Drop what was read, so that the next call reads the file again."""
    _good_entries.cache_clear()
    _neighbours.cache_clear()


class _Dumper(yaml.SafeDumper):
    """Writes each pair on one line."""

    def represent_mapping(self, tag, mapping, flow_style=None):
        return super().represent_mapping(tag, mapping, flow_style="same" in mapping or "processor" in mapping)
