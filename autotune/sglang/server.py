"""What a running SGLang server says about itself over HTTP.

Only facts and one generation; load is the benchmark's business.  Proxies of the environment are not
used, and secrets are masked before an answer is handed on.  An answer proves nothing about which
process gave it: that is the proof chain's question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final, Literal

import httpx

from autotune.closing import Closing
from autotune.errors import (
    AutotuneError,
    CommandTimeout,
    ConfigError,
    ConnectError,
    MeasurementError,
)
from autotune.sglang.masking import mask_text, masked

__all__ = [
    "HTTP_ERRORS",
    "MISSING",
    "CacheFlush",
    "Generation",
    "Missing",
    "ServerInfo",
    "SglangServer",
    "mapped",
    "mask_text",
    "masked",
    "parse_server_info",
    "setting",
    "spelling",
    "whole",
]

_SHOWN_CHARACTERS = 300
_NOT_FOR_US = (
    httpx.codes.UNAUTHORIZED,
    httpx.codes.FORBIDDEN,
    httpx.codes.NOT_FOUND,
    httpx.codes.METHOD_NOT_ALLOWED,
)

HTTP_ERRORS: tuple[tuple[type[Exception], type[AutotuneError], str], ...] = (
    (httpx.TimeoutException, CommandTimeout, "did not answer in time"),
    (httpx.NetworkError, ConnectError, "cannot be reached"),
    (httpx.ProxyError, ConnectError, "cannot be reached through a proxy"),
    (httpx.RemoteProtocolError, ConnectError, "closed the connection in mid-answer"),
    (httpx.UnsupportedProtocol, ConfigError, "has an address that is no http address"),
    (httpx.InvalidURL, ConfigError, "has an address that is no address"),
    (httpx.HTTPError, MeasurementError, "gave an answer that cannot be used"),
    (httpx.StreamError, MeasurementError, "gave an answer that cannot be read"),
    (httpx.CookieConflict, MeasurementError, "gave an answer that cannot be used"),
)
"""What each exception of httpx means; the first row that fits counts."""

_HTTP_EXCEPTIONS = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, httpx.CookieConflict)


class Missing(Enum):
    """The type of `MISSING`: a setting that the server does not have (None is a value)."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The answer of `/server_info`, secrets masked.

    Attributes:
        flat: Top level: settings as the HTTP process resolved them, and the scheduler's facts.
        scheduler: `internal_states[0]`: settings as the first scheduler sees them; may be empty.
        merged: Both, the scheduler's view over the other.
    """

    flat: Mapping[str, object]
    scheduler: Mapping[str, object] = field(default_factory=dict)

    @property
    def merged(self) -> dict[str, object]:
        return {**self.flat, **self.scheduler}

    @property
    def version(self) -> str | None:
        """SGLang's version."""
        return _text(self.flat.get("version"))

    @property
    def weight_version(self) -> str | None:
        return _text(self.merged.get("weight_version"))

    @property
    def random_seed(self) -> int | None:
        return whole(self.merged.get("random_seed"))


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer of `/generate`.

    Attributes:
        completion_tokens: Tokens by the server's count.
        weight_version: What `--weight-version` was given, None where the engine does not say.
        finish_reason: `stop`, `length`, `abort` ..., None where the engine does not say.
    """

    text: str
    completion_tokens: int
    weight_version: str | None
    finish_reason: str | None


def parse_server_info(answer: Mapping[str, object]) -> ServerInfo:
    """The answer of `/server_info`, its first scheduler's own view taken apart."""
    flat = dict(answer)
    states = flat.pop("internal_states", None)
    first = states[0] if isinstance(states, list) and states else {}
    scheduler = {str(key): value for key, value in first.items()} if _is_map(first) else {}
    return ServerInfo(flat=flat, scheduler=scheduler)


class CacheFlush(StrEnum):
    """What became of an order to empty the prefix cache.

    BUSY: requests are running.  UNAVAILABLE: no such path, or not with our key.
    """

    EMPTIED = "emptied"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


