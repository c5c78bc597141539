"""Opening the database: schema checked before use, migrations there and back, errors in words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from autotune.errors import ConfigError, SchemaOutOfDate, StorageError
from autotune.records import Base
from autotune.storage import (
    DEFAULT_URL,
    VERSION_TABLE,
    connect,
    downgrade,
    open_engine,
    open_optuna,
    storage_errors,
    storage_url,
    upgrade,
)
from tests.databases import emptied, postgres_server

MIGRATIONS = Path(__file__).parents[2] / "storage" / "migrations"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    yield from postgres_server()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'autotune.db'}"


def ours(engine: Engine) -> set[str]:
    return {name for name in sa.inspect(engine).get_table_names() if name.startswith("autotune_")}


def others(engine: Engine) -> set[str]:
    return set(sa.inspect(engine).get_table_names()) - ours(engine)


def version(engine: Engine, table: str) -> str | None:
    with engine.connect() as connection:
        return connection.execute(sa.text(f"SELECT version_num FROM {table}")).scalar()


def set_version(engine: Engine, text: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '{text}'"))


def make_optunas_tables(url: str) -> None:
    open_optuna(storage_url(url)).engine.dispose()


def alembic(connection: sa.Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


class SchemaContract:
    """What holds on every database."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    def test_the_tables_are_made_at_the_first_use_and_found_at_the_second(self, url: str) -> None:
        first = open_engine(url, create=True)
        assert set(Base.metadata.tables) <= ours(first)
        first.dispose()
        again = open_engine(url, create=False)
        assert set(Base.metadata.tables) <= ours(again)
        again.dispose()

    def test_the_models_and_the_migrations_agree(self, url: str) -> None:
        """Optuna's tables in the same database are no difference."""
        engine = open_engine(url, create=True)
        make_optunas_tables(url)
        with engine.begin() as connection:
            command.check(alembic(connection))
        engine.dispose()

    def test_optunas_tables_and_version_are_untouched(self, url: str) -> None:
        make_optunas_tables(url)
        engine = connect(storage_url(url))
        tables, before = others(engine), version(engine, "alembic_version")
        assert "alembic_version" in tables
        upgrade(engine)
        assert set(Base.metadata.tables) <= ours(engine)
        downgrade(engine, "base")
        assert others(engine) == tables
        assert version(engine, "alembic_version") == before
        engine.dispose()

    def test_down_removes_ours_and_up_makes_them_again(self, url: str) -> None:
        engine = open_engine(url, create=True)
        head = version(engine, VERSION_TABLE)
        downgrade(engine, "base")
        assert ours(engine) <= {VERSION_TABLE}
        assert version(engine, VERSION_TABLE) is None
        upgrade(engine)
        assert version(engine, VERSION_TABLE) == head
        assert set(Base.metadata.tables) <= ours(engine)
        upgrade(engine)
        engine.dispose()

    def test_every_migration_goes_down_and_up_by_itself(self, url: str) -> None:
        engine = connect(storage_url(url))
        script = ScriptDirectory(str(MIGRATIONS))
        for step in reversed(list(script.walk_revisions())):
            upgrade(engine, step.revision)
            downgrade(engine, str(step.down_revision or "base"))
            upgrade(engine, step.revision)
        with engine.begin() as connection:
            command.check(alembic(connection))
        engine.dispose()

    @pytest.mark.parametrize("foreign", ["0000", "9999"])
    def test_another_schema_is_refused_with_the_way_out(self, url: str, foreign: str) -> None:
        engine = open_engine(url, create=True)
        set_version(engine, foreign)
        with pytest.raises(SchemaOutOfDate) as caught:
            open_engine(url, create=True)
        assert foreign in caught.value.message
        assert "newer version of autotune" in caught.value.hint
        engine.dispose()


class TestSqlite(SchemaContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'autotune.db'}"


class TestPostgres(SchemaContract):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        url = storage_url(postgres_url)
        emptied(url)
        return url


# -- opening --------------------------------------------------------------------------------------


def test_a_missing_database_is_named_and_not_made(url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        open_engine(url, create=False)
    assert str(tmp_path / "autotune.db") in caught.value.message
    assert "--storage" in caught.value.hint
    assert not (tmp_path / "autotune.db").exists()


def test_a_file_that_is_no_database_is_said_to_be_none(url: str, tmp_path: Path) -> None:
    (tmp_path / "autotune.db").write_bytes(b"this is a text, and a long one at that " * 100)
    for create in (True, False):
        with pytest.raises(StorageError, match="not a database"):
            open_engine(url, create=create)


def test_a_database_without_our_tables_holds_no_study(url: str) -> None:
    make_optunas_tables(url)
    with pytest.raises(StorageError, match="holds no study of autotune"):
        open_engine(url, create=False)
    engine = open_engine(url, create=True)
    assert set(Base.metadata.tables) <= ours(engine)
    engine.dispose()


def test_a_folder_that_does_not_exist_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        open_engine(f"sqlite:///{tmp_path}/nowhere/autotune.db", create=True)


def test_a_server_that_is_not_there_is_a_storage_error() -> None:
    with pytest.raises(StorageError) as caught:
        open_engine("postgresql+psycopg://user:hunter22@127.0.0.1:1/name", create=False)
    assert "hunter22" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


def test_a_driver_that_is_not_installed_is_named() -> None:
    with pytest.raises(StorageError, match="needs a driver"):
        open_engine("mysql+mysqldb://user@127.0.0.1/name", create=False)


def test_foreign_keys_hold_in_sqlite(url: str) -> None:
    engine = open_engine(url, create=True)
    with pytest.raises(StorageError), storage_errors(url), engine.begin() as connection:
        connection.execute(
            sa.text(
                "INSERT INTO autotune_host (study_id, host, original, lease_id, taken_at_s)"
                " VALUES (77, 'a', '{}', '', 0)"
            )
        )
    engine.dispose()


def test_errors_of_the_database_name_it_without_its_password() -> None:
    def locked() -> None:
        raise OperationalError("SELECT 1", {}, Exception("database is locked\nmore"))

    with pytest.raises(StorageError) as caught, storage_errors("postgresql://u:hunter22@h/n"):
        locked()
    assert "database is locked" in caught.value.message
    assert "more" not in caught.value.message
    assert "hunter22" not in str(caught.value)


# -- the URL --------------------------------------------------------------------------------------


def test_where_the_url_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_STORAGE", raising=False)
    assert storage_url(None) == DEFAULT_URL
    monkeypatch.setenv("AUTOTUNE_STORAGE", "sqlite:///from-the-environment.db")
    assert storage_url(None) == "sqlite:///from-the-environment.db"
    assert storage_url("sqlite:///given.db") == "sqlite:///given.db"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_postgres_is_reached_by_its_driver_with_the_password_kept(scheme: str) -> None:
    assert storage_url(f"{scheme}://u:hunter22@h/n") == "postgresql+psycopg://u:hunter22@h/n"


@pytest.mark.parametrize("text", ["autotune.db", "not a url", "://x"])
def test_what_is_no_url_is_the_users_error(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a database URL"):
        storage_url(text)


def test_the_test_file_finds_the_migrations() -> None:
    assert os.path.isdir(MIGRATIONS)
