"""Where a stored study stands, host by host.  Pure."""

from __future__ import annotations

from autotune.config import StudyConfig
from autotune.measurement import Ending
from autotune.objective import Reference
from autotune.repository import Role, StoredStart, StoredStudy, StoredTrial
from autotune.rounds import REFERENCE, FinalStart
from autotune.supervisors.base import Owner

__all__ = [
    "as_reference",
    "failed_references",
    "final_starts",
    "gpu_hours",
    "references_of",
    "search_left",
    "starts_since_reference",
    "time_is_up",
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


def gpu_hours(stored: StoredStudy, gpus_per_host: int) -> float:
    """GPU-hours that the ended starts of a study have taken."""
    seconds = sum(
        start.record.stop_s + start.record.load_s + start.record.measure_s
        for trial in stored.trials
        for start in trial.starts
        if start.record is not None and start.record.ended_at_s
    )
    return seconds / 3600 * gpus_per_host


def time_is_up(stored: StoredStudy, config: StudyConfig, *, hours: float) -> bool:
    """Whether the hours or GPU-hours of the budget are spent.

    Args:
        hours: Of this run so far.
    """
    budget = config.study
    if budget.hours is not None and hours >= budget.hours:
        return True
    spent = budget.gpu_hours
    return spent is not None and gpu_hours(stored, config.service.gpus_per_host) >= spent


def search_left(stored: StoredStudy, config: StudyConfig, *, hours: float) -> bool:
    """Whether the budget has room for one more trial beside those that nobody has told yet."""
    if time_is_up(stored, config, hours=hours):
        return False
    trials = config.study.trials
    counted = sum(not trial.told or trial.state in _COUNTED for trial in stored.trials)
    return trials is None or counted < trials


_COUNTED = frozenset((Ending.COMPLETE, Ending.INFEASIBLE, Ending.PRUNED))
"""Ends that are a verdict about the parameters."""


def as_reference(start: StoredStart, score: float, *, before: Reference | None) -> Reference:
    """What others of its host are compared with: a start's numbers, under this score of it.

    Args:
        before: The reference before it, whose coding answers stay where this start is of a final
            round: that asks other samples than the search.
    """
    coding = start.record.coding if start.record else None
    own = coding.samples if coding else {}
    return Reference(
        throughput={b.key: b.output_tok_per_s for b in start.buckets},
        score=score,
        samples=before.samples if before is not None and start.role is Role.FINAL else own,
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
