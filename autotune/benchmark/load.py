"""The load of one bucket, in this process: its requests, their tokens by window, its own strain."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autotune.benchmark.client import OpenAiClient
from autotune.benchmark.closed_loop import ClosedLoop, LagMeter, PromptFeed, WindowLedger
from autotune.benchmark.requests import RequestTimings
from autotune.workload import Bucket

__all__ = ["Load", "LocalLoad", "Strain", "WindowStrain", "strain_of"]


@dataclass(frozen=True, slots=True)
class Strain:
    """How hard the client itself had to work.

    Attributes:
        cpu: CPU time / time of its busiest process, share of a core.
        lag_p99_ms: 99th percentile of the lateness of its latest event loop, ms.
        processes: Processes that the streams were spread over.
    """

    cpu: float
    lag_p99_ms: float
    processes: int = 1


@dataclass(frozen=True, slots=True)
class WindowStrain:
    """One process in one window: CPU seconds, seconds, and each reading of its loop's lateness."""

    cpu_s: float
    wall_s: float
    lags_ms: tuple[float, ...]


def strain_of(processes: Sequence[Sequence[WindowStrain]]) -> Strain:
    """The worst of several processes over the same windows; shape (n_processes, n_windows)."""
    cpus, lags = [0.0], [0.0]
    for windows in processes:
        wall_s = sum(window.wall_s for window in windows)
        cpus.append(sum(window.cpu_s for window in windows) / max(wall_s, 1e-9))
        late = [lag for window in windows for lag in window.lags_ms]
        lags.append(float(np.percentile(late, 99)) if late else 0.0)
    return Strain(max(cpus), max(lags), len(processes))


class Load(Protocol):
    """Requests in flight at a bucket's concurrency.

    Attributes:
        ended, closed: Requests that have ended, and those that `stop` closed.
        collapsed: Whether the streams have failed since the last success: the server is gone, or it
            refuses everything.
    """

    ended: list[RequestTimings]
    closed: list[RequestTimings]

    @property
    def collapsed(self) -> bool: ...

    @property
    def all_opened(self) -> bool:
        """Whether every stream has had a token: the burst of first prompts is over."""
        ...

    @property
    def running(self) -> int:
        """Streams that are not done."""
        ...

    async def start(self) -> None:
        """Prompts are made, then the requests begin; time 0 of the windows is now."""

    async def window(self, index: int) -> None:
        """Returns at the end of a window, all its tokens known, or earlier when all collapsed."""

    def start_s(self, index: int) -> float:
        """Begin of a window by the monotonic clock, seconds."""
        ...

    def rates(self, first: int, last: int) -> list[float]:
        """Output throughput of the windows first..last-1, tok/s."""
        ...

    def strain(self, first: int, last: int) -> Strain:
        """The client's own work in the windows first..last-1."""
        ...

    async def stop(self, *, run_out_s: float) -> None:
        """Starts nothing new, lets requests end for `run_out_s` seconds, closes the rest."""


class LocalLoad:
    """Streams of this process's event loop.

    Args:
        texts: Prompts, without end.
        streams: Numbers of the streams to run here; all of the bucket's by default.
    """

    def __init__(
        self,
        client: OpenAiClient,
        bucket: Bucket,
        texts: Iterator[str],
        *,
        window_s: float,
        streams: Sequence[int] | None = None,
    ) -> None:
        self._clock = client.clock
        self._feed = PromptFeed(texts)
        self.ledger = WindowLedger(origin_s=0.0, window_s=window_s)
        self._loop = ClosedLoop(
            client,
            self._feed,
            self.ledger,
            streams=range(bucket.concurrency) if streams is None else streams,
            concurrency=bucket.concurrency,
            output_tokens=bucket.output_tokens,
        )
        self._lag = LagMeter(self._clock, self._refill)
        self._meter: asyncio.Task[None] | None = None
        self._at = (0.0, 0.0)
        self._strains: dict[int, WindowStrain] = {}
        self.ended = self._loop.ended
        self.closed = self._loop.closed

    @property
    def collapsed(self) -> bool:
        return self._loop.collapsed.is_set()

    @property
    def all_opened(self) -> bool:
        return self._loop.all_opened

    @property
    def running(self) -> int:
        return self._loop.running

    async def start(self) -> None:
        self.prepare()
        self.begin(self._clock())

    def prepare(self) -> None:
        """Makes the first prompts: before the clock starts."""
        self._feed.fill(2 * self._loop.width + 16)

    def begin(self, origin_s: float) -> None:
        """Sends the first requests; the windows count from `origin_s`."""
        self.ledger.origin_s = origin_s
        self._loop.start()
        self._at = (time.process_time(), self._clock())
        self._meter = asyncio.create_task(self._lag.run(), name="lag-meter")

    async def window(self, index: int) -> None:
        left_s = self.start_s(index + 1) - self._clock()
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._loop.collapsed.wait(), timeout=left_s)
        self._loop.raise_defects()
        before, self._at = self._at, (time.process_time(), self._clock())
        self._strains[index] = WindowStrain(
            self._at[0] - before[0], self._at[1] - before[1], tuple(self._lag.lags_ms)
        )
        self._lag.lags_ms.clear()

    def start_s(self, index: int) -> float:
        return self.ledger.start_s(index)

    def rates(self, first: int, last: int) -> list[float]:
        return self.ledger.rates(first, last)

    def window_strain(self, index: int) -> WindowStrain:
        return self._strains.get(index, WindowStrain(0.0, 0.0, ()))

    def strain(self, first: int, last: int) -> Strain:
        return strain_of([[self.window_strain(index) for index in range(first, last)]])

    async def stop(self, *, run_out_s: float) -> None:
        if self._meter is not None:
            self._meter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._meter
        await self._loop.stop(run_out_s=run_out_s)
        self._loop.raise_defects()  # of the time since the last window

    def _refill(self) -> None:
        self._feed.fill(self._loop.width + 16, at_once=1)
