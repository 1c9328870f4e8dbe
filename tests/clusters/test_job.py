"""Names of a stage's files, and the log of one that failed."""

from types import SimpleNamespace

import pytest

from pipeline.clusters.job import Job, file_name


@pytest.mark.parametrize(
    "stage, name",
    [
        ("papers/fedcrl/dvc.yaml:mini@fedavg", "papers_fedcrl_dvc.yaml_mini@fedavg"),
        ("a//b  c", "a_b_c"),
        ("runs/x_y-lr=0.1", "runs_x_y-lr=0.1"),
    ],
)
def test_a_stage_names_its_files_without_slashes_colons_and_blanks(stage, name):
    assert file_name(stage) == name


def test_why_a_job_failed_is_added_to_its_log_in_any_locale(tmp_path, ascii_locale):
    log = tmp_path / "log"
    log.write_text("before\n", encoding="utf-8")
    job = Job(SimpleNamespace(log=log))
    job.fail("no é", "no ü")
    assert log.read_text(encoding="utf-8") == "before\nno é\nno ü\n"
    assert job.code == 2
