"""`fedrepro tune [PAPER[/SCENARIO[/METHOD]]]`: tune hyper-parameters, then train with old and new values."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.cells import choices
from pipeline.commands import run
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, Tuned, load_paper, papers, planned
from pipeline.training import tuning


def main(what: Sequence[str], jobs: int | None = None, force: bool = False) -> int:
    """Tune, then train with the chosen values and with those of the rows; returns the exit code.

    what   papers, scenarios or cells; empty: all tunings of all papers
    jobs   how many stages run at once; None: one for each core
    force  tune and train again what is up to date

    Raises ParamError for a name that is not to be tuned.
    """
    names = what or [key for key in papers() if load_paper(key).tuning]
    chosen = [target for name in names for target in targets(name)]
    if not chosen:
        raise ParamError("tune: no paper.yaml has the key 'tuning'; docs/tuning.md has an example")
    if Path.cwd().is_relative_to(ROOT):
        os.chdir(ROOT)
    return run.main(chosen, jobs, force)


def targets(name: str) -> list[str]:
    """The stages that train with the chosen values and with those of the row.

    name  a paper (fedcrl), a scenario (fedcrl/mini) or a cell (fedcrl/mini/fedprox)

    Raises ParamError if it is not to be tuned, or has no search space.
    """
    key, *rest = name.split("/")
    paper = load_paper(key)
    known = planned(key)
    if not paper.tuning:
        raise ParamError(f"papers/{key}/paper.yaml: tuning: not there; docs/tuning.md has an example")
    stages: list[str] = []
    for scenario in rest[:1] or paper.tuning:
        methods = rest[1:]
        if not methods:
            # For a scenario without tuning the check of the cell below says what is wrong.
            methods = paper.tuning[scenario].methods if scenario in paper.tuning else [""]
        cells = [Cell(key, scenario, method) for method in methods]
        for cell in cells:
            choices.tuning_of(cell)
            tuning.space(cell)  # before anything trains
            if cell not in known:
                where = f"papers/{key}/paper.yaml: tuning.{scenario}.methods"
                raise ParamError(f"{where}: no grid runs {cell.method!r} in this scenario")
        stages += [Tuned.of(cell, ()).stage(paper) for cell in cells]
        stages += [choices.published(cell).stage(paper) for cell in cells]
    return stages
