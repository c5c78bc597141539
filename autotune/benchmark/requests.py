"""One request: what happened when, and what follows from it.

    sent_s     the request's bytes were handed to the connection
    chunk_s    a chunk that carried tokens was read; chunk_tokens its tokens
    TTFT       chunk_s[0] - sent_s
    TPOT       (chunk_s[-1] - chunk_s[0]) / (output tokens - 1)

Times are those of one monotonic clock (`time.perf_counter`), seconds.  Tokens come from the
server's `usage` alone: with speculative decoding one chunk carries several tokens, and counting
chunks would hide exactly what is tuned.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Failure", "Outcome", "RequestRecorder", "RequestStats", "RequestTimings", "StreamUsage"]


class Outcome(StrEnum):
    """How a request ended.

    SUCCESSFUL: a finish reason and a usage came, and no error.  INCOMPLETE: we closed the stream
    after the last window.  ERRORED: everything else.
    """

    SUCCESSFUL = "successful"
    INCOMPLETE = "incomplete"
    ERRORED = "errored"


class Failure(StrEnum):
    """Why a request is ERRORED."""

    CONNECTION = "connection"
    HTTP_STATUS = "http-status"
    ERROR_EVENT = "error-event"
    BAD_EVENT = "bad-event"
    TRUNCATED = "truncated"
    NO_USAGE = "no-usage"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """What was seen of one request.

    Attributes:
        sent_s, ended_s: Start and end by the monotonic clock, seconds.
        chunk_s: When each chunk with tokens was read; shape (n_chunks,).
        chunk_tokens: Tokens of each chunk; shape (n_chunks,).  Whole numbers where the server
            counts in every chunk; else the request's tokens spread evenly over its chunks.
        live: Whether the server counted in every chunk.
        completion_tokens, prompt_tokens, cached_tokens: By the server's usage; None without.
        unread_ms: How long the first token had lain unread, see `autotune.benchmark.unread`.
        asked_tokens: Output tokens that it was asked for: all come, since `ignore_eos` is set.
        failure, message: Class and text of the error; None and "" otherwise.
    """

    sent_s: float
    ended_s: float
    chunk_s: tuple[float, ...]
    chunk_tokens: tuple[float, ...]
    live: bool
    outcome: Outcome
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    failure: Failure | None = None
    message: str = ""
    unread_ms: float | None = None
    asked_tokens: int = 0

    def stats(self) -> RequestStats:
        """The numbers that follow from the timings."""
        tokens = self.completion_tokens or 0
        first = self.chunk_s[0] if self.chunk_s else None
        tpot_ms = None
        if first is not None and tokens > 1 and self.outcome is not Outcome.ERRORED:
            tpot_ms = (self.chunk_s[-1] - first) / (tokens - 1) * 1000
        return RequestStats(
            outcome=self.outcome,
            ttft_ms=None if first is None else (first - self.sent_s) * 1000,
            tpot_ms=tpot_ms,
            output_tokens=tokens,
            failure=self.failure,
            message=self.message,
        )

    def chunk_gaps_ms(self) -> list[float]:
        """Time between chunks that follow each other, ms; shape (n_chunks - 1,)."""
        return [(b - a) * 1000 for a, b in itertools.pairwise(self.chunk_s)]


@dataclass(frozen=True, slots=True)
class RequestStats:
    """The numbers of one request.

    Attributes:
        ttft_ms: Time to first token, ms; None when no token came.
        tpot_ms: (last token - first token) / (output tokens - 1), ms, as `bench_serving.py` of
            SGLang defines it; None unless successful with at least two tokens.
        output_tokens: By the server's usage.
    """

    outcome: Outcome
    ttft_ms: float | None
    tpot_ms: float | None
    output_tokens: int
    failure: Failure | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """The `usage` object of an answer."""

    completion_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


OnTokens = Callable[[float, float], None]
"""Called with (time, tokens) when tokens arrive; with the past time of a chunk when its tokens
become known only at the request's end; with a negative number when a guess is taken back."""


class RequestRecorder:
    """Collects one stream and reports its tokens as they arrive.

    A server that counts in every chunk (`continuous_usage_stats`) is reported exactly.  For one
    that counts at the end only, a chunk is reported at once with `guess_tokens` (the mean of the
    requests before it), and when the usage comes every chunk gets its even share of the true
    count instead.
    """

    __slots__ = (
        "_asked_tokens",
        "_cached_tokens",
        "_chunk_s",
        "_chunk_tokens",
        "_guess_tokens",
        "_live",
        "_on_tokens",
        "_prompt_tokens",
        "_seen_tokens",
        "_usage_seen",
        "finish_reason",
        "sent_s",
        "unread_ms",
    )

    def __init__(
        self,
        sent_s: float,
        on_tokens: OnTokens,
        *,
        guess_tokens: float = 0.0,
        asked_tokens: int = 0,
    ) -> None:
        self.sent_s = sent_s
        self._asked_tokens = asked_tokens
        self.finish_reason: str | None = None
        self.unread_ms: float | None = None
        self._on_tokens = on_tokens
        self._guess_tokens = guess_tokens
        self._chunk_s: list[float] = []
        self._chunk_tokens: list[float] = []
        self._live = False
        self._usage_seen = False
        self._seen_tokens = 0
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None

    @property
    def opened(self) -> bool:
        """Whether the first token has come."""
        return bool(self._chunk_s)

    @property
    def usage_seen(self) -> bool:
        return self._usage_seen

    def chunk(self, at_s: float, *, has_text: bool, usage: StreamUsage | None, last: bool) -> None:
        """Takes one chunk.

        Args:
            has_text: Whether it carries text of any kind, content or reasoning.
            usage: The counts in it, cumulative.
            last: Whether it is a closing chunk, without choices: it carries the count, no text.
        """
        fresh = 0
        if usage is not None:
            self._usage_seen = True
            fresh = max(0, usage.completion_tokens - self._seen_tokens)
            self._seen_tokens = max(self._seen_tokens, usage.completion_tokens)
            self._prompt_tokens = _newer(usage.prompt_tokens, self._prompt_tokens)
            self._cached_tokens = _newer(usage.cached_tokens, self._cached_tokens)
            # Counts that first come after text belong to a server that counts at the end.
            self._live = self._live or not (last or self._chunk_s)
        if last and not self._live:
            return
        if has_text or fresh:
            tokens = float(fresh) if self._live else self._guess_tokens
            self._chunk_s.append(at_s)
            self._chunk_tokens.append(tokens)
            if tokens:
                self._on_tokens(at_s, tokens)

    def finish(
        self, ended_s: float, outcome: Outcome, failure: Failure | None = None, message: str = ""
    ) -> RequestTimings:
        """Ends the request; spreads its tokens when they became known only now."""
        if not self._live and self._chunk_s and self._usage_seen:
            share = self._seen_tokens / len(self._chunk_s)
            for at_s, guess in zip(self._chunk_s, self._chunk_tokens, strict=True):
                self._on_tokens(at_s, share - guess)
            self._chunk_tokens = [share] * len(self._chunk_s)
        return RequestTimings(
            sent_s=self.sent_s,
            ended_s=ended_s,
            chunk_s=tuple(self._chunk_s),
            chunk_tokens=tuple(self._chunk_tokens),
            live=self._live,
            outcome=outcome,
            completion_tokens=self._seen_tokens if self._usage_seen else None,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            finish_reason=self.finish_reason,
            failure=failure,
            message=message,
            unread_ms=self.unread_ms if self._chunk_s else None,
            asked_tokens=self._asked_tokens,
        )


def _newer(value: int | None, older: int | None) -> int | None:
    return older if value is None else value
