"""`fedrepro explain`: where the values of a scenario are from."""

from one_paper import MINI, repository

from pipeline.commands import explain
from pipeline.files import write_text

CHANGED = "[changed by papers/fedcrl/params.yaml]"


def test_a_value_of_params_yaml_is_marked_also_where_the_paper_gives_no_source(tmp_path):
    root = repository(tmp_path)
    write_text(
        root / "papers/fedcrl/params.yaml",
        "settings: {mini: {training: {optimiser: {lr: 0.01}}, evaluation: {headline: average}}}\n",
    )
    marked = [line.split()[:2] for line in explain.lines(MINI, [], root) if line.endswith(CHANGED)]
    assert marked == [["optimiser.lr", "0.01"], ["headline", "average"]]
