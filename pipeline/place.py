"""Check and set up the environment of a process: git checkout, user, terminal, CPU cores, owner of the files.

This module has everything that FedRepro takes from its environment or guards against in it: the place of
temporary files, proxies, Python's variables, graphics cards. tests/test_surroundings.py lists them in a
table.
"""

import contextlib
import importlib
import importlib.machinery
import io
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import FedReproError, ParamError, warn
from pipeline.schema.documents import check_files
from pipeline.source_code import FOLDERS

HOME = Path(__file__).resolve().parents[1]  # the checkout of this code
TRACKED = "MLFLOW_TRACKING_URI"
LOOPBACK = "127.0.0.1,localhost"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# of Python: they would change what child processes do with the code, or where they look for it
PYTHON = ("PYTHONOPTIMIZE", "PYTHONINSPECT", "PYTHONSAFEPATH")
# characters of a folder's path: a socket's name may have 107, and about 30 come after the folder
LONGEST = 70
# seconds that nvidia-smi may take: a driver that hangs does not come back
PATIENCE = 20.0
CARD = re.compile(r"\d+|(GPU|MIG)-[\w./-]+")


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
    for name in PYTHON:
        os.environ.pop(name, None)
    if any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES):
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        if given != "*" and LOOPBACK not in given:  # a proxy's loopback is another machine's
            os.environ["no_proxy"] = ",".join(filter(None, (given, LOOPBACK)))


def check_memory(module: str) -> None:
    """FedReproError where native code aborts while `module` is imported, since the address space is limited
    (`ulimit -v`): no exception tells this, so a fork tries it."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or module in sys.modules:
        return
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            importlib.import_module(module)
        os._exit(0)  # an exception will come in this process, too, and be told there
    if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        raise FedReproError(
            f"not enough memory: {limit >> 20} MiB may be used here (`ulimit -v`), and torch needs more to "
            "be loaded"
        )


def _name_user() -> None:
    """A user without a name, as of `docker run --user`, gets one: DVC asks for it."""
    import pwd

    if not any(map(os.environ.get, ("LOGNAME", "USER", "LNAME", "USERNAME"))):
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            os.environ["LOGNAME"] = f"user{os.getuid()}"


@contextlib.contextmanager
def short_temporary() -> Iterator[None]:
    """Meanwhile this process's temporary files lie in a folder whose path leaves room for a socket's name,
    where TMPDIR, as of a batch system, is a long one."""
    given = tempfile.tempdir
    if len(tempfile.gettempdir()) > LONGEST:
        short = ("/tmp", "/var/tmp", "/dev/shm")
        tempfile.tempdir = next((path for path in short if os.access(path, os.W_OK | os.X_OK)), given)
    try:
        yield
    finally:
        tempfile.tempdir = given


def cards() -> list[str]:
    """What CUDA_VISIBLE_DEVICES can say of one GPU each: the numbers, or of a card that is divided (MIG) its
    instances; empty where FEDREPRO_DEVICE chooses a device, and where nobody knows.

    The variable counts as CUDA reads it: up to the first word that is no card. nvidia-smi counts where it
    ends well, in time, and says what a card's number looks like.
    """
    if os.environ.get("FEDREPRO_DEVICE", "cuda") != "cuda":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _leading(visible.split(","))
    numbers = nvidia_smi("--query-gpu=index", "--format=csv,noheader").split()
    if not all(number.isdecimal() for number in numbers):
        return []
    return _instances(numbers) if numbers else []


def _leading(words: list[str]) -> list[str]:
    """The cards before the first word that is none."""
    stripped = [word.strip() for word in words]
    none = (at for at, word in enumerate(stripped) if not CARD.fullmatch(word))
    return stripped[: next(none, len(stripped))]


def _instances(numbers: list[str]) -> list[str]:
    """The cards, each that is divided replaced by its instances."""
    of: dict[str, list[str]] = {number: [] for number in numbers}
    card = ""
    for line in nvidia_smi("-L").splitlines():
        if match := re.match(r"GPU (\d+):", line):
            card = match[1]
        elif (match := re.search(r"\(UUID: (MIG-[\w./-]+)\)", line)) and card in of:
            of[card].append(match[1])
    return [name for number, instances in of.items() for name in instances or [number]]


def nvidia_smi(*arguments: str) -> str:
    """What it prints; nothing where it is missing, fails or hangs."""
    if not shutil.which("nvidia-smi"):
        return ""
    with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout if done.returncode == 0 else ""
    return ""


def check_driver() -> None:
    """One warning where a card is there that torch cannot use, as with a driver that is too old: training
    then takes the CPU."""
    if "FEDREPRO_DEVICE" in os.environ or not cards() or not shutil.which("nvidia-smi"):
        return
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CUDA's own, of several lines
        if torch.cuda.is_available() or torch.version.cuda is None:
            return
    driver = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").split() or ["unknown"]
    warn(
        f"torch, built for CUDA {torch.version.cuda}, cannot use the GPU that nvidia-smi shows: its driver "
        f"is {driver[0]}, perhaps too old. Training takes the CPU"
    )


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
    with contextlib.suppress(OSError):  # the current directory was deleted
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
    for path in (*root.glob("*.py"), *(init.parent for init in root.glob("*/__init__.py"))):
        if path.stem not in FOLDERS and _is_library(path.stem):
            raise ParamError(f"{path.name}: Python would import it in the place of {path.stem}: rename it")
    for folder in filter(Path.is_dir, (root / name for name in FOLDERS)):
        for path in folder.rglob("*"):
            if path.suffix == ".py" and (path.with_suffix("") / "__init__.py").exists():
                inside = path.with_suffix("").relative_to(root)
                raise ParamError(
                    f"{inside}/: Python would import it instead of {inside}.py: remove one of them"
                )
            # pytest's own, which it alone reads, has its name in it.
            if path.suffix == ".pyc" and "-pytest-" not in path.name:
                _check_bytecode(path, root)


def _is_library(name: str) -> bool:
    """Whether Python or its installed packages have a module of this name."""
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    known = importlib.machinery.PathFinder.find_spec(name, installed)
    return name in sys.stdlib_module_names or known is not None


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
