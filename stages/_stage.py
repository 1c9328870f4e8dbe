"""The command line of every stage script: positional arguments, and one clear line of error for bad input."""

import argparse
import os
import sys
from collections.abc import Callable

from pipeline import locks
from pipeline.errors import ParamError, guarded
from pipeline.place import begin, cores
from pipeline.schema.checker import Spelling
from pipeline.schema.documents import check_links


def stage(function: Callable, *names: str, **optional: str) -> None:
    """Run `function(**arguments)` with positional `names` (and `optional` name=help ones, None when absent),
    each a name or names between slashes. Errors: see `errors.guarded`."""
    parser = argparse.ArgumentParser(description=function.__doc__)
    for name in names:
        parser.add_argument(name)
    for name, text in optional.items():
        parser.add_argument(name, nargs="?", help=text)
    arguments = vars(parser.parse_args())

    def call() -> None:
        begin()
        check_links()
        # Training counts the machine's cores where this is not set.
        os.environ.setdefault("FEDREPRO_WORKERS", str(cores()))
        for line in locks.mend_locks():  # DVC rewrites one when the stage has ended
            print(f"warning: {line}", file=sys.stderr, flush=True)
        for name, value in arguments.items():  # each becomes part of a path
            parts = [] if value is None else value.split("/")
            if problem := next(filter(None, map(Spelling().problem, parts)), None):
                raise ParamError(f"{name} {value!r:.80}: {problem}")
        function(**arguments)

    guarded(call)
