"""Who takes part in a study: its drivers, and its hosts with what is wanted of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy import select
from sqlalchemy.orm import Session

from autotune.errors import StorageError
from autotune.loading import load_drivers
from autotune.records import DriverRow, HostRow, StudyRow
from autotune.repository import Repository
from autotune.rows import plain_original, storable
from autotune.stored import StoredDriver, Wanted
from autotune.supervisors.base import Original, Owner

__all__ = ["Roster", "owner_key"]


def owner_key(owner: Owner) -> str:
    """One run of one process: pids come back, start times do not."""
    return f"{owner.machine}/{owner.boot_id}/{owner.pid}/{owner.started_at_s}/{owner.taken_at_s}"


class Roster:
    """Drivers and hosts of one study.

    Args:
        name: Of the study.
    """

    def __init__(self, repository: Repository, name: str) -> None:
        self._repository = repository
        self._name = name
        self._postgres = repository.engine.dialect.name == "postgresql"

    @property
    def shared(self) -> bool:
        """Whether several drivers may use this database at once."""
        return self._postgres

    # -- drivers ----------------------------------------------------------------------------------
    def beat(self, owner: Owner) -> None:
        """Say that this driver lives, by the database's clock; the first time it joins."""
        with self._repository.session() as session:
            study = self._repository.study(session, self._name)
            key, now_s = owner_key(owner), self._now_s(session)
            row = session.scalar(
                select(DriverRow).where(DriverRow.study_id == study.id, DriverRow.key == key)
            )
            if row is None:
                row = DriverRow(study_id=study.id, key=key, owner=asdict(owner))
                session.add(row)
            row.beat_at_s, row.left_at_s = now_s, None

    def leave(self, owner: Owner) -> None:
        """This driver ends by itself."""
        with self._repository.session() as session:
            study = self._repository.study(session, self._name)
            for row in session.scalars(
                select(DriverRow).where(
                    DriverRow.study_id == study.id, DriverRow.key == owner_key(owner)
                )
            ):
                row.left_at_s = self._now_s(session)

    def silent_s(self) -> dict[str, float]:
        """By the key of a driver that has not left: seconds since it was heard of."""
        with self._repository.session() as session:
            study = self._repository.study(session, self._name)
            now_s = self._now_s(session)
            rows = session.scalars(
                select(DriverRow).where(
                    DriverRow.study_id == study.id, DriverRow.left_at_s.is_(None)
                )
            )
            return {row.key: now_s - row.beat_at_s for row in rows}

    def drivers(self) -> tuple[StoredDriver, ...]:
        """Every run of the study, oldest first."""
        with self._repository.session() as session:
            study = self._repository.study(session, self._name)
            return load_drivers(session.connection(), study.id)

    def conclude_by(self, owner: Owner, *, alive: Callable[[Owner], bool]) -> Owner:
        """Who measures the final rounds: the first that asks, or who asks after he has died.

        SQLite has one driver at a time, so whoever asks is the one.
        """
        with self.turn(), self._repository.session() as session:
            study = self._repository.study(session, self._name)
            if study.concluding is not None and self._postgres:
                other = Owner(**study.concluding)
                if other == owner or alive(other):
                    return other
            study.concluding = asdict(owner)
            return owner

    @contextmanager
    def turn(self) -> Iterator[None]:
        """No other driver decides what comes next while this is held.

        SQLite has one driver at most; PostgreSQL frees the lock when the connection is gone.
        """
        if not self._postgres:
            yield
            return
        with self._repository.session() as session:
            study_id = self._repository.study(session, self._name).id
            session.execute(
                sa.text("SELECT pg_advisory_xact_lock(:a, :b)"), {"a": _LOCK, "b": study_id}
            )
            yield

    # -- hosts ------------------------------------------------------------------------------------
    def took(self, host: str, *, original: Original, lease_id: str, owner: Owner) -> None:
        """A driver has the host's lease."""
        with self._repository.session() as session:
            row = self._host(session, host)
            row.original = storable(plain_original(original))
            row.lease_id = lease_id
            row.taken_at_s = time.time()
            row.restored_at_s = None
            row.state, row.why, row.driver = "in use", "", asdict(owner)

    def restored(self, host: str) -> None:
        """The host is as it was found."""
        with self._repository.session() as session:
            row = self._host(session, host)
            row.restored_at_s = time.time()
            row.state = "drained" if row.wanted == Wanted.DRAIN else "restored"

    def say(self, host: str, state: str, why: str) -> None:
        """What has become of a host."""
        with self._repository.session() as session:
            row = self._host(session, host)
            row.state, row.why = state, storable(why)

    def want(self, host: str, wanted: Wanted) -> bool:
        """What an operator wants of a host; a host that the study does not know is added.

        Returns:
            Whether a run has ever had it.
        """
        with self._repository.session() as session:
            row = self._host(session, host)
            row.wanted = wanted
            if wanted == Wanted.DRAIN and row.taken_at_s is None:
                row.state = "drained"
            return row.taken_at_s is not None

    def wanted(self) -> dict[str, Wanted]:
        """By host: what an operator wants of it."""
        with self._repository.session() as session:
            study = self._repository.study(session, self._name)
            rows = session.execute(
                select(HostRow.host, HostRow.wanted).where(HostRow.study_id == study.id)
            )
            return {host: Wanted(wanted) for host, wanted in rows}

    # -- inside -----------------------------------------------------------------------------------
    def _host(self, session: Session, host: str) -> HostRow:
        study: StudyRow = self._repository.study(session, self._name)
        row = session.scalar(
            select(HostRow).where(HostRow.study_id == study.id, HostRow.host == host)
        )
        if row is None:
            row = HostRow(study_id=study.id, host=host, original={}, wanted=Wanted.USE)
            session.add(row)
        return row

    def _now_s(self, session: Session) -> float:
        """Unix seconds of the one clock that all drivers share."""
        if not self._postgres:
            return time.time()
        now = session.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())"))
        if now is None:
            raise StorageError("the database tells no time")
        return float(now)


_LOCK = 0x61757475
"""First half of the key of our advisory locks: the letters `autu`."""
