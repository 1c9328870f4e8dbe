"""Compute the digests in all sources.yaml files, by which DVC detects which code has changed."""

from pathlib import Path

from pipeline.cells import provenance
from pipeline.cells.experiment import Experiment
from pipeline.schema import MINIATURE, MINIATURES, ROOT, load_paper, overlay, planned, read_yaml

# What of tuning decides which configurations are tried and which is chosen; their training is that of cells.
TUNING = (
    "pipeline.cells.spaces:Axis",
    "pipeline.cells.spaces:shares",
    "pipeline.cells.choices:means",
    "pipeline.cells.choices:best",
)
STAGES = ("data", "features", "corrupt", "figures", "report", "results", "split")


def stage_digests(root: Path = ROOT) -> dict[str, str]:
    """The content of sources.yaml: a digest for each kind of stage that is no cell's and no partition's."""
    digests = {stage: provenance.code_digest(f"stages.{stage}", root=root) for stage in STAGES}
    table = read_yaml(root / "pipeline" / "data" / "sets.yaml")
    return digests | {
        "data": provenance.sha256_of([digests["data"], table]),
        "tune": provenance.code_digest(*TUNING, root=root),
    }


def paper_digests(name: str, root: Path = ROOT) -> dict[str, dict]:
    """The content of papers/<name>/sources.yaml: `partition` {scenario: digest} and `cells` {scenario:
    {method: digest}}."""
    paper, varied = load_paper(name, root), overlay(name, root)
    scenarios = varied.get("settings", {})
    scenarios |= dict.fromkeys(MINIATURES, scenarios.get(MINIATURE))
    cells: dict[str, dict] = {}
    for cell in planned(name, root):
        code = provenance.code_of(Experiment.of(cell, root))
        method = varied.get("methods", {}).get(cell.method)
        cells.setdefault(cell.scenario, {})[cell.method] = _varied(code, scenarios.get(cell.scenario), method)
    return {
        "partition": {
            key: _varied(
                provenance.scenario_digest(("stages.partition:partition",), scenario, root=root),
                scenarios.get(key),
            )
            for key, scenario in paper.scenarios.items()
        },
        "cells": cells,
    }


def _varied(digest: str, *values: dict | None) -> str:
    """The digest with the values of the overlay, by which DVC knows what they change."""
    return provenance.sha256_of([digest, *values]) if any(values) else digest
