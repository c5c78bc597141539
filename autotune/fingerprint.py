"""What must be equal for two starts to be compared, and what the reference admits.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.errors import FingerprintMismatch
from autotune.sglang.log import StartupLog
from autotune.sglang.server import MISSING, ServerInfo, setting

__all__ = ["COMPARED", "FREE", "LIMIT", "fingerprint", "free_gib", "require_comparable"]

COMPARED = (
    *("version", "model_path", "speculative_draft_model_path", "tp_size", "dtype", "quantization"),
    *("kv_cache_dtype", "speculative_draft_model_quantization"),
)
"""Settings that no trial changes; a difference means that somebody else changed the service."""

LIMIT = "max_running_requests"
"""Requests that the scheduler runs at once; recorded, not compared: parameters may lower it."""

FREE = "available_gpu_mem_gb"
"""GPU memory left once the server was ready, GB; recorded, not compared: the search learns it."""


def fingerprint(info: ServerInfo, log: StartupLog) -> dict[str, str]:
    """The settings of one start by name, as text; what the engine does not report is left out."""
    seen = {key: setting(info, key) for key in COMPARED}
    shown = {key: str(value) for key, value in seen.items() if value is not MISSING}
    if log.limits.available_gpu_mem_gb is not None:
        shown[FREE] = f"{log.limits.available_gpu_mem_gb:g}"
    limit = log.limits.max_running_requests  # of one data-parallel rank
    ranks = setting(info, "dp_size")
    if limit is None:
        return shown
    return {**shown, LIMIT: str(limit * (ranks if isinstance(ranks, int) else 1))}


def free_gib(shown: Mapping[str, str]) -> float | None:
    """GPU memory that a start left free; None where the engine did not log it."""
    return float(shown[FREE]) if FREE in shown else None


def require_comparable(reference: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raise FingerprintMismatch for the first setting that differs from the reference's."""
    for key in COMPARED:
        if key in reference and key in own and reference[key] != own[key]:
            raise FingerprintMismatch(
                f"the server has {key} {own[key]}, the host's reference had {reference[key]}",
                hint="numbers of different servers are not compared",
            )
