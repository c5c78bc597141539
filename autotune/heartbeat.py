"""Is a host still ours?  Asked all the time, in a thread beside whatever takes long.

The driver's heartbeat keeps the lease; a start only asks, because a worker that outlives its
driver must not keep the host from going back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.errors import AutotuneError, HostKeyError, LeaseLost, TargetError
from autotune.supervisors.base import Lease
from autotune.threads import watched

__all__ = ["HEARTBEAT_MOST_S", "heart_stopped", "losing", "until_lost"]

log = logging.getLogger(__name__)

HEARTBEAT_MOST_S = 30.0


def heart_stopped(lease: Lease) -> LeaseLost:
    """Why a host is lost whose heartbeat ended by what nobody expected: it will restore itself."""
    return LeaseLost(
        f"the heartbeat to {lease.host} ended by a defect of this program",
        hint="its traceback is in the log",
    )


def until_lost(
    ask: Callable[[], None],
    lease: Lease,
    *,
    stopping: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> AutotuneError | None:
    """Ask a host every `min(30 s, restore_after_s / 5)` until it is lost.

    Args:
        ask: Raises LeaseLost when the lease is not ours any more, TargetError when the host does
            not answer.
        stopping: Ends it.
        clock: Monotonic seconds.

    Returns:
        Why it is lost; it is too when nothing was heard of it for so long that it restores itself.
        None when it was told to stop.
    """
    every_s = min(HEARTBEAT_MOST_S, lease.restore_after_s / 5)
    last_s = clock()
    while not stopping.wait(every_s):
        try:
            ask()
            last_s = clock()
        except (LeaseLost, HostKeyError) as error:
            return error
        except TargetError as error:
            silent_s = clock() - last_s
            log.warning("no heartbeat to %s for %.0f s: %s", lease.host, silent_s, error)
            if silent_s > lease.restore_after_s:
                return LeaseLost(f"{lease.host} had no heartbeat for {silent_s:.0f} s")
    return None


@contextmanager
def losing(
    lease: Lease, ask: Callable[[], None], *, tell: Callable[[AutotuneError], None]
) -> Iterator[None]:
    """While the block lasts: tell, from another thread, why the host is lost when it is.

    Args:
        ask: See `until_lost`.
    """
    stopping = threading.Event()

    def say(reason: AutotuneError | None) -> None:
        if reason is not None and not stopping.is_set():
            tell(reason)

    looking = watched(
        f"lease-{lease.host}",
        lambda: say(until_lost(ask, lease, stopping=stopping)),
        failed=lambda error: say(heart_stopped(lease)),
    )
    looking.start()
    try:
        yield
    finally:
        stopping.set()
        looking.join()
