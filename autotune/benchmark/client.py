"""One HTTP client of one OpenAI-compatible server: streams, whole answers, token counts.

Whatever goes wrong with a request is a value, `RequestTimings` with its failure, not an exception:
a benchmark counts errors.  Cancelling `stream` closes its connection, which is how a server learns
that nobody listens any more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from autotune.benchmark.requests import (
    Failure,
    OnTokens,
    Outcome,
    RequestRecorder,
    RequestTimings,
    StreamUsage,
)
from autotune.benchmark.sse import SseEvent, SseSplitter
from autotune.benchmark.transport import StreamTransport
from autotune.benchmark.unread import unread_ms
from autotune.errors import MeasurementError

__all__ = ["Answer", "Endpoint", "OpenAiClient"]

_CONNECT_TIMEOUT_S = 10.0
_MESSAGE_CHARACTERS = 500


def _nothing(timings: RequestTimings) -> None:
    """Nobody wants to know."""


class Endpoint(StrEnum):
    """Where requests go."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        text, reasoning: Content and reasoning content; "" where there is none.
        completion_tokens: By the server's usage; 0 with an error.
        error: What went wrong; "" for a good answer.
    """

    text: str
    reasoning: str = ""
    finish_reason: str = ""
    completion_tokens: int = 0
    error: str = ""


class _Refused(Exception):
    """A request that ended badly, with its class."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class OpenAiClient:
    """Streams and whole answers over one connection pool.

    Args:
        base_url: `http://host:port`, with or without `/v1`.
        model: Name sent in each request.
        api_key: Sent as a bearer token when given.
        request_timeout_s: A whole request may take this long.
        stall_timeout_s: So long may nothing arrive; the first token of a queued request included.
        transport: Replaces the network, for tests.
        clock: Monotonic, seconds.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: str | None = None,
        endpoint: Endpoint = Endpoint.CHAT,
        request_timeout_s: float = 600.0,
        stall_timeout_s: float = 120.0,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self.http = httpx.AsyncClient(
            base_url=base_url.rstrip("/").removesuffix("/v1"),
            headers=headers,
            timeout=httpx.Timeout(stall_timeout_s, connect=_CONNECT_TIMEOUT_S),
            trust_env=False,  # a proxy of the environment would stand between us and the server
            transport=transport or StreamTransport(),
        )
        self.clock = clock
        self._model = json.dumps(model).encode()
        self._endpoint = endpoint
        self._request_timeout_s = request_timeout_s

    async def aclose(self) -> None:
        await self.http.aclose()

    def body(self, prompt: bytes, *, max_tokens: int, stream: bool, ignore_eos: bool) -> bytes:
        """The request's bytes; `prompt` is a JSON string, encoded before any clock starts."""
        asked = prompt
        if self._endpoint is Endpoint.CHAT:
            asked = b'[{"role":"user","content":%b}]' % prompt
        return b'{"model":%b,"%b":%b,"max_tokens":%d,"temperature":0.0,"ignore_eos":%b%b}' % (
            self._model,
            b"messages" if self._endpoint is Endpoint.CHAT else b"prompt",
            asked,
            max_tokens,
            b"true" if ignore_eos else b"false",
            b',"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}'
            if stream
            else b',"stream":false',
        )

    async def stream(
        self,
        body: bytes,
        *,
        on_tokens: OnTokens,
        on_closed: Callable[[RequestTimings], None] = _nothing,
        guess_tokens: float = 0.0,
        asked_tokens: int = 0,
    ) -> RequestTimings:
        """One streamed request, to its end or to the first error.

        Args:
            on_tokens: Told of tokens as they arrive, see `RequestRecorder`.
            on_closed: Told what was seen of a request that was cancelled.
            guess_tokens: Tokens a chunk for servers that count at the end only.
            asked_tokens: The body's `max_tokens`, kept with what was seen.
        """
        recorder = RequestRecorder(
            self.clock(), on_tokens, guess_tokens=guess_tokens, asked_tokens=asked_tokens
        )
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self._read_stream(body, recorder)
        except asyncio.CancelledError:
            on_closed(recorder.finish(self.clock(), Outcome.INCOMPLETE))
            raise
        except TimeoutError:
            return self._failed(
                recorder, Failure.TIMEOUT, f"no end within {self._request_timeout_s:g} s"
            )
        except httpx.TimeoutException as error:
            return self._failed(recorder, Failure.TIMEOUT, _described(error))
        except httpx.TransportError as error:
            return self._failed(recorder, Failure.CONNECTION, _described(error))
        except _Refused as refused:
            return self._failed(recorder, refused.failure, str(refused))
        return recorder.finish(self.clock(), Outcome.SUCCESSFUL)

    def _failed(self, recorder: RequestRecorder, failure: Failure, text: str) -> RequestTimings:
        return recorder.finish(self.clock(), Outcome.ERRORED, failure, text[:_MESSAGE_CHARACTERS])

    async def _read_stream(self, body: bytes, recorder: RequestRecorder) -> None:
        clock = self.clock
        request = self.http.build_request("POST", self._endpoint, content=body)
        recorder.sent_s = clock()
        response = await self.http.send(request, stream=True)
        try:
            if response.status_code != httpx.codes.OK:
                raise _Refused(Failure.HTTP_STATUS, await _status_text(response))
            splitter = SseSplitter()
            network = response.extensions.get("network_stream")
            async for chunk in response.aiter_raw():
                at_s = clock()
                if not recorder.opened:
                    recorder.unread_ms = unread_ms(network)
                for event in splitter.feed(chunk):
                    _take(event, recorder, at_s)
        finally:
            await response.aclose()
        if recorder.finish_reason is None:
            raise _Refused(Failure.TRUNCATED, "the stream ended without a finish reason")
        if recorder.finish_reason in ("abort", "error"):
            raise _Refused(Failure.ERROR_EVENT, f"finish reason {recorder.finish_reason!r}")
        if not recorder.usage_seen:
            raise _Refused(Failure.NO_USAGE, "the stream ended without a usage")

    async def answer(self, prompt: str, *, max_tokens: int) -> Answer:
        """One whole greedy answer, up to its natural end."""
        body = self.body(
            json.dumps(prompt).encode(), max_tokens=max_tokens, stream=False, ignore_eos=False
        )
        try:
            async with asyncio.timeout(self._request_timeout_s):
                response = await self.http.post(
                    self._endpoint, content=body, timeout=self._request_timeout_s
                )
                if response.status_code != httpx.codes.OK:
                    return Answer("", error=await _status_text(response))
        except (TimeoutError, httpx.TimeoutException):
            return Answer("", error=f"timeout: no answer within {self._request_timeout_s:g} s")
        except httpx.TransportError as error:
            return Answer("", error=_described(error))
        return _read_answer(response.content)

    async def count_tokens(self, texts: Sequence[str]) -> list[int] | None:
        """Tokens of each text, without special tokens; None when the server has no `/tokenize`."""
        counted = await self._tokenize(list(texts))
        if isinstance(counted, list) and len(counted) == len(texts):
            return [int(count) for count in counted]
        single = await self._tokenize(texts[0])
        if not isinstance(single, int):
            return None
        rest = await asyncio.gather(*(self._tokenize(text) for text in texts[1:]))
        numbers = [single, *(count for count in rest if isinstance(count, int))]
        return numbers if len(numbers) == len(texts) else None

    async def _tokenize(self, prompt: str | list[str]) -> Any:
        body = {"model": json.loads(self._model), "prompt": prompt, "add_special_tokens": False}
        try:
            response = await self.http.post("/tokenize", content=json.dumps(body).encode())
            answer = response.json() if response.status_code == httpx.codes.OK else None
        except (httpx.TransportError, ValueError):
            return None
        return answer.get("count") if isinstance(answer, dict) else None

    async def prompt_tokens(self, text: str) -> int:
        """Prompt tokens of a request with this text, by the usage of one generated token.

        Raises:
            MeasurementError: when the server refuses or does not count.
        """
        body = self.body(json.dumps(text).encode(), max_tokens=1, stream=False, ignore_eos=True)
        try:
            response = await self.http.post(self._endpoint, content=body)
        except httpx.TransportError as error:
            raise MeasurementError(f"the probe of a prompt failed: {_described(error)}") from error
        if response.status_code != httpx.codes.OK:
            raise MeasurementError(f"the probe of a prompt: {await _status_text(response)}")
        try:
            usage = _usage(json.loads(response.content).get("usage"))
        except (ValueError, AttributeError) as error:
            raise MeasurementError("the probe of a prompt got an unreadable answer") from error
        if usage is None or usage.prompt_tokens is None:
            raise MeasurementError("the server does not count prompt tokens in its usage")
        return usage.prompt_tokens


