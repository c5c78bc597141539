"""The hosts of one run: opened side by side, lost and found again, drained, added, restored.

The driver's thread owns `sessions` and changes it in `step` alone; whatever takes time (ssh to a
host that does not answer, a restore with its load) happens in threads and comes back as news.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from autotune.config import StudyConfig
from autotune.errors import (
    AuthenticationError,
    AutotuneError,
    CommandTimeout,
    ConnectError,
    HostBusy,
    HostKeyError,
    LeaseLost,
    RestoreFailed,
    StorageError,
    StudyError,
    TargetError,
)
from autotune.hosts import open_supervisor
from autotune.interrupts import undisturbed
from autotune.opening import Found, label_of, look, plan_host
from autotune.presence import Presence
from autotune.roster import Roster
from autotune.session import HostSession
from autotune.stored import Wanted
from autotune.supervisors.base import Owner

__all__ = ["Fleet", "may_return"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

AT_ONCE = 16
"""Hosts that are opened, tried again or restored at the same time."""

LOOK_S = 5.0
"""How often an operator's wishes are read."""

TRY_AGAIN_S = 10.0
"""Pause between two tries of a host that is away."""

AWAY_MOST_S = 1800.0
"""How long a run without any usable host waits for one to come back."""


def may_return(error: BaseException) -> bool:
    """Whether a host that is away for this reason may be used again.

    A host whose key has changed may be another machine: it is never used again.
    """
    if isinstance(error, HostKeyError | AuthenticationError):
        return False
    return isinstance(error, ConnectError | CommandTimeout | LeaseLost | HostBusy)


@dataclass(slots=True)
class _Away:
    """A host that is not there now and may come.

    Attributes:
        name: As the study file, or who added it, calls it.
        session: Its hold, when there was one.
        trying: Whether a thread is at it.
    """

    name: str
    session: HostSession | None
    since_s: float
    next_try_s: float
    trying: bool = False


