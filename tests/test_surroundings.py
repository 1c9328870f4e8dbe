"""What a machine, a cluster or a laboratory sets, and what comes of it: links, cards, folders, variables."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from repository import ROOT, commit, run

from pipeline import place
from pipeline.clusters.local import Local
from pipeline.commands import reproduce
from pipeline.commands.cli import main
from pipeline.errors import NO_MEMORY, FedReproError, ParamError, guarded
from pipeline.schema.documents import check_links
from pipeline.tracking import mlflow_runs

SMI = "#!/bin/sh\n"
LISTED = "GPU 0: A100 (UUID: GPU-aa)\n  MIG 1g Device 0: (UUID: MIG-1)\n  MIG 1g Device 1: (UUID: MIG-2)\n"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An nvidia-smi that is this script."""
    for name in ("CUDA_VISIBLE_DEVICES", "FEDREPRO_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def script(text):
        file = tmp_path / "nvidia-smi"
        file.write_text(SMI + text)
        file.chmod(0o755)

    return script


@pytest.mark.parametrize(
    "text, cards",
    [
        ("printf '0\\n1\\n'", ["0", "1"]),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", []),
        ("echo 'Failed to initialize NVML: Unknown Error'", []),
        ("echo 'No devices were found'", []),
        ("echo 0; exit 9", []),
        ("printf '0\\nERR!\\n'", []),
        ("", []),
        (f"case $1 in -L) printf '{LISTED}';; *) printf '0\\n1\\n';; esac", ["MIG-1", "MIG-2", "1"]),
    ],
)
def test_cards_are_what_nvidia_smi_numbers(smi, text, cards):
    smi(text)
    assert Local(2).cards == cards


def test_an_nvidia_smi_that_hangs_names_no_card(smi, monkeypatch):
    monkeypatch.setattr(place, "PATIENCE", 0.2)
    smi("exec sleep 60")
    assert place.cards() == []


@pytest.mark.parametrize(
    "visible, cards",
    [
        ("0,1", ["0", "1"]),
        ("0,-1,1", ["0"]),
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
        (" 1 , 0 ", ["1", "0"]),
        ("GPU-8f3a,MIG-GPU-8f3a/1/0", ["GPU-8f3a", "MIG-GPU-8f3a/1/0"]),
        ("0,Failed,1", ["0"]),
    ],
)
def test_visible_cards_are_read_as_cuda_reads_them(monkeypatch, visible, cards):
    monkeypatch.delenv("FEDREPRO_DEVICE", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert place.cards() == cards


def test_a_card_that_torch_cannot_use_is_one_warning_with_its_driver(smi, monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    smi("case $1 in *driver*) echo 470.57;; *) echo 0;; esac")
    place.check_driver()
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "driver is 470.57" in error
    assert "CPU" in error


def test_no_warning_where_torch_uses_the_card(smi, monkeypatch, capsys):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    smi("echo 0")
    place.check_driver()
    assert capsys.readouterr().err == ""


# -- folders -------------------------------------------------------------------------------------------------


def test_a_socket_fits_below_a_long_temporary_folder(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 95)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with place.short_temporary(), tempfile.TemporaryDirectory() as folder:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"{folder}/listener-01234567")
    assert tempfile.gettempdir() == str(long)


def test_the_miniatures_server_starts_below_a_long_temporary_folder(tmp_path):
    long = tmp_path / ("x" * 95)
    long.mkdir()
    code = """
import multiprocessing
import os
from pipeline.clusters import fork, local
fork.IMPORTS = []
process = multiprocessing.get_context("forkserver").Process(target=os._exit, args=(7,))
with local._forked_by(local.Local(2).server("portable")):
    process.start()
process.join()
print(process.exitcode)
"""
    environment = {**os.environ, "TMPDIR": str(long)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    assert done.stdout.strip() == b"7"


@pytest.mark.parametrize("settings", ["[cache]\n    dir = {}\n    type = symlink\n", "[cache]\ndir = '{}'\n"])
def test_links_into_dvc_s_shared_cache_are_dvc_s_own(tmp_path, settings):
    root, cache = tmp_path / "checkout", tmp_path / "shared"
    (root / ".dvc").mkdir(parents=True)
    (cache / "files").mkdir(parents=True)
    (cache / "files" / "a").touch()
    inside = root / "papers" / "mine" / "partitions" / "mini"
    inside.mkdir(parents=True)
    (inside / "indices.npz").symlink_to(cache / "files" / "a")
    with pytest.raises(ParamError, match="leads out of the repository"):
        check_links(root)
    (root / ".dvc" / "config.local").write_text(settings.format(cache))
    check_links(root)


def test_partitions_may_lie_on_another_disk(tmp_path):
    root, scratch = tmp_path / "checkout", tmp_path / "scratch"
    scratch.mkdir()
    (root / "papers" / "mine").mkdir(parents=True)
    (root / "papers" / "mine" / "partitions").symlink_to(scratch)
    check_links(root)
    (root / "papers" / "mine" / "runs").symlink_to(scratch)
    with pytest.raises(ParamError, match="papers/mine/runs: a link that leads out"):
        check_links(root)


def test_a_folder_of_a_larger_repository_is_cloned_with_it(tmp_path):
    root = tmp_path / "thesis" / "code" / "fedrepro"
    (root / "papers").mkdir(parents=True)
    (root / "papers" / "a").write_text("1")
    (root / ".gitignore").write_text("/reproduction/\n")
    commit(tmp_path / "thesis")
    clone = reproduce.prepare(root)
    assert clone == root / "reproduction" / "code" / "fedrepro"
    assert (clone / "papers" / "a").read_text() == "1"
    (root / "papers" / "a").write_text("2")
    commit(tmp_path / "thesis")
    assert (reproduce.prepare(root) / "papers" / "a").read_text() == "2"


def test_lock_files_stay_in_git_whatever_a_user_ignores(tmp_path):
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    (tmp_path / "everywhere").write_text("*.lock\ndvc.*\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    ignored = ["git", "-C", tmp_path, "-c", f"core.excludesFile={tmp_path}/everywhere", "check-ignore"]
    for name in ("dvc.lock", "papers/fedlsa/dvc.lock", "dvc.yaml"):
        assert subprocess.run([*ignored, "-q", name]).returncode == 1, name
    assert subprocess.run([*ignored, "-q", "other.lock"]).returncode == 0


# -- variables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"])
def test_no_proxy_is_asked_for_this_machine(monkeypatch, name):
    for other in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.setenv(other, "")
        monkeypatch.setenv(other.upper(), "")
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    place.begin()
    assert os.environ["no_proxy"] == place.LOOPBACK


HARMLESS = {
    "optimised": {"PYTHONOPTIMIZE": "2"},
    "an ASCII terminal": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
    "no home": {"HOME": "/nonexistent"},
    "warnings as errors": {"PYTHONWARNINGS": "error::UserWarning"},
    "one column": {"COLUMNS": "1"},
    "safe path": {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)},
    "no colours": {"NO_COLOR": "1", "TERM": "dumb"},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_variable_of_the_surroundings_stops_no_command(name):
    done = run(ROOT, sys.executable, "-m", "pipeline", "run", "--help", **HARMLESS[name])
    words = " ".join(done.stdout.split())
    assert "missing" in words
    assert "several" in words


def test_children_of_an_optimised_process_are_not_optimised(monkeypatch):
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    place.begin()
    assert "PYTHONOPTIMIZE" not in os.environ


@pytest.mark.parametrize("name", ["PIP_USER", "PIP_TARGET", "PIP_PREFIX", "UV_SYSTEM_PYTHON", "PYTHONHOME"])
def test_make_installs_into_its_own_environment(tmp_path, name):
    (tmp_path / "Makefile").write_text(f'include {ROOT}/Makefile\nshow:\n\t@echo "<$${name}>"\n')
    done = run(tmp_path, "make", "-s", "show", **{name: "1"})
    assert done.stdout.strip() == ("<0>" if name == "PIP_USER" else "<>")


@pytest.mark.parametrize("mask", [0o077, 0o007, 0o027])
def test_a_narrow_umask_leaves_files_that_can_be_read(tmp_path, mask):
    code = f"import os; os.umask({mask}); from pipeline.files import write_text; from pathlib import Path\n"
    code += "write_text(Path('a/b'), 'x'); print(Path('a/b').read_text())"
    assert run(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(ROOT)).stdout.strip() == "x"


@pytest.mark.parametrize(
    "text", ["API request failed with error code 401 != 200", "403 Client Error", "Unauthorized"]
)
def test_an_mlflow_behind_a_login_names_its_variables(monkeypatch, text):
    def refuse(**_):
        raise RuntimeError(text)

    monkeypatch.setattr(mlflow_runs, "import_results", refuse)
    with pytest.raises(FedReproError, match="MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"):
        mlflow_runs.say_import()


def test_help_is_there_without_docstrings_of_the_first_process():
    result = CliRunner().invoke(main, ["status", "--help"])
    assert "Show what is finished" in result.output
    assert Path(place.__file__).exists()


@pytest.mark.parametrize(
    "text",
    [
        "could not create a primitive",
        "std::bad_alloc",
        "can't start new thread",
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory",
        "libtorch_cpu.so: failed to map segment from shared object",
    ],
)
def test_a_lack_of_memory_is_one_line_however_it_is_told(capsys, text):
    def fail():
        raise RuntimeError(text)

    with pytest.raises(SystemExit):
        guarded(fail)
    assert capsys.readouterr().err == f"error: {NO_MEMORY}\n"


@pytest.mark.parametrize(
    "limited, content, told",
    [
        (True, "import os; os.abort()", True),
        (True, "raise MemoryError", False),
        (True, "", False),
        (False, "import os; os.abort()", False),
    ],
)
def test_native_code_that_aborts_under_a_limit_of_memory_is_one_line(tmp_path, limited, content, told):
    """As torch does where memory ends while it is loaded: C++ then ends the process itself."""
    (tmp_path / "native.py").write_text(content)
    code = (
        "import resource, sys; sys.path.append(sys.argv[1])\n"
        "if sys.argv[2] == 'True': resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "from pipeline import errors, place\n"
        "errors.guarded(lambda: place.check_memory('native')); print('goes on')"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(limited)]
    done = subprocess.run(command, cwd=place.HOME, capture_output=True, text=True)
    if told:
        assert done.returncode == 2
        assert not done.stdout
        assert done.stderr == (
            "error: not enough memory: 8192 MiB may be used here (`ulimit -v`), and torch needs more to be "
            "loaded\n"
        )
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")
