"""Lines of the engine's log, beside its arguments, that show that a setting took effect."""

from __future__ import annotations

from autotune.space import ParameterValue

__all__ = ["witnesses"]


def witnesses(keys: tuple[str, ...], value: ParameterValue) -> dict[str, str]:
    """What the engine's start-up lines must show when a setting took effect.

    Args:
        keys: Names of the setting, as in `server_info`.
        value: Its value; None when the flag is left out.

    Returns:
        `key=value` pairs of the lines "Initialized DFLASH draft runner." and "Initialized DDTree
        worker."; empty when those lines do not show the setting.  Source: SGLang,
        srt/speculative/dflash_worker.py: `compact_cache` is True exactly when a window is set.
    """
    if "speculative_draft_window_size" in keys or "speculative_dflash_draft_window_size" in keys:
        return {"draft_window_size": str(value), "compact_cache": str(value is not None)}
    if value is None:
        return {}
    for key, shown in (
        ("speculative_ddtree_budget", "tree_budget"),
        ("speculative_ddtree_topk_cap", "topk_cap"),
        ("speculative_num_draft_tokens", "block_size"),
    ):
        if key in keys:
            return {shown: str(value)}
    return {}
