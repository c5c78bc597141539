"""Where a stored study stands, host by host.  Pure."""

from __future__ import annotations

from autotune.objective import Reference
from autotune.repository import Role, StoredStart, StoredStudy, StoredTrial
from autotune.rounds import REFERENCE, FinalStart
from autotune.supervisors.base import Owner

__all__ = [
    "as_reference",
    "failed_references",
    "final_starts",
    "references_of",
    "starts_since_reference",
]


def references_of(stored: StoredStudy, host: str) -> list[tuple[StoredTrial, StoredStart]]:
    """Reference starts of a host that ended with a score, oldest first."""
    found = [
        (trial, start)
        for trial in stored.trials
        if trial.reference
        for start in trial.starts
        if start.host == host and start.score is not None
    ]
    return sorted(found, key=lambda pair: pair[1].order)


def failed_references(
    stored: StoredStudy, host: str, *, since: int, owner: Owner
) -> list[StoredStart]:
    """Reference starts of a host without a score that this run has made after start `since`."""
    return [
        start
        for trial in stored.trials
        if trial.reference
        for start in trial.starts
        if start.host == host
        and start.order > since
        and start.owner == owner
        and start.score is None
    ]


def starts_since_reference(stored: StoredStudy, host: str) -> int:
    """Starts of other parameters on a host since its last scored reference."""
    own = references_of(stored, host)
    since = own[-1][1].order if own else 0
    return sum(
        start.host == host and start.order > since and not trial.reference
        for trial in stored.trials
        for start in trial.starts
    )


def as_reference(start: StoredStart, score: float) -> Reference:
    """What others of its host are compared with: a start's numbers, under this score of it."""
    coding = start.record.coding if start.record else None
    return Reference(
        throughput={b.key: b.output_tok_per_s for b in start.buckets},
        score=score,
        samples=coding.samples if coding else {},
    )


def final_starts(stored: StoredStudy, *, owner: Owner | None = None) -> list[FinalStart]:
    """Starts of the final rounds, of one run or of all runs."""
    return [
        FinalStart(
            start.round,
            REFERENCE if trial.reference else trial.number,
            start.host,
            None if start.record is None else start.score is not None,
            f"{start.owner.machine}/{start.owner.boot_id}/{start.owner.pid}/{start.owner.taken_at_s}",
        )
        for trial in stored.trials
        for start in trial.starts
        if start.role is Role.FINAL and (owner is None or start.owner == owner)
    ]
