"""The load of one bucket spread over worker processes, each with an event loop of its own.

The processes share the machine's monotonic clock, so all of them count tokens by the same windows.
Worker j of k runs the streams j, j + k, ... and takes the prompts j, j + k, ... of the one set.
Orders go down a worker's standard input and reports come up its standard output, as pickles with
their length in front; a worker whose input is closed ends.
"""

from __future__ import annotations

import asyncio
import collections
import os
import pickle
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.benchmark.client import Endpoint
from autotune.benchmark.load import Strain, WindowStrain, strain_of
from autotune.benchmark.requests import RequestTimings
from autotune.errors import MeasurementError
from autotune.prompts import PromptSet
from autotune.workload import Bucket

__all__ = [
    "Begin",
    "Connection",
    "Final",
    "Order",
    "Pool",
    "Report",
    "SpreadLoad",
    "Stop",
    "frame",
    "processes_for",
    "read_frame",
]

_HEAD = struct.Struct(">Q")
_MOST_PROCESSES = 8
_LEAD_S = 0.02
_END_MOST_S = 5.0
"""From the order to begin to time 0: the order has reached every worker by then."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What a worker needs to know of the server; `api_key` goes through a pipe, never argv."""

    base_url: str
    model: str
    api_key: str | None
    endpoint: Endpoint
    request_timeout_s: float
    stall_timeout_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """One worker's share of a bucket."""

    connection: Connection
    bucket: Bucket
    prompts: PromptSet
    window_s: float
    worker: int
    workers: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Windows count from `origin_s` on, seconds of the monotonic clock that all processes share."""

    origin_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Begin no more requests; those in flight may end for `run_out_s` seconds."""

    run_out_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """What one worker saw since its report before.

    Attributes:
        index: The window that has ended.
        tokens: Changes by window: counts that come at a request's end change earlier ones too.
        strain: Of the window.
    """

    index: int
    tokens: Mapping[int, float]
    ended: tuple[RequestTimings, ...]
    strain: WindowStrain
    all_opened: bool
    running: int
    collapsed: bool


@dataclass(frozen=True, slots=True)
class Final:
    """The rest, after the last stream has ended or was closed."""

    tokens: Mapping[int, float]
    ended: tuple[RequestTimings, ...]
    closed: tuple[RequestTimings, ...]


