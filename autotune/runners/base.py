"""Who carries starts to hosts.  A runner pulls from the driver and pushes back what came of it."""

from __future__ import annotations

from typing import Protocol

from autotune.audience import Watcher
from autotune.driver import Driver

__all__ = ["Runner"]


class Runner(Protocol):
    """Runs a study to its end."""

    def run(self, driver: Driver, watcher: Watcher) -> None:
        """Return when the driver has nothing left.

        Raises:
            StudyError: The study cannot go on; nothing is in flight any more.
        """
