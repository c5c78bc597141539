"""Open the database: one URL for Optuna's tables and ours, schema checked before use."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    InternalError,
    NoSuchModuleError,
    OperationalError,
)

from autotune import definitions
from autotune.errors import ConfigError, SchemaOutOfDate, StorageAway, StorageError

if TYPE_CHECKING:
    from alembic.config import Config
    from optuna.storages import RDBStorage

__all__ = [
    "DEFAULT_URL",
    "VERSION_TABLE",
    "connect",
    "downgrade",
    "is_away",
    "making_tables",
    "open_engine",
    "open_optuna",
    "storage_errors",
    "storage_url",
    "upgrade",
    "upgrade_database",
]

VERSION_TABLE = "autotune_alembic_version"
"""Optuna keeps `alembic_version` in the same database, so ours has its own name."""

DEFAULT_URL = "sqlite:///autotune.db"
# A reader (dashboard, status) may hold SQLite's lock for a moment; the driver waits this long.
SQLITE_BUSY_S = 30


def storage_url(option: str | None) -> str:
    """`--storage`, else AUTOTUNE_STORAGE, else `sqlite:///autotune.db` in the working directory.

    Raises:
        ConfigError: The text is no database URL.
    """
    text = option or os.environ.get("AUTOTUNE_STORAGE") or DEFAULT_URL
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            f"storage {text!r} is not a database URL",
            hint="for example sqlite:///autotune.db or postgresql+psycopg://user@host/name",
        ) from error
    if url.drivername.startswith("sqlite") and url.database in (None, "", ":memory:"):
        raise ConfigError(
            f"storage {text!r} keeps nothing", hint="name a file: sqlite:///autotune.db"
        )
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    return url.render_as_string(hide_password=False)


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turn SQLAlchemy's errors into StorageError naming the database without its password."""
    try:
        yield
    except DBAPIError as error:
        cause = str(error.orig).strip().splitlines()[0] if error.orig else str(error)
        raise (StorageAway if is_away(error) else StorageError)(
            f"storage {make_url(url).render_as_string()} failed: {cause}",
            hint="check that the database is running and may be written",
        ) from error
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise StorageError(
            f"storage {make_url(url).render_as_string()} needs a driver that is missing: {error}"
        ) from error


def is_away(error: DBAPIError) -> bool:
    """Whether the database may answer the same question later: a restart, a network, a full disk.

    Codes are SQLSTATEs (PostgreSQL manual, appendix A): class 08 is a lost connection, 57P a server
    that shuts down or starts, 53300 too many connections, 55P03 a lock that took too long; psycopg
    gives none where it could not connect.
    """
    if not isinstance(error, OperationalError | InterfaceError | InternalError):
        return False
    if error.connection_invalidated:
        return True
    orig = error.orig
    if type(orig).__module__.partition(".")[0] not in ("psycopg", "psycopg2"):
        return any(word in str(orig) for word in ("database is locked", "disk is full"))
    state = getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)
    return state is None or state.startswith(("08", "57P")) or state in ("53300", "55P03")


POSTGRES_OPTIONS: Mapping[str, Any] = {
    "pool_pre_ping": True,
    "pool_size": 4,
    "max_overflow": 8,
    # A server that is gone without a word must not hold us for the two hours of TCP's default.
    "connect_args": {
        "connect_timeout": 10,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,  # keepalives do not count while something of ours is on its way
        "options": "-c lock_timeout=60s",
    },
}


def connect(url: str) -> Engine:
    """An engine on a database, whatever its schema."""
    with storage_errors(url):
        engine = sa.create_engine(url, **_options(url))
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _sqlite_foreign_keys)
    return engine


def _options(url: str) -> dict[str, Any]:
    """How connections of this kind of database are made and kept."""
    kind = make_url(url).get_backend_name()
    # Most of the time of reading a study is its JSON; this decoder is several times faster.
    options: dict[str, Any] = {"json_deserializer": from_json}
    if kind == "sqlite":
        return options | {"connect_args": {"timeout": SQLITE_BUSY_S}}
    return options | (dict(POSTGRES_OPTIONS) if kind == "postgresql" else {"pool_pre_ping": True})


