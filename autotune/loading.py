"""Read studies fast: plain column queries, put together by hand; a row object costs ten times more.

Every table is read with one query.  `since` reads only trials that have changed after a revision:
each change of a trial carries the study's next revision number, which is given under a lock of the
study's row, so whoever has seen a revision has seen all before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from autotune.records import (
    BucketRow,
    CodingRow,
    DriverRow,
    EvidenceRow,
    HostRow,
    StartRow,
    StudyRow,
    TrialRow,
)
from autotune.rows import stored_start
from autotune.stored import StoredDriver, StoredHost, StoredStart, StoredStudy, StoredTrial
from autotune.supervisors.base import Owner

__all__ = ["load_drivers", "load_hosts", "load_study", "load_trials", "study_row"]

TRIALS_AT_ONCE = 400
"""Trials that are named one by one in a query; SQLite takes 32766 parameters, PostgreSQL 65535."""


def study_row(connection: Connection, name: str) -> RowMapping | None:
    """The study's own row."""
    study = StudyRow.__table__
    return connection.execute(sa.select(study).where(study.c.name == name)).mappings().first()


def load_study(
    study: RowMapping,
    *,
    drivers: tuple[StoredDriver, ...],
    hosts: tuple[StoredHost, ...],
    trials: Iterable[StoredTrial],
) -> StoredStudy:
    """A whole study from its parts."""
    return StoredStudy(
        name=study["name"],
        definition=study["definition"],
        fingerprint=study["fingerprint"],
        provenance=study["provenance"],
        created_at_s=study["created_at_s"],
        verdict=study["verdict"],
        hosts=hosts,
        trials=tuple(trials),
        drivers=drivers,
        concluding=Owner(**study["concluding"]) if study["concluding"] else None,
    )


def load_hosts(
    connection: Connection, study_id: int, *, originals: bool = True
) -> tuple[StoredHost, ...]:
    """Hosts of a study in the order in which they came.

    Args:
        originals: Whether the services as they were found are wanted: they are nearly all bytes.
    """
    host = HostRow.__table__
    columns = [column for column in host.c if originals or column.name != "original"]
    rows = connection.execute(
        sa.select(*columns).where(host.c.study_id == study_id).order_by(host.c.id)
    ).mappings()
    return tuple(
        StoredHost(
            row["host"],
            row["original"] if originals else {},
            row["lease_id"],
            row["taken_at_s"],
            row["restored_at_s"],
            wanted=row["wanted"],
            state=row["state"],
            why=row["why"],
            driver=Owner(**row["driver"]) if row["driver"] else None,
        )
        for row in rows
    )


def load_drivers(connection: Connection, study_id: int) -> tuple[StoredDriver, ...]:
    """Runs of a study, oldest first."""
    driver = DriverRow.__table__
    rows = connection.execute(
        sa.select(driver).where(driver.c.study_id == study_id).order_by(driver.c.id)
    ).mappings()
    return tuple(
        StoredDriver(Owner(**row["owner"]), row["beat_at_s"], row["left_at_s"]) for row in rows
    )


def load_trials(
    connection: Connection,
    study_id: int,
    *,
    since: int = -1,
    number: int = -1,
    evidence: bool = True,
    raw: bool = True,
) -> list[StoredTrial]:
    """Trials in the order of their numbers.

    Args:
        since: Only trials that were changed after this revision.
        number: Only the trial of this number.
        evidence: Whether the links of the proof are wanted: they are most of the rows.
        raw: Whether their raw texts are wanted: they are most of the bytes.
    """
    trial, start = TrialRow.__table__, StartRow.__table__
    chosen = [trial.c.study_id == study_id]
    if since >= 0:
        chosen.append(trial.c.revision > since)
    if number >= 0:
        chosen.append(trial.c.number == number)
    trials = (
        connection.execute(sa.select(trial).where(*chosen).order_by(trial.c.number))
        .mappings()
        .all()
    )
    if since >= 0 and len(trials) <= TRIALS_AT_ONCE:
        chosen = [trial.c.id.in_([row["id"] for row in trials])]
    of_start: dict[str, Mapping[int, list[RowMapping]]] = {}
    tables: dict[str, Any] = {"buckets": BucketRow.__table__, "coding": CodingRow.__table__}
    if evidence:
        tables["evidence"] = EvidenceRow.__table__
    for key, table in tables.items():
        columns = [column for column in table.c if raw or column.name != "raw"]
        rows = connection.execute(
            sa.select(*columns)
            .join(start, start.c.id == table.c.start_id)
            .join(trial, trial.c.id == start.c.trial_id)
            .where(*chosen)
            .order_by(table.c.id)
        ).mappings()
        of_start[key] = _grouped(rows, "start_id")
    starts: dict[int, list[StoredStart]] = defaultdict(list)
    for row in connection.execute(
        sa.select(start)
        .join(trial, trial.c.id == start.c.trial_id)
        .where(*chosen)
        .order_by(start.c.id)
    ).mappings():
        parts = {key: found.get(row["id"], []) for key, found in of_start.items()}
        starts[row["trial_id"]].append(
            stored_start(
                row,
                buckets=parts["buckets"],
                evidence=parts.get("evidence", []),
                coding=parts["coding"][0] if parts["coding"] else None,
            )
        )
    return [
        StoredTrial(
            number=row["number"],
            parameters=row["parameters"],
            reference=row["reference"],
            retry_of=row["retry_of"],
            state=row["state"],
            told=row["told"],
            starts=tuple(starts[row["id"]]),
        )
        for row in trials
    ]


def _grouped(rows: Iterable[RowMapping], key: str) -> dict[int, list[RowMapping]]:
    found: dict[int, list[RowMapping]] = defaultdict(list)
    for row in rows:
        found[row[key]].append(row)
    return found
