"""`fedrepro tune [PAPER[/SCENARIO[/METHOD]]]`: tune hyper-parameters, then train with old and new values."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.cells import choices
from pipeline.commands import run
from pipeline.errors import ParamError, unknown
from pipeline.schema import ROOT, Cell, Tuned, load_paper, papers, planned


def main(what: Sequence[str], jobs: int | None = None, force: bool = False) -> int:
    """Tune and train with what was chosen; without `what`, all that any paper.yaml asks for. Returns the exit
    code."""
    every = [key for key in papers() if load_paper(key).tuning]
    chosen = [target for name in what or every for target in targets(name)]
    if not chosen:
        raise ParamError("tune: no paper.yaml has the key 'tuning'; docs/tuning.md has an example")
    if Path.cwd().is_relative_to(ROOT):
        os.chdir(ROOT)
    return run.main(chosen, jobs, force)


def targets(name: str) -> list[str]:
    """What `fedrepro run` takes for fedcrl, fedcrl/mini or fedcrl/mini/fedprox; ParamError for what is not to
    be tuned."""
    key, *rest = name.split("/")
    tuning, at = load_paper(key).tuning, f"papers/{key}/paper.yaml: tuning"
    if not tuning:
        raise ParamError(f"{at}: not there; docs/tuning.md has an example")
    if rest and rest[0] not in tuning:
        raise ParamError(f"{at}: {unknown('scenario', rest[0], tuning)}")
    if len(rest) > 1:
        choices.tuning_of(Cell.parse(name))
    cells = planned(key)
    for scenario in rest[:1] or tuning:
        for method in tuning[scenario].methods:
            if Cell(key, scenario, method) not in cells:
                raise ParamError(f"{at}.{scenario}.methods: no grid runs {method!r} in this scenario")
    return [stage for scenario in rest[:1] or tuning for stage in _stages(key, scenario, rest[1:])]


def _stages(key: str, scenario: str, methods: Sequence[str]) -> list[str]:
    """Those that train what a tuning compares, of these methods or of all: with the chosen values and with
    the row's, which are the scenario's cells where the tuning names no seeds."""
    paper = load_paper(key)
    cells = [Cell(key, scenario, method) for method in methods or paper.tuning[scenario].methods]
    compared = [*(Tuned.of(cell, ()) for cell in cells), *map(choices.published, cells)]
    return [one.stage(paper) for one in compared]
