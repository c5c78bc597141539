"""The closed loop: exactly so many requests in flight, and where their tokens arrived in time."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence

from autotune.benchmark.client import OpenAiClient
from autotune.benchmark.requests import Outcome, RequestTimings

__all__ = ["ClosedLoop", "LagMeter", "PromptFeed", "WindowLedger"]

_LEAST_FAILURES = 3
_BACKOFF_S = 0.05
_TICK_S = 0.01


class WindowLedger:
    """Tokens by window: windows of `window_s` seconds on one grid that begins at `origin_s`.

    A chunk belongs to the window in which it was read; nothing is cut off, since a request that
    spans windows puts each of its chunks where it arrived.
    """

    def __init__(self, *, origin_s: float, window_s: float) -> None:
        self.origin_s = origin_s
        self.window_s = window_s
        self._tokens: collections.defaultdict[int, float] = collections.defaultdict(float)
        self._taken: dict[int, float] = {}

    def add(self, at_s: float, tokens: float) -> None:
        self._tokens[self.index(at_s)] += tokens

    def take_changes(self) -> dict[int, float]:
        """Tokens by window that came, or went, since this was asked before."""
        changes = {
            index: count - self._taken.get(index, 0.0)
            for index, count in self._tokens.items()
            if count != self._taken.get(index, 0.0)
        }
        self._taken = dict(self._tokens)
        return changes

    def index(self, at_s: float) -> int:
        """Number of the window that holds this time; negative before the origin."""
        return math.floor((at_s - self.origin_s) / self.window_s)

    def start_s(self, index: int) -> float:
        return self.origin_s + index * self.window_s

    def rates(self, first: int, last: int) -> list[float]:
        """Output throughput of the windows first..last-1, tok/s."""
        return [self._tokens[index] / self.window_s for index in range(first, last)]


class PromptFeed:
    """Prompts as JSON bytes, some always ready: composing and encoding is in no request's time."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts
        self._ready: collections.deque[bytes] = collections.deque()

    def fill(self, count: int, *, at_once: int | None = None) -> None:
        """Makes prompts until `count` are ready, at most `at_once` of them in this call."""
        missing = max(0, count - len(self._ready))
        for text in itertools.islice(self._texts, missing if at_once is None else at_once):
            if not missing:
                break
            self._ready.append(json.dumps(text).encode())

    def take(self) -> bytes:
        if not self._ready:
            self.fill(1)
        return self._ready.popleft()


class LagMeter:
    """How late the event loop wakes a task that asked for every 10 ms: late readings of chunks.

    `on_tick` is called at each wake; its own time is not counted.
    """

    def __init__(self, clock: Callable[[], float], on_tick: Callable[[], None]) -> None:
        self._clock = clock
        self._on_tick = on_tick
        self.lags_ms: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s = self._clock() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.lags_ms.append(max(0.0, self._clock() - due_s) * 1000)
            self._on_tick()


class ClosedLoop:
    """Runs one request per stream at once, each followed by the next without a pause.

    The first request of stream i asks for (i + 1) / concurrency of the output tokens.  Requests
    then end one after another from the start on, as they do in the long run, instead of all at the
    same time for ever.

    Args:
        streams: Numbers of the streams to run, each below `concurrency`, that of the whole bucket.

    Attributes:
        ended: All requests that have ended, in order of their end.
        closed: Those that were closed by `stop`.
        collapsed: Set when every stream has failed since the last success: the server is gone, or
            it refuses everything.
    """

    def __init__(
        self,
        client: OpenAiClient,
        feed: PromptFeed,
        ledger: WindowLedger,
        *,
        streams: Sequence[int],
        concurrency: int,
        output_tokens: int,
    ) -> None:
        self._client = client
        self._feed = feed
        self._ledger = ledger
        self._streams = streams
        self._concurrency = concurrency
        self._output_tokens = output_tokens
        self._stopping = False
        self._failed_in_a_row = 0
        self._opened = dict.fromkeys(streams, False)
        self._counted_tokens = 0
        self._counted_chunks = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.ended: list[RequestTimings] = []
        self.closed: list[RequestTimings] = []
        self.collapsed = asyncio.Event()

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._stream(number), name=f"stream-{number}")
            for number in self._streams
        ]

    @property
    def all_opened(self) -> bool:
        """Whether every stream has had a token: the burst of first prompts is over."""
        return all(self._opened.values())

    @property
    def width(self) -> int:
        """Streams that run here."""
        return len(self._streams)

    @property
    def running(self) -> int:
        return sum(not task.done() for task in self._tasks)

    async def stop(self, *, run_out_s: float) -> None:
        """Starts nothing new, lets requests end for `run_out_s` seconds, closes the rest."""
        self._stopping = True
        pending = {task for task in self._tasks if not task.done()}
        if pending and run_out_s > 0:
            _, pending = await asyncio.wait(pending, timeout=run_out_s)
        for task in pending:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def raise_defects(self) -> None:
        """Re-raises what ended a stream's task other than its own end: a defect of ours."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    async def _stream(self, number: int) -> None:
        tokens = math.ceil(self._output_tokens * (number + 1) / self._concurrency)
        opened, ledger = self._opened, self._ledger

        def on_tokens(at_s: float, count: float) -> None:
            ledger.add(at_s, count)
            opened[number] = True

        while not self._stopping:
            body = self._client.body(
                self._feed.take(), max_tokens=tokens, stream=True, ignore_eos=True
            )
            timings = await self._client.stream(
                body,
                on_tokens=on_tokens,
                on_closed=self.closed.append,
                guess_tokens=self._guess_tokens(),
                asked_tokens=tokens,
            )
            tokens = self._output_tokens
            if self._take(timings):
                await asyncio.sleep(_BACKOFF_S)

    def _take(self, timings: RequestTimings) -> bool:
        """Records a request; returns whether to pause before the next."""
        self.ended.append(timings)
        if timings.outcome is Outcome.SUCCESSFUL:
            self._failed_in_a_row = 0
            self._counted_tokens += timings.completion_tokens or 0
            self._counted_chunks += len(timings.chunk_s)
            return False
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= max(_LEAST_FAILURES, self.width):
            self._stopping = True
            self.collapsed.set()
        return True

    def _guess_tokens(self) -> float:
        return self._counted_tokens / self._counted_chunks if self._counted_chunks else 0.0
