"""Ctrl-C while packages are imported, during the work and after it. Nothing here depends on the time."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from repository import PATIENCE, ROOT

# A module that is interrupted while it is imported, and that catches what comes, as some packages do.
GUARDS = """import signal
try:
    signal.raise_signal(signal.SIGINT)
except BaseException:
    print("swallowed", flush=True)
ended = True
"""
STOPPED = (130, "", "stopped\n")


def run(*command: str, path: Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that looks for modules in this folder first. It gets Ctrl-C
    even where the tests run in the background of a shell, which has its jobs ignore it."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    return done.returncode, done.stdout, done.stderr


def script(tmp_path: Path, *lines: str) -> tuple[int, str, str]:
    """What lines of code do that follow the import of `interrupts` and `signal`."""
    (tmp_path / "guards.py").write_text(GUARDS)
    code = "\n".join(["import signal", "from pipeline.commands import interrupts", *lines])
    return run(sys.executable, "-c", code, path=tmp_path)


@pytest.fixture
def fedrepro(tmp_path) -> Path:
    """The script that an installation makes."""
    path = tmp_path / "bin" / "fedrepro"
    path.parent.mkdir()
    path.write_text("import sys\nfrom fedrepro import main\nsys.exit(main())\n")
    return path


@pytest.mark.parametrize("package", ["pathlib", "click"])
def test_ctrl_c_in_an_import_of_the_command_ends_it_although_a_package_catches_it(
    tmp_path, fedrepro, package
):
    (tmp_path / f"{package}.py").write_text(GUARDS)
    command = (
        (sys.executable, "-S", str(fedrepro)) if package == "pathlib" else (sys.executable, str(fedrepro))
    )
    assert run(*command, "status", path=tmp_path) == STOPPED


def test_ctrl_c_in_an_import_of_the_module_ends_it_although_a_package_catches_it(tmp_path):
    (tmp_path / "click.py").write_text(GUARDS)
    assert run(sys.executable, "-m", "pipeline", "status", path=tmp_path) == STOPPED


def test_ctrl_c_in_an_import_of_the_commands_function_ends_it_before_the_function_is_called(tmp_path):
    lines = (
        "import sys; from types import SimpleNamespace; from pipeline.commands import cli, options",
        "def interrupted(*arguments):",
        "    import guards",
        "    return SimpleNamespace(main=lambda **_: print('began', flush=True))",
        "options.import_module = interrupted",
        "sys.argv[1:] = ['methods']",
        "cli.here()",
    )
    assert script(tmp_path, *lines) == STOPPED


def test_ctrl_c_in_an_import_during_the_work_comes_when_the_import_has_ended(tmp_path):
    lines = (
        "import sys, time",
        "interrupts.at_once()",
        "try:",
        "    with interrupts.raised():",
        "        import guards",
        "        time.sleep(30)",
        "except KeyboardInterrupt:",
        "    print('left in order', sys.modules['guards'].ended)",
    )
    assert script(tmp_path, *lines) == (0, "left in order True\n", "")


def test_ctrl_c_during_an_import_reaches_the_handler_that_the_work_has_set_meanwhile(tmp_path):
    sets = "asked = []\nsignal.signal(signal.SIGINT, lambda *_: asked.append('stop'))\n"
    (tmp_path / "sets.py").write_text(GUARDS + sets)
    lines = (
        "import time",
        "interrupts.at_once()",
        "with interrupts.raised():",
        "    import sets",
        "    while not sets.asked: time.sleep(0.01)",
        "    print(sets.asked)",
    )
    assert script(tmp_path, *lines) == (0, "['stop']\n", "")


def test_a_second_ctrl_c_does_not_wait_for_the_import(tmp_path):
    (tmp_path / "slow.py").write_text("import signal\n" + "signal.raise_signal(signal.SIGINT)\n" * 2)
    lines = (
        "interrupts.SECONDS_BETWEEN_LOOKS = 1000",
        "interrupts.at_once()",
        "try:",
        "    with interrupts.raised():",
        "        import slow",
        "except KeyboardInterrupt:",
        "    print('left in order')",
    )
    assert script(tmp_path, *lines) == (0, "left in order\n", "")


def test_ctrl_c_after_the_work_ends_the_command_at_once(tmp_path):
    lines = (
        "interrupts.at_once()",
        "with interrupts.raised():",
        "    pass",
        "import guards",
    )
    assert script(tmp_path, *lines) == STOPPED


def test_a_command_in_the_background_goes_on_ignoring_ctrl_c(tmp_path):
    lines = (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "interrupts.at_once()",
        "with interrupts.raised():",
        "    signal.raise_signal(signal.SIGINT)",
        "    print('goes on')",
    )
    assert script(tmp_path, *lines) == (0, "goes on\n", "")


def test_whoever_imports_the_package_keeps_the_own_handler(tmp_path):
    lines = (
        "before = signal.getsignal(signal.SIGINT)",
        "import fedrepro",
        "with interrupts.raised():",
        "    print(signal.getsignal(signal.SIGINT) is before)",
    )
    assert script(tmp_path, *lines) == (0, "True\n", "")