class Fleet:
    """Every host that this run may use.

    Attributes:
        sessions: Hosts that were opened, by label; those that are lost stay until they are back.
        unrestored: Hosts that could not be restored at the end; None when all are.
    """

    def __init__(
        self, config: StudyConfig, *, owner: Owner, roster: Roster, presence: Presence
    ) -> None:
        self.sessions: dict[str, HostSession] = {}
        self.unrestored: RestoreFailed | None = None
        self._config = config
        self._owner = owner
        self._roster = roster
        self._presence = presence
        self._names = {label_of(config, name): name for name in config.service.hosts}
        self._away: dict[str, _Away] = {}
        self._refused: dict[str, AutotuneError] = {}
        self._leaving: set[str] = set()
        self._connections: dict[str, ExitStack] = {}
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wanted: Mapping[str, Wanted] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="host")
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._look_for_wishes, name="wishes", daemon=True)

    # -- the whole run ----------------------------------------------------------------------------
    @contextmanager
    def open(self) -> Iterator[Mapping[str, HostSession]]:
        """Open every host; restore every host at the end, whatever happened.

        Nothing is changed on any before all that answer are known to fit the definition.

        Raises:
            AutotuneError: A host does not fit, or none answers.
            RestoreFailed: The body failed and a host could not be restored.
        """
        stopped: AutotuneError | None = None
        try:
            self._wanted = self._roster.wanted()
            self._open_all()
            self._watch.start()
            yield self.sessions
        except AutotuneError as error:
            stopped = error
            raise
        finally:
            self._close(stopped)

    def step(self, busy: frozenset[str]) -> None:
        """Take over what the threads found, and start what is due."""
        while True:
            try:
                self._news.get_nowait()()
            except Empty:
                break
        self._heed_wishes(busy)
        for label, session in self.sessions.items():
            gone = session.lost is not None and label not in busy and label not in self._away
            if gone and label not in self._refused and label not in self._leaving:
                self._part(label, self._names.get(label, label), session.lost, session)
        now_s = time.monotonic()
        for label, away in self._away.items():
            if not away.trying and now_s >= away.next_try_s:
                away.trying = True
                self._pool.submit(self._try, label, away)

    def expecting(self) -> bool:
        """Whether a host that is not there now may still come.

        A run with one host ends when that is away: started again, it goes on where it stopped.
        """
        now_s = time.monotonic()
        known = {*self.sessions, *self._away, *self._refused}
        return bool(self._leaving) or any(
            len(known) > 1 and now_s - away.since_s < AWAY_MOST_S for away in self._away.values()
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
        found = self._side_by_side(wanted, self._find)
        fitting = {label: one for label, one in found.items() if isinstance(one, Found)}
        failed = {label: one for label, one in found.items() if isinstance(one, AutotuneError)}
        self._bear(failed, wanted, alone=not fitting)

        def take(label: str) -> None:
            # At once, so that an interrupt meanwhile restores it.
            self.sessions[label] = self._take(fitting[label])

        taken = self._side_by_side(fitting, take)
        failed = {label: one for label, one in taken.items() if isinstance(one, AutotuneError)}
        self._bear(failed, wanted, alone=not self.sessions)

    def _bear(
        self, failed: Mapping[str, AutotuneError], names: Mapping[str, str], *, alone: bool
    ) -> None:
        """Go on without hosts that cannot be used now, as long as there is another."""
        for label, error in failed.items():
            machine = may_return(error) or isinstance(error, HostKeyError | AuthenticationError)
            if alone or not machine:
                raise error
            self._part(label, names[label], error, None)

    def _side_by_side(
        self, labels: Mapping[str, object], work: Callable[[str], _T]
    ) -> dict[str, _T | AutotuneError]:
        """Do the same with several hosts at once; errors are results."""

        def guarded(label: str) -> _T | AutotuneError:
            try:
                return work(label)
            except AutotuneError as error:
                return error

        return dict(zip(labels, self._pool.map(guarded, labels), strict=True))

    def _find(self, label: str, name: str = "") -> Found:
        plan = plan_host(self._config, name or self._names.get(label, label))
        with ExitStack() as stack:
            supervisor = stack.enter_context(open_supervisor(plan))
            found = look(self._config, plan, supervisor)
            before = self._connections.get(label)
            self._connections[label] = stack.pop_all()
        if before is not None:
            before.close()
        return found

    def _take(self, found: Found) -> HostSession:
        lease = found.supervisor.take_lease(
            self._owner, found.original, restore_after_s=self._config.service.restore_after_s
        )
        session = HostSession(
            found.plan,
            found.supervisor,
            lease=lease,
            original=found.original,
            recipe=found.recipe,
        )
        try:
            self._roster.took(
                found.plan.host, original=found.original, lease_id=lease.id, owner=self._owner
            )
        except AutotuneError:
            session.restore()
            raise
        return session

    # -- inside: away and back --------------------------------------------------------------------
    def _part(
        self,
        label: str,
        name: str,
        reason: AutotuneError | None,
        session: HostSession | None,
    ) -> None:
        """A host is not there: it is tried again, or never."""
        assert reason is not None
        if may_return(reason):
            log.warning("host %s is away and will be tried again: %s", label, reason)
            now_s = time.monotonic()
            self._away[label] = _Away(name, session, now_s, now_s + TRY_AGAIN_S)
        else:
            log.warning("host %s is not used again: %s", label, reason)
            self._refused[label] = reason
        self._say(label, "away" if may_return(reason) else "refused", str(reason))

    def _try(self, label: str, away: _Away) -> None:
        """In a thread: the lease may still be ours; if not, the host is opened anew."""
        session = away.session
        try:
            if session is not None:
                try:
                    session.check()
                    self._news.put(lambda: self._back(label, session))
                    return
                except LeaseLost:
                    session.leave()
            opened = self._take(self._find(label, away.name))
        except StudyError as error:
            refusal = error
            self._news.put(lambda: self._refuse(label, refusal))
        except AutotuneError as error:
            reason = error
            self._news.put(lambda: self._still_away(label, away, reason))
        else:
            self._news.put(lambda: self._back(label, opened))

    def _back(self, label: str, session: HostSession) -> None:
        del self._away[label]
        session.found()
        self.sessions[label] = session
        log.warning("host %s is in use", label)
        self._say(label, "in use", "")

    def _still_away(self, label: str, away: _Away, reason: AutotuneError) -> None:
        away.trying = False
        away.next_try_s = time.monotonic() + TRY_AGAIN_S
        if not may_return(reason) and isinstance(reason, HostKeyError | AuthenticationError):
            self._refuse(label, reason)

    def _refuse(self, label: str, reason: AutotuneError) -> None:
        away = self._away.pop(label)
        if away.session is not None:
            away.session.lost = reason
        self._part(label, away.name, reason, away.session)

    # -- inside: wishes ---------------------------------------------------------------------------
    def _look_for_wishes(self) -> None:
        while not self._done.wait(LOOK_S):
            try:
                self._wanted = self._roster.wanted()
            except StorageError:  # the driver says so
                continue

    def _heed_wishes(self, busy: frozenset[str]) -> None:
        for label, wanted in self._wanted.items():
            if wanted is Wanted.DRAIN and label in self.sessions and label not in self._leaving:
                self.sessions[label].draining = True
                if label not in busy:
                    self._leaving.add(label)
                    self._away.pop(label, None)
                    self._pool.submit(self._drain, label, self.sessions[label])
            known = label in self.sessions or label in self._away or label in self._refused
            mine = wanted is Wanted.ADD or (wanted is Wanted.USE and label in self._names)
            if mine and not known and label not in self._leaving:
                now_s = time.monotonic()
                self._away[label] = _Away(self._names.get(label, label), None, now_s, now_s)

    def _drain(self, label: str, session: HostSession) -> None:
        """In a thread: restore a host that an operator wants back."""
        error = self._restore(session)
        self._news.put(lambda: self._drained(label, error))

    def _drained(self, label: str, error: TargetError | None) -> None:
        self._leaving.discard(label)
        del self.sessions[label]
        if error is None:
            log.warning("host %s is drained: it is as it was found", label)
        else:
            log.warning("host %s is drained, but not proven to be restored: %s", label, error)
            self._say(label, "drained", str(error))
            self._refused[label] = error

    # -- inside: the end --------------------------------------------------------------------------
    def _restore(self, session: HostSession) -> TargetError | None:
        try:
            session.restore()
        except TargetError as error:
            return error
        except OSError as error:  # a full disk of this machine, for example
            return TargetError(f"{session.host}: {error}")
        try:
            self._roster.restored(session.host)
        except StorageError as error:
            log.warning("%s is restored, but that could not be saved: %s", session.host, error)
        return None

    def _close(self, stopped: AutotuneError | None) -> None:
        """Restore every host at once.

        Raises:
            RestoreFailed: One could not be restored and the run had failed before.
        """
        self._done.set()
        with undisturbed(tuple(self.sessions)):
            failed: list[TargetError] = []
            while True:
                # What a thread has just opened or restored is in the news or on its way there.
                self._pool.shutdown(wait=True)
                self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="host")
                while not self._news.empty():
                    self._news.get_nowait()()
                if not self.sessions:
                    break
                ended = list(self._pool.map(self._restore, self.sessions.values()))
                failed += [error for error in ended if error is not None]
                self.sessions.clear()
            self._pool.shutdown(wait=True)
            for connection in self._connections.values():
                connection.close()
        if failed:
            by_itself = "the host restores itself when its timer fires; `autotune revert` does it"
            unproven = all(isinstance(error, RestoreFailed) for error in failed)
            self.unrestored = RestoreFailed(
                "; ".join([*([stopped.message] if stopped else []), *map(str, failed)]),
                hint="" if unproven else f"{by_itself} now",
            )
            if stopped is not None:
                raise self.unrestored from stopped

    def _say(self, label: str, state: str, why: str) -> None:
        """Save what has become of a host, in a thread: the database may be away."""

        def save() -> None:
            try:
                self._roster.say(label, state, why)
            except StorageError as error:
                log.warning("what became of host %s could not be saved: %s", label, error)

        self._pool.submit(save)
