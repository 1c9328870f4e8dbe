"""Compare our methods with public code of them, from equal weights and on equal batches.

    PYTHONPATH=. python benchmarks/against_originals.py [CHECKOUT ...]

A CHECKOUT is a clone of a repository that benchmarks/originals/ knows, whose own requirements are importable.
Prints a table, and writes the differences into benchmarks/results/fidelity.json and from
there into docs/fidelity.md; without a checkout it renews that page alone. The exit code is 1 where a
difference is not explained.
"""

import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.originals import NOT_COMPARED
from pipeline.errors import FedReproError
from pipeline.provenance.identity import machine
from pipeline.schema import ROOT, method_names

RESULTS, PAGE = ROOT / "benchmarks" / "results" / "fidelity.json", ROOT / "docs" / "fidelity.md"
BEGIN, END = "<!-- what follows is written by benchmarks/against_originals.py -->", "<!-- until here -->"


def known() -> dict[str, tuple[str, str]]:
    """module of benchmarks/originals -> (repository, a file that it alone has)."""
    modules = {}
    for path in sorted((ROOT / "benchmarks" / "originals").glob("*.py")):
        line = next(
            (line for line in path.read_text().splitlines() if line.startswith("REPOSITORY, MARK")), None
        )
        if line is not None:
            repository, mark = line.split("=")[1].replace('"', "").split(",")
            modules[path.stem] = repository.strip(), mark.strip()
    return modules


def identified(checkout: Path) -> str:
    """The module that knows this checkout."""
    for module, (_, mark) in known().items():
        if (checkout / mark).is_file():
            return module
    names = ", ".join(repository for repository, _ in known().values())
    raise FedReproError(f"{checkout}: none of {names}")


def commit(checkout: Path) -> str:
    def git(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", checkout, *words], capture_output=True, text=True)

    head = git("rev-parse", "HEAD")
    if head.returncode:
        raise FedReproError(f"{checkout}: no git checkout, so that its commit is not known")
    if git("diff", "--quiet", "HEAD", "--", "*.py").returncode:
        raise FedReproError(f"{checkout}: its Python files differ from its commit {head.stdout[:7]}")
    return head.stdout.strip()


def measure(module: str, checkout: Path) -> None:
    """The rows of one repository, as a JSON line; in a process of its own, since several have modules of one
    name."""
    warnings.filterwarnings("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # originals print a lot
    from benchmarks.originals.federation import Table

    original, table = importlib.import_module(f"benchmarks.originals.{module}"), Table()
    original.prepare(checkout.resolve())
    for case in original.CASES:
        case(table)
    print(json.dumps([dataclasses.asdict(row) for row in table.rows]), file=answers, flush=True)


def measured(module: str, checkout: Path) -> list[dict]:
    words = [sys.executable, __file__, str(checkout), "--module", module]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise FedReproError(f"{checkout}: {module} ended with {done.returncode}: {last}")
    return json.loads(done.stdout)


# -- the page ------------------------------------------------------------------------------------------------


def tables(results: dict[str, dict], names: list[str]) -> str:
    """docs/fidelity.md's tables: what is equal by repository, what is not, the methods without comparison."""
    equal = ["| public code | comparisons that are equal | difference | effect |", "|---|---|--:|--:|"]
    others = ["| method | public code | verdict | difference | remark |", "|---|---|---|--:|---|"]
    for repository, entry in sorted(results.items()):
        name = repository.split("/")[1]
        code = f"[{name}](https://github.com/{repository}/tree/{entry['commit']})"
        rows = [row for row in entry["rows"] if row["verdict"] == "equal"]
        methods = ", ".join(
            f"{method} {count}" if count > 1 else method
            for method, count in sorted(Counter(row["method"] for row in rows).items())
        )
        difference = max(row["difference"] for row in rows)
        effects = [row["effect"] for row in rows if row["effect"] is not None]
        effect = f"{min(effects):.0e}" if effects else ""
        equal.append(f"| {code} | {methods} | {difference:.0e} | {effect} |")
        others += [f"| {row['method']} | {name} | {row['verdict']} | {row['difference']:.0e} | {remark} |"
                   for row, remark in _unequal(entry["rows"])]  # fmt: skip
    compared = {row["method"] for entry in results.values() for row in entry["rows"]}
    why = {name: NOT_COMPARED.get(name, "nobody has done it yet") for name in names if name not in compared}
    without = ["| method | not compared, because |", "|---|---|"]
    without += [f"| {name} | {reason} |" for name, reason in why.items()]
    return "\n".join([*equal, "", *others, "", *without])


def _unequal(rows: list[dict]) -> list[tuple[dict, str]]:
    """(row, remark): the row with the largest difference for each method, verdict and remark. A remark leaves
    out what also holds for equal rows of the method."""
    common = {
        (row["method"], part)
        for row in rows
        if row["verdict"] == "equal"
        for part in (row["remark"] or "").split("; ")
    }
    largest: dict[tuple[str, str, str], dict] = {}
    for row in sorted(rows, key=lambda row: row["difference"]):
        if row["verdict"] != "equal":
            method, parts = row["method"], row["remark"].split("; ")
            remark = "; ".join(part for part in parts if (method, part) not in common)
            largest[method, row["verdict"], remark] = row
    return [(row, remark) for (_, _, remark), row in sorted(largest.items())]


def with_tables(page: str, results: dict[str, dict], names: list[str]) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(results, names)}\n\n{END}{rest.split(END)[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path)
    parser.add_argument("--module", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.module:
        measure(a.module, a.checkouts[0])
        return 0
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    unexplained = False
    for checkout in a.checkouts:
        module = identified(checkout)
        repository, head, rows = known()[module][0], commit(checkout), measured(module, checkout)
        for row in rows:
            unexplained |= row["verdict"] == "unexplained"
            where = f"{row['method']:16} {repository:26}"
            print(f"{where} {row['difference']:8.1e}  {row['verdict']:12} {row['compared']}")
        executor = os.environ.get("FEDREPRO_EXECUTOR", "sequential")
        results[repository] = {"commit": head, "machine": machine(), "executor": executor, "rows": rows}
    results = dict(sorted(results.items()))
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(), results, method_names()))
    return int(unexplained)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FedReproError as error:
        sys.exit(f"error: {error}")
