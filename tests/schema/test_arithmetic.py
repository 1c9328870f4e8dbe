"""Which scenarios of the papers are trained with portable arithmetic."""

import json

import pytest

from pipeline.schema import ROOT, load_paper, papers

SCENARIOS = [
    (paper, name, scenario.arithmetic)
    for paper in papers()
    for name, scenario in load_paper(paper).scenarios.items()
]


@pytest.mark.parametrize(("paper", "name", "arithmetic"), SCENARIOS)
def test_a_scenario_is_portable_or_was_begun_without(paper, name, arithmetic):
    results = (ROOT / "papers" / paper / "runs" / name).glob("*/result.json")
    stored = [json.loads(file.read_text())["versions"].get("arithmetic") for file in results]

    if arithmetic != "portable":
        assert stored, f"papers/{paper}/paper.yaml scenarios.{name}: new, so `arithmetic: portable`"
    assert all(kind == arithmetic for kind in stored)
