"""The measurement of one server start, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import httpx
import uvloop

from autotune.benchmark.audit import commonest_error
from autotune.benchmark.client import Answer, Endpoint, OpenAiClient
from autotune.benchmark.closed_loop import PromptFeed
from autotune.benchmark.counters import Counters, HttpCounters
from autotune.benchmark.load import Load, LocalLoad
from autotune.benchmark.measure import BucketMeter, WindowNote
from autotune.benchmark.requests import Outcome, RequestTimings
from autotune.benchmark.spread import Connection, Pool, SpreadLoad, processes_for
from autotune.closing import Closing
from autotune.engine_words import SGLANG_COUNTERS, CounterNames
from autotune.errors import AutotuneError, ErrorRateTooHigh
from autotune.interrupts import between_callbacks
from autotune.measure_settings import MeasureSettings
from autotune.measurement import BucketMeasurement, BucketQuality
from autotune.prompts import PieceCounts, PromptLibrary, PromptSet, calibrate, fit_offset
from autotune.workload import Bucket

__all__ = ["Benchmark"]

_CLIENT_SLOW = frozenset({BucketQuality.CLIENT_BOTTLENECK, BucketQuality.CLIENT_LATE})
_WARM_UP_REQUESTS = 4
_WARM_UP_CONTEXT_TOKENS = 256
_WARM_UP_OUTPUT_TOKENS = 32

_T = TypeVar("_T")


class Benchmark(Closing):
    """One client, one event loop and the prompts of one server start; a context manager.

    A bucket that is measured again gets fresh prompts: round 0, 1, ... of its set, the same in
    every start of the study.

    Args:
        base_url: `http://host:port`, with or without `/v1`.
        prompts_seed: The study's seed.
        transport: Replaces the network, for tests.
        counters: Replaces the server's `/metrics` and `/server_info`.
        counter_names: What the engine calls its counters.
        processes: Processes that the streams are spread over; after a bucket in which one process
            was the bottleneck, as many as there are cores.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        prompts_seed: int,
        settings: MeasureSettings,
        endpoint: Endpoint = Endpoint.CHAT,
        transport: httpx.AsyncBaseTransport | None = None,
        counters: Counters | None = None,
        counter_names: CounterNames = SGLANG_COUNTERS,
        processes: int = 1,
    ) -> None:
        self._settings = settings
        self._seed = prompts_seed
        self._client = OpenAiClient(
            base_url,
            model=model,
            api_key=api_key,
            endpoint=endpoint,
            request_timeout_s=settings.request_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            transport=transport,
        )
        self._connection = (
            Connection(
                base_url=base_url,
                model=model,
                api_key=api_key,
                endpoint=endpoint,
                request_timeout_s=settings.request_timeout_s,
                stall_timeout_s=settings.stall_timeout_s,
            )
            if transport is None
            else None
        )
        self._pool = Pool()
        self._processes = processes
        self._counters = counters or HttpCounters(self._client.http, names=counter_names)
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._library = PromptLibrary.of_seed(prompts_seed)
        self._counts: PieceCounts | None = None
        self._rounds: dict[str, int] = {}
        self._working: asyncio.Task[object] | None = None
        self.requests: tuple[RequestTimings, ...] = ()
        """Every request of the bucket that was measured last."""
        self._given_up: AutotuneError | None = None
        self._interrupted = False

    def close(self) -> None:
        """Closes the connections and the event loop."""
        try:
            with between_callbacks(self._runner.get_loop(), lambda: None):
                self._runner.run(self._close())
        finally:
            self._runner.close()

    def give_up(self, reason: AutotuneError) -> None:
        """End what is under way, and whatever would come after it, with this reason.

        May be called from any thread until `close`.
        """
        self._given_up = reason
        self._runner.get_loop().call_soon_threadsafe(self._cancel)

    def warm_up(self) -> None:
        """Throw-away requests: kernels, connections; and the count of the prompts' pieces.

        Raises:
            ErrorRateTooHigh: when all of them failed.
            MeasurementError: when the server does not count prompt tokens.
        """
        self._run(self._warm_up())

    def measure(
        self, bucket: Bucket, on_window: Callable[[WindowNote], None] | None = None
    ) -> BucketMeasurement:
        """Measures one bucket; see `BucketMeter.measure` for what it raises."""
        return self._run(self._measure(bucket, on_window))

    def generate_text(
        self, prompts: Sequence[str], *, max_tokens: int, concurrency: int
    ) -> list[Answer]:
        """Greedy answers, in the order of the prompts; an error is an answer with its text."""
        return self._run(self._generate(prompts, max_tokens, concurrency))

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a piece of work to its end.  Raises the reason when it was given up."""
        try:
            with between_callbacks(self._runner.get_loop(), self._interrupt):
                return self._runner.run(self._until_given_up(work))
        except asyncio.CancelledError:
            if self._given_up is None:
                raise
            raise self._given_up from None

    async def _until_given_up(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._given_up is not None:
            work.close()
            raise self._given_up
        if self._interrupted:
            work.close()
            raise asyncio.CancelledError
        self._working = asyncio.current_task()
        try:
            return await work
        finally:
            self._working = None

    def _interrupt(self) -> None:
        self._interrupted = True
        self._cancel()

    def _cancel(self) -> None:
        if self._working is not None:
            self._working.cancel()

    async def _close(self) -> None:
        await self._pool.aclose()
        await self._client.aclose()

    async def _warm_up(self) -> None:
        prompts = await self._prompts("warm-up", _WARM_UP_CONTEXT_TOKENS)
        feed = PromptFeed(prompts.texts())
        bodies = [
            self._client.body(
                feed.take(), max_tokens=_WARM_UP_OUTPUT_TOKENS, stream=True, ignore_eos=True
            )
            for _ in range(_WARM_UP_REQUESTS)
        ]
        ended: list[RequestTimings] = await asyncio.gather(
            *(self._client.stream(body, on_tokens=_ignored) for body in bodies)
        )
        if all(timings.outcome is not Outcome.SUCCESSFUL for timings in ended):
            raise ErrorRateTooHigh(
                f"every warm-up request failed, most often with {commonest_error(ended)}"
            )

    async def _measure(
        self, bucket: Bucket, on_window: Callable[[WindowNote], None] | None
    ) -> BucketMeasurement:
        prompts = await self._prompts(bucket.key, bucket.context_tokens)
        load = self._load(bucket, prompts)
        meter = BucketMeter(
            load,
            bucket,
            self._settings,
            counters=self._counters,
            clock=self._client.clock,
            template_tokens=prompts.counts.overhead_tokens,
            on_window=on_window,
        )
        measured = await meter.measure()
        self.requests = (*load.ended, *load.closed)
        slow = not measured.valid and not _CLIENT_SLOW.isdisjoint(measured.marks)
        if slow and self._connection is not None:
            self._processes = os.cpu_count() or 1
        return measured

    def _load(self, bucket: Bucket, prompts: PromptSet) -> Load:
        """One process; once that was too little, the bucket's streams over several."""
        window_s = self._settings.window_s
        processes = processes_for(bucket.concurrency, cores=self._processes)
        if self._connection is None or processes < 2:
            return LocalLoad(self._client, bucket, prompts.texts(), window_s=window_s)
        return SpreadLoad(
            self._pool, self._connection, bucket, prompts, window_s=window_s, processes=processes
        )

    async def _prompts(self, key: str, context_tokens: int) -> PromptSet:
        if self._counts is None:
            self._counts = await calibrate(self._library, self._client)
        number = self._rounds.get(key, 0)
        self._rounds[key] = number + 1
        prompts = PromptSet(
            seed=self._seed,
            key=f"{key}/{number}",
            context_tokens=context_tokens,
            prompt_library=self._library,
            counts=self._counts,
        )
        return await fit_offset(prompts, self._client)

    async def _generate(
        self, prompts: Sequence[str], max_tokens: int, concurrency: int
    ) -> list[Answer]:
        slots = asyncio.Semaphore(concurrency)

        async def one(prompt: str) -> Answer:
            async with slots:
                return await self._client.answer(prompt, max_tokens=max_tokens)

        return await asyncio.gather(*map(one, prompts))


def _ignored(at_s: float, tokens: float) -> None:
    """The tokens of throw-away requests."""
