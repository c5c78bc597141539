"""What a client asked for, read from the body of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from autotune.testing.sglang_server.requests import Sampling
from autotune.testing.sglang_server.tokens import chat_text, decode, encode

__all__ = ["BadBody", "Generation"]

_NATIVE_MAX_TOKENS = 128
_COMPLETION_MAX_TOKENS = 16


class BadBody(ValueError):
    """The body of a request is wrong; the message goes to the client."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation as asked for.

    Attributes:
        prompt: Text that the model reads, the chat template included.
        prompt_ids: Its tokens.
        sampling: Lengths and stops.
        stream: Whether the answer is streamed.
        chat: None = native protocol, else chat or plain completions.
        include_usage, continuous_usage: The stream options.
        rid: Request id of the client, "" for none.
    """

    prompt: str
    prompt_ids: list[int]
    sampling: Sampling
    stream: bool
    chat: bool | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    rid: str = ""

    @classmethod
    def native(cls, body: dict[str, Any], context_tokens: int) -> Generation:
        """A body of /generate.

        Raises:
            BadBody: A value is missing or has the wrong type.
        """
        text, ids = body.get("text"), body.get("input_ids")
        prompt, prompt_ids = _prompt(ids if text is None else text)
        params = body.get("sampling_params") or {}
        if not isinstance(params, dict):
            raise BadBody("sampling_params must be an object")
        return cls(
            prompt=prompt,
            prompt_ids=prompt_ids,
            sampling=_sampling(
                params, params.get("max_new_tokens", _NATIVE_MAX_TOKENS), context_tokens, prompt_ids
            ),
            stream=bool(body.get("stream", False)),
            rid=str(body.get("rid") or ""),
        )

    @classmethod
    def completion(cls, body: dict[str, Any], context_tokens: int) -> Generation:
        """A body of /v1/completions."""
        prompt, prompt_ids = _prompt(body.get("prompt"))
        return _openai(
            body, prompt, prompt_ids, context_tokens, chat=False, default=_COMPLETION_MAX_TOKENS
        )

    @classmethod
    def chat_completion(cls, body: dict[str, Any], context_tokens: int) -> Generation:
        """A body of /v1/chat/completions."""
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadBody("messages must be a list with at least one message")
        prompt = chat_text([(_role(m), _content(m)) for m in messages])
        return _openai(body, prompt, encode(prompt), context_tokens, chat=True, default=None)


def _openai(
    body: dict[str, Any],
    prompt: str,
    prompt_ids: list[int],
    context_tokens: int,
    *,
    chat: bool,
    default: int | None,
) -> Generation:
    if body.get("n", 1) != 1:
        raise BadBody("n must be 1")
    options = body.get("stream_options") or {}
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or default
    return Generation(
        prompt=prompt,
        prompt_ids=prompt_ids,
        sampling=_sampling(body, limit, context_tokens, prompt_ids),
        stream=bool(body.get("stream", False)),
        chat=chat,
        include_usage=bool(options.get("include_usage", False)),
        continuous_usage=bool(options.get("continuous_usage_stats", False)),
        rid=str(body.get("rid") or ""),
    )


def _sampling(
    params: dict[str, Any], limit: object, context_tokens: int, prompt_ids: list[int]
) -> Sampling:
    room = max(1, context_tokens - len(prompt_ids) - 1)
    if limit is None:
        limit = room
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise BadBody(f"the number of new tokens must be a positive integer, got {limit!r}")
    temperature = params.get("temperature")
    if temperature is not None and not isinstance(temperature, int | float):
        raise BadBody(f"temperature must be a number, got {temperature!r}")
    stop = params.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) and text for text in stops):
        raise BadBody("stop must be a string or a list of strings")
    return Sampling(
        max_new_tokens=min(limit, room),
        ignore_eos=bool(params.get("ignore_eos", False)),
        stop=stops,
        temperature=1.0 if temperature is None else float(temperature),
    )


def _prompt(value: object) -> tuple[str, list[int]]:
    if isinstance(value, str) and value:
        return value, encode(value)
    if isinstance(value, list) and value and all(isinstance(token, int) for token in value):
        try:
            return decode(value), list(value)
        except ValueError as error:
            raise BadBody(str(error)) from error
    raise BadBody("the prompt must be one text or one list of token ids")


def _role(message: object) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadBody("each message needs a role")
    return str(message["role"])


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text", "") for part in content if isinstance(part, dict)]
        return "".join(str(part) for part in parts)
    return "" if content is None else str(content)
