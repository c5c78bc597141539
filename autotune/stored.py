"""A study as it is stored: frozen values, no row of a table among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.measurement import BucketMeasurement, Interval, StartRecord
from autotune.supervisors.base import Owner

__all__ = ["Role", "StoredHost", "StoredScore", "StoredStart", "StoredStudy", "StoredTrial"]


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
        order: Rises from start to start of a database; times may jump, with the clock.
        record: None while it runs, or when its driver died before it ended.
    """

    order: int
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
