"""Save and load whole values; no ORM object leaves this module.

Every change of a trial takes the study's next revision number under the lock of the study's row, so
that a reader who has seen a revision asks only for what came after it (`autotune.loading`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, joinedload, selectinload

from autotune import loading
from autotune.bulk import bulk
from autotune.definition_differences import summary
from autotune.definition_files import comparable
from autotune.errors import StorageError, StudyMismatch, UnknownStudy
from autotune.measurement import BucketMeasurement, StartRecord
from autotune.objective import Score
from autotune.records import BucketRow, CodingRow, EvidenceRow, StartRow, StudyRow, TrialRow
from autotune.rows import bucket_row, storable
from autotune.sglang.masking import masked_words
from autotune.storage import storage_errors
from autotune.stored import Role, StoredHost, StoredScore, StoredStart, StoredStudy, StoredTrial
from autotune.supervisors.base import Owner

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
    """Studies, trials and starts behind whole-value methods; every change is one transaction.

    Each may be repeated: what is there already is left as it is.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.url = engine.url.render_as_string(hide_password=True)

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
        row = StudyRow(
            name=name,
            definition=dict(definition),
            fingerprint=fingerprint,
            provenance=dict(provenance),
            created_at_s=time.time(),
        )
        try:
            with self.session() as session:
                found = session.scalar(select(StudyRow).where(StudyRow.name == name))
                if found is None:
                    session.add(row)
                    session.flush()
                    return True
                if found.fingerprint != fingerprint:
                    changes = summary(comparable(found.definition), comparable(definition))
                    raise StudyMismatch(
                        f"the definition of study {name!r} has changed since it was started: "
                        f"{changes}",
                        hint="put it back, or copy it under another name to start a new study",
                    )
                return False
        except StorageError as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            # Another first run was quicker by a moment.
            return self.open_study(
                name, definition=definition, fingerprint=fingerprint, provenance=provenance
            )

    def names(self) -> tuple[str, ...]:
        with self.session() as session:
            return tuple(session.scalars(select(StudyRow.name).order_by(StudyRow.id)))

    def definition(self, name: str) -> Mapping[str, Any]:
        """What a study was defined as, without its trials.

        Raises:
            UnknownStudy: The storage holds no study of this name.
        """
        with self.session() as session:
            return dict(self.study(session, name).definition)

    def load(self, name: str, *, evidence: bool = True, raw: bool = True) -> StoredStudy:
        """Read a whole study.

        Args:
            evidence: Whether the links of the proofs are wanted: they are most of the rows.
            raw: Whether their raw texts are wanted: they are most of the bytes.

        Raises:
            UnknownStudy: The storage holds no study of this name.
        """
        return self.load_since(name, -1, evidence=evidence, raw=raw)[1]

    def with_proof(self, stored: StoredStudy, number: int) -> StoredStudy:
        """The same study with the links of one trial's proof."""
        with storage_errors(self.url), self.engine.connect() as connection:
            study = loading.study_row(connection, stored.name)
            if study is None:
                return stored
            found = loading.load_trials(connection, study["id"], number=number)
        whole = {trial.number: trial for trial in (*stored.trials, *found)}
        return replace(stored, trials=tuple(whole.values()))

    @bulk()
    def load_since(
        self,
        name: str,
        revision: int,
        *,
        evidence: bool = False,
        raw: bool = True,
        originals: bool = True,
    ) -> tuple[int, StoredStudy]:
        """The study with only those trials that have changed after a revision, and the newest one.

        Raises:
            UnknownStudy: The storage holds no study of this name.
        """
        with storage_errors(self.url), self.engine.connect() as connection:
            study = loading.study_row(connection, name)
            if study is None:
                with self.session() as session:
                    raise _unknown(session, name)
            trials: list[StoredTrial] = []
            if study["revision"] != revision or revision < 0:
                trials = loading.load_trials(
                    connection, study["id"], since=revision, evidence=evidence, raw=raw
                )
            whole = loading.load_study(
                study,
                drivers=loading.load_drivers(connection, study["id"]),
                hosts=loading.load_hosts(connection, study["id"], originals=originals),
                trials=trials,
            )
            return study["revision"], whole

    def set_verdict(self, name: str, verdict: Mapping[str, Any]) -> None:
        with self.session() as session:
            self.study(session, name).verdict = dict(verdict)

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
        with self.session() as session:
            study_id, revision = self._next_revision(session, name)
            if session.scalar(
                select(TrialRow.id).where(TrialRow.study_id == study_id, TrialRow.number == number)
            ):
                return
            session.add(
                TrialRow(
                    study_id=study_id,
                    number=number,
                    parameters=dict(parameters),
                    reference=reference,
                    retry_of=retry_of,
                    state="running",
                    revision=revision,
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
        with self.session() as session:
            trial = self._changed(session, name, number)
            if session.scalar(select(StartRow.id).where(StartRow.claim_id == claim_id)):
                return
            session.add(
                StartRow(
                    trial_id=trial.id,
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
        with self.session() as session:
            start_id = self._changed_start(session, claim_id)
            known = select(BucketRow.id).where(
                BucketRow.start_id == start_id,
                BucketRow.context_tokens == bucket.context_tokens,
                BucketRow.concurrency == bucket.concurrency,
            )
            if session.scalar(known) is None:
                row = bucket_row(bucket)
                row.start_id = start_id
                session.add(row)

    def end_start(self, claim_id: str, record: StartRecord, score: Score | None) -> None:
        """Save how a start ended, with everything measured on it."""
        with self.session() as session:
            start = session.get_one(
                StartRow,
                self._changed_start(session, claim_id),
                options=[joinedload(StartRow.coding), selectinload(StartRow.buckets)],
            )
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
            if record.coding is not None and start.coding is None:
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
        """Save a trial's final state: Optuna has been told of it."""
        with self.session() as session:
            trial = self._changed(session, name, number)
            trial.state, trial.told = state, True

    # -- inside -----------------------------------------------------------------------------------
    @contextmanager
    def session(self) -> Iterator[Session]:
        """One transaction; errors in the words of `autotune.errors`."""
        with storage_errors(self.url), Session(self.engine) as session, session.begin():
            yield session

    @staticmethod
    def study(session: Session, name: str) -> StudyRow:
        """The row of a study.

        Raises:
            UnknownStudy: The storage holds no study of this name.
        """
        row = session.scalar(select(StudyRow).where(StudyRow.name == name))
        if row is None:
            raise _unknown(session, name)
        return row

    @staticmethod
    def _next_revision(session: Session, name: str) -> tuple[int, int]:
        """Id and next revision of a study; nobody else changes it until this transaction ends."""
        row = session.execute(
            update(StudyRow)
            .where(StudyRow.name == name)
            .values(revision=StudyRow.revision + 1)
            .returning(StudyRow.id, StudyRow.revision),
            execution_options={"synchronize_session": False},
        ).first()
        if row is None:
            raise _unknown(session, name)
        return row[0], row[1]

    def _changed(self, session: Session, name: str, number: int) -> TrialRow:
        """A trial that this transaction changes."""
        study_id, revision = self._next_revision(session, name)
        trial = session.scalars(
            select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number == number)
        ).one()
        trial.revision = revision
        return trial

    def _changed_start(self, session: Session, claim_id: str) -> int:
        """Id of a start that this transaction changes."""
        found = session.execute(
            select(StartRow.id, TrialRow.id, StudyRow.name)
            .join(TrialRow, StartRow.trial_id == TrialRow.id)
            .join(StudyRow, TrialRow.study_id == StudyRow.id)
            .where(StartRow.claim_id == claim_id)
        ).one_or_none()
        if found is None:
            raise StorageError(f"the storage holds no start {claim_id}")
        start_id, trial_id, name = found
        _, revision = self._next_revision(session, name)
        session.execute(
            update(TrialRow).where(TrialRow.id == trial_id).values(revision=revision),
            execution_options={"synchronize_session": False},
        )
        return int(start_id)


def _unknown(session: Session, name: str) -> UnknownStudy:
    known = ", ".join(session.scalars(select(StudyRow.name))) or "none"
    return UnknownStudy(f"the storage holds no study {name!r}", hint=f"it holds: {known}")
