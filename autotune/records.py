"""Our tables, beside Optuna's in one database.  Documented in `storage/schema.md`."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, Double, ForeignKey, Index, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

__all__ = [
    "Base",
    "BucketRow",
    "CodingRow",
    "DriverRow",
    "EvidenceRow",
    "HostRow",
    "StartRow",
    "StudyRow",
    "TrialRow",
]

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Every table of ours is called `autotune_...`."""

    metadata = MetaData(naming_convention=NAMING)
    # As the migrations have it; older versions of SQLAlchemy would say FLOAT.
    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Double()}


class StudyRow(Base):
    """One study: what was defined, by which version."""

    __tablename__ = "autotune_study"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    definition: Mapped[dict[str, Any]] = mapped_column(JSON)
    fingerprint: Mapped[str] = mapped_column(String(64))
    provenance: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at_s: Mapped[float]
    verdict: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    revision: Mapped[int] = mapped_column(default=0, server_default="0")
    concluding: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class DriverRow(Base):
    """One run of a study: which process it is and when it was last heard of."""

    __tablename__ = "autotune_driver"
    __table_args__ = (UniqueConstraint("study_id", "key"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id", ondelete="CASCADE"))
    owner: Mapped[dict[str, Any]] = mapped_column(JSON)
    key: Mapped[str] = mapped_column(String(300))
    beat_at_s: Mapped[float]
    left_at_s: Mapped[float | None]


class HostRow(Base):
    """One host within a study: the service as it was found, and whether it is back."""

    __tablename__ = "autotune_host"
    __table_args__ = (UniqueConstraint("study_id", "host"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id", ondelete="CASCADE"))
    host: Mapped[str] = mapped_column(String(200))
    original: Mapped[dict[str, Any]] = mapped_column(JSON)
    lease_id: Mapped[str] = mapped_column(String(64), default="")
    taken_at_s: Mapped[float | None]
    restored_at_s: Mapped[float | None]
    wanted: Mapped[str] = mapped_column(String(20), default="use", server_default="use")
    state: Mapped[str] = mapped_column(String(20), default="", server_default="")
    why: Mapped[str] = mapped_column(Text, default="", server_default="")
    driver: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class TrialRow(Base):
    """One Optuna trial: its effective parameters, where it ran and how it ended."""

    __tablename__ = "autotune_trial"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        Index("ix_autotune_trial_revision", "study_id", "revision"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_study.id", ondelete="CASCADE"))
    number: Mapped[int]
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    reference: Mapped[bool] = mapped_column(default=False)
    retry_of: Mapped[int | None]
    state: Mapped[str] = mapped_column(String(20))
    told: Mapped[bool] = mapped_column(default=False)
    revision: Mapped[int] = mapped_column(default=0, server_default="0")
    starts: Mapped[list[StartRow]] = relationship(
        back_populates="trial", order_by="StartRow.id", cascade="all, delete-orphan"
    )


class StartRow(Base):
    """One server start that was made for a trial, or for a repeat of one."""

    __tablename__ = "autotune_start"
    __table_args__ = (Index("ix_autotune_start_trial_id", "trial_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("autotune_trial.id", ondelete="CASCADE"))
    role: Mapped[str] = mapped_column(String(20))
    round: Mapped[int] = mapped_column(default=0)
    host: Mapped[str] = mapped_column(String(200))
    claim_id: Mapped[str] = mapped_column(String(64), unique=True)
    nonce: Mapped[str] = mapped_column(String(200))
    owner: Mapped[dict[str, Any]] = mapped_column(JSON)
    argv: Mapped[list[str]] = mapped_column(JSON)
    ending: Mapped[str | None] = mapped_column(String(20))
    invocation_id: Mapped[str] = mapped_column(String(64), default="")
    failure: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    fingerprint: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    texts: Mapped[dict[str, str]] = mapped_column(JSON, default=dict)
    lossless: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    drift: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    stop_s: Mapped[float] = mapped_column(default=0.0)
    load_s: Mapped[float] = mapped_column(default=0.0)
    measure_s: Mapped[float] = mapped_column(default=0.0)
    started_at_s: Mapped[float]
    ended_at_s: Mapped[float | None]
    score: Mapped[float | None]
    score_low: Mapped[float | None]
    score_high: Mapped[float | None]
    score_ratio: Mapped[float | None]
    score_gate: Mapped[float | None]
    violations: Mapped[list[str]] = mapped_column(JSON, default=list)
    trial: Mapped[TrialRow] = relationship(back_populates="starts")
    buckets: Mapped[list[BucketRow]] = relationship(
        order_by="BucketRow.id", cascade="all, delete-orphan"
    )
    evidence: Mapped[list[EvidenceRow]] = relationship(
        order_by="EvidenceRow.id", cascade="all, delete-orphan"
    )
    coding: Mapped[CodingRow | None] = relationship(cascade="all, delete-orphan")


class BucketRow(Base):
    """One bucket measured on one start; columns as in `BucketMeasurement`."""

    __tablename__ = "autotune_bucket"
    __table_args__ = (UniqueConstraint("start_id", "context_tokens", "concurrency"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    start_id: Mapped[int] = mapped_column(ForeignKey("autotune_start.id", ondelete="CASCADE"))
    context_tokens: Mapped[int]
    concurrency: Mapped[int]
    output_tokens: Mapped[int]
    weight: Mapped[float]
    output_tok_per_s: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    accept_length: Mapped[float | None]
    ttft_ms: Mapped[float]
    tpot_ms: Mapped[float]
    valid: Mapped[bool]
    details: Mapped[dict[str, Any]] = mapped_column(JSON)


class EvidenceRow(Base):
    """One link of the proof chain."""

    __tablename__ = "autotune_evidence"
    __table_args__ = (Index("ix_autotune_evidence_start_id", "start_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    start_id: Mapped[int] = mapped_column(ForeignKey("autotune_start.id", ondelete="CASCADE"))
    link: Mapped[str] = mapped_column(String(80))
    wanted: Mapped[str] = mapped_column(Text)
    seen: Mapped[str] = mapped_column(Text)
    raw: Mapped[str] = mapped_column(Text)
    ok: Mapped[bool]
    at_s: Mapped[float]


class CodingRow(Base):
    """The coding answers of one start."""

    __tablename__ = "autotune_coding"

    id: Mapped[int] = mapped_column(primary_key=True)
    start_id: Mapped[int] = mapped_column(
        ForeignKey("autotune_start.id", ondelete="CASCADE"), unique=True
    )
    passed: Mapped[int]
    failed: Mapped[int]
    outcomes: Mapped[dict[str, int]] = mapped_column(JSON)
    samples: Mapped[dict[str, str]] = mapped_column(JSON)
    rules: Mapped[dict[str, str] | None] = mapped_column(JSON)
    sandbox: Mapped[str | None] = mapped_column(String(20))
    wall_s: Mapped[float] = mapped_column(default=0.0)
