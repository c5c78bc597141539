"""What is wrong with a measured bucket: the checks after the last window.  Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.benchmark.counters import CounterValues
from autotune.benchmark.requests import Outcome, RequestTimings
from autotune.measurement import BucketMeasurement, BucketQuality

__all__ = [
    "INVALIDATING",
    "ServerView",
    "audit_cache",
    "audit_client",
    "audit_first_tokens",
    "audit_tokens",
    "commonest_error",
    "only_clients_fault",
    "server_view",
]

INVALIDATING = frozenset(
    {
        BucketQuality.CLIENT_BOTTLENECK,
        BucketQuality.NOT_STEADY,
        BucketQuality.CACHE_HITS,
        BucketQuality.TOKEN_MISMATCH,
        BucketQuality.ERRORS,
        BucketQuality.TOO_FEW_REQUESTS,
        BucketQuality.THERMAL,
    }
)
"""Marks that take a bucket out of the score."""

# Marks that say nothing about the server.
_CLIENTS_FAULT = frozenset(
    {BucketQuality.CLIENT_BOTTLENECK, BucketQuality.CLIENT_LATE, BucketQuality.THERMAL}
)

# Lateness of a tenth of the TTFT at the 99th percentile is about one of a hundredth at the median.
_LAG_SHARE = 0.1
_UNREAD_MS = 1.0
_UNREAD_SHARE = 0.01
CACHE_LIMIT = 0.02
# Phrases of two buckets may begin with the same word, of up to four tokens; with two, hardly ever.
_SHARED_PHRASE_TOKENS = 4
MISMATCH_LIMIT = 0.01
# Other requests of one token, health checks for example, and the edges of chunks.
_MISMATCH_TOKENS = 8
# Steps that a server decodes after a stream is closed, before it notices.
_LATE_STEPS = 4


@dataclass(frozen=True, slots=True)
class ServerView:
    """Differences of the server's counters over a bucket.

    Attributes:
        generation_tokens: Output tokens; None without the counter.
        accept_length: Output tokens per verify step: of the counters' differences, else the
            server's running average; None without either.
        cached_tokens: Prompt tokens from the prefix cache; None without the counter.
    """

    generation_tokens: int | None
    accept_length: float | None
    cached_tokens: int | None


def server_view(before: CounterValues, after: CounterValues) -> ServerView:
    """A counter that is absent beside a present one has not counted anything yet: 0.

    Without an answer before the bucket there is no difference: what was counted since the server's
    start is not what the bucket got.
    """
    if not before.answered:
        return ServerView(None, after.accept_length, None)
    accept_length = after.accept_length
    steps = (after.verify_calls or 0) - (before.verify_calls or 0)
    if after.accepted_tokens is not None:
        accepted = after.accepted_tokens - (before.accepted_tokens or 0)
        accept_length = 1 + accepted / steps if steps > 0 else None
    cached = (after.cached_tokens or 0) - (before.cached_tokens or 0)
    if after.generation_tokens is None:
        known = cached if after.cached_tokens is not None else None
        return ServerView(None, accept_length, known)
    generated = after.generation_tokens - (before.generation_tokens or 0)
    if after.verify_calls is not None and after.accepted_tokens is None:
        accept_length = generated / steps if steps > 0 else None
    return ServerView(generated, accept_length, cached)


def audit_client(
    *, cpu: float, lag_p99_ms: float, ttft_ms: float, cpu_most: float, lag_most_ms: float
) -> str:
    """Why the client may have been the bottleneck; "" when it was not.

    One core is one event loop: near a full one, chunks wait for the loop and not for the server.
    A late loop spoils TTFT first, so a long TTFT allows a later loop.
    """
    if cpu > cpu_most:
        return f"the client used {cpu:.0%} of a core, limit {cpu_most:.0%}"
    limit_ms = max(lag_most_ms, _LAG_SHARE * ttft_ms)
    if lag_p99_ms > limit_ms:
        return f"the client's event loop was {lag_p99_ms:.0f} ms late, limit {limit_ms:.0f} ms"
    return ""


def audit_first_tokens(*, unread_ms: Sequence[float], ttft_ms: float) -> str:
    """Why TTFT may be too long by the client; "" when it is not.

    First tokens that lay unread for so long on average are half of what TTFT may be off.  The
    longest is left out: the kernel counts in ticks, and one that is counted may have just begun.
    """
    limit_ms = _UNREAD_MS + _UNREAD_SHARE * ttft_ms
    counted = sorted(unread_ms)[:-1]
    mean_ms = math.fsum(counted) / max(len(counted), 1)
    if mean_ms <= limit_ms:
        return ""
    return f"first tokens lay unread for {mean_ms:.1f} ms on average, limit {limit_ms:.1f} ms"


def audit_cache(
    *, cached_tokens: int | None, prompt_tokens: int, requests: int, template_tokens: float
) -> str:
    """Why the prefix cache may have helped; "" when it did not.

    The chat template before the prompt is the same in every request and may be cached.
    """
    if cached_tokens is None or not prompt_tokens:
        return ""
    allowed = CACHE_LIMIT * prompt_tokens + requests * (template_tokens + _SHARED_PHRASE_TOKENS)
    if cached_tokens <= allowed:
        return ""
    return (
        f"{cached_tokens} of {prompt_tokens} prompt tokens came from the prefix cache,"
        f" at most {allowed:.0f} expected"
    )


def audit_tokens(
    *,
    server_tokens: int | None,
    ended: Sequence[RequestTimings],
    closed: Sequence[RequestTimings],
) -> str:
    """Why the server's token counter contradicts the client's; "" when it does not.

    Requests that ended well must be in the server's count.  Failed and closed ones may be in it,
    with what had arrived and a few steps more: servers differ in whether aborted requests count.
    """
    if server_tokens is None:
        return ""
    good = [timings for timings in ended if timings.outcome is Outcome.SUCCESSFUL]
    certain = sum(timings.completion_tokens or 0 for timings in good)
    bad = [timings for timings in ended if timings.outcome is not Outcome.SUCCESSFUL]
    bad += closed
    perhaps = sum(sum(timings.chunk_tokens) for timings in bad)
    step = max((max(timings.chunk_tokens, default=0.0) for timings in good), default=0.0)
    perhaps += _LATE_STEPS * max(step, 1.0) * len(bad)
    slack = max(MISMATCH_LIMIT * certain, _MISMATCH_TOKENS)
    if certain - slack <= server_tokens <= certain + perhaps + slack:
        return ""
    return (
        f"the server counted {server_tokens} output tokens, the client {certain} of ended requests"
        f" and at most {perhaps:.0f} of others"
    )


def only_clients_fault(measured: BucketMeasurement) -> bool:
    """Whether a bucket is not valid for no reason of the server's: it is worth a second try."""
    servers_fault = INVALIDATING - _CLIENTS_FAULT
    return not measured.valid and servers_fault.isdisjoint(measured.marks)


def commonest_error(ended: Sequence[RequestTimings]) -> str:
    """`class: message` of the error that came most often; "" without errors."""
    errors = Counter(
        f"{timings.failure}: {timings.message}" for timings in ended if timings.failure is not None
    )
    return errors.most_common(1)[0][0] if errors else ""