def open_engine(url: str, *, create: bool) -> Engine:
    """Connect and check our schema.

    Args:
        create: Create the tables in a database without them; otherwise that is an error.

    Raises:
        StorageError: The database cannot be reached.
        SchemaOutOfDate: Our tables come from another version.
    """
    parsed = make_url(url)
    shown = parsed.render_as_string()
    if not create:
        _require_file(url)
    engine = connect(url)
    try:
        with storage_errors(url):
            if sa.inspect(engine).has_table("autotune_study"):
                _require_head(engine)
            elif create:
                with making_tables(engine):
                    if not sa.inspect(engine).has_table("autotune_study"):
                        upgrade(engine)
                _require_head(engine)
            else:
                raise StorageError(f"{shown} holds no study of autotune")
    except StorageError:
        engine.dispose()
        raise
    return engine


def upgrade_database(url: str) -> None:
    """Bring the tables of an existing database to this version.

    Raises:
        StorageError: There is no such database, or it holds no study of autotune.
    """
    from alembic.util import CommandError

    _require_file(url)
    engine = connect(url)
    try:
        with storage_errors(url):
            if not sa.inspect(engine).has_table("autotune_study"):
                shown = make_url(url).render_as_string()
                raise StorageError(f"{shown} holds no study of autotune")
            try:
                upgrade(engine)
            except CommandError as error:
                raise SchemaOutOfDate(f"the tables cannot be upgraded: {error}") from error
    finally:
        engine.dispose()


def _require_file(url: str) -> None:
    parsed = make_url(url)
    file = parsed.database if parsed.drivername.startswith("sqlite") else None
    if file and not os.path.exists(file):
        raise StorageError(
            f"there is no database {os.path.abspath(file)}",
            hint="give --storage, or run a study first",
        )


@contextmanager
def making_tables(engine: Engine) -> Iterator[None]:
    """Two first runs at once do not make the tables twice.

    PostgreSQL holds the lock with a connection, SQLite's lies on the folder: a second descriptor
    of the file itself would drop SQLite's own locks when it is closed.
    """
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _MAKING})
            try:
                yield
            finally:
                connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _MAKING})
        return
    folder = os.path.dirname(os.path.abspath(str(engine.url.database)))
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"the folder of the database cannot be opened: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_MAKING = 0x6175746F74756E65
"""Key of the advisory lock: the letters `autotune`."""


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring our tables to `revision`; Optuna's are not touched."""
    from alembic import command

    with engine.begin() as connection:
        config = _alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Take our tables back to `revision` ("base" removes them)."""
    from alembic import command

    with engine.begin() as connection:
        config = _alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def open_optuna(url: str) -> RDBStorage:
    """Optuna's storage on the same database."""
    from optuna.exceptions import OptunaError
    from optuna.storages import RDBStorage

    engine = connect(url)
    try:
        with storage_errors(url), making_tables(engine):
            return RDBStorage(url, engine_kwargs=_options(url))
    except OptunaError as error:
        raise StorageError(f"Optuna cannot use the storage: {error}") from error
    finally:
        engine.dispose()


def _alembic_config() -> Config:
    from alembic.config import Config

    for root in definitions.folder_roots("storage"):
        if (root / "migrations" / "env.py").is_file():
            config = Config()
            config.set_main_option("script_location", str(root / "migrations"))
            return config
    raise StorageError("the migrations are not installed")


def _require_head(engine: Engine) -> None:
    from alembic.script import ScriptDirectory

    with engine.connect() as connection:
        row = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).first()
    current = row[0] if row else None
    scripts = ScriptDirectory.from_config(_alembic_config())
    head = scripts.get_current_head()
    if current != head:
        known = {script.revision for script in scripts.walk_revisions()}
        raise SchemaOutOfDate(
            f"the tables are at revision {current}, this version needs {head}",
            hint="run `autotune db upgrade`"
            if current in known or current is None
            else "they were made by a newer version of autotune: use that one",
        )


def _sqlite_foreign_keys(connection: object, _: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
