"""Waiting for what another process does, which no test can order about."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

__all__ = ["PATIENCE_S", "until"]

PATIENCE_S = 120.0
"""Far beyond what anything takes on a busy machine; only a failure waits that long."""

_T = TypeVar("_T")


def until(
    probe: Callable[[], _T], what: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.05
) -> _T:
    """Ask until the answer is true, and return it."""
    ends_at = time.monotonic() + timeout_s
    while not (answer := probe()):
        assert time.monotonic() < ends_at, f"{what}: not within {timeout_s:.0f} s"
        Event().wait(every_s)
    return answer
