"""Getting hold of one host: connect, read, check, take its lease."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import TypeVar

from autotune.config import StudyConfig
from autotune.errors import AutotuneError, LeaseLost
from autotune.hosts import open_supervisor
from autotune.interrupts import deferred
from autotune.opening import Found, look, plan_host
from autotune.roster import Roster
from autotune.session import HostSession
from autotune.supervisors.base import Owner

__all__ = ["Taking", "side_by_side"]

_T = TypeVar("_T")


class Taking:
    """Opens the hosts of one run, each from a thread of its own; keeps their connections."""

    def __init__(self, config: StudyConfig, *, owner: Owner, roster: Roster) -> None:
        self._config = config
        self._owner = owner
        self._roster = roster
        self._connections: dict[str, ExitStack] = {}

    def find(self, label: str, name: str) -> Found:
        """Connect to a host and check it; nothing is changed on it.

        Args:
            name: As the study file, or who added it, calls it.

        Raises:
            TargetError: It cannot be used.
            StudyError, ConfigError: The definition does not fit it.
        """
        plan = plan_host(self._config, name)
        with ExitStack() as stack:
            supervisor = stack.enter_context(open_supervisor(plan))
            found = look(self._config, plan, supervisor)
            before = self._connections.get(label)
            self._connections[label] = stack.pop_all()
        if before is not None:
            before.close()
        return found

    def take(self, found: Found) -> HostSession:
        """Take its lease, and save what it was like.

        Raises:
            TargetError: It is not given.
            StorageError: It could not be saved; the lease is given back.
        """
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

    def again(self, label: str, name: str, session: HostSession | None) -> HostSession:
        """Get hold of a host that was away: the lease may still be ours; if not, it is opened anew.

        Args:
            session: The hold that there was.

        Raises:
            AutotuneError: It is still away, or does not fit any more.
        """
        if session is not None:
            try:
                session.check()
                return session
            except LeaseLost:
                session.leave()
        return self.take(self.find(label, name))

    def close(self) -> None:
        """End every connection."""
        for connection in self._connections.values():
            connection.close()


def side_by_side(
    pool: Executor, labels: Mapping[str, object], work: Callable[[str], _T]
) -> dict[str, _T | AutotuneError]:
    """Do the same with several hosts at once; errors of ours are results."""

    def guarded(label: str) -> _T | AutotuneError:
        try:
            return work(label)
        except AutotuneError as error:
            return error

    # An interrupt while a thread begins would hide it from its pool: nobody would wait for it, and
    # what it takes would not be given back.
    with deferred():
        begun = {label: pool.submit(guarded, label) for label in labels}
    return {label: one.result() for label, one in begun.items()}
