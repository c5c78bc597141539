"""How long the database is away, and how long that is borne."""

from __future__ import annotations

import logging
from collections.abc import Callable

from autotune.errors import StorageAway

__all__ = ["AWAY_MOST_S", "Outage"]

log = logging.getLogger(__name__)

AWAY_MOST_S = 1800.0
"""How long the database may be away before the run gives up; results stay in the spool."""


class Outage:
    """Whether the database answers.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: float | None = None

    @property
    def on(self) -> bool:
        """Whether it is away."""
        return self._since_s is not None

    def met(self, error: StorageAway) -> None:
        """It did not answer.

        Raises:
            StorageAway: For too long.
        """
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
            log.warning("%s; trying again, results are kept on this machine meanwhile", error)
        if now_s - self._since_s > AWAY_MOST_S:
            raise error

    def over(self) -> None:
        """It has answered."""
        if self._since_s is not None:
            log.warning("the database is back after %.0f s", self._clock() - self._since_s)
            self._since_s = None
