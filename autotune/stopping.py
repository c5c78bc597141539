"""How a signal ends a run: at once, or after the trials that are under way."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from autotune.interrupts import answered, insistent

__all__ = ["Stop"]

log = logging.getLogger(__name__)


class Stop:
    """What SIGTERM, SIGHUP and Ctrl-C do; hosts are restored on the way out in any case.

    Args:
        finish: Signals whose first one lets the trials that are under way end; whatever comes after
            it abandons them, as every other signal does.
    """

    def __init__(self, *, finish: Collection[signal.Signals]) -> None:
        self._finish = finish
        self._asked = False
        self._tell: Callable[[], None] | None = None

    def tell(self, stop: Callable[[], None]) -> None:
        """Whom to tell that no further trial may begin."""
        self._tell = stop

    def at_once(self) -> None:
        """End the run now, whatever was asked for; from any thread."""
        self._finish = ()
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Take the signals of this process until the end of the block."""
        with answered(self._take, signal.SIGTERM, signal.SIGINT, signal.SIGHUP), insistent():
            yield

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number not in self._finish or self._asked or self._tell is None:
            raise KeyboardInterrupt
        self._asked = True
        log.warning("stopping after the trials that are under way; once more abandons them")
        self._tell()
