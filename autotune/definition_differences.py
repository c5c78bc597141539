"""Where two definitions differ, leaf by leaf.  Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["differences"]

_ABSENT = object()


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """`service.unit: 'a' became 'b'` for every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            for line in differences(
                old.get(key, _ABSENT), new.get(key, _ABSENT), f"{path}.{key}" if path else key
            )
        ]
    return [] if old == new else [f"{path}: {_worded(old)} became {_worded(new)}"]


def _worded(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
