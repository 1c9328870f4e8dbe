"""What every stage script shares: positional arguments, and one clear line of error for bad input."""
import argparse
import sys
from collections.abc import Callable

from pipeline.commands import keeping
from pipeline.errors import FedReproError, ParamError
from pipeline.schema import Spelling


def stage(function: Callable, *names: str, **optional: str) -> None:
    """Run `function(**arguments)` with positional `names` (and `optional` name=help ones, None when absent),
    each a name or names between slashes. Errors: see `guarded`."""
    parser = argparse.ArgumentParser(description=function.__doc__)
    for name in names:
        parser.add_argument(name)
    for name, text in optional.items():
        parser.add_argument(name, nargs="?", help=text)
    arguments = vars(parser.parse_args())

    def call() -> None:
        for line in keeping.mend_locks():                          # DVC rewrites one when the stage has ended
            print(f"warning: {line}", file=sys.stderr, flush=True)
        for name, value in arguments.items():             # each becomes part of a path
            if problem := next(filter(None, map(Spelling().problem, (value or "x").split("/"))), None):
                raise ParamError(f"{name} {value!r:.80}: {problem}")
        function(**arguments)
    guarded(call)


def guarded(call: Callable[[], object]) -> None:
    """Call it. A FedReproError becomes one line on stderr and exit code 2; an OSError (no space, no
    permission) likewise."""
    try:
        call()
    except FedReproError as error:
        sys.exit(_fail(f"error: {error}"))
    except OSError as error:
        sys.exit(_fail(f"error: {error.filename or 'file system'}: {error.strerror or error}"))
    except KeyboardInterrupt:
        sys.exit(_fail("stopped", code=130))


def _fail(line: str, code: int = 2) -> int:
    print(line, file=sys.stderr, flush=True)
    return code
