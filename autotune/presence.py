"""A driver says that it lives, and knows which others do.

Optuna writes heartbeats only within `study.optimize`; with ask and tell this thread writes them,
for every trial that is in flight here, beside the driver's own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.errors import StorageError, StudyError
from autotune.roster import Roster, owner_key
from autotune.study import TrialStudy
from autotune.supervisors.base import Owner
from autotune.supervisors.owner import describe_owner, owner_here, owner_lives
from autotune.threads import Threads

__all__ = ["Presence"]

log = logging.getLogger(__name__)

BEAT_MOST_S = 30.0


class Presence:
    """One driver among the drivers of a study.

    Args:
        grace_s: A driver of another machine that was silent for so long is dead.
        threads: Ends the run where the heartbeat ends by itself: others would take it for dead.
    """

    def __init__(self, roster: Roster, owner: Owner, *, grace_s: float, threads: Threads) -> None:
        self._threads = threads
        self._roster = roster
        self._owner = owner
        self._grace_s = grace_s
        self._study: TrialStudy | None = None
        self._flying: Callable[[], tuple[int, ...]] = tuple
        self._done = threading.Event()
        self._silent = False

    @contextmanager
    def here(self) -> Iterator[None]:
        """Take part, and leave at the end.

        Raises:
            StudyError: Another driver runs the study and the database takes one at a time.
        """
        if not self._roster.shared:
            self._require_alone()
        self._roster.beat(self._owner)
        thread = self._threads.make("presence", self._beat)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
            try:
                self._roster.leave(self._owner)
            except StorageError as error:  # must not hide why the run ends
                log.warning("the end of this run could not be saved: %s", error)

    def watch(self, study: TrialStudy, flying: Callable[[], tuple[int, ...]]) -> None:
        """Write Optuna's heartbeat for the trials that are in flight here from now on."""
        self._study, self._flying = study, flying

    def living(self) -> Callable[[Owner], bool]:
        """Who is alive by one look into the database.

        Processes of this machine are asked for themselves; of others only their heartbeats are
        known.
        """
        silent_s = self._roster.silent_s()
        here = owner_here(self._owner.study).machine

        def alive(owner: Owner) -> bool:
            if owner.machine == here:
                return owner_lives(owner)
            return silent_s.get(owner_key(owner), self._grace_s) < self._grace_s

        return alive

    def _require_alone(self) -> None:
        alive = self.living()
        for driver in self._roster.drivers():
            if driver.left_at_s is None and driver.owner != self._owner and alive(driver.owner):
                raise StudyError(
                    f"study {self._owner.study!r} is being run by process {driver.owner.pid} on "
                    f"{driver.owner.machine} ({describe_owner(driver.owner)})",
                    hint="watch it with `autotune status`, or end it first; several at once need "
                    "PostgreSQL: --storage postgresql://...",
                )

    def _beat(self) -> None:
        every_s = min(BEAT_MOST_S, self._grace_s / 6)
        while not self._done.wait(every_s):
            try:
                self._roster.beat(self._owner)
                if self._study is not None:
                    self._study.beat(self._flying())
                self._silent = False
            except StorageError as error:
                if not self._silent:
                    log.warning("no heartbeat to the database: %s", error)
                self._silent = True
