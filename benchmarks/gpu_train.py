"""Train cells on a GPU, the most claims a minute first: what to run after gpu_check.py.

`PYTHONPATH=. python benchmarks/gpu_train.py [--check gpu_check.json] [PAPER or CELL ...]`. A cell's price
is its work at the speed that gpu_check.py measured for its scenario. Cells whose data are not here are left
out. The choice needs the whole installation; cells that are named, such as fedlsa/mini/fedavg, only what
training needs. What is trained is noted in --out after every cell; the cell that the time cuts off stays as
its checkpoint.
Copy `.cells` back: `fedrepro run` takes the seeds over, `fedrepro import` records them (docs/gpu.md).
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cells.experiment import Experiment
from pipeline.commands import hours
from pipeline.schema import ROOT, Cell

if TYPE_CHECKING:
    from pipeline.commands import plan


def speeds(check: Path) -> dict[str, float]:
    """Scenario -> operations per second, where gpu_check.py has measured them."""
    tables = json.loads(check.read_text(encoding="utf-8")).get("tables", {})
    return {name: row["operations_per_second"] for name, row in tables.items() if "left_out" not in row}


def prices(total: "plan.PlanInputs", speeds: dict[str, float]) -> "dict[Cell, plan.Price]":
    """Hours of a seed on this card, of the cells whose scenario was measured."""
    from pipeline.commands import plan

    known = {}
    for cell, price in total.prices.items():
        speed, work = speeds.get(f"{cell.paper}/{cell.scenario}"), hours.work(Experiment.of(cell))[0]
        if speed and work:
            known[cell] = plan.Price(price.have, work / speed / 3600)
    return known


def cells(papers: list[str], speeds: dict[str, float], minutes: float) -> list[Cell]:
    """In the order in which they are trained."""
    from pipeline.commands import plan

    total = plan.plan_inputs(papers)
    known = prices(total, speeds)
    needs = [need for need in total.needs if all(cell in known for cell, _ in need.runs)]
    bundles = plan.choose(needs, known, minutes / 60)
    claims = sum(len(bundle.needs) for bundle in bundles)
    print(
        f"{claims} claims of {len(needs)} with a known price, in {sum(b.hours for b in bundles) * 60:.1f} min"
    )
    return [cell for bundle in bundles for cell in bundle.cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="PAPER or CELL")
    parser.add_argument("--check", type=Path, default="gpu_check.json", help="what gpu_check.py has written")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("gpu_train.json"))
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    wanted = [Cell.parse(name) for name in arguments.names if "/" in name]
    if not wanted:
        wanted = cells(arguments.names, speeds(arguments.check), arguments.minutes)
    rows: list[dict] = []
    for cell in wanted:
        begun = time.monotonic()
        row: dict = {"cell": str(cell)}
        try:
            command = [sys.executable, "-m", "stages.train", str(cell)]
            row["exit"] = subprocess.run(command, cwd=ROOT, timeout=max(1.0, end - begun)).returncode
        except subprocess.TimeoutExpired:
            row["exit"] = "out of time"
        rows.append(row | {"seconds": round(time.monotonic() - begun, 1)})
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(rows[-1]), flush=True)
        if time.monotonic() >= end:
            break


if __name__ == "__main__":
    main()
