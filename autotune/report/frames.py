"""A stored study as tables: one row for each trial, start, bucket, proof link.  Pure.

Every number of the report comes from one of these frames, so that they can be exported as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from autotune.repository import StoredStart, StoredStudy, StoredTrial

__all__ = [
    "buckets_frame",
    "coding_frame",
    "failures_frame",
    "finalists_frame",
    "parameter_names",
    "proof_frame",
    "settings_frame",
    "start_gpu_hours",
    "starts_frame",
    "state_of",
]

_START_COLUMNS = (
    *("trial", "start", "role", "round", "host", "reference", "state", "parameters"),
    *("score", "score_low", "score_high", "score_ratio", "ratio_low", "ratio_high"),
    *("failure_kind", "failure_link", "failure_message"),
    *("stop_s", "load_s", "measure_s", "started_at_s", "ended_at_s"),
    *("gpu_hours", "spent_gpu_hours", "invocation_id"),
)
_BUCKET_COLUMNS = (
    *("trial", "start", "role", "round", "host", "reference", "context_tokens", "concurrency"),
    *("weight", "output_tok_per_s", "low", "high", "accept_length", "ttft_ms", "ttft_p99_ms"),
    *("tpot_ms", "tpot_p99_ms", "requests", "errors", "windows", "valid", "marks", "reason"),
)
_PROOF_COLUMNS = ("trial", "start", "role", "link", "wanted", "seen", "ok", "at_s", "raw")
_CODING_COLUMNS = ("trial", "start", "role", "reference", "passed", "failed", "outcomes", "wall_s")
_FAILURE_COLUMNS = (
    "trial",
    "start",
    "role",
    "host",
    "state",
    "kind",
    "link",
    "message",
    "log_tail",
)
_CODING = ("asked", "only_finalist_failed", "only_reference_failed", "p_value", "refused")
_FINALIST_COLUMNS = (
    *("trial", "parameters", "changes", "repeats", "ratio", "low", "high"),
    *(f"coding_{name}" for name in _CODING),
)
_SETTING_COLUMNS = ("parameter", "flag", "variable", "deployed", "chosen", "trial")


def parameter_names(study: StoredStudy) -> tuple[str, ...]:
    """Names in the order of the definition."""
    return tuple(study.definition.get("parameters", {}))


def start_gpu_hours(study: StoredStudy, start: StoredStart) -> float:
    """GPU-hours of one start, from the order to start until its end; 0 while it runs."""
    if start.record is None or start.record.ended_at_s <= start.started_at_s:
        return 0.0
    gpus = int(study.definition.get("service", {}).get("gpus_per_host", 1))
    return (start.record.ended_at_s - start.started_at_s) * gpus / 3600


def state_of(trial: StoredTrial, position: int) -> str:
    """How the start at `position` ended: the trial's own word for the start it was made for."""
    start = trial.starts[position]
    if position == 0:
        return trial.state
    if start.record is None:
        return "running"
    return "infeasible" if start.violations else str(start.record.ending)


def starts_frame(study: StoredStudy) -> pd.DataFrame:
    """One row for each server start, in the order of their ends.

    Units: scores as in the study, ratios to the host's last reference, seconds, GPU-hours;
    `spent_gpu_hours` is the sum up to the end of the start.
    """
    rows = [
        _start_row(study, trial, position)
        for trial in study.trials
        for position in range(len(trial.starts))
    ]
    rows.sort(key=lambda row: (math.isnan(row["ended_at_s"]), row["ended_at_s"], row["trial"]))
    spent = 0.0
    for row in rows:
        spent += row["gpu_hours"]
        row["spent_gpu_hours"] = spent
    return _frame(rows, _START_COLUMNS)


def _start_row(study: StoredStudy, trial: StoredTrial, position: int) -> dict[str, Any]:
    start = trial.starts[position]
    record, score = start.record, start.score
    failure = record.failure if record else None
    # the interval of the ratio takes the reference's score as exact, as the stored ratio does
    scale = score.ratio / score.value if score and score.value > 0 else math.nan
    kind, message = (failure.kind, failure.message) if failure else ("", "")
    if failure is None and start.violations:
        kind, message = "LimitViolated", "; ".join(start.violations)
    return {
        "trial": trial.number,
        "start": position,
        "role": str(start.role),
        "round": start.round,
        "host": start.host,
        "reference": trial.reference,
        "state": state_of(trial, position),
        "parameters": dict(trial.parameters),
        "score": score.value if score else math.nan,
        "score_low": score.interval.low if score else math.nan,
        "score_high": score.interval.high if score else math.nan,
        "score_ratio": score.ratio if score else math.nan,
        "ratio_low": score.interval.low * scale if score else math.nan,
        "ratio_high": score.interval.high * scale if score else math.nan,
        "failure_kind": kind,
        "failure_link": failure.link if failure else "",
        "failure_message": message,
        "stop_s": record.stop_s if record else math.nan,
        "load_s": record.load_s if record else math.nan,
        "measure_s": record.measure_s if record else math.nan,
        "started_at_s": start.started_at_s,
        "ended_at_s": record.ended_at_s if record else math.nan,
        "gpu_hours": start_gpu_hours(study, start),
        "invocation_id": record.invocation_id if record else "",
    }


