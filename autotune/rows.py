"""Rows of our tables from values, and values from rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy.engine import RowMapping

from autotune.coding.lossless import Comparison, Losslessness
from autotune.measurement import (
    BucketMeasurement,
    BucketQuality,
    CodingResult,
    Drift,
    Ending,
    Evidence,
    FailureRecord,
    Interval,
    StartRecord,
)
from autotune.records import BucketRow
from autotune.sglang.masking import mask_text, masked_words
from autotune.stored import Role, StoredScore, StoredStart
from autotune.supervisors.base import Original, Owner

__all__ = ["bucket_row", "plain_original", "storable", "stored_start"]


def storable(value: Any) -> Any:
    """Text that every database takes: no NUL, no half of a surrogate pair."""
    if isinstance(value, str):
        return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {storable(key): storable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [storable(one) for one in value]
    return value


_COLUMNS = frozenset(
    {
        *("context_tokens", "concurrency", "output_tokens", "weight", "output_tok_per_s"),
        *("accept_length", "ttft_ms", "tpot_ms", "valid"),
    }
)


_BUCKET_FIELDS = frozenset(field.name for field in fields(BucketMeasurement))


def bucket_row(bucket: BucketMeasurement) -> BucketRow:
    """The row of a measured bucket: columns to ask by, the rest as details."""
    whole = asdict(bucket)
    interval = whole.pop("interval")
    columns = {key: whole.pop(key) for key in _COLUMNS}
    return BucketRow(**columns, low=interval["low"], high=interval["high"], details=whole)


def stored_start(
    row: RowMapping,
    *,
    buckets: Sequence[RowMapping],
    evidence: Sequence[RowMapping],
    coding: RowMapping | None,
) -> StoredStart:
    """One start from its row and the rows that belong to it."""
    measured = tuple(_bucket(bucket) for bucket in buckets)
    score = None
    if row["score"] is not None and row["score_low"] is not None and row["score_high"] is not None:
        interval = Interval(row["score_low"], row["score_high"])
        gate = 1.0 if row["score_gate"] is None else row["score_gate"]
        score = StoredScore(row["score"], interval, row["score_ratio"] or 0.0, gate)
    record = None
    if row["ending"] is not None:
        failure = row["failure"] and FailureRecord(
            **{**row["failure"], "log_tail": tuple(row["failure"]["log_tail"])}
        )
        record = StartRecord(
            ending=Ending(row["ending"]),
            proof=tuple(
                Evidence(e["link"], e["wanted"], e["seen"], e["ok"], e["at_s"], e.get("raw", ""))
                for e in evidence
            ),
            buckets=measured,
            coding=_coding(coding) if coding is not None else None,
            texts=row["texts"],
            failure=failure or None,
            invocation_id=row["invocation_id"],
            fingerprint=row["fingerprint"],
            stop_s=row["stop_s"],
            load_s=row["load_s"],
            measure_s=row["measure_s"],
            started_at_s=row["started_at_s"],
            ended_at_s=row["ended_at_s"] or 0.0,
            lossless=_comparison(row["lossless"]) if row["lossless"] else None,
            drift=Drift(**row["drift"]) if row["drift"] else None,
        )
    return StoredStart(
        order=row["id"],
        role=Role(row["role"]),
        round=row["round"],
        host=row["host"],
        claim_id=row["claim_id"],
        nonce=row["nonce"],
        owner=Owner(**row["owner"]),
        argv=tuple(row["argv"]),
        started_at_s=row["started_at_s"],
        record=record,
        score=score,
        violations=tuple(row["violations"]),
        buckets=measured,
    )


def _comparison(saved: Mapping[str, Any]) -> Comparison:
    return Comparison(**{**saved, "verdict": Losslessness(saved["verdict"])})


def _bucket(row: RowMapping) -> BucketMeasurement:
    details = dict(row["details"])
    details["marks"] = tuple(BucketQuality(mark) for mark in details["marks"])
    return BucketMeasurement(
        **{key: row[key] for key in _COLUMNS},
        interval=Interval(row["low"], row["high"]),
        **{key: value for key, value in details.items() if key in _BUCKET_FIELDS},
    )


def _coding(row: RowMapping) -> CodingResult:
    return CodingResult(
        samples=row["samples"],
        passed=row["passed"],
        failed=row["failed"],
        outcomes=row["outcomes"],
        wall_s=row["wall_s"],
        rules=row["rules"] or {},
        sandbox=row["sandbox"] or "",
    )


def plain_original(original: Original) -> dict[str, Any]:
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
