"""The hosts of one run: opened side by side, lost and found again, drained, added, restored.

The driver's thread owns `sessions` and the state of each host (`host_state`), and changes them in
`step` alone; whatever takes time (ssh to a host that does not answer, a restore with its load)
happens in threads and comes back as news.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

from autotune.config import StudyConfig
from autotune.errors import (
    AuthenticationError,
    AutotuneError,
    HostKeyError,
    StorageError,
    StudyError,
)
from autotune.host_errors import reason_of, unrestored
from autotune.host_state import AT_WORK, KEPT, Event, State, lost, may_return, missed, moved
from autotune.interrupts import deferred, undisturbed
from autotune.opening import Found, label_of
from autotune.presence import Presence
from autotune.roster import Roster
from autotune.scribe import Scribe
from autotune.session import HostSession
from autotune.stored import Wanted
from autotune.supervisors.base import Owner
from autotune.taking import Taking, side_by_side
from autotune.threads import Threads

__all__ = ["Fleet"]

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Hosts that are opened or tried again at the same time."""

RESTORED_AT_ONCE = 256
"""Hosts that are restored at the same time: each waits for its load, none for another's."""

LOOK_S = 5.0
"""How often an operator's wishes are read."""

TRY_AGAIN_S = 10.0
"""Pause between two tries of a host that is away."""

AWAY_MOST_S = 1800.0
"""How long a run without any usable host waits for one to come back."""


@dataclass(slots=True)
class _Host:
    """One host of the run.

    Attributes:
        name: As the study file, or who added it, calls it.
        reason: Why it is not used; None when nothing has failed.
        since_s: Since when it is away.
    """

    name: str
    state: State
    reason: AutotuneError | None = None
    since_s: float = 0.0
    next_try_s: float = 0.0


_Work = Future[HostSession | None]


