"""What an engine calls its limits and its counters.  Empty where it has none, or nobody knows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SGLANG_COUNTERS", "SGLANG_LIMITS", "CounterNames", "LimitFlags"]


@dataclass(frozen=True, slots=True)
class LimitFlags:
    """Flags by which an engine is told its limits.

    Attributes:
        requests: Requests that run at once.
        context: Longest context, tokens.
    """

    requests: str = ""
    context: str = ""


@dataclass(frozen=True, slots=True)
class CounterNames:
    """Names of the engine's counters at `/metrics`, as Prometheus text shows them.

    Attributes:
        generated: Output tokens of requests that have ended.  An engine that counts tokens as it
            makes them has none: what a closed request never sent would look like a lost token.
        steps: Verify steps, one a request and step.
        accepted: Drafted tokens that were accepted.  With them the accept length is 1 + accepted /
            steps, without them generated / steps.
        cached: Prompt tokens that the prefix cache held.
    """

    generated: str = ""
    steps: str = ""
    accepted: str = ""
    cached: str = ""


SGLANG_LIMITS = LimitFlags("--max-running-requests", "--context-length")
SGLANG_COUNTERS = CounterNames(
    generated="sglang:generation_tokens_total",
    steps="sglang:spec_verify_calls_total",
    cached="sglang:cached_tokens_total",
)
