"""Threads beside a run: none ends unseen.

A thread that ends by an error which nobody expected is logged with its traceback at once.  What
follows is said by who started it: a host whose heartbeat ends is lost; a run whose presence, wishes
or notes end is stopped in order: the main thread is interrupted, every host is restored, and the
command ends with the error's name (exit code 1).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.errors import StudyError

__all__ = ["Threads", "watched"]

log = logging.getLogger(__name__)


def watched(
    name: str, work: Callable[[], None], *, failed: Callable[[BaseException], None]
) -> threading.Thread:
    """A thread, not started yet, whose unexpected end is logged and told.

    Args:
        failed: Called in the thread with what ended it; not when `work` returns.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            log.error("thread %s has ended by a defect of this program", name, exc_info=error)
            failed(error)

    return threading.Thread(target=run, name=name, daemon=True)


class Threads:
    """The threads without which a run must not go on.

    Args:
        interrupt: Ends what the main thread does by KeyboardInterrupt; called from any thread.

    Attributes:
        failure: Why the run ends: the first failure of all; None while there is none.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.failure: StudyError | None = None
        self._interrupt = interrupt
        self._lock = threading.Lock()

    def make(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """A thread, not started yet, whose unexpected end ends the run."""
        return watched(name, work, failed=lambda error: self._defect(name, error))

    def fail(self, reason: StudyError) -> None:
        """End the run for this reason; from any thread, the first reason counts."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = reason
        self._interrupt()

    def require(self) -> None:
        """Go on only while no thread has failed.

        Raises:
            StudyError: One has.
        """
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """An interrupt of the block by a failed thread becomes its error.

        Raises:
            StudyError: A thread has failed, also where the interrupt came too late.
        """
        try:
            yield
        except KeyboardInterrupt as error:
            if self.failure is None:
                raise
            raise self.failure from error
        self.require()

    def _defect(self, name: str, error: BaseException) -> None:
        self.fail(
            StudyError(
                f"the thread {name!r} of this run has ended by a defect of this program: {error!r}",
                hint="its traceback is in the log; started again, the study goes on",
            )
        )
