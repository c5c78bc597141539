"""A study as it is stored: frozen values, no row of a table among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.measurement import BucketMeasurement, Interval, StartRecord
from autotune.supervisors.base import Owner

__all__ = [
    "Role",
    "StoredDriver",
    "StoredHost",
    "StoredScore",
    "StoredStart",
    "StoredStudy",
    "StoredTrial",
    "VerdictKind",
    "Wanted",
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


class VerdictKind(StrEnum):
    """What the final rounds allow to be said."""

    BETTER = "better"
    NO_SIGNIFICANT_DIFFERENCE = "no-significant-difference"
    NOT_ENOUGH_DATA = "not-enough-data"


class Wanted(StrEnum):
    """What an operator wants of a host."""

    USE = "use"
    """Its own driver uses it."""
    ADD = "add"
    """Any driver of the study may take it."""
    DRAIN = "drain"
    """Nobody uses it: it is restored after the start that runs on it."""


@dataclass(frozen=True, slots=True)
class StoredHost:
    """One host of a study.

    Attributes:
        taken_at_s: When its lease was taken the last time; None when it never was.
        restored_at_s: When it was back as it was found; None while it is in use.
        state: What its driver said of it last: "in use", "away", "refused", "not restored",
            "drained" ...
        why: The reason of that state.
        driver: Run that has it, or had it last.
    """

    host: str
    original: Mapping[str, Any]
    lease_id: str
    taken_at_s: float | None
    restored_at_s: float | None
    wanted: str = Wanted.USE
    state: str = ""
    why: str = ""
    driver: Owner | None = None


@dataclass(frozen=True, slots=True)
class StoredDriver:
    """One run of a study.

    Attributes:
        beat_at_s: When it was heard of last, by the database's clock.
        left_at_s: When it ended by itself; None while it runs, and when it was killed.
    """

    owner: Owner
    beat_at_s: float
    left_at_s: float | None


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A whole study as it is stored.

    Attributes:
        concluding: Run that measures the final rounds and names the winner; None before that.
    """

    name: str
    definition: Mapping[str, Any]
    fingerprint: str
    provenance: Mapping[str, Any]
    created_at_s: float
    verdict: Mapping[str, Any] | None
    hosts: tuple[StoredHost, ...]
    trials: tuple[StoredTrial, ...]
    drivers: tuple[StoredDriver, ...] = ()
    concluding: Owner | None = None
