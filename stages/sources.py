"""Write sources.yaml: digests of the code behind every stage or cell, so that DVC runs again what has
changed.

For a paper this is papers/<paper>/sources.yaml, with a digest for every cell.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from pipeline import files
from pipeline.cells.experiment import Experiment
from pipeline.provenance import identity
from pipeline.schema import MINIATURE, MINIATURES, ROOT, load_paper, planned, read_yaml
from pipeline.schema.loader import overlay
from pipeline.training.checks import check_names
from stages._stage import stage

HEADER = "# Made by the stage `sources`. DVC reads it to know which {} a change of code concerns.\n"
# What of tuning decides which configurations are tried and which is chosen; their training is that of cells.
TUNING = (
    "pipeline.training.tuning:Axis",
    "pipeline.training.tuning:shares",
    "pipeline.cells.choices:means",
    "pipeline.cells.choices:best",
)
STAGES = ("data", "features", "corrupt", "figures", "report", "results", "split")


def sources(paper: str | None = None) -> None:
    """Digest the code behind every cell of a paper, or behind every other kind of stage. A paper's other
    stages wait for this one, so what they could not know in time is checked here."""
    if paper:
        check_names(paper)
        digests: Mapping = paper_digests(paper)
        folder = ROOT / "papers" / paper
        what = "cells"
    else:
        digests = stage_digests()
        folder = ROOT
        what = "stages"
    files.write_text(folder / "sources.yaml", HEADER.format(what) + yaml.safe_dump(digests, sort_keys=True))


def stage_digests(root: Path = ROOT) -> dict[str, str]:
    """The content of sources.yaml: kind of a stage -> digest, for stages that make neither cells nor
    partitions.

    root  folder of the repository
    """
    digests = {stage: identity.code_digest(f"stages.{stage}", root=root) for stage in STAGES}
    table = read_yaml(root / "pipeline" / "data" / "sets.yaml")
    return digests | {
        "data": identity.sha256_of([digests["data"], table]),
        "tune": identity.code_digest(*TUNING, root=root),
    }


def paper_digests(name: str, root: Path = ROOT) -> dict[str, dict]:
    """The content of papers/<name>/sources.yaml.

    name  of the paper
    root  folder of the repository

    Returns `partition`: scenario -> digest, and `cells`: scenario -> method -> digest. Raises FedReproError
    for code that cannot be followed.
    """
    paper = load_paper(name, root)
    # What params.yaml changes of paper.yaml.
    varied = overlay(name, root)
    scenarios = varied.get("settings", {})
    scenarios |= dict.fromkeys(MINIATURES, scenarios.get(MINIATURE))
    cells: dict[str, dict] = {}
    for cell in planned(name, root):
        code = identity.code_of(Experiment.of(cell, root))
        method = varied.get("methods", {}).get(cell.method)
        cells.setdefault(cell.scenario, {})[cell.method] = _varied(code, scenarios.get(cell.scenario), method)
    partitions = {}
    for key, scenario in paper.scenarios.items():
        code = identity.scenario_digest(("stages.partition:partition",), scenario, root=root)
        partitions[key] = _varied(code, scenarios.get(key))
    return {"partition": partitions, "cells": cells}


def _varied(digest: str, *values: dict | None) -> str:
    """The digest with the values of the overlay, by which DVC knows what they change."""
    return identity.sha256_of([digest, *values]) if any(values) else digest


if __name__ == "__main__":
    stage(sources, paper="whose cells; without it the stages of other kinds")
