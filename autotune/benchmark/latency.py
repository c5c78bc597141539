"""Percentiles of TTFT and TPOT over the requests of a bucket, those that never ended among them.

What is closed after the last window had not ended: among it are the slow ones.  Left out, they
would make percentiles of the fast ones; so it counts as what takes longer than it is known to have
taken (`stats.percentile_at_least`).

    f, c    a stream's first token; when it was closed, or timed out
    N       output tokens that it was asked for, fewer in the staggered first requests: all are
            written, since `ignore_eos` is set
    TPOT    of a closed stream at least (c - f) / (N - 1): what it still had to write takes time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune import stats
from autotune.benchmark.requests import Failure, Outcome, RequestTimings

__all__ = ["Latency", "tpot_of", "ttft_of"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of several requests, ms; 0 where there is none, and such a bucket is invalid.

    Attributes:
        at_least: Whether a percentile is a lower bound only.
        seen: Requests of which it is known.
    """

    median_ms: float
    p99_ms: float
    at_least: bool
    seen: int


def ttft_of(requests: Sequence[RequestTimings]) -> Latency:
    """Of requests, those without a first token among them: the slow ones are there."""
    seen_ms = [ms for t in requests if (ms := t.stats().ttft_ms) is not None]
    unfinished_ms = [
        (t.ended_s - t.sent_s) * 1000
        for t in requests
        if not t.chunk_s and t.outcome is not Outcome.SUCCESSFUL
    ]
    return _latency(seen_ms, unfinished_ms, [])


def tpot_of(requests: Sequence[RequestTimings], *, from_s: float) -> Latency:
    """Of the streams that were under way in the windows; of all, as far as they came, where none
    ended there.

    Args:
        requests: All of a bucket, ended and closed.
        from_s: When the windows began, on the requests' clock.
    """
    seen_ms: list[float] = []
    unfinished_ms: list[float] = []
    seen_since: list[float] = []
    unfinished_since: list[float] = []
    for one in requests:
        if not one.chunk_s or one.ended_s < from_s:
            continue
        first_s = one.chunk_s[0]
        if (tpot_ms := one.stats().tpot_ms) is not None and one.outcome is Outcome.SUCCESSFUL:
            steps = (one.completion_tokens or 0) - 1
            seen_ms.append(tpot_ms)
            seen_since.append(max(0.0, from_s - first_s) / steps * 1000)
        elif _broken_off(one) and (steps := one.asked_tokens - 1) > 0:
            unfinished_ms.append((one.ended_s - first_s) / steps * 1000)
            unfinished_since.append(max(0.0, from_s - first_s) / steps * 1000)
    if not seen_ms:
        so_far = [v for t in requests if (v := t.stats().tpot_ms) is not None]
        return _latency(so_far, [], [])
    return _latency(seen_ms, unfinished_ms, [*seen_since, *unfinished_since])


def _broken_off(one: RequestTimings) -> bool:
    """Whether a stream was still being written when nobody looked any longer."""
    return one.outcome is Outcome.INCOMPLETE or one.failure is Failure.TIMEOUT


def _latency(
    seen_ms: Sequence[float], unfinished_ms: Sequence[float], since_ms: Sequence[float]
) -> Latency:
    if not seen_ms:
        return Latency(0.0, 0.0, at_least=bool(unfinished_ms), seen=0)
    median_ms, median_bound = stats.percentile_at_least(seen_ms, unfinished_ms, 50, since=since_ms)
    p99_ms, p99_bound = stats.percentile_at_least(seen_ms, unfinished_ms, 99, since=since_ms)
    return Latency(median_ms, p99_ms, median_bound or p99_bound, len(seen_ms))
