"""One bucket on one server: warm up until steady, then windows until the interval is narrow."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune import stats
from autotune.benchmark.audit import (
    INVALIDATING,
    ServerView,
    audit_cache,
    audit_client,
    audit_first_tokens,
    audit_tokens,
    commonest_error,
    server_view,
)
from autotune.benchmark.counters import Counters, CounterValues
from autotune.benchmark.latency import tpot_of, ttft_of
from autotune.benchmark.load import Load
from autotune.benchmark.requests import Failure, Outcome, RequestTimings
from autotune.errors import ErrorRateTooHigh
from autotune.measure_settings import MeasureSettings
from autotune.measurement import BucketMeasurement, BucketQuality, Interval
from autotune.workload import Bucket

__all__ = ["BucketMeter", "Phase", "WindowNote"]

# Streams that are still running after the last window may end within this time, in which case the
# server's token counter can be held against ours exactly; others are closed, which makes the server
# abort them.  Longer would be time in which a GPU works for no number.
_RUN_OUT_S = 0.3
# Windows of one or two long requests would only say how well those prompts can be guessed.
_LEAST_REQUESTS = 4
_SETTLE_READS = 8
_SETTLE_S = 0.05


class Phase(StrEnum):
    """Where a bucket stands."""

    WARM_UP = "warm-up"
    MEASURE = "measure"


@dataclass(frozen=True, slots=True)
class WindowNote:
    """What one window showed, told while the bucket is running.

    Attributes:
        index: Number within its phase, from 0.
        start_s, end_s: Of the window, by the client's monotonic clock, seconds.
        tok_per_s: Its output throughput; mean_tok_per_s that of the measured windows so far.
        half_width: Of the interval so far, tok/s; None while warming up or with one window.
    """

    bucket: str
    phase: Phase
    index: int
    start_s: float
    end_s: float
    tok_per_s: float
    mean_tok_per_s: float
    half_width: float | None


class BucketMeter:
    """Measures one bucket; used once.

    Args:
        load: The bucket's requests, not yet started.
        template_tokens: What the chat template adds to each prompt, tokens.
        on_window: Told of each window; what it raises ends the measurement.
        clock: The load's, monotonic, seconds.
    """

    def __init__(
        self,
        load: Load,
        bucket: Bucket,
        settings: MeasureSettings,
        *,
        counters: Counters,
        clock: Callable[[], float],
        template_tokens: float = 0.0,
        on_window: Callable[[WindowNote], None] | None = None,
    ) -> None:
        self._load = load
        self._bucket = bucket
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._template_tokens = template_tokens
        self._on_window = on_window

    async def measure(self) -> BucketMeasurement:
        """The bucket's numbers.

        Raises:
            ErrorRateTooHigh: every stream failed since the last success; known as soon as the last
                of them has failed, for a dead server within a fraction of a second.
        """
        started_at_s = time.time()
        before = await self._counters.read()
        try:
            await self._load.start()
            first, steady = await self._warm_up()
            last = await self._windows(first)
        finally:
            await self._load.stop(run_out_s=self._run_out_s())
        after = await self._settled()
        return self._result(
            first,
            last,
            steady=steady,
            view=server_view(before, after),
            after=after,
            started_at_s=started_at_s,
        )

    async def _warm_up(self) -> tuple[int, bool]:
        """Index of the first window to measure, and whether the windows before it were steady.

        The test looks at windows after every stream has had its first token: before that the server
        works through a burst of prompts that the closed loop never shows again.
        """
        opened: int | None = None
        most = math.ceil(self._settings.warm_up_most_s / self._settings.window_s)
        for index in range(most):
            await self._window_end(index)
            self._note(Phase.WARM_UP, index, 0)
            if opened is None and self._load.all_opened:
                opened = index + 1
            if opened is not None and stats.is_steady(self._load.rates(opened, index + 1)):
                return index + 1, True
        return most, False

    async def _windows(self, first: int) -> int:
        """Index after the last measured window."""
        settings = self._settings
        ended_before = len(self._load.ended)
        last = first
        while True:
            await self._window_end(last)
            last += 1
            self._note(Phase.MEASURE, last - 1 - first, first)
            seen = len(self._load.ended) - ended_before + self._load.running
            rates = self._load.rates(first, last)
            spent = len(rates) >= settings.most_windows
            if spent or (
                seen >= _LEAST_REQUESTS
                and stats.enough(
                    rates,
                    target_relative_half_width=settings.target_half_width,
                    least=settings.least_windows,
                    most=settings.most_windows,
                )
            ):
                break
        return last

    async def _window_end(self, index: int) -> None:
        """Waits for the end of a window.  Raises ErrorRateTooHigh when the streams collapse."""
        await self._load.window(index)
        if self._load.collapsed:
            raise ErrorRateTooHigh(
                f"bucket {self._bucket.key}: every stream failed, most often with"
                f" {commonest_error(self._load.ended)}"
            )

    def _note(self, phase: Phase, index: int, first: int) -> None:
        if self._on_window is None:
            return
        rates = self._load.rates(first, first + index + 1)
        half_width = None
        if phase is Phase.MEASURE and len(rates) > 1:
            half_width = stats.mean_interval(rates).half_width
        self._on_window(
            WindowNote(
                bucket=self._bucket.key,
                phase=phase,
                index=index,
                start_s=self._load.start_s(first + index),
                end_s=self._load.start_s(first + index + 1),
                tok_per_s=rates[-1],
                mean_tok_per_s=math.fsum(rates) / len(rates),
                half_width=half_width,
            )
        )

    def _run_out_s(self) -> float:
        """Time to wait for running streams: none where a request takes longer than we would."""
        good = [t for t in self._load.ended if t.outcome is Outcome.SUCCESSFUL]
        lengths = [timings.ended_s - timings.sent_s for timings in good[-8:]]
        return _RUN_OUT_S if lengths and max(lengths) <= _RUN_OUT_S else 0.0

    async def _settled(self) -> CounterValues:
        """The counters when they have stopped moving: closed streams have left the server."""
        values = await self._counters.read()
        for _ in range(_SETTLE_READS):
            if values.generation_tokens is None:
                break
            await asyncio.sleep(_SETTLE_S)
            earlier, values = values, await self._counters.read()
            if values.generation_tokens == earlier.generation_tokens:
                break
        return values

    def _result(
        self,
        first: int,
        last: int,
        *,
        steady: bool,
        view: ServerView,
        after: CounterValues,
        started_at_s: float,
    ) -> BucketMeasurement:
        bucket, ended, closed = self._bucket, self._load.ended, self._load.closed
        rates, strain = self._load.rates(first, last), self._load.strain(first, last)
        from_s, to_s = self._load.start_s(first), self._load.start_s(last)
        good = [timings for timings in ended if timings.outcome is Outcome.SUCCESSFUL]
        waited = [t for t in ended if t.failure is Failure.TIMEOUT and not t.chunk_s]
        sent = _preferred([*good, *closed, *waited], lambda t: from_s <= t.sent_s < to_s)
        within = [t for t in good if from_s <= t.ended_s < to_s] or [*good, *closed]
        ttft = ttft_of(sent)
        tpot = tpot_of([*ended, *closed], from_s=from_s)
        gaps_ms = [gap for timings in within for gap in timings.chunk_gaps_ms()]
        chunks = sum(len(timings.chunk_s) for timings in within)
        prompt = [t.prompt_tokens for t in good if t.prompt_tokens is not None]
        reported = [t.cached_tokens for t in good if t.cached_tokens is not None]
        cached = sum(reported) if reported else view.cached_tokens
        errors = len(ended) - len(good)
        interval = stats.mean_interval(rates) if len(rates) > 1 else Interval(rates[0], rates[0])
        reasons = {
            BucketQuality.CLIENT_BOTTLENECK: audit_client(
                cpu=strain.cpu,
                lag_p99_ms=strain.lag_p99_ms,
                ttft_ms=ttft.median_ms,
                cpu_most=self._settings.client_cpu_most,
                lag_most_ms=self._settings.loop_lag_most_ms,
            ),
            BucketQuality.CLIENT_LATE: audit_first_tokens(
                unread_ms=[t.unread_ms for t in sent if t.unread_ms is not None],
                ttft_ms=ttft.median_ms,
            ),
            BucketQuality.NOT_STEADY: ""
            if steady or stats.halves_agree(rates)
            else f"throughput did not settle within {self._settings.warm_up_most_s:g} s",
            BucketQuality.CACHE_HITS: audit_cache(
                cached_tokens=cached,
                prompt_tokens=sum(prompt),
                requests=len(good) + len(closed),
                template_tokens=self._template_tokens,
            ),
            BucketQuality.TOKEN_MISMATCH: audit_tokens(
                server_tokens=view.generation_tokens,
                ended=ended,
                closed=closed,
            ),
            BucketQuality.ERRORS: f"{errors} of {len(ended)} requests failed, most often with"
            f" {commonest_error(ended)}"
            if errors > self._settings.error_rate_most * len(ended)
            else "",
            BucketQuality.TOO_FEW_REQUESTS: "" if ttft.seen and tpot.seen else "no request ended",
            BucketQuality.WIDE_INTERVAL: "wider than asked"
            if stats.relative_half_width(rates) > self._settings.target_half_width
            else "",
            BucketQuality.TTFT_AT_LEAST: "first tokens had not come at the end"
            if ttft.at_least
            else "",
            BucketQuality.TPOT_AT_LEAST: "the slowest streams had not ended at the end"
            if tpot.at_least
            else "",
            BucketQuality.QUEUED: "the server runs fewer requests at once"
            if (after.max_running_requests or bucket.concurrency) < bucket.concurrency
            else "",
            BucketQuality.BEYOND_GRAPHS: "larger batches than the captured ones run eagerly"
            if 0 < (after.largest_graph or 0) < bucket.concurrency
            else "",
        }
        marks = tuple(mark for mark, reason in reasons.items() if reason)
        limit_ms = self._settings.ttft_p99_most_ms
        doubted = set(INVALIDATING)
        if limit_ms is not None and ttft.p99_ms > limit_ms:
            # Read late, TTFT is too long: within the limit it is within it all the more.
            doubted.add(BucketQuality.CLIENT_LATE)
        against = [reasons[mark] for mark in marks if mark in doubted]
        return BucketMeasurement(
            context_tokens=bucket.context_tokens,
            concurrency=bucket.concurrency,
            output_tokens=bucket.output_tokens,
            weight=bucket.weight,
            output_tok_per_s=math.fsum(rates) / len(rates),
            interval=interval,
            accept_length=view.accept_length,
            ttft_ms=ttft.median_ms,
            ttft_p99_ms=ttft.p99_ms,
            tpot_ms=tpot.median_ms,
            tpot_p99_ms=tpot.p99_ms,
            chunk_gap_ms=_percentile(gaps_ms, 50),
            chunk_tokens=sum(t.completion_tokens or 0 for t in within) / max(chunks, 1),
            prompt_tokens=math.fsum(prompt) / max(len(prompt), 1),
            cached_tokens=cached,
            server_tokens=view.generation_tokens,
            client_cpu=strain.cpu,
            loop_lag_ms=strain.lag_p99_ms,
            warm_up_s=first * self._settings.window_s,
            windows_s=len(rates) * self._settings.window_s,
            windows=len(rates),
            requests=len(ended),
            errors=errors,
            valid=not against,
            marks=marks,
            reason="; ".join(against),
            started_at_s=started_at_s,
            max_running_requests=after.max_running_requests,
            largest_graph=after.largest_graph,
            client_processes=strain.processes,
        )


def _preferred(
    timings: Sequence[RequestTimings], wanted: Callable[[RequestTimings], bool]
) -> Sequence[RequestTimings]:
    """Those wanted; all when none is: long requests in a short bucket."""
    return [one for one in timings if wanted(one)] or timings


def _percentile(values: Sequence[float], q: float) -> float:
    """NaN-free: 0 where there is nothing, in which case the bucket is marked and invalid."""
    return stats.percentile(values, q) if values else 0.0
