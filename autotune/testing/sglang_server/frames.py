"""Answers as JSON: the native protocol and the two OpenAI ones, streamed and whole.

A stream sends one frame for what one verify round (or several late ones) accepted, so a frame holds
several tokens.  Everything that stays the same within a stream is serialised once.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.testing.sglang_server.args import ServerArgs
from autotune.testing.sglang_server.requests import FinishKind, GenerationRequest
from autotune.testing.sglang_server.switches import LogStyle
from autotune.testing.sglang_server.tokens import encode

__all__ = [
    "DONE",
    "Frames",
    "GenerateFrames",
    "OpenAIFrames",
    "OpenAIOptions",
    "error_body",
    "error_event",
    "meta_info",
]

DONE = b"data: [DONE]\n\n"
_EOS_ID = 163_586
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Frames(Protocol):
    """How one protocol writes a request."""

    def opening(self) -> bytes:
        """Frames before the first token."""
        ...

    def chunk(self, start: int) -> bytes:
        """The frame for the text from character `start` on and for all tokens so far."""
        ...

    def closing(self) -> bytes:
        """Frames after the last token, without [DONE]."""
        ...

    def whole(self) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        ...


def error_body(message: str, *, code: int, kind: str = "BadRequestError") -> dict[str, Any]:
    """The error object of the server."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def error_event(message: str, *, code: int) -> bytes:
    """An error under status 200: the headers of a stream are already sent."""
    error = {"message": message, "type": "InternalServerError", "param": None, "code": code}
    return f"data: {_dumps({'error': error})}\n\n".encode()


def meta_info(request: GenerationRequest, args: ServerArgs, style: LogStyle) -> dict[str, Any]:
    """`meta_info` of a native answer."""
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": _finish_reason(request),
        "prompt_tokens": request.prompt_tokens,
        "weight_version": args.weight_version,
        "total_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": request.completion_tokens,
        "cached_tokens": request.cached_tokens,
    }
    if request.verify_count and args.speculates:
        accepted, proposed = _drafts(request, args)
        old = style is LogStyle.OLD
        meta |= {
            "spec_accept_length": request.completion_tokens / request.verify_count,
            "spec_accept_rate": accepted / max(1, proposed),
            "spec_verify_ct": request.verify_count,
            "spec_accepted_drafts" if old else "spec_num_correct_drafts": accepted,
            "spec_proposed_drafts" if old else "spec_num_proposed_drafts": proposed,
        }
    if request.finish is not None:
        meta["e2e_latency"] = max(0.0, request.finished_at - request.arrived_at)
    return meta


def _drafts(request: GenerationRequest, args: ServerArgs) -> tuple[int, int]:
    accepted = max(0, request.completion_tokens - 1 - request.verify_count)
    return accepted, request.verify_count * max(1, args.block_size - 1)


def _finish_reason(request: GenerationRequest) -> dict[str, Any] | None:
    match request.finish:
        case None:
            return None
        case FinishKind.LENGTH:
            return {"type": "length", "length": request.completion_tokens}
        case FinishKind.STOP:
            matched = request.matched_stop
            return {"type": "stop", "matched": _EOS_ID if matched is None else matched}
        case FinishKind.ABORT:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


class GenerateFrames:
    """The native protocol: cumulative text unless `incremental`."""

    def __init__(
        self, request: GenerationRequest, args: ServerArgs, style: LogStyle, *, incremental: bool
    ) -> None:
        self._request = request
        self._args = args
        self._style = style
        self._incremental = incremental

    def opening(self) -> bytes:
        return b""

    def chunk(self, start: int) -> bytes:
        request = self._request
        text = request.visible[start:] if self._incremental else request.visible
        body = {"text": text, "meta_info": meta_info(request, self._args, self._style)}
        return f"data: {_dumps(body)}\n\n".encode()

    def closing(self) -> bytes:
        return b""

    def whole(self) -> dict[str, Any]:
        request = self._request
        return {
            "text": request.text,
            "output_ids": encode("".join(request.output_pieces)),
            "meta_info": meta_info(request, self._args, self._style),
        }


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """What an OpenAI request and the server's flags say about the answer's form.

    Attributes:
        chat: Chat completions; otherwise completions.
        include_usage: A last chunk with usage.
        continuous_usage: Usage in every chunk.
        cache_report: Cached tokens in the usage.
        reasoning_only: Everything in `reasoning_content`.
    """

    chat: bool
    include_usage: bool = False
    continuous_usage: bool = False
    cache_report: bool = False
    reasoning_only: bool = False


class OpenAIFrames:
    """Chat completions and completions: text deltas."""

    def __init__(
        self, request: GenerationRequest, args: ServerArgs, options: OpenAIOptions
    ) -> None:
        self._request = request
        self._args = args
        self._options = options
        self._created = int(time.time())
        kind = "chat.completion.chunk" if options.chat else "text_completion"
        head = {
            "id": request.rid,
            "object": kind,
            "created": self._created,
            "model": args.model,
        }
        self._head = "data: " + _dumps(head)[:-1]
        self._field = "reasoning_content" if options.reasoning_only else "content"

    def opening(self) -> bytes:
        if not self._options.chat:
            return b""
        return self._frame({"role": "assistant", "content": ""}, None)

    def chunk(self, start: int) -> bytes:
        fresh = self._request.visible[start:]
        if not self._options.chat:
            return self._frame(fresh, _openai_finish(self._request))
        return self._frame({self._field: fresh}, None)

    def closing(self) -> bytes:
        frames = b""
        if self._options.chat:
            frames = self._frame({}, _openai_finish(self._request))
        if self._options.include_usage:
            frames += f'{self._head},"choices":[],"usage":{_dumps(self._usage())}}}\n\n'.encode()
        return frames

    def whole(self) -> dict[str, Any]:
        request, options = self._request, self._options
        choice: dict[str, Any] = {"index": 0}
        if options.chat:
            choice["message"] = {
                "role": "assistant",
                "content": None if options.reasoning_only else request.text,
                "reasoning_content": request.text if options.reasoning_only else None,
                "tool_calls": None,
            }
        else:
            choice["text"] = request.text
        choice |= {
            "logprobs": None,
            "finish_reason": _openai_finish(request),
            "matched_stop": request.matched_stop,
        }
        return {
            "id": request.rid,
            "object": "chat.completion" if options.chat else "text_completion",
            "created": self._created,
            "model": self._args.model,
            "choices": [choice],
            "usage": self._usage(),
            "metadata": {"weight_version": self._args.weight_version},
        }

    def _frame(self, payload: object, finish: str | None) -> bytes:
        name = "delta" if self._options.chat else "text"
        usage = ""
        if self._options.continuous_usage:
            usage = f',"usage":{_dumps(self._usage())}'
        matched = _dumps(self._request.matched_stop) if finish else "null"
        return (
            f'{self._head},"choices":[{{"index":0,"{name}":{_dumps(payload)},"logprobs":null,'
            f'"finish_reason":{_dumps(finish)},"matched_stop":{matched}}}]{usage}}}\n\n'
        ).encode()

    def _usage(self) -> dict[str, Any]:
        request = self._request
        details = {"cached_tokens": request.cached_tokens} if self._options.cache_report else None
        return {
            "prompt_tokens": request.prompt_tokens,
            "total_tokens": request.prompt_tokens + request.completion_tokens,
            "completion_tokens": request.completion_tokens,
            "prompt_tokens_details": details,
            "reasoning_tokens": request.completion_tokens if self._options.reasoning_only else 0,
        }


def _openai_finish(request: GenerationRequest) -> str | None:
    return None if request.finish is None else request.finish.value
