"""Create, check and lock the SQLite database of MLflow's runs, and replace it if it is unusable."""

import contextlib
import os
import sqlite3
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.errors import warn
from pipeline.schema import ROOT


def uri(root: Path = ROOT) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite file mlflow.db in the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"


def database(root: Path) -> Path | None:
    """The SQLite file that holds the runs; None if a server does."""
    address = uri(root).partition("?")[0]
    name = address.removeprefix("sqlite:///")
    return Path(name) if name not in (address, "", ":memory:") else None


def artifacts(root: Path) -> str | None:
    """The address of the folder for the files of runs, next to their database; None if a server decides.

    It is an address and no path, since MLflow puts it into its SQL as it is: an address has no apostrophe.
    """
    if uri(root).startswith("http"):
        return None
    return ((database(root) or root / "mlflow.db").resolve().parent / "mlartifacts").as_uri()


def make_usable(root: Path = ROOT) -> None:
    """Make the SQLite file if it is missing, and replace it if it is unusable; a server is left alone.

    MLflow makes a database in many transactions. A process that is killed between two of them leaves one that
    nobody can use, and two processes at once fail. Therefore a new one is made under another name, by one
    process at a time, and then renamed. A database that is unusable all the same is set aside: results are in
    git, and the next import brings them in again.
    """
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", _without_waiting)
    path = database(root)
    if path is None:
        return
    with locked(root, "lock"):
        fault = _fault(path, root) if path.exists() else None
        if fault:
            aside = path.with_name(f"{path.name}.unusable-{datetime.now():%Y%m%d-%H%M%S}")
            for part, new in zip(_parts(path), _parts(aside)):
                if part.exists():
                    os.replace(part, new)
            again = "`fedrepro import` fills a new one"
            warn(f"{path.name} cannot be used ({fault}): set aside as {aside.name}; {again}")
        if not path.exists():
            from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

            new = path.with_name(path.name + ".new")
            for part in _parts(new):  # a killed process may have left them
                part.unlink(missing_ok=True)
            SqlAlchemyStore(f"sqlite:///{new}", artifacts(root)).engine.dispose()
            files.sync(new)
            os.replace(new, path)


def _without_waiting(connection: Any, _: Any) -> None:
    """Let SQLite continue without waiting for the disk at each of MLflow's many commits.

    A killed process does no harm that way. A power failure may damage the database, which is then set aside,
    and its runs are imported again.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


def _fault(path: Path, root: Path) -> str | None:
    """What is wrong with a database, in words; None if it can be used.

    The database of a checkout that was copied or moved cannot: it puts files into the folder of the original.
    Raises sqlite3.OperationalError for one that is only locked, or that may not be read.
    """
    from alembic.script import ScriptDirectory
    from mlflow.store import db_migrations

    newest = ScriptDirectory(db_migrations.__path__[0]).get_current_head()
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as base:
            answer = base.execute("PRAGMA quick_check(1)").fetchone()[0]
            if answer != "ok":
                return answer.splitlines()[-1]
            begun = base.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            if not begun or base.execute("SELECT * FROM alembic_version").fetchall() != [(newest,)]:
                return "incomplete, or of another version of MLflow"
            places = {place or "" for (place,) in base.execute("SELECT artifact_location FROM experiments")}
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return str(error)
    others = {place for place in places if place.endswith("/mlartifacts")} - {artifacts(root)}
    if path != root / "mlflow.db" or not others:
        return None
    return f"its files go to {min(others)}, of a checkout that was copied or moved"


def _parts(path: Path) -> list[Path]:
    """A database and its SQLite journals, which must never meet another database."""
    return [path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm", "")]


def checkout(root: Path) -> str:
    """The random name of this working copy, which marks its runs on a server that several share."""
    path = root / ".cells" / "checkout"
    with locked(root, "checkout"):
        if not path.exists():
            files.write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")


def locked(root: Path, purpose: str) -> contextlib.AbstractContextManager[None]:
    """Lock out other processes that use this database; with a server, those of this working copy.

    root     folder of the repository
    purpose  only processes with the same purpose wait for each other
    """
    base = database(root) or root / ".cells" / "mlflow"
    return files.locked(base.with_name(f"{base.name}.{purpose}"))
