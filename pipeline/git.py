"""Run git commands and read files of the last commit; a failure becomes an error of one line."""

import contextlib
import os
import shlex
import subprocess
from pathlib import Path

from pipeline.errors import NO_REPOSITORY, FedReproError

# ways to fetch; others, as fd:: and ext::, run what an address says or wait for ever
PROTOCOLS = "file:git:http:https:ssh"


def git(root: Path, *arguments: str) -> str:
    """What git prints in `root`; FedReproError with its last line where it fails."""
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            env={"GIT_ALLOW_PROTOCOL": PROTOCOLS, **os.environ, "LC_ALL": "C"},
        ).stdout.rstrip("\n")
    except FileNotFoundError:
        raise FedReproError("FedRepro needs git, which is not installed") from None
    except subprocess.CalledProcessError as error:
        if "dubious ownership" in error.stderr:  # as of a folder mounted into a container
            add = f"git config --global --add safe.directory {shlex.quote(str(root.resolve()))}"
            whose = f"{root}: its files belong to another user, and git does not read it"
            raise FedReproError(f"{whose}; if you trust it: `{add}`") from None
        lines = error.stderr.strip().splitlines() or ["failed"]
        none = any("not a git repository" in line for line in lines)  # a hint may come after it
        word = next((one for one in arguments if one.isalpha()), arguments[0])
        raise FedReproError(NO_REPOSITORY if none else f"git {word}: {lines[-1]}") from None


def check_owner(root: Path) -> None:
    """FedReproError where git refuses the repository for its owner: results would name no commit."""
    try:
        git(root, "rev-parse")
    except FedReproError as error:
        if "safe.directory" in str(error):
            raise


def unchanged(root: Path, pattern: str) -> set[Path]:
    """The files of a pattern (`papers/*/paper.yaml`, where * stops at a slash) that are in the last commit
    and were not changed since; none where git cannot tell."""
    wanted = f":(glob){pattern}"
    try:
        tracked = git(root, "ls-files", "-z", "--", wanted).split("\0")
        changed = git(root, "diff", "--name-only", "-z", "--no-renames", "HEAD", "--", wanted).split("\0")
        top = Path(git(root, "rev-parse", "--show-toplevel"))
    except FedReproError:
        return set()
    moved = {top / name for name in changed if name}
    return {root / name for name in tracked if name and (root / name).resolve() not in moved}


def committed(root: Path, name: Path) -> bytes | None:
    """A file of the last commit, `name` relative to `root`; None where there is none, or no git."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "-C", root, "show", f"HEAD:./{name.as_posix()}"], capture_output=True)
        return done.stdout if done.returncode == 0 else None
    return None
