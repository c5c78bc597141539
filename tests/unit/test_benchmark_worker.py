"""A load process in which something unexpected happens ends, so that nobody waits for it."""

from __future__ import annotations

import asyncio
import io

import pytest

from autotune.benchmark import worker
from autotune.benchmark.client import Endpoint
from autotune.benchmark.load import LocalLoad
from autotune.benchmark.spread import Begin, Connection, Order, frame
from autotune.prompts import PieceCounts, PromptLibrary, PromptSet
from autotune.workload import Bucket

TO = Connection(
    base_url="http://127.0.0.1:9",
    model="m",
    api_key=None,
    endpoint=Endpoint.CHAT,
    request_timeout_s=1.0,
    stall_timeout_s=1.0,
)
LIBRARY = PromptLibrary.of_seed(1)
ORDER = Order(
    connection=TO,
    bucket=Bucket(context_tokens=64, concurrency=2, output_tokens=4, weight=1.0),
    prompts=PromptSet(
        seed=1,
        key="64x2/0",
        context_tokens=64,
        prompt_library=LIBRARY,
        counts=PieceCounts(tuple(10.0 for _ in LIBRARY.texts()), 0.0, exact=False),
    ),
    window_s=1.0,
    worker=0,
    workers=1,
)


def test_a_defect_in_a_stream_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def window(load: LocalLoad, index: int) -> None:
        raise AttributeError("a defect")

    monkeypatch.setattr(LocalLoad, "window", window)

    async def run() -> None:
        reader = asyncio.StreamReader()
        for value in (ORDER, Begin(0.0)):
            reader.feed_data(frame(value))  # and no Stop: the input stays open
        async with asyncio.timeout(30):
            await worker._Worker(reader, io.BytesIO()).serve()

    with pytest.raises(AttributeError, match="a defect"):
        asyncio.run(run())
