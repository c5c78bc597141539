"""The ASGI side of an answer: one write for each frame, and an eye on the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from starlette.types import Receive, Scope, Send

from autotune.testing.sglang_server.engine import Engine
from autotune.testing.sglang_server.frames import DONE, Frames, error_event
from autotune.testing.sglang_server.requests import GenerationRequest

__all__ = ["Spoiled", "StreamResponse", "until_finished"]


class Spoiled(StrEnum):
    """How a stream is spoiled by a fault, if at all."""

    NOT = "not"
    TRUNCATED = "truncated"
    CUT = "cut"
    ERROR = "error"


async def until_finished(
    engine: Engine, request: GenerationRequest, receive: Callable[[], Awaitable[object]]
) -> None:
    """Wait for the end of a request and abort it when its client goes away first."""
    watcher = asyncio.create_task(_watch(engine, request, receive))
    try:
        await request.finished()
    finally:
        watcher.cancel()


async def _watch(
    engine: Engine, request: GenerationRequest, receive: Callable[[], Awaitable[object]]
) -> None:
    while True:
        message = await receive()
        if isinstance(message, dict) and message.get("type") == "http.disconnect":
            engine.abort(request)
            return


class StreamResponse:
    """Server-sent events of one request.

    Args:
        engine: Where the request runs; it is aborted when the client goes away.
        request: The request, submitted before.
        frames: Its protocol.
        spoiled: One of the names in `Spoiled`.
    """

    def __init__(
        self,
        engine: Engine,
        request: GenerationRequest,
        frames: Frames,
        *,
        spoiled: Spoiled = Spoiled.NOT,
    ) -> None:
        self._engine = engine
        self._request = request
        self._frames = frames
        self._spoiled = spoiled

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        watcher = asyncio.create_task(_watch(self._engine, self._request, receive))
        try:
            await self._stream(send)
        finally:
            watcher.cancel()

    async def _stream(self, send: Send) -> None:
        request, frames = self._request, self._frames

        async def write(body: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": more})

        if opening := frames.opening():
            await write(opening)
        sent_chars = sent_tokens = 0
        while request.finish is None or request.completion_tokens > sent_tokens:
            if request.completion_tokens == sent_tokens:
                await request.changed()
                continue
            frame = frames.chunk(sent_chars)
            sent_chars, sent_tokens = len(request.visible), request.completion_tokens
            await write(frame)
            if self._spoiled != Spoiled.NOT and sent_tokens * 2 >= request.limit_tokens:
                self._engine.abort(request)
                if self._spoiled == Spoiled.CUT:
                    return  # without the last part: the server closes the connection
                end = b""
                if self._spoiled == Spoiled.ERROR:
                    end = error_event("Internal error: the scheduler reported a failure", code=500)
                    end += DONE
                await write(end, more=False)
                return
        await write(frames.closing() + DONE, more=False)