def frame(value: object) -> bytes:
    """A value as the bytes that `read_frame` reads."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEAD.pack(len(data)) + data


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next value; raises IncompleteReadError at the end of the stream."""
    (size,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return pickle.loads(await reader.readexactly(size))


class Pool:
    """Worker processes that serve one bucket after another; they end with `aclose`."""

    def __init__(self) -> None:
        self._processes: list[asyncio.subprocess.Process] = []

    async def take(self, count: int) -> list[asyncio.subprocess.Process]:
        """So many workers, started where there are fewer; one that has died is replaced."""
        self._processes = [one for one in self._processes if one.returncode is None]
        while len(self._processes) < count:
            self._processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "autotune.benchmark.worker"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is ours to handle; our end closes their input
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            )
        return self._processes[:count]

    async def aclose(self) -> None:
        """Workers end when their input does; one that does not soon is killed."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
        try:
            await asyncio.wait_for(self._ended(), _END_MOST_S)
        except TimeoutError:
            self._kill()
            await self._ended()
        self._processes = []

    async def _ended(self) -> None:
        await asyncio.gather(*(process.wait() for process in self._processes))

    def _kill(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()

    async def discard(self) -> None:
        """Ends all workers now: what they were doing is of no use any more."""
        self._kill()
        await self.aclose()


class SpreadLoad:
    """See `autotune.benchmark.load.Load`."""

    def __init__(
        self,
        pool: Pool,
        connection: Connection,
        bucket: Bucket,
        prompts: PromptSet,
        *,
        window_s: float,
        processes: int,
    ) -> None:
        self._pool = pool
        share = Order(connection, bucket, prompts, window_s, 0, min(processes, bucket.concurrency))
        self._orders = [replace(share, worker=number) for number in range(share.workers)]
        self._workers: list[asyncio.subprocess.Process] = []
        self._window_s = window_s
        self._origin_s = 0.0
        self._tokens: collections.defaultdict[int, float] = collections.defaultdict(float)
        self._strains: list[dict[int, WindowStrain]] = [{} for _ in self._orders]
        self._last: list[Report] = []
        self.ended: list[RequestTimings] = []
        self.closed: list[RequestTimings] = []

    @property
    def collapsed(self) -> bool:
        """One share that only fails is enough: the concurrency is no longer what was asked."""
        return any(report.collapsed for report in self._last)

    @property
    def all_opened(self) -> bool:
        return bool(self._last) and all(report.all_opened for report in self._last)

    @property
    def running(self) -> int:
        return sum(report.running for report in self._last)

    async def start(self) -> None:
        self._workers = await self._pool.take(len(self._orders))
        for worker, order in zip(self._workers, self._orders, strict=True):
            self._send(worker, order)
        for worker in self._workers:
            await self._hear(worker)  # its prompts are ready
        self._origin_s = time.perf_counter() + _LEAD_S
        for worker in self._workers:
            self._send(worker, Begin(self._origin_s))

    async def window(self, index: int) -> None:
        self._last = [await self._report(worker, index) for worker in self._workers]
        for number, report in enumerate(self._last):
            self._strains[number][report.index] = report.strain
            self._add(report.tokens)
            self.ended += report.ended

    async def _report(self, worker: asyncio.subprocess.Process, index: int) -> Report:
        report = await self._hear(worker)
        if not isinstance(report, Report) or report.index != index:
            raise MeasurementError(f"a load process reported {report!r} for window {index}")
        return report

    def start_s(self, index: int) -> float:
        return self._origin_s + index * self._window_s

    def rates(self, first: int, last: int) -> list[float]:
        return [self._tokens[index] / self._window_s for index in range(first, last)]

    def strain(self, first: int, last: int) -> Strain:
        nothing = WindowStrain(0.0, 0.0, ())
        return strain_of(
            [[one.get(index, nothing) for index in range(first, last)] for one in self._strains]
        )

    async def stop(self, *, run_out_s: float) -> None:
        """Raises MeasurementError when a worker has died.  All are ended when this does not end."""
        try:
            for worker in self._workers:
                self._send(worker, Stop(run_out_s))
            for worker in self._workers:
                while not isinstance(final := await self._hear(worker), Final):
                    pass  # reports of windows that nobody asks for any more
                self._add(final.tokens)
                self.ended += final.ended
                self.closed += final.closed
        except (MeasurementError, asyncio.CancelledError):
            # A worker whose report nobody reads would wait for its reader for ever.
            await self._pool.discard()
            raise

    def _add(self, tokens: Mapping[int, float]) -> None:
        for index, count in tokens.items():
            self._tokens[index] += count

    @staticmethod
    def _send(worker: asyncio.subprocess.Process, value: object) -> None:
        assert worker.stdin is not None
        if worker.returncode is not None or worker.stdin.is_closing():
            raise MeasurementError(_died(worker))
        worker.stdin.write(frame(value))

    @staticmethod
    async def _hear(worker: asyncio.subprocess.Process) -> object:
        assert worker.stdout is not None
        try:
            return await read_frame(worker.stdout)
        except asyncio.IncompleteReadError as error:
            raise MeasurementError(_died(worker)) from error


def _died(worker: asyncio.subprocess.Process) -> str:
    return f"load process {worker.pid} of ours has died"


def processes_for(concurrency: int, *, cores: int) -> int:
    """Processes to spread a bucket over: a core each, at least two streams each, at most 8."""
    return max(1, min(cores, concurrency // 2, _MOST_PROCESSES))
