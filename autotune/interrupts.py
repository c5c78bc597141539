"""Signals that end a command: they become KeyboardInterrupt, so that every host is restored."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["answered", "between_callbacks", "deferred", "insistent", "terminable", "undisturbed"]

log = logging.getLogger(__name__)

AGAIN_S = 0.1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def insistent() -> Iterator[None]:
    """An interrupt that Python drops comes again.

    Python cannot raise out of a finalizer or a weak reference's callback: a KeyboardInterrupt that
    a handler raises just there is printed as ignored, and the command would go on.
    """
    before = sys.unraisablehook

    def notice(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            timer = threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGTERM))
            timer.daemon = True
            timer.start()
        else:
            before(dropped)

    sys.unraisablehook = notice
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def answered(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals
) -> Iterator[None]:
    """These signals go to `handler` within the block; in the main thread only.

    A signal that is ignored already (`nohup`) stays ignored, and one whose handler Python does not
    know (None: a library's own) stays with it, since it could not be put back.
    """
    before: dict[signal.Signals, Any] = {}
    interrupt: KeyboardInterrupt | None = None
    try:
        for number in numbers:
            if (old := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                before[number] = old  # noted first: a signal between the two lines raises
                signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            try:
                signal.signal(number, old)
            except KeyboardInterrupt as error:  # of one that came meanwhile: the rest goes back too
                signal.signal(number, old)
                interrupt = error
        if interrupt is not None:
            raise interrupt


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command like Ctrl-C: what it changed is put back on the way out."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with answered(interrupt, signal.SIGTERM, signal.SIGHUP), insistent():
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """A signal that comes within the block, which must be short, is taken at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    came: list[int] = []
    try:
        with answered(lambda number, frame: came.append(number), *_ENDING):
            yield
    finally:
        for missed in came:
            signal.raise_signal(missed)


@contextmanager
def between_callbacks(
    loop: asyncio.AbstractEventLoop, cancel: Callable[[], object]
) -> Iterator[None]:
    """Signals are taken between two callbacks of the loop that runs within the block.

    What a handler raises in the middle of a callback stays there: uvloop logs it as a fault of a
    connection, and the command would go on.  An interrupt calls `cancel` in the loop instead, and
    is raised at the end of the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    came: deque[int] = deque()
    interrupted = False

    def take() -> None:
        nonlocal interrupted
        while came:
            number = signal.Signals(came.popleft())
            try:
                handlers[number](number, None)  # type: ignore[operator,misc]
            except KeyboardInterrupt:
                interrupted = True
                cancel()

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        loop.call_soon_threadsafe(take)

    callable_ = [number for number, handler in handlers.items() if callable(handler)]
    try:
        with answered(note, *callable_):
            yield
    except asyncio.CancelledError:
        if not interrupted:
            raise
    finally:
        take()
        if interrupted:
            raise KeyboardInterrupt


@contextmanager
def undisturbed(hosts: tuple[str, ...], *, timers: bool = True) -> Iterator[None]:
    """No second Ctrl-C, SIGTERM or SIGHUP may keep one host from being restored after another.

    Args:
        timers: The hosts have a dead man's switch; a local process has a guard instead.
    """
    left = "leaves it to the hosts' timers" if timers else "leaves it to the services' guards"

    def insist(number: int, frame: FrameType | None) -> None:
        log.warning("still restoring %s; kill -9 %s", ", ".join(hosts), left)

    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only
        return
    with answered(insist, *_ENDING):
        yield
