"""An upgrade keeps what was measured: from every earlier schema, with rows in every table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from autotune.measurement import Ending
from autotune.records import Base
from autotune.repository import Repository
from autotune.storage import connect, open_engine, storage_url, upgrade, upgrade_database
from autotune.stored import Role, StoredStudy
from tests.databases import copied, emptied, postgres_server, template
from tests.scripted import OWNER, an_original
from tests.unit.test_repository import NAME, SCORE, Study, a_record

MIGRATIONS = Path(__file__).parents[2] / "storage" / "migrations"
REVISIONS = [
    script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions("base", "heads")
]
"""Newest first."""


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    yield from postgres_server()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sa.Engine]:
    """A database of this version with rows in every table."""
    folder = tmp_path_factory.mktemp("filled")
    study = Study(copied(template(folder), folder))
    study.roster.beat(OWNER)
    study.roster.took("gpu-a", original=an_original(), lease_id="l" * 32, owner=OWNER)
    for number, ending in enumerate((Ending.COMPLETE, Ending.FAILED)):
        study.trial(number, reference=number == 0)
        study.begin(number, f"c{number}", role=Role.REFERENCE if number == 0 else Role.SEARCH)
        study.repository.end_start(f"c{number}", a_record(ending=ending), SCORE)
        study.repository.end_trial(NAME, number, ending)
    study.repository.set_verdict(NAME, {"kind": "better"})
    yield study.engine
    study.engine.dispose()


Rows = dict[str, list[dict[str, Any]]]


def rows_of(engine: sa.Engine) -> Rows:
    """Every row of our tables, as they are in this schema."""
    found = sa.MetaData()
    found.reflect(engine, only=lambda name, _: name in Base.metadata.tables)
    with engine.connect() as connection:
        return {
            table.name: [
                dict(row) for row in connection.execute(table.select().order_by("id")).mappings()
            ]
            for table in found.sorted_tables
        }


def put(engine: sa.Engine, rows: Rows) -> Rows:
    """Insert what this schema has columns for; returns that."""
    there = sa.MetaData()
    there.reflect(engine, only=lambda name, _: name in Base.metadata.tables)
    taken: Rows = {}
    with engine.begin() as connection:
        for table in there.sorted_tables:
            names = {column.name for column in table.columns}
            taken[table.name] = [
                {key: value for key, value in row.items() if key in names}
                for row in rows[table.name]
            ]
            assert taken[table.name], f"{table.name} is empty"
            connection.execute(table.insert(), taken[table.name])
    return taken


class UpgradeContract:
    """What holds on every database."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.mark.parametrize("revision", REVISIONS[1:])
    def test_no_row_is_lost_or_changed(self, url: str, filled: sa.Engine, revision: str) -> None:
        engine = connect(url)
        upgrade(engine, revision)
        before = put(engine, rows_of(filled))
        engine.dispose()
        upgrade_database(url)
        engine = open_engine(url, create=False)
        after = rows_of(engine)
        for table, rows in before.items():
            kept = [
                {key: value for key, value in row.items() if key in rows[0]} for row in after[table]
            ]
            gone = set(rows[0]) - set(after[table][0])
            assert gone <= {"driver"}, gone  # of 0001 to 0003: who ran it, now a table of its own
            assert kept == [{k: v for k, v in row.items() if k not in gone} for row in rows]
        engine.dispose()

    def test_a_study_of_the_schema_before_is_read_as_it_was(
        self, url: str, filled: sa.Engine
    ) -> None:
        engine = connect(url)
        upgrade(engine, REVISIONS[1])
        put(engine, rows_of(filled))
        engine.dispose()
        upgrade_database(url)
        engine = open_engine(url, create=False)
        stored = Repository(engine).load(NAME)
        engine.dispose()
        now = Repository(filled).load(NAME)
        assert stored.trials == now.trials
        assert without_the_fleet(stored) == without_the_fleet(now)


def without_the_fleet(study: StoredStudy) -> StoredStudy:
    """What the schema before this one knew: no runs, no wishes of operators."""
    hosts = [replace(host, state="", why="", driver=None) for host in study.hosts]
    return replace(study, drivers=(), concluding=None, hosts=tuple(hosts))


class TestSqlite(UpgradeContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path / 'autotune.db'}"


class TestPostgres(UpgradeContract):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        url = storage_url(postgres_url)
        emptied(url)
        return url
