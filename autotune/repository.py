"""Save and load whole values; no ORM object leaves this module."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, selectinload

from autotune.definition_files import comparable
from autotune.errors import StudyMismatch, UnknownStudy
from autotune.measurement import (
    BucketMeasurement,
    BucketQuality,
    CodingResult,
    Ending,
    Evidence,
    FailureRecord,
    Interval,
    StartRecord,
)
from autotune.objective import Score
from autotune.records import (
    BucketRow,
    CodingRow,
    EvidenceRow,
    HostRow,
    StartRow,
    StudyRow,
    TrialRow,
)
from autotune.sglang.masking import mask_text, masked_words
from autotune.storage import storage_errors
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


class Role(StrEnum):
    """Why a start was made."""

    SEARCH = "search"
    REFERENCE = "reference"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class StoredScore:
    """The score saved with a start; units as in `autotune.objective.Score`."""

    value: float
    interval: Interval
    ratio: float
    gate: float = 1.0


@dataclass(frozen=True, slots=True)
class StoredStart:
    """One server start with everything that was measured on it.

    Attributes:
        record: None while it runs, or when its driver died before it ended.
    """

    role: Role
    round: int
    host: str
    claim_id: str
    nonce: str
    owner: Owner
    argv: tuple[str, ...]
    started_at_s: float
    record: StartRecord | None
    score: StoredScore | None
    violations: tuple[str, ...]
    buckets: tuple[BucketMeasurement, ...]


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """One trial; `starts[0]` is the start it was made for, the others are repeats of it."""

    number: int
    parameters: Mapping[str, Any]
    reference: bool
    retry_of: int | None
    state: str
    told: bool
    starts: tuple[StoredStart, ...]


@dataclass(frozen=True, slots=True)
class StoredHost:
    host: str
    original: Mapping[str, Any]
    lease_id: str
    taken_at_s: float
    restored_at_s: float | None


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A whole study as it is stored."""

    name: str
    definition: Mapping[str, Any]
    fingerprint: str
    provenance: Mapping[str, Any]
    created_at_s: float
    driver: Owner | None
    verdict: Mapping[str, Any] | None
    hosts: tuple[StoredHost, ...]
    trials: tuple[StoredTrial, ...]


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
            StudyMismatch: The definition moved; the message shows every difference.
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
                changes = "; ".join(
                    _differences(comparable(row.definition), comparable(definition))
                )
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
                trials=tuple(_stored_trial(trial) for trial in trials),
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
            row.original = _storable(_plain_original(original))
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
                    argv=_storable(masked_words(argv)),
                    started_at_s=time.time(),
                )
            )

    def add_bucket(self, claim_id: str, bucket: BucketMeasurement) -> None:
        """Save one bucket as soon as it is measured: a later fault loses nothing."""
        with self._session() as session:
            start = self._start(session, claim_id)
            if bucket.key not in {f"{b.context_tokens}x{b.concurrency}" for b in start.buckets}:
                start.buckets.append(_bucket_row(bucket))

    def end_start(self, claim_id: str, record: StartRecord, score: Score | None) -> None:
        """Save how a start ended, with everything measured on it."""
        with self._session() as session:
            start = self._start(session, claim_id)
            for column in ("invocation_id", "stop_s", "load_s", "measure_s", "ended_at_s"):
                setattr(start, column, getattr(record, column))
            start.ending = record.ending
            start.failure = _storable(asdict(record.failure)) if record.failure else None
            start.fingerprint = _storable(record.fingerprint)
            start.texts = _storable(record.texts)
            kept = {f"{b.context_tokens}x{b.concurrency}" for b in start.buckets}
            start.buckets.extend(_bucket_row(b) for b in record.buckets if b.key not in kept)
            start.evidence = [EvidenceRow(**_storable(asdict(link))) for link in record.proof]
            if record.coding is not None:
                start.coding = CodingRow(
                    passed=record.coding.passed,
                    failed=record.coding.failed,
                    outcomes=dict(record.coding.outcomes),
                    samples=dict(record.coding.samples),
                    wall_s=record.coding.wall_s,
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


_ABSENT = object()


def _storable(value: Any) -> Any:
    """Text that every database takes: no NUL, no half of a surrogate pair."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_storable(key): _storable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(one) for one in value]
    return value


# -- rows <-> values ------------------------------------------------------------------------------

_COLUMNS = frozenset(
    {
        *("context_tokens", "concurrency", "output_tokens", "weight", "output_tok_per_s"),
        *("accept_length", "ttft_ms", "tpot_ms", "valid"),
    }
)


def _bucket_row(bucket: BucketMeasurement) -> BucketRow:
    whole = asdict(bucket)
    interval = whole.pop("interval")
    columns = {key: whole.pop(key) for key in _COLUMNS}
    return BucketRow(**columns, low=interval["low"], high=interval["high"], details=whole)


def _bucket(row: BucketRow) -> BucketMeasurement:
    details = dict(row.details)
    details["marks"] = tuple(BucketQuality(mark) for mark in details["marks"])
    known = {f.name for f in fields(BucketMeasurement)}
    return BucketMeasurement(
        **{key: getattr(row, key) for key in _COLUMNS},
        interval=Interval(row.low, row.high),
        **{key: value for key, value in details.items() if key in known},
    )


def _stored_trial(row: TrialRow) -> StoredTrial:
    return StoredTrial(
        number=row.number,
        parameters=row.parameters,
        reference=row.reference,
        retry_of=row.retry_of,
        state=row.state,
        told=row.told,
        starts=tuple(_stored_start(start) for start in row.starts),
    )


def _stored_start(row: StartRow) -> StoredStart:
    buckets = tuple(_bucket(bucket) for bucket in row.buckets)
    score = None
    if row.score is not None and row.score_low is not None and row.score_high is not None:
        interval = Interval(row.score_low, row.score_high)
        gate = 1.0 if row.score_gate is None else row.score_gate
        score = StoredScore(row.score, interval, row.score_ratio or 0.0, gate)
    record = None
    if row.ending is not None:
        failure = row.failure and FailureRecord(
            **{**row.failure, "log_tail": tuple(row.failure["log_tail"])}
        )
        record = StartRecord(
            ending=Ending(row.ending),
            proof=tuple(
                Evidence(e.link, e.wanted, e.seen, e.ok, e.at_s, e.raw) for e in row.evidence
            ),
            buckets=buckets,
            coding=_coding(row.coding) if row.coding is not None else None,
            texts=row.texts,
            failure=failure or None,
            invocation_id=row.invocation_id,
            fingerprint=row.fingerprint,
            stop_s=row.stop_s,
            load_s=row.load_s,
            measure_s=row.measure_s,
            started_at_s=row.started_at_s,
            ended_at_s=row.ended_at_s or 0.0,
        )
    return StoredStart(
        role=Role(row.role),
        round=row.round,
        host=row.host,
        claim_id=row.claim_id,
        nonce=row.nonce,
        owner=Owner(**row.owner),
        argv=tuple(row.argv),
        started_at_s=row.started_at_s,
        record=record,
        score=score,
        violations=tuple(row.violations),
        buckets=buckets,
    )


def _coding(row: CodingRow) -> CodingResult:
    return CodingResult(
        samples=row.samples,
        passed=row.passed,
        failed=row.failed,
        outcomes=row.outcomes,
        wall_s=row.wall_s,
    )


def _plain_original(original: Original) -> dict[str, Any]:
    """The service as found, without secrets: what to go back to lies on the host."""
    return {
        "argv": list(masked_words(original.launch.texts())),
        "live_argv": list(masked_words(original.live_argv)),
        "live_environ": sorted(original.live_environ),
        "active": original.active,
        "enabled": original.enabled,
        "files": dict(original.files),
        "fragment": mask_text(original.fragment),
        "fragment_sha256": hashlib.sha256(original.fragment.encode()).hexdigest(),
        "taken_at_s": original.taken_at_s,
    }


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`service.unit: 'a' became 'b'` for every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in _differences(
                old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}" if path else key
            )
        ]
    return [] if old == new else [f"{path}: {_worded(old)} became {_worded(new)}"]


def _worded(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