def _take(event: SseEvent, recorder: RequestRecorder, at_s: float) -> None:
    """One event of a stream.  Raises _Refused for everything that is not a good chunk."""
    data = event.data
    if data == b"[DONE]":
        return
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Refused(Failure.BAD_EVENT, f"no JSON in an event: {data[:200]!r}") from error
    if not isinstance(chunk, dict):
        raise _Refused(Failure.BAD_EVENT, f"no object in an event: {data[:200]!r}")
    if chunk.get("error") or event.event == b"error" or chunk.get("object") == "error":
        raise _Refused(Failure.ERROR_EVENT, _error_text(chunk))
    choices = chunk.get("choices")
    usage = _usage(chunk.get("usage"))
    if not choices:
        recorder.chunk(at_s, has_text=False, usage=usage, last=True)
        return
    choice = choices[0] if isinstance(choices, list) else None
    if not isinstance(choice, dict):
        raise _Refused(Failure.BAD_EVENT, f"no choice in an event: {data[:200]!r}")
    delta = choice.get("delta") or {}
    if not isinstance(delta, dict):
        raise _Refused(Failure.BAD_EVENT, f"a delta that is no object: {data[:200]!r}")
    has_text = bool(
        choice.get("text")
        or delta.get("content")
        or delta.get("reasoning_content")
        or delta.get("reasoning")
        or delta.get("tool_calls")
    )
    recorder.chunk(at_s, has_text=has_text, usage=usage, last=False)
    reason = choice.get("finish_reason")
    if reason is not None:
        recorder.finish_reason = str(reason.get("type") if isinstance(reason, dict) else reason)


