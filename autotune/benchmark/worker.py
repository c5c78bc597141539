"""One load process: `python -m autotune.benchmark.worker`; see `autotune.benchmark.spread`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from typing import BinaryIO

import uvloop

from autotune.benchmark.client import OpenAiClient
from autotune.benchmark.load import LocalLoad
from autotune.benchmark.spread import Begin, Final, Order, Report, Stop, frame, read_frame

__all__ = ["main"]

_MOST_BYTES = 1 << 30


class _Worker:
    """Takes orders until the input ends."""

    def __init__(self, reader: asyncio.StreamReader, output: BinaryIO) -> None:
        self._reader = reader
        self._output = output
        self._told = 0  # requests of this bucket that were reported

    async def serve(self) -> None:
        while True:
            order = await read_frame(self._reader)
            if not isinstance(order, Order):
                raise TypeError(f"an order was expected, not {order!r}")
            await self._run(order)

    async def _run(self, order: Order) -> None:
        to = order.connection
        client = OpenAiClient(
            to.base_url,
            model=to.model,
            api_key=to.api_key,
            endpoint=to.endpoint,
            request_timeout_s=to.request_timeout_s,
            stall_timeout_s=to.stall_timeout_s,
        )
        try:
            load = LocalLoad(
                client,
                order.bucket,
                map(order.prompts.text, itertools.count(order.worker, order.workers)),
                window_s=order.window_s,
                streams=range(order.worker, order.bucket.concurrency, order.workers),
            )
            load.prepare()
            self._say("ready")
            begin = await read_frame(self._reader)
            if not isinstance(begin, Begin):  # stopped before it began
                self._say(Final({}, (), ()))
                return
            await asyncio.sleep(max(0.0, begin.origin_s - client.clock()))
            load.begin(begin.origin_s)
            reporting = asyncio.create_task(self._report(load), name="reports")
            stopping = asyncio.create_task(read_frame(self._reader), name="stop")
            await asyncio.wait({reporting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if reporting.done():
                reporting.result()  # a defect of ours: whoever waits for a report hears our end
            stop = await stopping
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            await load.stop(run_out_s=stop.run_out_s if isinstance(stop, Stop) else 0.0)
            ended = tuple(load.ended[self._told :])
            self._say(Final(load.ledger.take_changes(), ended, tuple(load.closed)))
        finally:
            await client.aclose()

    async def _report(self, load: LocalLoad) -> None:
        self._told = 0
        for index in itertools.count():
            await load.window(index)
            ended = tuple(load.ended[self._told :])
            self._told += len(ended)
            self._say(
                Report(
                    index=index,
                    tokens=load.ledger.take_changes(),
                    ended=ended,
                    strain=load.window_strain(index),
                    all_opened=load.all_opened,
                    running=load.running,
                    collapsed=load.collapsed,
                )
            )
            if load.collapsed:
                return

    def _say(self, value: object) -> None:
        self._output.write(frame(value))
        self._output.flush()


async def _main(output: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_MOST_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    # Until whoever gave the orders has ended.
    with contextlib.suppress(asyncio.IncompleteReadError, BrokenPipeError):
        await _Worker(reader, output).serve()


def main() -> None:
    """One process of a spread load: orders on standard input, reports on standard output."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the reports
    with output, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main(output))


if __name__ == "__main__":
    main()
