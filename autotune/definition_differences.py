"""Where two definitions differ, leaf by leaf.  Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["differences", "summary"]

_ABSENT = object()
MOST_SHOWN = 6
MOST_CHARACTERS = 60


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`service.unit: 'a' became 'b'` for every leaf that differs; lists by position."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in differences(
                old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}" if path else key
            )
        ]
    if _is_table_list(old) and _is_table_list(new):
        lines = [
            line
            for at, (one, other) in enumerate(zip(old, new, strict=False))
            for line in differences(one, other, f"{path}[{at}]")
        ]
        if len(old) != len(new):
            lines.insert(0, f"{path}: {len(old)} entries became {len(new)}")
        return lines
    return [] if old == new else [f"{path}: {_worded(old)} became {_worded(new)}"]


def summary(old: Any, new: Any) -> str:
    """The first few differences in one line, and how many more there are."""
    found = differences(old, new)
    more = len(found) - MOST_SHOWN
    return "; ".join(found[:MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, dict) for one in value)


def _worded(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
