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
    """The file that holds the runs; None where a server does."""
    address = uri(root).partition("?")[0]
    name = address.removeprefix("sqlite:///")
    return Path(name) if name not in (address, "", ":memory:") else None


def artifacts(root: Path) -> str | None:
    """The address of the folder into which runs' files go, next to their database; None where a server knows.
    In an address an apostrophe is encoded, which MLflow puts into its SQL as it is."""
    if uri(root).startswith("http"):
        return None
    return ((database(root) or root / "mlflow.db").resolve().parent / "mlartifacts").as_uri()


def make_usable(root: Path = ROOT) -> None:
    """See that the SQLite file is a whole MLflow database; nothing to do where a server has the runs.

    MLflow makes one in many transactions. A process that is killed among them leaves a part that none can
    use, and two at once fail. Hence a new one is made under another name, by one process at a time, then
    renamed. One that is unusable all the same is set aside: results are in git, and the next import brings
    them in again.
    """
    from sqlalchemy import Engine, event

    event.listen(Engine, "connect", _without_waiting)
    if (path := database(root)) is None:
        return
    with locked(root, "lock"):
        if path.exists() and (fault := _fault(path, root)):
            aside = path.with_name(f"{path.name}.unusable-{datetime.now():%Y%m%d-%H%M%S}")
            for part, new in zip(_parts(path), _parts(aside)):
                if part.exists():
                    os.replace(part, new)
            again = "`fedrepro import` fills a new one"
            warn(f"{path.name} cannot be used ({fault}): set aside as {aside.name}; {again}")
        if not path.exists():
            from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

            new = path.with_name(path.name + ".new")
            for part in _parts(new):  # of a killed process
                part.unlink(missing_ok=True)
            SqlAlchemyStore(f"sqlite:///{new}", artifacts(root)).engine.dispose()
            files.sync(new)
            os.replace(new, path)


def _without_waiting(connection: Any, _: Any) -> None:
    """SQLite goes on without waiting for the disk at each of MLflow's many commits. A killed process tears
    nothing by that; what a power failure tears is set aside and imported again."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=OFF")


def _fault(path: Path, root: Path) -> str | None:
    """What is wrong with a database; None for nothing. One of a checkout that was copied or moved puts files
    into the folder of the other one. One that is only locked, or that may not be read, raises
    sqlite3.OperationalError."""
    from alembic.script import ScriptDirectory
    from mlflow.store import db_migrations

    newest = ScriptDirectory(db_migrations.__path__[0]).get_current_head()
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as base:
            if (answer := base.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
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
    """The name of this working copy, drawn once, by which a shared server knows its runs."""
    path = root / ".cells" / "checkout"
    with locked(root, "checkout"):
        if not path.exists():
            files.write_text(path, uuid.uuid4().hex)
    return path.read_text(encoding="utf-8")


def locked(root: Path, purpose: str) -> contextlib.AbstractContextManager[None]:
    """One process at a time of all that use this database; with a server, of this working copy."""
    base = database(root) or root / ".cells" / "mlflow"
    return files.locked(base.with_name(f"{base.name}.{purpose}"))
