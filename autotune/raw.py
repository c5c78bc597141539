"""The requests of one bucket as columns: cheap to carry from a worker to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from autotune.sglang.masking import mask_text

if TYPE_CHECKING:
    from autotune.benchmark.requests import RequestTimings

__all__ = ["RawRequests", "raw_requests"]

Floats32: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RawRequests:
    """The requests of one bucket.

    Attributes:
        columns: One value for each request.
        chunks: How many chunks each request had, shape (n,).
        chunk_ms, chunk_tokens: Of all chunks, one request after the other.
    """

    bucket: str
    columns: Mapping[str, list[Any]]
    chunks: npt.NDArray[np.int32]
    chunk_ms: Floats32
    chunk_tokens: Floats32


def raw_requests(bucket: str, requests: Sequence[RequestTimings]) -> RawRequests:
    """The columns of these requests."""
    began_s = min((one.sent_s for one in requests), default=0.0)
    seen = [one.stats() for one in requests]
    return RawRequests(
        bucket,
        {
            "sent_s": [one.sent_s - began_s for one in requests],
            "ended_s": [one.ended_s - began_s for one in requests],
            "outcome": [str(one.outcome) for one in requests],
            "failure": [one.failure and str(one.failure) for one in requests],
            "message": [mask_text(one.message) for one in requests],
            "finish_reason": [one.finish_reason for one in requests],
            "prompt_tokens": [one.prompt_tokens for one in requests],
            "completion_tokens": [one.completion_tokens for one in requests],
            "cached_tokens": [one.cached_tokens for one in requests],
            "live": [one.live for one in requests],
            "ttft_ms": [one.ttft_ms for one in seen],
            "tpot_ms": [one.tpot_ms for one in seen],
            "unread_ms": [one.unread_ms for one in requests],
            "asked_tokens": [one.asked_tokens for one in requests],
        },
        np.array([len(one.chunk_s) for one in requests], dtype=np.int32),
        np.array([(at - r.sent_s) * 1000 for r in requests for at in r.chunk_s], dtype=np.float32),
        np.array([tokens for r in requests for tokens in r.chunk_tokens], dtype=np.float32),
    )
