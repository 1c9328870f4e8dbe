"""Exceptions for mistakes that a user can correct, and how a command reports them: one line, exit code 2."""

import csv
import difflib
import lzma
import re
import struct
import sys
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable

NOT_INSTALLED = (
    "the package {!r} is not installed in this Python, {}: `make install` once, then "
    "`source .venv/bin/activate`"
)
NO_MEMORY = "not enough memory; smaller batches or networks, or FEDREPRO_WORKERS=1, need less"
# of the errors by which NumPy, torch, oneDNN, C++ and the system tell that there is none
SHORT = (
    *("out of memory", "allocate memory", "not enough memory", "could not create a primitive", "bad_alloc"),
    *("can't start new thread", "failed to map segment", "unable to allocate", "std::bad"),
)
MOST = 24  # names that a message lists
# What reading a damaged or foreign document or archive raises.
DAMAGED = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, EOFError),
    *(NotImplementedError, SyntaxError, tokenize.TokenError, struct.error, csv.Error),
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
NO_REPOSITORY = (
    "this folder is not a git repository, which DVC needs: clone FedRepro with git instead of "
    "downloading an archive"
)


class FedReproError(Exception):
    """Base of all expected errors; the text is one line that names file and key."""


class ParamError(FedReproError):
    """A parameter file has an unknown key, a wrong type or a value out of range."""


class DataError(FedReproError):
    """A data file is missing, truncated or altered, or a user has to download it."""


class TrainingError(FedReproError):
    """Training cannot continue: the loss is not finite, or a method does not fit the scenario."""


class WorkerError(TrainingError):
    """A training process ended without a message, often because memory ran out."""


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


def conflict(text: str) -> str:
    """`:20: a merge conflict of git's ...` for a text that contains one; otherwise None."""
    if not (match := re.search(r"^<<<<<<< ", text, re.M)):
        return ""
    line = text.count("\n", 0, match.start()) + 1
    return f":{line}: a merge conflict of git's; keep one of its two parts and delete the marks"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """`unknown method 'fedporx' (nearest: 'fedprox')`: the unknown name and the most similar known one."""
    known = [str(k) for k in known]
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    more = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    listed = ", ".join(map(repr, sorted(known)[:MOST])) or "none"
    hint = f"nearest: {near[0]!r}" if near else f"known: {listed}{more}"
    return f"unknown {kind} {str(name)!r:.80} ({hint})"


def cause(error: BaseException) -> str:
    """`ValueError: what is wrong`, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def short_of_memory(error: Exception) -> bool:
    """Whether an error of Python, NumPy or torch means that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in SHORT)


def guarded(call: Callable[[], object]) -> None:
    """Call a function. A FedReproError becomes one line on stderr and exit code 2.

    An OSError (full disk, missing permission) and a lack of memory are reported in the same way.
    """
    try:
        call()
    except FedReproError as error:
        sys.exit(_fail(f"error: {error}"))
    except (MemoryError, RuntimeError, ImportError) as error:
        if not short_of_memory(error):
            raise
        sys.exit(_fail(f"error: {NO_MEMORY}"))
    except OSError as error:
        sys.exit(_fail(f"error: {error.filename or 'file system'}: {error.strerror or error}"))
    except KeyboardInterrupt:
        sys.exit(_fail("stopped", code=130))


def _fail(line: str, code: int = 2) -> int:
    print(line, file=sys.stderr, flush=True)
    return code
