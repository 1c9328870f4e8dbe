"""Marks of jobs at a cluster."""

import json

import pytest
from repository import ODD

from pipeline.clusters.cluster import Mark

MARK = {
    "cell": "a/b/c",
    "title": "slurm cluster 'x'",
    "id": "7_1",
    "name": "n",
    "digests": {"sequential": {"0": "d"}},
}


@pytest.mark.parametrize("key", MARK)
@pytest.mark.parametrize("value", [value for value in ODD if not isinstance(value, str)], ids=repr)
def test_a_mark_of_another_shape_is_none(tmp_path, key, value):
    path = tmp_path / "mark.json"
    path.write_text(json.dumps(MARK))
    assert Mark.read(path).id == "7_1"
    path.write_text(json.dumps(MARK | {key: value}))
    assert Mark.read(path) is None or (key, value) == ("digests", {})