def _usage(value: object) -> StreamUsage | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("completion_tokens"), int):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    prompt = value.get("prompt_tokens")
    return StreamUsage(
        completion_tokens=value["completion_tokens"],
        prompt_tokens=prompt if isinstance(prompt, int) else None,
        cached_tokens=cached if isinstance(cached, int) else None,
    )


def _read_answer(content: bytes) -> Answer:
    try:
        whole = json.loads(content)
        if whole.get("error"):
            return Answer("", error=_error_text(whole))
        choice = whole["choices"][0]
        message = choice.get("message") or {}
        usage = _usage(whole.get("usage"))
        return Answer(
            text=choice.get("text") or message.get("content") or "",
            reasoning=message.get("reasoning_content") or message.get("reasoning") or "",
            finish_reason=str(choice.get("finish_reason") or ""),
            completion_tokens=usage.completion_tokens if usage else 0,
            error="" if usage else "no usage in the answer",
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return Answer("", error=f"unreadable answer: {content[:200]!r}")


def _error_text(chunk: Mapping[str, Any]) -> str:
    error = chunk.get("error") or chunk
    if isinstance(error, Mapping):
        return str(error.get("message") or json.dumps(error))
    return str(error)


async def _status_text(response: httpx.Response) -> str:
    text = (await response.aread()).decode("utf-8", "replace").strip()
    return f"HTTP {response.status_code}: {text[:_MESSAGE_CHARACTERS] or response.reason_phrase}"


def _described(error: httpx.TransportError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
