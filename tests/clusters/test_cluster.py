"""Marks of jobs at a cluster."""

import json

import pytest
from repository import ODD

from pipeline import files
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


@pytest.mark.parametrize("position, found", [(0, "7_0"), (1, "7_1"), (10, "7_10"), (2, None)])
def test_a_job_without_an_id_is_found_by_its_place(position, found):
    living = [("7_0", "other"), ("7_10", "n"), ("7_1", "n"), ("7_0", "n")]
    mark = Mark(**MARK | {"id": "", "position": position})
    assert mark.job(living) == (found and (found, "n"))


def test_the_only_job_of_a_submission_needs_no_place():
    assert Mark(**MARK | {"id": ""}).job([("7", "n")]) == ("7", "n")
    assert Mark(**MARK | {"id": "", "position": 1}).job([("7", "n")]) is None


def test_an_id_may_have_any_form():
    assert Mark(**MARK | {"id": "lsf_job"}).job([("other_job", "n"), ("lsf_job", "n")]) == ("lsf_job", "n")
    assert Mark(**MARK | {"id": "lsf_job"}).job([("lsf_job", "another")]) is None


def test_a_mark_is_read_in_any_locale(tmp_path, ascii_locale):
    path = tmp_path / "mark.json"
    files.write_json(path, MARK | {"title": "slurm cluster 'Köln'"})
    assert Mark.read(path).title == "slurm cluster 'Köln'"
