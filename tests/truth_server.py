"""An OpenAI-compatible server that knows the truth: what it sent, when, and to how many at once.

Plain asyncio on loopback.  Chunk k of a request is written `ttft_s + k * gap_s` after its arrival.
As a program (`python -m tests.truth_server JSON`) it prints its port and serves until its standard
input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

_CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "truth"}
_WORD = re.compile(r"\w{1,4}|[^\w\s]|\n+")


class Fault(StrEnum):
    """How a request goes wrong."""

    ERROR_EVENT = "error-event"
    ERROR_AFTER_TOKENS = "error-after-tokens"
    TRUNCATED = "truncated"
    NO_USAGE = "no-usage"
    HTTP_400 = "400"
    HTTP_429 = "429"
    HTTP_503 = "503"
    RESET = "reset"
    BAD_JSON = "bad-json"
    BAD_DELTA = "bad-delta"
    ABORTED = "aborted"
    SILENT = "silent"


class UsageStyle(StrEnum):
    LIVE = "live"
    END = "end"
    TWICE = "twice"


@dataclass(frozen=True)
class Behaviour:
    """What the server does; times in seconds.

    Attributes:
        tokens_per_chunk: Cycled within a request.
        fault_every: Every n-th generation has the fault, the first one not when n > 1.
        lengths: Share of the asked tokens after which a request ends; cycled over requests.
        separators: Whether texts hold U+2028, which is no line end.
        slower_by_s: Added to the gap of every chunk for each second since the server began.
        miscount: Added to the server's own counter of output tokens for each request.
        cached_tokens: Reported for each request; None leaves the field out.
    """

    ttft_s: float = 0.004
    gap_s: float = 0.002
    tokens_per_chunk: tuple[int, ...] = (4,)
    lengths: tuple[float, ...] = (1.0,)
    separators: bool = False
    slower_by_s: float = 0.0
    usage: UsageStyle = UsageStyle.LIVE
    fault: Fault | None = None
    fault_every: int = 1
    template_tokens: int = 7
    tokenize: bool = True
    metrics: bool = True
    reasoning: bool = False
    miscount: int = 0
    cached_tokens: int | None = 0
    max_running_requests: int = 256
    die_after_chunks: int = 0


@dataclass
class Record:
    """What happened; `ttft_s` with the arrival and `tpot_s` with the end of each request."""

    in_flight: int = 0
    peak: int = 0
    generations: int = 0
    tokens: int = 0
    ended_tokens: int = 0
    verify_calls: int = 0
    chunks: int = 0
    prompts: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    written: list[tuple[float, int]] = field(default_factory=list)
    at_chunk: list[int] = field(default_factory=list)
    ttft_s: list[tuple[float, float]] = field(default_factory=list)
    tpot_s: list[tuple[float, float]] = field(default_factory=list)


class TruthServer:
    """Runs in a thread of its own; a context manager."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.record = Record()
        self.port = 0
        self._ready = threading.Event()
        self._began_s = time.perf_counter()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        arrived_s = time.perf_counter()
        path = head[0].split(" ")[1]
        if path.startswith("/v1/") and body:
            self.record.headers.append(headers)
            return await self._generation(json.loads(body), writer, arrived_s)
        status, text = self._other(path, json.loads(body) if body else {})
        _plain(writer, status, text)
        await writer.drain()
        return True

    def _other(self, path: str, body: Mapping[str, Any]) -> tuple[int, str]:
        if path == "/tokenize" and self.behaviour.tokenize:
            prompt = body["prompt"]
            counts = [count(text) for text in prompt] if isinstance(prompt, list) else count(prompt)
            return 200, json.dumps({"count": counts})
        if path == "/metrics" and self.behaviour.metrics:
            return 200, (
                f'sglang:generation_tokens_total{{x="1"}} {float(self.record.ended_tokens)}\n'
                f'sglang:spec_verify_calls_total{{x="1"}} {float(self.record.verify_calls)}\n'
            )
        if path == "/server_info" and self.behaviour.metrics:
            limit = self.behaviour.max_running_requests
            return 200, json.dumps(
                {"internal_states": [{"effective_max_running_requests_per_dp": limit}]}
            )
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": "truth"}]})
        if path == "/truth":
            names = ("written", "peak", "ttft_s", "tpot_s")
            return 200, json.dumps({name: getattr(self.record, name) for name in names})
        return 404, "not found"

    async def _generation(
        self, body: dict[str, Any], writer: asyncio.StreamWriter, arrived_s: float
    ) -> bool:
        record, behaviour = self.record, self.behaviour
        record.in_flight += 1
        record.peak = max(record.peak, record.in_flight)
        record.generations += 1
        record.bodies.append(body)
        prompt = _prompt(body)
        record.prompts.append(prompt)
        number = record.generations
        faulty = behaviour.fault_every == 1 or number % behaviour.fault_every == 0
        fault = behaviour.fault if faulty else None
        prompt_tokens = count(prompt) + behaviour.template_tokens
        record.prompt_tokens.append(prompt_tokens)
        try:
            if fault in (Fault.HTTP_400, Fault.HTTP_429, Fault.HTTP_503):
                _plain(writer, int(str(fault)), json.dumps({"error": {"message": f"told {fault}"}}))
                await writer.drain()
                return True
            if not body.get("stream"):
                return await self._whole(body, writer, prompt_tokens)
            return await self._stream(body, writer, arrived_s, prompt_tokens, fault)
        finally:
            record.in_flight -= 1

    async def _whole(
        self, body: Mapping[str, Any], writer: asyncio.StreamWriter, prompt_tokens: int
    ) -> bool:
        tokens = _asked(body)
        self._ended(tokens, tokens)
        name = "reasoning_content" if self.behaviour.reasoning else "content"
        choice = {"message": {name: "x" * tokens}, "text": "x" * tokens, "finish_reason": "length"}
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        _plain(writer, 200, json.dumps({"choices": [choice], "usage": usage}))
        await writer.drain()
        return True

    def _ended(self, tokens: int, steps: int) -> None:
        self.record.ended_tokens += tokens + self.behaviour.miscount
        self.record.verify_calls += steps

    async def _stream(
        self,
        body: Mapping[str, Any],
        writer: asyncio.StreamWriter,
        arrived_s: float,
        prompt_tokens: int,
        fault: Fault | None,
    ) -> bool:
        behaviour, record = self.behaviour, self.record
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        length = behaviour.lengths[record.generations % len(behaviour.lengths)]
        wanted, sent, steps = max(1, round(_asked(body) * length)), 0, 0
        gap_s = behaviour.gap_s + behaviour.slower_by_s * (arrived_s - self._began_s)
        first_s = last_s = arrived_s
        usage: dict[str, Any] = {}
        details = (
            {"prompt_tokens_details": {"cached_tokens": behaviour.cached_tokens}}
            if behaviour.cached_tokens is not None
            else {}
        )
        name = "reasoning_content" if behaviour.reasoning else "content"
        sizes = itertools.cycle(behaviour.tokens_per_chunk)
        _event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        while sent < wanted:
            due_s = arrived_s + behaviour.ttft_s + steps * gap_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            if fault is Fault.SILENT:
                await self._stop.wait()
            fresh = min(next(sizes), wanted - sent)
            sent, steps = sent + fresh, steps + 1
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": sent, **details}
            text = ("\u2028" if behaviour.separators else "x") * fresh
            choice = {"index": 0, "delta": {name: text}, "text": text, "finish_reason": None}
            chunk: dict[str, Any] = {**_CHUNK, "choices": [choice]}
            if behaviour.usage is not UsageStyle.END and fault is not Fault.NO_USAGE:
                chunk["usage"] = usage
            _event(writer, chunk)
            last_s = time.perf_counter()
            first_s = last_s if steps == 1 else first_s
            record.written.append((last_s, fresh))
            record.tokens += fresh
            record.at_chunk.append(record.in_flight)
            record.chunks += 1
            await writer.drain()
            if behaviour.die_after_chunks and record.chunks >= behaviour.die_after_chunks:
                self._stop.set()
            if steps == 2 and fault is not None and fault is not Fault.NO_USAGE:
                return await self._break(writer, fault)
        reason = "abort" if fault is Fault.ABORTED else "length"
        end = {"index": 0, "delta": {}, "finish_reason": reason}
        _event(writer, {**_CHUNK, "choices": [end]})
        self._ended(sent, steps)
        record.ttft_s.append((arrived_s, first_s - arrived_s))
        if sent > 1:
            record.tpot_s.append((last_s, (last_s - first_s) / (sent - 1)))
        if fault is not Fault.NO_USAGE:
            for _ in range(2 if behaviour.usage is UsageStyle.TWICE else 1):
                _event(writer, {**_CHUNK, "choices": [], "usage": usage})
        _chunk(writer, b"data: [DONE]\n\n")
        _chunk(writer, b"")
        await writer.drain()
        return True

    async def _break(self, writer: asyncio.StreamWriter, fault: Fault) -> bool:
        if fault in (Fault.ERROR_EVENT, Fault.ERROR_AFTER_TOKENS):
            _event(writer, {"error": {"message": "told to fail", "code": 400}})
            _chunk(writer, b"data: [DONE]\n\n")
        elif fault is Fault.BAD_JSON:
            _chunk(writer, b'data: {"choices": [\n\n')
        elif fault is Fault.BAD_DELTA:
            _event(writer, {"choices": [{"delta": "x"}]})
        elif fault is Fault.ABORTED:
            _event(writer, {"choices": [{"delta": {}, "finish_reason": "abort"}]})
        elif fault is Fault.RESET:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        if fault is Fault.TRUNCATED:
            _chunk(writer, b'data: {"choices": [{"delta": {"content": "cut o')
        _chunk(writer, b"")
        await writer.drain()
        return True


def _asked(body: Mapping[str, Any]) -> int:
    """Tokens asked for, under the old name or the new."""
    return int(body.get("max_tokens") or body["max_completion_tokens"])


def _prompt(body: Mapping[str, Any]) -> str:
    """The text of a prompt, whole or in parts."""
    prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return prompt if isinstance(prompt, str) else "".join(part.get("text", "") for part in prompt)


def count(text: str) -> int:
    """The server's tokenizer: up to four letters, a sign, or line ends."""
    return len(_WORD.findall(text))


def _plain(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    data = text.encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(data), data))


def _event(writer: asyncio.StreamWriter, chunk: Mapping[str, Any]) -> None:
    _chunk(writer, b"data: %b\n\n" % json.dumps(chunk, ensure_ascii=False).encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def main() -> None:
    values = json.loads(sys.argv[1])
    for name in ("tokens_per_chunk", "lengths"):
        if name in values:
            values[name] = tuple(values[name])
    for name, kind in (("fault", Fault), ("usage", UsageStyle)):
        if values.get(name) is not None:
            values[name] = kind(values[name])
    with TruthServer(dataclasses.replace(Behaviour(), **values)) as server:
        print(server.port, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    main()
