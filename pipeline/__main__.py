"""`python -m pipeline`: the command `fedrepro` of this checkout."""

import sys

from pipeline.errors import NOT_INSTALLED

try:
    from pipeline.commands.cli import main
except ModuleNotFoundError as error:  # click: another Python than the environment's
    print(f"error: {NOT_INSTALLED.format(error.name, sys.executable)}", file=sys.stderr)
    sys.exit(2)

main(prog_name="fedrepro")