def _starts(
    study: StoredStudy,
) -> Iterator[tuple[StoredTrial, StoredStart, dict[str, Any]]]:
    """Every start with its trial, and the columns that tell it from the others."""
    for trial in study.trials:
        for position, start in enumerate(trial.starts):
            which = {"trial": trial.number, "start": position, "role": str(start.role)}
            yield trial, start, which


def buckets_frame(study: StoredStudy) -> pd.DataFrame:
    """One row for each bucket of each start; throughput of all streams together, tok/s."""
    rows = [
        {
            **which,
            "round": start.round,
            "host": start.host,
            "reference": trial.reference,
            "context_tokens": bucket.context_tokens,
            "concurrency": bucket.concurrency,
            "weight": bucket.weight,
            "output_tok_per_s": bucket.output_tok_per_s,
            "low": bucket.interval.low,
            "high": bucket.interval.high,
            "accept_length": math.nan if bucket.accept_length is None else bucket.accept_length,
            "ttft_ms": bucket.ttft_ms,
            "ttft_p99_ms": bucket.ttft_p99_ms,
            "tpot_ms": bucket.tpot_ms,
            "tpot_p99_ms": bucket.tpot_p99_ms,
            "requests": bucket.requests,
            "errors": bucket.errors,
            "windows": bucket.windows,
            "valid": bucket.valid,
            "marks": ", ".join(bucket.marks),
            "reason": bucket.reason,
        }
        for trial, start, which in _starts(study)
        for bucket in start.buckets
    ]
    return _frame(rows, _BUCKET_COLUMNS)


def proof_frame(study: StoredStudy) -> pd.DataFrame:
    """One row for each proof link of each start, in the order in which they were read."""
    rows = [
        {
            **which,
            "link": link.link,
            "wanted": link.wanted,
            "seen": link.seen,
            "ok": link.ok,
            "at_s": link.at_s,
            "raw": link.raw,
        }
        for trial, start, which in _starts(study)
        for link in (start.record.proof if start.record else ())
    ]
    return _frame(rows, _PROOF_COLUMNS)


def coding_frame(study: StoredStudy) -> pd.DataFrame:
    """One row for each start whose coding answers were judged; `outcomes` counts by name."""
    rows = [
        {
            **which,
            "reference": trial.reference,
            "passed": start.record.coding.passed,
            "failed": start.record.coding.failed,
            "outcomes": dict(start.record.coding.outcomes),
            "wall_s": start.record.coding.wall_s,
        }
        for trial, start, which in _starts(study)
        if start.record is not None and start.record.coding is not None
    ]
    return _frame(rows, _CODING_COLUMNS)


def failures_frame(study: StoredStudy) -> pd.DataFrame:
    """One row for each start that gave no usable score, with the lines that tell why."""
    rows = [
        {
            **which,
            "host": start.host,
            "state": state_of(trial, which["start"]),
            "kind": failure.kind if failure else "LimitViolated",
            "link": failure.link if failure else "",
            "message": failure.message if failure else "; ".join(start.violations),
            "log_tail": "\n".join(failure.log_tail) if failure else "",
        }
        for trial, start, which in _starts(study)
        for failure in (start.record.failure if start.record else None,)
        if failure is not None or start.violations
    ]
    return _frame(rows, _FAILURE_COLUMNS)


def finalists_frame(study: StoredStudy) -> pd.DataFrame:
    """One row for each finalist of the final rounds; ratios to the reference, 95 % together.

    Its coding answers of all rounds: see `autotune.coding.pooling.Pooled`; none without.
    """
    rows = [
        {
            "trial": one["trial"],
            "parameters": dict(one["parameters"]),
            "changes": one["changes"],
            "repeats": one["repeats"],
            "ratio": one["ratio"],
            "low": one["interval"]["low"],
            "high": one["interval"]["high"],
            **{f"coding_{name}": (one.get("coding") or {}).get(name) for name in _CODING},
        }
        for one in (study.verdict or {}).get("finalists") or ()
    ]
    return _frame(rows, _FINALIST_COLUMNS)


def settings_frame(study: StoredStudy) -> pd.DataFrame:
    """One row for each parameter: what is deployed, and what the verdict names; none before it."""
    verdict = study.verdict or {}
    chosen = verdict.get("parameters")
    if not chosen:
        return _frame([], _SETTING_COLUMNS)
    rows = [
        {
            "parameter": name,
            "flag": section.get("flag") or "",
            "variable": section.get("env") or "",
            "deployed": str(section.get("deployed")),
            "chosen": "none" if chosen.get(name) is None else str(chosen[name]),
            "trial": verdict.get("trial"),
        }
        for name, section in study.definition.get("parameters", {}).items()
    ]
    return _frame(rows, _SETTING_COLUMNS)


def _frame(rows: Sequence[dict[str, Any]], columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(columns))
