"""What the gate sees in a stored study's final rounds, and what keeps it from seeing.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.coding.lossless import Losslessness
from autotune.coding.pooling import Pooled, judge_pooled, pool
from autotune.stored import StoredStart, StoredStudy

__all__ = ["final_caveat", "gate_caveats", "pooled_answers"]

_FEW_PASSED = 0.5
_FOUND_MOST = 0.1
"""Share of new failures that the final rounds should tell from chance."""


def pooled_answers(
    finals: Sequence[tuple[str, StoredStart]], *, reference: str
) -> dict[str, Pooled]:
    """The judgement on each finalist's coding answers of all its final rounds.

    Args:
        finals: Scored final starts with the key of their configuration.
        reference: Key of the deployed configuration: what is compared with it shares host and
            round.
    """
    answers = {
        (key, start.host, start.round): start.record.coding.samples
        for key, start in finals
        if start.record is not None and start.record.coding is not None
    }
    pairs = {
        finalist: pool(
            (answers[reference, host, round_], samples)
            for (key, host, round_), samples in answers.items()
            if key == finalist and (reference, host, round_) in answers
        )
        for finalist in {key for key, _ in finals} - {reference}
    }
    return judge_pooled(pairs)


def final_caveat(winner: Pooled | None) -> str:
    """What the final rounds could not have seen in a winner's answers; empty when little."""
    if winner is None:
        return "its coding answers of the final rounds were not compared with the reference's"
    if winner.refused:
        return f"the gate is off (penalty 0), but {winner.sentence()}"
    least = winner.least_found
    if least <= _FOUND_MOST * winner.asked:
        return ""
    return (
        f"of its {winner.asked} coding answers in the final rounds fewer than {least} new failures "
        "are not told from chance"
    )


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
