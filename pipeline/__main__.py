"""`python -m pipeline`: the command `fedrepro` of this checkout."""

import os
import sys

from pipeline.commands import interrupts

interrupts.at_once()
from pipeline.errors import NOT_INSTALLED  # noqa: E402  from here on imports take long

try:
    from pipeline.commands.cli import main
except ModuleNotFoundError as error:  # click: another Python than the environment's
    print(f"error: {NOT_INSTALLED.format(error.name, sys.executable)}", file=sys.stderr)
    sys.exit(2)

if sys.flags.optimize > 1:  # without the texts of --help
    os.environ.pop("PYTHONOPTIMIZE", None)
    os.execv(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]])
main(prog_name="fedrepro")
