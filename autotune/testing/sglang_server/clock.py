"""A clock for rounds: lateness of one sleep shortens the next instead of adding up."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["VirtualClock"]


class VirtualClock:
    """When the round that is computed now ends.

    Args:
        time_scale: Virtual seconds in a real second.
        most_late_s: Lateness that is caught up; more (a suspended process) is forgotten.
        now: The real clock, seconds.
    """

    def __init__(
        self,
        *,
        time_scale: float,
        most_late_s: float = 0.5,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._time_scale = time_scale
        self._most_late_s = most_late_s
        self._now = now
        self._due = now()
        self.busy_s = 0.0
        """Virtual seconds of all rounds so far."""

    @property
    def due(self) -> float:
        """Real time at which the last round ended, by the schedule."""
        return self._due

    def resume(self, at: float) -> None:
        """Work arrived at a real time after an idle span: nothing is due before it."""
        self._due = max(self._due, at)

    def advance(self, virtual_s: float) -> float:
        """Schedule a round and return the real seconds to wait for its end; 0 when late."""
        now = self._now()
        self.busy_s += virtual_s
        self._due = max(self._due, now - self._most_late_s) + virtual_s / self._time_scale
        return max(0.0, self._due - now)
