"""The installed package: `import fedrepro` makes `pipeline` importable, the command runs a project's code.

A wheel carries the checkout's code and settings in `fedrepro/project`, so that no other name is taken in
site-packages. `fedrepro new project` copies them: a project trains with its copy, which git tracks.
"""

import os
import signal
import sys


def _end(number: int, frame: object) -> None:
    """End the process at once: Ctrl-C while the command is being imported."""
    os.write(2, b"stopped\n")
    os._exit(130)


# Whoever imports the package for something else keeps the handler of their own.
is_command = os.path.basename(sys.argv[0]) == "fedrepro"
if is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)

from collections.abc import Iterator  # noqa: E402  imports take long: Ctrl-C is caught before them
from pathlib import Path  # noqa: E402

# what a project begins with
FILES = """pipeline/**/*.py pipeline/**/*.yaml pipeline/commands/*.csv pipeline/commands/templates/*.txt
    stages/*.py reports/templates/* data/dvc.yaml dvc.yaml params.yaml .dvc/config .dvc/.gitignore
    .dvc/plots/*.json .dvcignore .gitignore LICENSE docs/*.md docs/decisions/*.md""".split()
INSTALLED = Path(__file__).resolve().parent / "project"
SOURCE = INSTALLED if INSTALLED.is_dir() else INSTALLED.parents[1]

if str(SOURCE) not in sys.path:
    sys.path.insert(0, str(SOURCE))


def files(root: Path) -> Iterator[Path]:
    """FILES of a checkout or an installation, relative to it."""
    for pattern in FILES:
        yield from (path.relative_to(root) for path in sorted(root.glob(pattern)) if path.is_file())


def main() -> None:
    """The command `fedrepro`: in a project or a checkout its code, elsewhere the installed one, which only
    makes projects."""
    from pipeline.commands.cli import here
    from pipeline.place import checkout_of

    words = sys.argv[1:]
    works = words[:2] == ["new", "project"] or {"-h", "--help", "--version"}.intersection(words) or not words
    if SOURCE == INSTALLED and not works and checkout_of(Path.cwd()) is None:
        print("error: this folder is in no project: `fedrepro new project NAME` makes one", file=sys.stderr)
        sys.exit(2)
    here()