class SglangServer(Closing):
    """A client for one server.  Use as a context manager.

    Args:
        base_url: `http://HOST:PORT`, without a path of its own unless the server has one.
        api_key: The server's `--api-key`.
        admin_api_key: The server's `--admin-api-key`; where one is set, only it may flush.
        transport: Stands in for the network in tests.
        timeout_s: Longest wait for a connection, and for each part of an answer, seconds.

    Raises:
        ConfigError: The address or a key cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        admin_api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._api_key = _checked_key(api_key, "api_key")
        self._admin_api_key = _checked_key(admin_api_key, "admin_api_key")
        self._secrets = tuple(key for key in (api_key, admin_api_key) if key)
        self._shown = mask_text(base_url, self._secrets)
        try:
            self._http = httpx.Client(
                base_url=base_url,
                transport=transport,
                timeout=httpx.Timeout(timeout_s),
                trust_env=False,
                # A kept connection would go on talking to a server that drains, past its successor.
                limits=httpx.Limits(max_keepalive_connections=0),
            )
        except _HTTP_EXCEPTIONS as error:
            raise mapped(error, self._shown) from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # Every method below raises ConnectError when the server refuses or drops the connection,
    # CommandTimeout when it does not answer in time, MeasurementError when its answer is unusable.

    def server_info(self) -> ServerInfo:
        """`/server_info`, or `/get_server_info` where the engine is older."""
        response = self._send("GET", "/server_info")
        if response.status_code == httpx.codes.NOT_FOUND:
            response = self._send("GET", "/get_server_info")
        return parse_server_info(masked(self._mapping(response), self._secrets))

    def model_info(self) -> Mapping[str, object]:
        """`/model_info`, or `/get_model_info` where the engine is older."""
        response = self._send("GET", "/model_info")
        if response.status_code == httpx.codes.NOT_FOUND:
            response = self._send("GET", "/get_model_info")
        return masked(self._mapping(response), self._secrets)

    def models(self) -> tuple[str, ...]:
        """Ids of `/v1/models`.  Also answered while the server drains: no sign of readiness."""
        response = self._send("GET", "/v1/models")
        rows = self._mapping(response).get("data")
        if not isinstance(rows, list):
            raise self._unusable(response, "has no list of models")
        ids = tuple(row.get("id") for row in rows if _is_map(row))
        return tuple(name for name in ids if isinstance(name, str))

    def generate(self, text: str, *, max_new_tokens: int) -> Generation:
        """One greedy answer of `/generate`, not streamed."""
        response = self._send(
            "POST",
            "/generate",
            json={
                "text": text,
                "sampling_params": {"max_new_tokens": max_new_tokens, "temperature": 0.0},
                "stream": False,
            },
        )
        answer = self._mapping(response)
        meta = answer.get("meta_info")
        written = answer.get("text")
        if not isinstance(written, str) or not isinstance(meta, dict):
            raise self._unusable(response, "has no text with meta_info")
        tokens = whole(meta.get("completion_tokens"))
        if tokens is None:
            raise self._unusable(response, "does not count its tokens")
        reason = meta.get("finish_reason")
        return Generation(
            text=written,
            completion_tokens=tokens,
            weight_version=_text(meta.get("weight_version")),
            finish_reason=_text(reason.get("type") if isinstance(reason, dict) else reason),
        )

    def flush_cache(self) -> CacheFlush:
        """Empty the prefix cache."""
        response = self._send("POST", "/flush_cache", admin=True)
        if response.status_code == httpx.codes.BAD_REQUEST:
            return CacheFlush.BUSY
        if response.status_code in _NOT_FOR_US:
            return CacheFlush.UNAVAILABLE
        self._require_ok(response)
        return CacheFlush.EMPTIED

    # -- transport ------------------------------------------------------------------------------
    def _send(
        self, method: Literal["GET", "POST"], path: str, *, admin: bool = False, json: object = None
    ) -> httpx.Response:
        key = (self._admin_api_key or self._api_key) if admin else self._api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            return self._http.request(method, path, json=json, headers=headers)
        except _HTTP_EXCEPTIONS as error:
            raise mapped(error, f"{self._shown}{path}") from error

    def _require_ok(self, response: httpx.Response) -> None:
        status = response.status_code
        if status == httpx.codes.OK:
            return
        hint = ""
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            hint = "the server wants another API key"
        raise self._unusable(response, f"has status {status}", hint=hint)

    def _mapping(self, response: httpx.Response) -> dict[str, object]:
        self._require_ok(response)
        try:
            answer = response.json()
        except (ValueError, RecursionError) as error:
            raise self._unusable(response, "is not JSON") from error
        if not isinstance(answer, dict):
            raise self._unusable(response, "is not a JSON object")
        return answer

    def _unusable(self, response: httpx.Response, what: str, *, hint: str = "") -> MeasurementError:
        body = mask_text(response.text, self._secrets)[:_SHOWN_CHARACTERS]
        path = response.request.url.path
        return MeasurementError(f"the answer of {self._shown}{path} {what}: {body}", hint=hint)


def mapped(error: Exception, where: str) -> AutotuneError:
    """Our error for an exception of httpx.

    Args:
        error: An httpx exception of any class.
        where: Address for the message, without secrets.
    """
    for kind, ours, words in HTTP_ERRORS:
        if isinstance(error, kind):
            return ours(f"{where} {words}: {type(error).__name__} {error}".rstrip())
    raise error


def setting(
    info: ServerInfo | Mapping[str, object], name: str, aliases: Sequence[str] = ()
) -> object | Missing:
    """The value of a setting under whichever of its names the engine knows.

    Names may be flags (`--speculative-draft-window-size`) or keys.  Where an engine has several of
    the names, the first that is not None counts.

    Returns:
        The value, or `MISSING` when the engine has none of the names.
    """
    values = info.merged if isinstance(info, ServerInfo) else info
    seen: object | Missing = MISSING
    for key in (_key(one) for one in (name, *aliases)):
        if key in values:
            if values[key] is not None:
                return values[key]
            seen = None
    return seen


def spelling(info: ServerInfo | Mapping[str, object], candidates: Sequence[str]) -> str | None:
    """The first of several spellings of a flag that this engine has a setting for."""
    values = info.merged if isinstance(info, ServerInfo) else info
    return next((one for one in candidates if _key(one) in values), None)


def _checked_key(key: str | None, name: str) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
        raise ConfigError(
            f"the {name} cannot be sent in a header",
            hint="it holds a line end, a space at an end or a letter outside ASCII",
        )
    return key or None


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _is_map(value: object) -> bool:
    return isinstance(value, dict)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """An integer that is no boolean; None for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None