class Fleet:
    """Every host that this run may use.

    Attributes:
        sessions: Hosts that were opened, by label; those that are lost stay until they are back.
        unrestored: After the end, by label: why a host could not be restored.
    """

    def __init__(
        self,
        config: StudyConfig,
        *,
        owner: Owner,
        roster: Roster,
        presence: Presence,
        threads: Threads,
    ) -> None:
        self.sessions: dict[str, HostSession] = {}
        self.unrestored: Mapping[str, AutotuneError] = {}
        self._config = config
        self._roster = roster
        self._presence = presence
        self._threads = threads
        self._names = {label_of(config, name): name for name in config.service.hosts}
        self._hosts = {label: _Host(name, State.ABSENT) for label, name in self._names.items()}
        self._taking = Taking(config, owner=owner, roster=roster)
        self._news: SimpleQueue[tuple[str, _Work]] = SimpleQueue()
        self._wanted: Mapping[str, Wanted] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="host")
        self._restorers = ThreadPoolExecutor(RESTORED_AT_ONCE, thread_name_prefix="restore")
        self._scribe = Scribe(threads)
        self._done = threading.Event()
        self._watch = threads.make("wishes", self._look_for_wishes)

    # -- the whole run ----------------------------------------------------------------------------
    @contextmanager
    def accounted(self) -> Iterator[None]:
        """However the block ends, a host that could not be restored is told at its end.

        Raises:
            RestoreFailed: One could not; it says too what else ended the block.
        """
        try:
            yield
        finally:
            if self.unrestored:
                raise unrestored(self.unrestored, sys.exception())

    @contextmanager
    def open(self) -> Iterator[Mapping[str, HostSession]]:
        """Open every host; restore every host at the end, whatever happened.

        Nothing is changed on any before all that answer are known to fit the definition.
        What could not be restored stands in `unrestored`, for `accounted` round all of it.

        Raises:
            AutotuneError: A host does not fit, or none answers.
        """
        try:
            self._scribe.start()
            self._wanted = self._roster.wanted()
            self._open_all()
            self._watch.start()
            yield self.sessions
        finally:
            self._close()

    def step(self, busy: frozenset[str]) -> None:
        """Take over what the threads found, and start what is due.

        Raises:
            StudyError: One has ended by itself.
        """
        self._threads.require()
        # An interrupt comes before or after a move: its thread is started, or there is none.
        with deferred():
            while True:
                try:
                    self._hear(*self._news.get_nowait())
                except Empty:
                    break
            for label, wanted in self._wanted.items():
                if wanted is Wanted.ADD and label not in self._hosts:
                    self._hosts[label] = _Host(label, State.ABSENT)
            for label in self._hosts:
                self._look_at(label, busy=label in busy)

    def expecting(self) -> bool:
        """Whether a host that is not there now may still come.

        A run with one host ends when that is away: started again, it goes on where it stopped.
        """
        now_s = time.monotonic()
        known = [host for host in self._hosts.values() if host.state is not State.ABSENT]
        return any(
            host.state is State.LEAVING
            or (
                host.state in (State.AWAY, State.TRYING)
                # One that was just added has not been tried yet.
                and (host.reason is None or (len(known) > 1 and now_s - host.since_s < AWAY_MOST_S))
            )
            for host in known
        )

    def living(self) -> Callable[[Owner], bool]:
        """Which drivers live, by one look."""
        return self._presence.living()

    # -- inside: opening --------------------------------------------------------------------------
    def _open_all(self) -> None:
        wanted = {
            label: name
            for label, name in self._names.items()
            if self._wanted.get(label) is not Wanted.DRAIN
        }
        if not wanted:
            raise StudyError(
                "every host of the study is drained", hint="`autotune hosts add HOST` uses it again"
            )
        found = side_by_side(
            self._pool, wanted, lambda label: self._taking.find(label, wanted[label])
        )
        fitting = {label: one for label, one in found.items() if isinstance(one, Found)}
        failed = {label: one for label, one in found.items() if isinstance(one, AutotuneError)}
        self._bear(failed, alone=not fitting)

        def take(label: str) -> None:
            # At once, so that an interrupt meanwhile restores it.
            self.sessions[label] = self._taking.take(fitting[label])

        taken = side_by_side(self._pool, fitting, take)
        for label in self.sessions:
            self._move(label, Event.BACK)
        failed = {label: one for label, one in taken.items() if isinstance(one, AutotuneError)}
        self._bear(failed, alone=not self.sessions)

    def _bear(self, failed: Mapping[str, AutotuneError], *, alone: bool) -> None:
        """Go on without hosts that cannot be used now, as long as there is another."""
        for label, error in failed.items():
            machine = may_return(error) or isinstance(error, HostKeyError | AuthenticationError)
            if alone or not machine:
                raise error
            self._move(label, missed(error), error)

    # -- inside: what becomes of a host -----------------------------------------------------------
    def _look_at(self, label: str, *, busy: bool) -> None:
        """What is wanted of a host, how its hold fares, what is due."""
        wanted = self._wanted.get(label)
        if wanted is Wanted.DRAIN:
            self._move(label, Event.UNWANTED)
        elif wanted is Wanted.ADD or label in self._names:
            self._move(label, Event.WANTED)
        if not busy:
            self._move(label, Event.FREE)
            session = self.sessions.get(label)
            if session is not None and session.lost is not None:
                self._move(label, lost(session.lost), session.lost)
        if time.monotonic() >= self._hosts[label].next_try_s:
            self._move(label, Event.DUE)

    def _move(self, label: str, event: Event, reason: AutotuneError | None = None) -> None:
        """Something happens to a host: its next state, and what comes with that."""
        host, session = self._hosts[label], self.sessions.get(label)
        before, host.state = host.state, moved(host.state, event)
        if host.state is before:
            return
        if session is not None:
            session.draining = host.state in KEPT
        told, host.reason = host.reason, reason
        match host.state:
            case State.AWAY:
                now_s = time.monotonic()
                host.next_try_s = now_s + TRY_AGAIN_S if reason is not None else now_s
                if before is not State.TRYING:
                    host.since_s = now_s
                if reason is not None and str(reason) != str(told):
                    log.warning("host %s is away and will be tried again: %s", label, reason)
                    self._say(label, "away", str(reason))
            case State.TRYING:
                host.reason = told
                self._work(
                    self._pool, label, partial(self._taking.again, label, host.name, session)
                )
            case State.USED:
                if before is not State.ABSENT and not self._done.is_set():
                    log.warning("host %s is in use", label)
                    self._say(label, "in use", "")
            case State.LEAVING:
                self._work(self._restorers, label, partial(self._restore, session))
            case State.ABSENT:
                self._gone(label)
            case State.REFUSED | State.UNPROVEN:
                assert reason is not None
                if session is not None:
                    session.lost = reason
                if host.state is State.REFUSED:
                    log.warning("host %s is not used again: %s", label, reason)
                    self._say(label, "refused", str(reason))
                else:
                    log.error("host %s is not proven to be restored: %s", label, reason)
                    self._say(label, "not restored", str(reason))

    def _gone(self, label: str) -> None:
        if self.sessions.pop(label, None) is None:
            self._say(label, "drained", "")
        if not self._done.is_set():
            log.warning("host %s is drained: it is as it was found", label)

    def _work(
        self, pool: ThreadPoolExecutor, label: str, work: Callable[[], HostSession | None]
    ) -> None:
        """Do what takes time in a thread; how it ended is news."""
        pool.submit(work).add_done_callback(lambda done: self._news.put((label, done)))

    def _hear(self, label: str, done: _Work) -> None:
        """A thread that was at a host has ended."""
        host = self._hosts[label]
        leaving = host.state is State.LEAVING
        if done.cancelled():  # the run ended before it was its turn
            self._move(label, Event.MISSED, host.reason)
        elif (error := done.exception()) is not None:
            reason = reason_of(label, error)
            self._move(label, Event.FAILED if leaving else missed(reason), reason)
        elif (session := done.result()) is not None:
            session.found()
            self.sessions[label] = session
            self._move(label, Event.BACK)
        else:
            self._move(label, Event.RESTORED)

    def _restore(self, session: HostSession | None) -> None:
        """In a thread: put a host back as it was found."""
        if session is not None:
            session.restore()
            self._scribe.save(session.host, partial(self._roster.restored, session.host))

    def _look_for_wishes(self) -> None:
        while not self._done.wait(LOOK_S):
            try:
                self._wanted = self._roster.wanted()
            except StorageError:  # the driver says so
                continue

    # -- inside: the end --------------------------------------------------------------------------
    def _close(self) -> None:
        """Restore every host at once, and first those that no thread is at."""
        self._done.set()
        with undisturbed(tuple(self.sessions)):
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._end(list(self.sessions))
            self._hear_out()
            self._pool.shutdown(wait=True)  # an opening that was interrupted still takes hosts
            self._end(label for label in list(self.sessions) if label not in self._failed())
            self._hear_out()
            self._restorers.shutdown(wait=True)
            self._taking.close()
        self.unrestored = self._failed()
        self._scribe.close()

    def _end(self, labels: Iterable[str]) -> None:
        for label in labels:
            self._move(label, Event.END)

    def _hear_out(self) -> None:
        """Wait for the threads; what one has opened is restored in its turn."""
        while any(host.state in AT_WORK for host in self._hosts.values()):
            label, done = self._news.get()
            self._hear(label, done)
            if label in self.sessions and label not in self._failed():
                self._end([label])

    def _failed(self) -> dict[str, AutotuneError]:
        return {
            label: host.reason
            for label, host in self._hosts.items()
            if host.state is State.UNPROVEN and host.reason is not None
        }

    def _say(self, label: str, state: str, why: str) -> None:
        """Save what has become of a host, in a thread: the database may be away."""
        self._scribe.save(label, partial(self._roster.say, label, state, why))
