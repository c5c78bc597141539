"""How an ending is told, also when the driver that saw it is dead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from autotune.benchmark.audit import only_clients_fault
from autotune.errors import InvalidBucket
from autotune.fingerprint import free_gib
from autotune.measurement import (
    BucketMeasurement,
    BucketQuality,
    Ending,
    FailureRecord,
    StartRecord,
)
from autotune.objective import Score
from autotune.repository import Repository
from autotune.stored import StoredStart, StoredStudy, StoredTrial
from autotune.study import TrialStudy
from autotune.trial import TrialSpec

__all__ = [
    "bucket_figures",
    "interrupted",
    "reconcile",
    "settle",
    "take_late",
    "tell_ending",
    "trial_attributes",
    "unscored",
    "uses_up_the_retry",
]

Saved: TypeAlias = tuple[float, tuple[str, ...]]
"""Ratio and violations of a saved score."""

INTERRUPTED, TUNER_LOST = "Interrupted", "TunerLost"
INVALID = InvalidBucket.__name__


def interrupted(reason: str, *, at_s: float) -> StartRecord:
    """The end of a start whose study was stopped: nobody's fault, and no try of its trial."""
    return StartRecord(Ending.FAILED, failure=FailureRecord(INTERRUPTED, reason), ended_at_s=at_s)


def uses_up_the_retry(record: StartRecord | None) -> bool:
    """Whether a failed start counts as a try of its trial.

    One that was interrupted, whose tuner was killed, or that our own client was too slow to measure
    says nothing about the trial or its host.
    """
    if record is None or record.failure is None:
        return record is not None
    if record.failure.kind in (INTERRUPTED, TUNER_LOST):
        return False
    ours = any(
        BucketQuality.CLIENT_BOTTLENECK in bucket.marks or only_clients_fault(bucket)
        for bucket in record.buckets
        if not bucket.valid
    )
    return not (record.failure.kind == INVALID and ours)


def tell_ending(
    study: TrialStudy,
    trial: StoredTrial,
    record: StartRecord | None,
    saved: Saved | None,
    *,
    trials: Sequence[StoredTrial],
) -> Ending:
    """Tell Optuna one ending; returns the trial's state.

    Args:
        record: How its start ended, None when its tuner did not live to see that.
        trials: The study's: a failed trial gets one more try, and they show whether it had it.
    """
    ending = record.ending if record is not None else Ending.FAILED
    state = _state_of(ending, saved)
    if saved is not None and ending is Ending.COMPLETE:
        study.tell_complete(trial.number, saved[0], violated=bool(saved[1]))
    elif state is Ending.INFEASIBLE:
        study.tell_infeasible(trial.number)
    elif state is Ending.PRUNED:
        study.tell_pruned(trial.number)
    else:
        study.tell_failed(trial.number)
        _queue_again(study, trial, record, trials=trials)
    return state


def reconcile(
    study: TrialStudy,
    repository: Repository,
    stored: StoredStudy,
    *,
    lives: Callable[[StoredStart], bool],
) -> int:
    """Repair what a dead driver left: tell what was saved, free what was not.

    Every step may be repeated, so a kill within the repair is repaired by the next one.

    Args:
        lives: Whether an end of this start may still come.

    Returns:
        How many trials were queued again.
    """
    before = study.waiting()
    trials = {trial.number: trial for trial in stored.trials}
    for number in study.running():
        if number not in trials:  # asked for, and killed before anything was written down
            study.tell_failed(number)
            if not study.is_reference(number):
                study.queue_again(number)
    for trial in stored.trials:
        if trial.told:
            take_late(study, repository, stored.name, trial)
            continue
        start = trial.starts[-1] if trial.starts else None
        if start is None or start.record is not None or not lives(start):
            _end_saved(study, repository, stored.name, trial, start, trials=stored.trials)
    return study.waiting() - before


def take_late(study: TrialStudy, repository: Repository, name: str, trial: StoredTrial) -> bool:
    """Give the sampler what was measured for a trial that had been given up; may be repeated.

    Its driver was taken for dead, or its worker was silent for too long: it was told FAIL and
    queued again, and then its start has ended after all.

    Returns:
        Whether the trial has another state now.
    """
    start = trial.starts[0] if trial.starts else None
    if trial.state != Ending.FAILED or start is None or start.record is None:
        return False
    saved = (start.score.ratio, start.violations) if start.score is not None else None
    state = _state_of(start.record.ending, saved)
    if state is Ending.FAILED:
        return False
    notes: dict[str, Any] = {"host": start.host, "buckets": bucket_figures(start.buckets)}
    if trial.reference:
        notes["reference"] = True
    ratio = saved[0] if saved is not None and state is Ending.COMPLETE else None
    study.add_late(trial.number, state, ratio, notes)
    repository.end_trial(name, trial.number, state)
    return True


