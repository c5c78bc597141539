"""The server's own counters, read over HTTP.

SGLang counts a request's tokens and verify calls when the request ends (`observe_one_finished_
request` in `metrics_collector.py`), not as they are produced.  So deltas are taken over a span at
whose both ends nothing of ours is running, never over the windows.  Other engines have other names
for them (`engine_words`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Protocol

import httpx

from autotune.engine_words import SGLANG_COUNTERS, CounterNames
from autotune.sglang.limits import limits_of
from autotune.sglang.server import ServerInfo, parse_server_info

__all__ = ["CounterValues", "Counters", "HttpCounters", "NoCounters", "parse_metrics"]

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+([^\s]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CounterValues:
    """One reading; None where the server does not say.

    Attributes:
        generation_tokens: Output tokens of all ended requests since the start.
        verify_calls: Verify steps of all ended requests since the start, one a request and step.
        accepted_tokens: Drafted tokens that were accepted since the start.
        cached_tokens: Prompt tokens found in the prefix cache since the start.
        accept_length: The server's running average of output tokens per verify step.
        max_running_requests: Requests that all its data-parallel ranks run at once at most.
        largest_graph: Largest batch with a captured CUDA graph; 0 when graphs are off.
        answered: Whether the server gave its counters at all.  Where it did, one that is not among
            them has not counted yet; where it did not, nothing is known of any.
    """

    generation_tokens: int | None = None
    verify_calls: int | None = None
    accepted_tokens: int | None = None
    cached_tokens: int | None = None
    accept_length: float | None = None
    max_running_requests: int | None = None
    largest_graph: int | None = None
    answered: bool = True


class Counters(Protocol):
    """Reads the server's counters."""

    async def read(self) -> CounterValues:
        """One reading; never raises for a server that is silent."""
        ...


class NoCounters:
    """For a server that has none."""

    async def read(self) -> CounterValues:
        return CounterValues(answered=False)


class HttpCounters:
    """`/metrics` and, of SGLang, `/server_info`; each may be absent.

    Args:
        client: With the server's base URL and, where it needs one, the key.
        names: What the engine calls its counters.
        timeout_s: A server whose scheduler has died answers `/server_info` never.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        *,
        names: CounterNames = SGLANG_COUNTERS,
        timeout_s: float = 5.0,
    ) -> None:
        self._client = client
        self._names = names
        self._timeout_s = timeout_s

    async def read(self) -> CounterValues:
        metrics = await self._get("/metrics")
        totals = parse_metrics(metrics or "")
        # Older engines have the second name only.
        text = await self._get("/server_info") or await self._get("/get_server_info")
        info = _server_info(text or "")
        limits = limits_of(info)
        return CounterValues(
            generation_tokens=_whole(totals.get(self._names.generated)),
            # The counter appears with the first verify call, later than the token counter.
            verify_calls=_whole(totals.get(self._names.steps)),
            accepted_tokens=_whole(totals.get(self._names.accepted)),
            cached_tokens=_whole(totals.get(self._names.cached)),
            accept_length=_number(info.merged.get("avg_spec_accept_length")),
            max_running_requests=limits.max_running_requests,
            largest_graph=limits.largest_graph_batch,
            answered=metrics is not None,
        )

    async def _get(self, path: str) -> str | None:
        """The text there; None without an answer."""
        try:
            answer = await self._client.get(path, timeout=self._timeout_s)
        except httpx.TransportError:
            return None
        return answer.text if answer.status_code == httpx.codes.OK else None


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text -> the sum of each metric over its labels, by name.

    The format: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    totals: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        try:
            totals[name] = totals.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return totals


def _server_info(text: str) -> ServerInfo:
    """What `/server_info` says; nothing when it is unreadable."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    return parse_server_info(answer if isinstance(answer, dict) else {})


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
