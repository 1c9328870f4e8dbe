"""The walk of a verification, on one method's miniature: accepted as it is, refused without what it adds. The
commit draws the method, so that a failure can be repeated; docs/ablations.md has all of them."""

import csv
import os
import subprocess
import sys

from repository import PATIENCE, ROOT, git

from benchmarks.ablations import ABLATIONS, ACCEPTED, MINIATURE, REFUSED, SHORT


def drawn() -> str:
    """A method, by the commit."""
    return [*ABLATIONS][int(git(ROOT, "rev-parse", "--short=7", "HEAD"), 16) % len(ABLATIONS)]


def test_a_drawn_method_is_accepted_and_its_ablations_are_refused(tmp_path):
    algorithm, listed = drawn(), tmp_path / "list.csv"
    words = ["--kind", MINIATURE, "--fresh", "--work", str(tmp_path / "work"), "--list", str(listed)]
    command = [sys.executable, "benchmarks/ablations.py", algorithm, *words]
    print(f"drawn: {algorithm} (again: PYTHONPATH=. {' '.join(command[1:5])})")
    environment = os.environ | {"PYTHONPATH": "."}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=PATIENCE)
    with listed.open(newline="") as file:
        found = {row["ablation"]: row for row in csv.DictReader(file)}
    assert found.keys() == {"", *(one.what for one in ABLATIONS[algorithm])}
    for what, row in found.items():
        assert row["result"] == SHORT
        assert row["verdict"] == (REFUSED if what else ACCEPTED)
