"""Saves what becomes of hosts beside the run: a database that hangs must not hold up a host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue

from autotune.errors import StorageError
from autotune.threads import Threads

__all__ = ["Scribe"]

log = logging.getLogger(__name__)

CLOSED_WITHIN_S = 60.0
"""How long the end of a run waits for what is not saved yet; every host is restored by then."""


class Scribe:
    """One thread, so that what is saved of a host is saved in its order."""

    def __init__(self, threads: Threads) -> None:
        self._jobs: SimpleQueue[tuple[str, Callable[[], None]] | None] = SimpleQueue()
        self._thread = threads.make("roster", self._write)

    def start(self) -> None:
        """Save what was asked for and what will be; once."""
        self._thread.start()

    def save(self, host: str, what: Callable[[], None]) -> None:
        """Save something of a host, later; from any thread."""
        self._jobs.put((host, what))

    def close(self) -> None:
        """Save what is left, and leave what a database that hangs does not take."""
        self._jobs.put(None)
        self._thread.join(CLOSED_WITHIN_S)
        if self._thread.is_alive():
            log.warning(
                "what became of the hosts is not saved: the database has not answered for %.0f s",
                CLOSED_WITHIN_S,
            )

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            host, what = job
            try:
                what()
            except StorageError as error:
                log.warning("what became of host %s could not be saved: %s", host, error)
