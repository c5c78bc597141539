"""The coding answers of the final rounds, as the report says them.  Pure; from a stored verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.coding.pooling import Pooled
from autotune.report.words import NOTHING, count, percent, point
from autotune.stored import VerdictKind

__all__ = ["coding_cell", "coding_details", "refused"]


def _pooled(finalist: Mapping[str, Any]) -> Pooled | None:
    """The judgement that is stored with a finalist; None where no answers were compared."""
    stored = finalist.get("coding")
    return Pooled(**stored) if stored else None


def refused(finalist: Mapping[str, Any]) -> bool:
    """Whether its coding answers keep a finalist from winning."""
    pooled = _pooled(finalist)
    return pooled is not None and pooled.refused


def coding_cell(finalist: Mapping[str, Any]) -> str:
    """New failures of a finalist, for a table: `9 of 54, 0 fewer (p = 0.002): refused`."""
    pooled = _pooled(finalist)
    if pooled is None:
        return NOTHING
    return (
        f"{pooled.only_finalist_failed} of {pooled.asked}, {pooled.only_reference_failed} fewer "
        f"(p = {pooled.p_value:.2g}){': refused' if pooled.refused else ''}"
    )


def coding_details(verdict: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences for the headline: who is refused, and what the winner's answers showed."""
    finalists = verdict["finalists"]
    found = [
        f"Trial {one['trial']} ({point(one['parameters'])}), measured at {percent(one['ratio'])}, "
        f"may not win: {pooled.sentence()}."
        for one in finalists
        if (pooled := _pooled(one)) is not None and pooled.refused
    ]
    if verdict["kind"] == VerdictKind.BETTER:
        found += [
            f"Its coding answers passed: {count(pooled.only_finalist_failed, 'new failure')} and "
            f"{pooled.only_reference_failed} fewer among {pooled.asked} that both were asked in "
            f"the final rounds (p = {pooled.p_value:.2g})."
            for one in finalists
            if one["trial"] == verdict["trial"]
            and (pooled := _pooled(one)) is not None
            and not pooled.refused
        ]
    return tuple(found)
