"""Stored studies as plain JSON values: what `--json` prints.  Documented in docs/json.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.bulk import bulk
from autotune.doubts import doubts
from autotune.measurement import BucketMeasurement
from autotune.repository import Role, StoredStart, StoredStudy, StoredTrial
from autotune.standing import references_of
from autotune.stored import StoredDriver
from autotune.supervisors.base import Owner
from autotune.supervisors.owner import owner_lives

__all__ = [
    "best_trial",
    "bucket_view",
    "main_start",
    "status_view",
    "studies_view",
    "trial_view",
    "trial_views",
    "why",
]


@bulk()
def trial_views(study: StoredStudy) -> list[dict[str, Any]]:
    """One object for each trial, in the order of their numbers."""
    buckets = len(study.definition.get("objective", {}).get("buckets", ()))
    return [
        {**trial_view(trial, study.definition), "why": why(trial, buckets=buckets)}
        for trial in study.trials
    ]


def why(trial: StoredTrial, *, buckets: int) -> str | None:
    """Why a trial has no usable score, or that it repeats another; None when nothing is to say.

    Args:
        buckets: Of the whole matrix.
    """
    start = main_start(trial)
    said = []
    if trial.retry_of is not None:
        said.append(f"retry of trial {trial.retry_of}")
    if start is None:
        said.append("asked for, not begun")
    elif trial.state == "pruned":
        of = f" of {buckets}" if buckets else ""
        said.append(
            f"stopped after {len(start.buckets)}{of} buckets: even the optimistic end of its "
            "interval cannot reach the best so far"
        )
    elif start.violations:
        said.append("; ".join(start.violations))
    elif start.record is not None and start.record.failure is not None:
        said.append(start.record.failure.message)
    return "; ".join(said) or None


def main_start(trial: StoredTrial) -> StoredStart | None:
    """The start that the trial was made for; repeats and final rounds are not it."""
    return trial.starts[0] if trial.starts else None


def trial_view(trial: StoredTrial, definition: Mapping[str, Any]) -> dict[str, Any]:
    """One trial; null where nothing was measured."""
    start = main_start(trial)
    record = start.record if start else None
    score = start.score if start else None
    coding = record.coding if record else None
    failure = record.failure if record else None
    if failure is None and start is not None and start.violations:
        kind, message = "LimitViolated", "; ".join(start.violations)
    else:
        kind, message = (failure.kind, failure.message) if failure else ("", "")
    return {
        "number": trial.number,
        "state": trial.state,
        "parameters": dict(trial.parameters),
        "doubts": list(doubts(definition, trial.parameters)),
        "reference": trial.reference,
        "score": _number(score.value) if score else None,
        "score_interval": [score.interval.low, score.interval.high] if score else None,
        "score_ratio": _number(score.ratio) if score else None,
        "host": start.host if start else None,
        "buckets": [bucket_view(bucket) for bucket in start.buckets] if start else [],
        "proof": [
            {"link": e.link, "wanted": e.wanted, "seen": e.seen, "ok": e.ok, "at": e.at_s}
            for e in (record.proof if record else ())
        ],
        "coding": {
            "passed": coding.passed,
            "failed": coding.failed,
            "outcomes": dict(coding.outcomes),
            "rules": dict(Counter(coding.rules.values())),
            "sandbox": coding.sandbox or None,
        }
        if coding
        else None,
        "failure": {
            "kind": kind,
            "message": message,
            "link": failure.link if failure else "",
            "log_tail": list(failure.log_tail) if failure else [],
        }
        if kind
        else None,
        "retry_of": trial.retry_of,
        "invocation_id": record.invocation_id if record else None,
        "started_at": start.started_at_s if start else None,
        "stop_s": record.stop_s if record else None,
        "load_s": record.load_s if record else None,
        "measure_s": record.measure_s if record else None,
        "lossless": {
            "verdict": str(record.lossless.verdict),
            "parted": sum(at is not None for at in record.lossless.positions.values()),
            "prompts": len(record.lossless.positions),
            "p_value": record.lossless.p_value,
            "reason": record.lossless.reason,
        }
        if record and record.lossless
        else None,
        "drift": asdict(record.drift) if record and record.drift else None,
        "repeats": [
            {
                "role": str(again.role),
                "round": again.round,
                "host": again.host,
                "score": again.score.value if again.score else None,
                "score_ratio": again.score.ratio if again.score else None,
                "failure": again.record.failure.message
                if again.record and again.record.failure
                else None,
                "proof_ok": _proved(again),
            }
            for again in trial.starts[1:]
        ],
    }


def bucket_view(bucket: BucketMeasurement) -> dict[str, Any]:
    """One bucket of one start."""
    return {
        "context_tokens": bucket.context_tokens,
        "concurrency": bucket.concurrency,
        "weight": bucket.weight,
        "output_tok_per_s": _number(bucket.output_tok_per_s),
        "interval": [_number(bucket.interval.low), _number(bucket.interval.high)],
        "accept_length": bucket.accept_length,
        "ttft_ms": _number(bucket.ttft_ms),
        "tpot_ms": _number(bucket.tpot_ms),
        "valid": bucket.valid,
        "marks": [str(mark) for mark in bucket.marks],
        "reason": bucket.reason,
    }


def best_trial(study: StoredStudy) -> StoredTrial | None:
    """The complete trial with the highest observed score ratio, references left out.

    For orientation only: the best observed score overstates the truth, so it is never the result.
    """
    scored = [
        (start.score.ratio, trial)
        for trial in study.trials
        if trial.state == "complete"
        and not trial.reference
        and (start := main_start(trial)) is not None
        and start.score is not None
    ]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def status_view(study: StoredStudy) -> dict[str, Any]:
    """Where a study stands."""
    best = best_trial(study)
    gpu_hours = (
        sum(
            max(0.0, s.record.ended_at_s - s.started_at_s)
            for t in study.trials
            for s in t.starts
            if s.record is not None
        )
        * int(study.definition.get("service", {}).get("gpus_per_host", 1))
        / 3600
    )
    drivers = [{**_process(one.owner), "heard_at": one.beat_at_s} for one in _living(study)]
    return {
        "study": study.name,
        "created_at": study.created_at_s,
        "trials": dict(Counter(trial.state for trial in study.trials)),
        "starts": sum(len(trial.starts) for trial in study.trials),
        "final_starts": sum(s.role is Role.FINAL for t in study.trials for s in t.starts),
        "hosts": [
            {
                "host": h.host,
                "taken_at": h.taken_at_s,
                "restored_at": h.restored_at_s,
                "reference_score": _last_reference(study, h.host),
                "wanted": h.wanted,
                "state": h.state,
                "why": h.why,
                "driver": _process(h.driver) if h.driver else None,
            }
            for h in study.hosts
        ],
        "driver": drivers[0] if drivers else None,
        "drivers": drivers,
        "gpu_hours": gpu_hours,
        "best_observed": _brief(best, study.definition) if best else None,
        "verdict": study.verdict,
    }


def studies_view(studies: Sequence[StoredStudy]) -> list[dict[str, Any]]:
    """One object for each study of a storage, oldest first."""
    return [
        {
            "study": study.name,
            "created_at": study.created_at_s,
            "trials": dict(Counter(trial.state for trial in study.trials)),
            "hosts": [host.host for host in study.hosts],
            "running": bool(_living(study)),
            "verdict": study.verdict.get("sentence") if study.verdict else None,
        }
        for study in studies
    ]


def _brief(trial: StoredTrial, definition: Mapping[str, Any]) -> dict[str, Any]:
    """The few words about a trial that `status` says; `trials` has the rest."""
    kept = ("number", "parameters", "score", "score_interval", "score_ratio", "host", "doubts")
    view = trial_view(trial, definition)
    return {key: view[key] for key in kept}


def _living(study: StoredStudy) -> list[StoredDriver]:
    return [one for one in study.drivers if one.left_at_s is None and owner_lives(one.owner)]


def _process(owner: Owner) -> dict[str, Any]:
    return {"machine": owner.machine, "pid": owner.pid}


def _last_reference(study: StoredStudy, host: str) -> float | None:
    """Score of the host's last reference."""
    own = references_of(study, host)
    score = own[-1][1].score if own else None
    return _number(score.value) if score is not None else None


def _proved(start: StoredStart) -> bool:
    """Whether there are links and all of them hold."""
    links = start.record.proof if start.record else ()
    return bool(links) and all(link.ok for link in links)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
