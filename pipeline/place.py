"""Check and set up a process's environment: git checkout, user, terminal, CPU cores, owner of the files."""

import contextlib
import io
import os
import sys
from pathlib import Path

from pipeline.errors import ParamError
from pipeline.schema.documents import check_files
from pipeline.source_code import FOLDERS

HOME = Path(__file__).resolve().parents[1]  # the checkout of this code
TRACKED = "MLFLOW_TRACKING_URI"
LOOPBACK = "127.0.0.1,localhost"


def begin() -> None:
    """To be called first: `check_root`, `check_code`, `check_files`, and what other programs and the stages
    of DVC, which run in the root folder, would trip over."""
    check_root()
    check_code(HOME)
    sets = [folder for folder in HOME.glob("data/*") if folder.name != "raw"]
    check_files(HOME / ".cells", HOME / "reports", *sets)
    _name_user()
    if isinstance(sys.stdout, io.TextIOWrapper) and "utf" not in sys.stdout.encoding.lower():
        sys.stdout.reconfigure(errors="replace")  # a terminal without `±` shows `?`
    if mirror := os.environ.get("FEDREPRO_MIRROR"):
        os.environ["FEDREPRO_MIRROR"] = os.path.abspath(os.path.expanduser(mirror))
    address = os.environ.get(TRACKED, "")
    kind = next(start for start in ("sqlite:///", "file:", "") if address.startswith(start))
    path = address.removeprefix(kind)
    if path and ":" not in path and path != "databricks":  # a file or a folder, no server
        os.environ[TRACKED] = kind + os.path.abspath(path)
    if os.environ.get("http_proxy") or os.environ.get("HTTP_PROXY"):
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        if given != "*" and LOOPBACK not in given:  # a proxy's loopback is another machine's
            os.environ["no_proxy"] = ",".join(filter(None, (given, LOOPBACK)))


def _name_user() -> None:
    """A user without a name, as of `docker run --user`, gets one: DVC asks for it."""
    import pwd

    if not any(map(os.environ.get, ("LOGNAME", "USER", "LNAME", "USERNAME"))):
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            os.environ["LOGNAME"] = f"user{os.getuid()}"


def cores() -> int:
    """How many cores this process may use: those that it is allowed, and a container's quota."""
    from joblib import cpu_count  # a tenth of a second

    return cpu_count()


def checkout_of(folder: Path) -> Path | None:
    """The root of the checkout that a folder lies in; None outside of any."""
    return next(
        (one for one in (folder, *folder.parents) if (one / "pipeline" / "commands" / "cli.py").is_file()),
        None,
    )


def check_root() -> None:
    """ParamError where the current folder lies in another checkout than this code: it would read and write
    its checkout's files instead of those that the user sees."""
    with contextlib.suppress(OSError):  # a folder that is no more
        here = checkout_of(Path.cwd())
        if here not in (None, HOME):
            what = f"the current folder belongs to {here}, and the code is that of {HOME}"
            raise ParamError(f"{what}: call the command `fedrepro`, or set PYTHONPATH={here}")


def check_code(root: Path) -> None:
    """ParamError where Python would run other code than the files say whose text is hashed: a package beside
    a module of its name, bytecode that is never compared with its source, bytecode in the place of a module,
    and what Python runs by itself."""
    for name in ("sitecustomize.py", "usercustomize.py"):
        if (root / name).exists():
            raise ParamError(f"{name}: Python would run it before anything else: remove it")
    for folder in filter(Path.is_dir, (root / name for name in FOLDERS)):
        for path in folder.rglob("*"):
            if path.suffix == ".py" and (path.with_suffix("") / "__init__.py").exists():
                inside = path.with_suffix("").relative_to(root)
                raise ParamError(
                    f"{inside}/: Python would import it instead of {inside}.py: remove one of them"
                )
            if path.suffix == ".pyc":
                _check_bytecode(path, root)


def _check_bytecode(path: Path, root: Path) -> None:
    where = path.relative_to(root)
    if path.parent.name != "__pycache__":
        raise ParamError(f"{where}: bytecode without a source: remove it")
    with contextlib.suppress(OSError), open(path, "rb") as file:  # another process may replace it now
        kind = file.read(8)[4:]  # PEP 552: after the version; 0 where time and size of the source count
        if any(kind):
            raise ParamError(f"{where}: bytecode that is not compared with its source: remove it")


def surroundings(root: Path) -> dict[str, str]:
    """The environment of a process that runs the code at `root`, wherever Python would look for it."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))),
    }
