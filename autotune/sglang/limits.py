"""How much concurrency a server takes before something changes.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.sglang.log import StartupLog
from autotune.sglang.server import ServerInfo, setting, whole

__all__ = ["Limits", "limits_of"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much concurrency a server takes before something changes.

    Attributes:
        max_running_requests: Requests that all schedulers together run at once; more must queue.
        largest_graph_batch: Largest decode batch with a CUDA graph; larger ones run eagerly, 0 when
            all do.  None where nothing tells.
    """

    max_running_requests: int | None
    largest_graph_batch: int | None


def limits_of(info: ServerInfo, log: StartupLog | None = None) -> Limits:
    """What a server really admits, from its own answer and its log.

    With speculation and no explicit limit SGLang admits 48 requests; the flag is divided among
    data-parallel ranks.  Of graphs the log is believed first: it shows what was captured.
    """
    return Limits(
        max_running_requests=_running_limit(info, log),
        largest_graph_batch=_graph_limit(info, log),
    )


def _running_limit(info: ServerInfo, log: StartupLog | None) -> int | None:
    ranks = max(1, whole(setting(info, "dp_size")) or 1)
    per_rank = whole(setting(info, "effective_max_running_requests_per_dp"))
    if per_rank is None and log is not None:
        per_rank = log.limits.max_running_requests
    if per_rank is not None:
        return per_rank * ranks
    return whole(setting(info, "max_running_requests"))


def _graph_limit(info: ServerInfo, log: StartupLog | None) -> int | None:
    if setting(info, "disable_cuda_graph") is True:
        return 0
    if log is not None and log.captured_batches is not None:
        return log.captured_batches
    config = setting(info, "cuda_graph_config")
    decode = config.get("decode") if isinstance(config, Mapping) else None
    planned = None
    if isinstance(decode, Mapping):
        planned = [] if decode.get("backend") == "disabled" else decode.get("bs")
        if not isinstance(planned, list) and whole(decode.get("max_bs")) is not None:
            planned = [decode.get("max_bs")]
    for batches in (
        setting(info, "decode_cuda_graph_bs"),
        planned,
        setting(info, "cuda_graph_bs", ("cuda_graph_bs_decode",)),
    ):
        if isinstance(batches, list):
            return max((size for size in batches if isinstance(size, int)), default=0)
    return whole(setting(info, "cuda_graph_max_bs", ("cuda_graph_max_bs_decode",)))
