"""Save and load whole values; no ORM object leaves this module."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, selectinload

from autotune.definition_differences import summary
from autotune.definition_files import comparable
from autotune.errors import StudyMismatch, UnknownStudy
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.objective import Score
from autotune.records import CodingRow, EvidenceRow, HostRow, StartRow, StudyRow, TrialRow
from autotune.rows import bucket_row, plain_original, storable, stored_trial
from autotune.sglang.masking import masked_words
from autotune.storage import storage_errors
from autotune.stored import Role, StoredHost, StoredScore, StoredStart, StoredStudy, StoredTrial
from autotune.supervisors.base import Original, Owner

__all__ = [
    "Repository",
    "Role",
    "StoredHost",
    "StoredScore",
    "StoredStart",
    "StoredStudy",
    "StoredTrial",
]


class Repository:
    """All of our tables behind whole-value methods; every change is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._url = engine.url.render_as_string(hide_password=True)

    # -- study ----------------------------------------------------------------------------------
    def open_study(
        self,
        name: str,
        *,
        definition: Mapping[str, Any],
        fingerprint: str,
        provenance: Mapping[str, Any],
    ) -> bool:
        """Create the study or check that it was made from the same definition.

        Returns:
            Whether it was created.

        Raises:
            StudyMismatch: The definition moved; the message shows the first differences.
        """
        with self._session() as session:
            row = session.scalar(select(StudyRow).where(StudyRow.name == name))
            if row is None:
                session.add(
                    StudyRow(
                        name=name,
                        definition=dict(definition),
                        fingerprint=fingerprint,
                        provenance=dict(provenance),
                        created_at_s=time.time(),
                    )
                )
                return True
            if row.fingerprint != fingerprint:
                changes = summary(comparable(row.definition), comparable(definition))
                raise StudyMismatch(
                    f"the definition of study {name!r} has changed since it was started: {changes}",
                    hint="put it back, or copy it under another name to start a new study",
                )
            return False

    def names(self) -> tuple[str, ...]:
        with self._session() as session:
            return tuple(session.scalars(select(StudyRow.name).order_by(StudyRow.id)))

    def load(self, name: str) -> StoredStudy:
        """Read a whole study.

        Raises:
            UnknownStudy: The storage holds no study of this name.
        """
        with self._session() as session:
            study = self._study(session, name)
            trials = session.scalars(
                select(TrialRow)
                .where(TrialRow.study_id == study.id)
                .order_by(TrialRow.number)
                .options(
                    selectinload(TrialRow.starts).selectinload(StartRow.buckets),
                    selectinload(TrialRow.starts).selectinload(StartRow.evidence),
                    selectinload(TrialRow.starts).selectinload(StartRow.coding),
                )
            ).all()
            hosts = session.scalars(
                select(HostRow).where(HostRow.study_id == study.id).order_by(HostRow.id)
            ).all()
            return StoredStudy(
                name=study.name,
                definition=study.definition,
                fingerprint=study.fingerprint,
                provenance=study.provenance,
                created_at_s=study.created_at_s,
                driver=Owner(**study.driver) if study.driver else None,
                verdict=study.verdict,
                hosts=tuple(
                    StoredHost(h.host, h.original, h.lease_id, h.taken_at_s, h.restored_at_s)
                    for h in hosts
                ),
                trials=tuple(stored_trial(trial) for trial in trials),
            )

    def set_driver(self, name: str, owner: Owner | None) -> None:
        with self._session() as session:
            self._study(session, name).driver = asdict(owner) if owner else None

    def set_verdict(self, name: str, verdict: Mapping[str, Any]) -> None:
        with self._session() as session:
            self._study(session, name).verdict = dict(verdict)

    # -- hosts ----------------------------------------------------------------------------------
    def record_host(self, name: str, host: str, *, original: Original, lease_id: str) -> None:
        with self._session() as session:
            study = self._study(session, name)
            row = session.scalar(
                select(HostRow).where(HostRow.study_id == study.id, HostRow.host == host)
            )
            if row is None:
                row = HostRow(study_id=study.id, host=host)
                session.add(row)
            row.original = storable(plain_original(original))
            row.lease_id = lease_id
            row.taken_at_s = time.time()
            row.restored_at_s = None

    def host_restored(self, name: str, host: str) -> None:
        with self._session() as session:
            study = self._study(session, name)
            row = session.scalars(
                select(HostRow).where(HostRow.study_id == study.id, HostRow.host == host)
            ).one()
            row.restored_at_s = time.time()

    # -- trials and starts ------------------------------------------------------------------------
    def begin_trial(
        self,
        name: str,
        number: int,
        *,
        parameters: Mapping[str, Any],
        reference: bool,
        retry_of: int | None,
    ) -> None:
        with self._session() as session:
            session.add(
                TrialRow(
                    study_id=self._study(session, name).id,
                    number=number,
                    parameters=dict(parameters),
                    reference=reference,
                    retry_of=retry_of,
                    state="running",
                )
            )

    def begin_start(
        self,
        name: str,
        number: int,
        *,
        role: Role,
        round_: int,
        host: str,
        claim_id: str,
        nonce: str,
        owner: Owner,
        argv: tuple[str, ...],
    ) -> None:
        with self._session() as session:
            trial = self._trial(session, name, number)
            trial.starts.append(
                StartRow(
                    role=role,
                    round=round_,
                    host=host,
                    claim_id=claim_id,
                    nonce=nonce,
                    owner=asdict(owner),
                    argv=storable(masked_words(argv)),
                    started_at_s=time.time(),
                )
            )

    def add_bucket(self, claim_id: str, bucket: BucketMeasurement) -> None:
        """Save one bucket as soon as it is measured: a later fault loses nothing."""
        with self._session() as session:
            start = self._start(session, claim_id)
            if bucket.key not in {f"{b.context_tokens}x{b.concurrency}" for b in start.buckets}:
                start.buckets.append(bucket_row(bucket))

    def end_start(self, claim_id: str, record: StartRecord, score: Score | None) -> None:
        """Save how a start ended, with everything measured on it."""
        with self._session() as session:
            start = self._start(session, claim_id)
            for column in ("invocation_id", "stop_s", "load_s", "measure_s", "ended_at_s"):
                setattr(start, column, getattr(record, column))
            start.ending = record.ending
            start.failure = storable(asdict(record.failure)) if record.failure else None
            start.fingerprint = storable(record.fingerprint)
            start.texts = storable(record.texts)
            start.lossless = asdict(record.lossless) if record.lossless else None
            start.drift = asdict(record.drift) if record.drift else None
            kept = {f"{b.context_tokens}x{b.concurrency}" for b in start.buckets}
            start.buckets.extend(bucket_row(b) for b in record.buckets if b.key not in kept)
            start.evidence = [EvidenceRow(**storable(asdict(link))) for link in record.proof]
            if record.coding is not None:
                start.coding = CodingRow(
                    passed=record.coding.passed,
                    failed=record.coding.failed,
                    outcomes=dict(record.coding.outcomes),
                    samples=dict(record.coding.samples),
                    wall_s=record.coding.wall_s,
                    rules=dict(record.coding.rules),
                    sandbox=record.coding.sandbox,
                )
            if score is not None:
                start.score = score.value
                start.score_low, start.score_high = score.interval.low, score.interval.high
                start.score_ratio = score.ratio
                start.score_gate = score.gate
                start.violations = list(score.violations)

    def end_trial(self, name: str, number: int, state: str) -> None:
        with self._session() as session:
            self._trial(session, name, number).state = state

    def mark_told(self, name: str, number: int) -> None:
        with self._session() as session:
            self._trial(session, name, number).told = True

    # -- inside -----------------------------------------------------------------------------------
    @contextmanager
    def _session(self) -> Iterator[Session]:
        with storage_errors(self._url), Session(self._engine) as session, session.begin():
            yield session

    @staticmethod
    def _study(session: Session, name: str) -> StudyRow:
        row = session.scalar(select(StudyRow).where(StudyRow.name == name))
        if row is None:
            known = ", ".join(session.scalars(select(StudyRow.name))) or "none"
            raise UnknownStudy(f"the storage holds no study {name!r}", hint=f"it holds: {known}")
        return row

    def _trial(self, session: Session, name: str, number: int) -> TrialRow:
        study = self._study(session, name)
        return session.scalars(
            select(TrialRow).where(TrialRow.study_id == study.id, TrialRow.number == number)
        ).one()

    @staticmethod
    def _start(session: Session, claim_id: str) -> StartRow:
        return session.scalars(select(StartRow).where(StartRow.claim_id == claim_id)).one()
