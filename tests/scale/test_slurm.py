"""Cells on a real SLURM cluster of this machine."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from checkouts import CELLS, clean, fedrepro, surroundings
from repository import PATIENCE, edit, outputs, wait_for

OPTIONS = ["--on", "slurm", "--slurm", "partition=main,mem=1500M,time=20", "--jobs", "8"]


def test_a_node_dies_and_the_numbers_are_those_of_an_undisturbed_run(slurm, project, undisturbed):
    """Ctrl-C leaves the jobs; a node dies; the next call attaches to them and records all three cells."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", *CELLS, *OPTIONS],
        cwd=project,
        env=surroundings(**slurm.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: len(slurm.running()) == 2 and len(list(project.glob(".cells/*/seed-*.pt"))) == 2)
    process.send_signal(signal.SIGINT)
    reply = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 130 and "3 jobs go on" in reply
    before = slurm.running()
    slurm.kill("n2")
    slurm.add("n2")
    reply = fedrepro(project, "run", *CELLS, *OPTIONS, **slurm.variables)
    assert "requeued 1x" in reply and "3 of" in reply
    assert len(before) == 2 and len(submissions(project)) == 1  # nothing was submitted twice
    for cell in CELLS:
        assert outputs(project, cell) == outputs(undisturbed, cell)
    assert clean(project) and not list(project.glob(".cells/jobs/*.json"))


def test_cancelled_jobs_are_gone_and_the_rest_is_one_line(slurm, project):
    cell = CELLS[0]
    edit(
        project / "papers/fedcrl/paper.yaml",  # it must not end before it is cancelled
        lambda document: document["miniature"]["scenario"]["training"].update(rounds=100_000),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run", cell, *OPTIONS],
        cwd=project,
        env=surroundings(**slurm.variables),
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(slurm.running)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    reply = fedrepro(project, "run", cell, *OPTIONS, "--cancel", **slurm.variables)
    assert reply == "1 job cancelled\n" and not list(project.glob(".cells/jobs/*.json"))
    wait_for(lambda: not slurm.running())
    slurm_with = ["run", cell, "--on", "slurm", "--slurm"]
    reply = fedrepro(project, *slurm_with, "partition=maim", expect=2, **slurm.variables)
    assert reply.startswith("error: --slurm: unknown partition 'maim'")
    reply = fedrepro(project, *slurm_with, "gres=gpu:9", expect=1, **slurm.variables)
    assert "mini@local: slurm cluster 'mini'" in reply
    reply = fedrepro(project, *slurm_with, "mem=1G", expect=2, SLURM_CONF=str(slurm.at / "nowhere.conf"))
    assert reply.startswith("error: --on slurm: scontrol: ") and reply.count("\n") == 1


SBATCH = """\
#!/bin/sh
# As a cluster whose accounting lets this user have two jobs.
tasks=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$(eval echo \\${$#})")
[ $(( ${tasks:-0} + 1 + $(squeue --me -h -r | wc -l) )) -le 2 ] && exec "$REAL_SBATCH" "$@"
echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2
exit 1
"""


def test_what_a_limit_of_jobs_refuses_follows_when_a_job_has_ended(slurm, project, tmp_path):
    (tmp_path / "sbatch").write_text(SBATCH)
    (tmp_path / "sbatch").chmod(0o755)
    path = os.pathsep.join([str(Path(sys.executable).parent), str(tmp_path), os.environ["PATH"]])
    reply = fedrepro(
        project, "run", *CELLS, *OPTIONS, **slurm.variables, PATH=path, REAL_SBATCH=shutil.which("sbatch")
    )
    assert "waits for room" in reply and "3 of" in reply
    assert "sbatch: error" not in reply and len(submissions(project)) >= 6  # of 3, 1, 2, 1, 1 and 1 cells
    assert clean(project) and not list(project.glob(".cells/jobs/*.json"))


def submissions(project: Path) -> list[Path]:
    return list((project / ".cells" / "slurm").iterdir())
