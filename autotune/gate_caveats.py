"""What keeps the gate from seeing, or was seen and did not stop a trial.  Pure."""

from __future__ import annotations

from autotune.coding.lossless import Losslessness
from autotune.stored import StoredStart, StoredStudy

__all__ = ["gate_caveats"]

_FEW_PASSED = 0.5


def gate_caveats(study: StoredStudy, *, trial: int | None) -> tuple[str, ...]:
    """One clause each: references that cannot be compared with, and drift of the shown trial.

    Args:
        trial: Number of the trial that is shown or named.
    """
    found: dict[str, None] = {}
    for host, start in _references(study):
        record = start.record
        if record is None:
            continue
        if record.lossless is not None and record.lossless.verdict is Losslessness.CORRUPTED:
            found[
                f"the reference on {host} itself writes garbage, so a trial that does is not "
                f"found there by its texts: {record.lossless.reason}"
            ] = None
        coding = record.coding
        if coding is not None and coding.passed < _FEW_PASSED * (coding.passed + coding.failed):
            found[
                f"the reference on {host} passes only {coding.passed} of "
                f"{coding.passed + coding.failed} coding samples, so new failures are hard to see"
            ] = None
    for shown in study.trials:
        for start in shown.starts if shown.number == trial else ():
            lossless = start.record.lossless if start.record is not None else None
            if lossless is not None and lossless.verdict is Losslessness.DRIFTING:
                found[f"trial {shown.number} on {start.host}: {lossless.reason}"] = None
    return tuple(found)


def _references(study: StoredStudy) -> list[tuple[str, StoredStart]]:
    """The first start of each host's reference that ended."""
    first: dict[str, StoredStart] = {}
    starts = [s for t in study.trials if t.reference for s in t.starts if s.record is not None]
    for start in sorted(starts, key=lambda start: start.started_at_s):
        first.setdefault(start.host, start)
    return list(first.items())