def _end_saved(
    study: TrialStudy,
    repository: Repository,
    name: str,
    trial: StoredTrial,
    start: StoredStart | None,
    *,
    trials: Sequence[StoredTrial],
) -> None:
    """Bring a trial whose driver died to the end that was saved, or to FAIL where none was."""
    record = start.record if start is not None else None
    saved = None
    if start is not None and start.score is not None:
        saved = (start.score.ratio, start.violations)
    notes: dict[str, Any] = {}
    if start is not None:
        notes = {"host": start.host, "buckets": bucket_figures(start.buckets)}
    state = settle(study, trial, record, saved, notes=notes, trials=trials)
    if start is not None and record is None:
        repository.end_start(start.claim_id, _killed(start), None)
    repository.end_trial(name, trial.number, state)


def settle(
    study: TrialStudy,
    trial: StoredTrial,
    record: StartRecord | None,
    saved: Saved | None,
    *,
    notes: Mapping[str, Any],
    trials: Sequence[StoredTrial],
) -> Ending:
    """Tell Optuna one ending unless it has been told; may be repeated.

    Args:
        record: How its start ended, None when its tuner did not live to see that.
        notes: What the dashboard shows beside the trial.
        trials: The study's.

    Returns:
        The trial's state.
    """
    if study.state(trial.number) == "RUNNING":
        study.note(trial.number, notes)
        return tell_ending(study, trial, record, saved, trials=trials)
    state = _state_of(record.ending if record is not None else Ending.FAILED, saved)
    if state is Ending.FAILED:
        _queue_again(study, trial, record, trials=trials)
    elif study.state(trial.number) == "FAIL":  # another driver gave it up a moment ago
        ratio = saved[0] if saved is not None and state is Ending.COMPLETE else None
        study.add_late(trial.number, state, ratio, notes)
    return state


def _killed(start: StoredStart) -> StartRecord:
    """The end of a start whose tuner did not live to see one."""
    owner = start.owner
    reason = f"the tuner that ran it (process {owner.pid} on {owner.machine}) is gone"
    return StartRecord(
        Ending.FAILED,
        failure=FailureRecord(TUNER_LOST, reason),
        started_at_s=start.started_at_s,
        ended_at_s=start.started_at_s,
    )


def _state_of(ending: Ending, saved: Saved | None) -> Ending:
    """The trial's state: a score that breaks a limit makes it infeasible."""
    if ending is Ending.COMPLETE and saved is not None and saved[1]:
        return Ending.INFEASIBLE
    return Ending.FAILED if ending is Ending.COMPLETE and saved is None else ending


def _queue_again(
    study: TrialStudy,
    trial: StoredTrial,
    record: StartRecord | None,
    *,
    trials: Sequence[StoredTrial],
) -> None:
    """A failed trial gets one more try; a reference is made anew by whoever needs it."""
    if trial.reference:
        return
    if not uses_up_the_retry(record) or not any(map(_had_a_try, _repeated(trial, trials))):
        study.queue_again(trial.number)


def _repeated(trial: StoredTrial, trials: Sequence[StoredTrial]) -> list[StoredTrial]:
    """The failed trials that this one repeats, newest first."""
    by_number = {one.number: one for one in trials}
    found: list[StoredTrial] = []
    while trial.retry_of is not None and trial.retry_of in by_number:
        trial = by_number[trial.retry_of]
        found.append(trial)
    return found


def _had_a_try(trial: StoredTrial) -> bool:
    return bool(trial.starts) and uses_up_the_retry(trial.starts[0].record)


def trial_attributes(spec: TrialSpec, record: StartRecord, score: Score | None) -> dict[str, Any]:
    """What the dashboard shows beside a trial."""
    attributes: dict[str, Any] = {
        "host": spec.plan.host,
        "ending": str(record.ending),
        "buckets": bucket_figures(record.buckets),
        "parameters": {intent.name: intent.value for intent in spec.intents},
        "proof_links": len(record.proof),
    }
    if (free := free_gib(record.fingerprint)) is not None:
        attributes["free_gib"] = free
    for bucket in record.buckets:
        attributes[f"tok/s {bucket.key}"] = round(bucket.output_tok_per_s, 2)
    if score is not None:
        attributes["score"] = score.value
        attributes["score_interval"] = [score.interval.low, score.interval.high]
        attributes["violations"] = list(score.violations)
    if record.coding is not None:
        attributes["coding"] = {"passed": record.coding.passed, "failed": record.coding.failed}
    if record.failure is not None:
        attributes["failure"] = asdict(record.failure)
    return attributes


def unscored(record: StartRecord) -> FailureRecord:
    """Why a start that ended without a score has none."""
    bad = [bucket for bucket in record.buckets if not bucket.valid]
    if bad:
        return FailureRecord(INVALID, f"bucket {bad[0].key} is not valid: {bad[0].reason}")
    return FailureRecord(INVALID, "a bucket is missing")


def bucket_figures(buckets: tuple[BucketMeasurement, ...]) -> dict[str, dict[str, Any]]:
    """What the sampler learns from buckets."""
    return {
        b.key: {"output_tok_per_s": b.output_tok_per_s, "accept_length": b.accept_length}
        for b in buckets
        if b.valid
    }
