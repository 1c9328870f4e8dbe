"""What the SLURM executor makes of what submitit, sbatch and a task's output tell; tests/scale has a real
cluster."""

from types import SimpleNamespace

import pytest

from pipeline.clusters.cluster import Sent
from pipeline.errors import FedReproError

slurm = pytest.importorskip("pipeline.clusters.slurm", reason="submitit is not installed")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster that answers with its configuration alone."""
    monkeypatch.setattr(slurm, "_ask", lambda *command: "ClusterName = mini\n")
    return slurm.Slurm(2, None, "", tmp_path)


@pytest.fixture
def made(monkeypatch):
    """The options of every executor that is made, each of which takes what it gets."""
    options = []

    class Executor:
        def __init__(self, folder, **given):
            options.append(given)

        def update_parameters(self, **given):
            options[-1] |= given

        def map_array(self, function, *lists):
            return [SimpleNamespace(job_id=f"7_{k}") for k in range(len(lists[0]))]

    monkeypatch.setattr(slurm.submitit, "AutoExecutor", Executor)
    return options


def jobs(folder, number):
    task = SimpleNamespace(log=folder / "log", events=folder / "events")
    return [Sent(task, mark=folder / f"{place}.json") for place in range(number)]


def test_tasks_go_to_slurm_even_where_submitit_would_choose_another_executor(cluster, made, tmp_path):
    cluster.send(jobs(tmp_path, 1))
    assert made[0]["cluster"] == "slurm"


def test_a_job_has_the_id_of_its_place_in_the_array(cluster, made, tmp_path):
    sent = jobs(tmp_path, 3)
    cluster.send(sent)
    assert [job.id for job in sent] == ["7_0", "7_1", "7_2"]


def test_without_a_number_many_tasks_run_at_once(cluster, made, tmp_path):
    cluster.send(jobs(tmp_path, 2))
    assert made[0]["slurm_array_parallelism"] == slurm.AT_ONCE


def test_the_last_words_of_a_job_are_the_last_five_lines_of_its_own_output(cluster, tmp_path):
    folder = tmp_path / ".cells" / "slurm" / "name"
    folder.mkdir(parents=True)
    (folder / "7_1_0_log.err").write_text("".join(f"line {number}\n" for number in range(9)))
    (folder / "7_10_0_log.err").write_text("of another\n")
    [job] = jobs(tmp_path, 1)
    job.id, job.name = "7_1", "name"
    assert cluster.last_words(job) == [f"line {number}" for number in range(4, 9)]


@pytest.mark.parametrize(
    "script, told", [("echo first >&2; echo second >&2; exit 1", "sh: second"), ("exit 1", "sh: no answer")]
)
def test_a_command_that_fails_is_told_with_its_last_line(script, told):
    with pytest.raises(FedReproError) as raised:
        slurm._ask("sh", "-c", script)
    assert str(raised.value) == f"--on slurm: {told}"
