"""A fleet over hosts in memory, for tests of what becomes of hosts.

Hosts       supervisors of `FakeHost`s, by name; a test may say what happens within a call
Notes       a roster in memory
ByHand      threads that run when the test says so
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest

import autotune.taking
from autotune.config import StudyConfig, load_study
from autotune.errors import AutotuneError
from autotune.fleet import Fleet
from autotune.hosts import HostPlan
from autotune.opening import Found
from autotune.presence import Presence
from autotune.roster import Roster
from autotune.stored import Wanted
from autotune.supervisors.base import Lease, Original, Owner, Supervisor
from autotune.testing.fake_supervisor import FakeHost, FakeSupervisor
from autotune.threads import Threads
from tests.scripted import OWNER, a_host, a_plan, a_recipe

__all__ = ["ByHand", "Hosts", "Notes", "a_fleet", "in_hand"]


class _Supervisor(FakeSupervisor):
    """Does what the test wants within a call."""

    def __init__(self, fake_host: FakeHost, within: dict[str, Callable[[], object]]) -> None:
        super().__init__(fake_host)
        self._within = within

    def take_lease(self, owner: Owner, original: Original, *, restore_after_s: float) -> Lease:
        self._within.get("take_lease", bool)()
        return super().take_lease(owner, original, restore_after_s=restore_after_s)

    def restore(self, lease: Lease) -> None:
        self._within.get("restore", bool)()
        super().restore(lease)


class Hosts(dict[str, FakeHost]):
    """Hosts of a study, by name.

    Attributes:
        within: By host and method (`take_lease`, `restore`): what happens at its begin.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        super().__init__({name: a_host(name=name) for name in names})
        self.within: dict[str, dict[str, Callable[[], object]]] = {name: {} for name in names}
        monkeypatch.setattr(autotune.taking, "open_supervisor", self._open)
        monkeypatch.setattr(autotune.taking, "plan_host", lambda config, name: a_plan(name))
        monkeypatch.setattr(autotune.taking, "look", _look)

    def held(self) -> list[str]:
        """Hosts that somebody's lease is on."""
        return [name for name, host in self.items() if host.lease is not None]

    def _open(self, plan: HostPlan) -> Supervisor:
        return _Supervisor(self[plan.host], self.within[plan.host])


def _look(config: StudyConfig, plan: HostPlan, supervisor: Supervisor) -> Found:
    return Found(plan, supervisor, supervisor.original(), a_recipe(), None)


class Notes:
    """What was said of each host, in order, and what an operator wants."""

    def __init__(self) -> None:
        self.wishes: dict[str, Wanted] = {}
        self.said: list[tuple[str, str, str]] = []
        self.refuses: AutotuneError | None = None

    def of(self, host: str) -> list[tuple[str, str]]:
        return [(state, why) for name, state, why in self.said if name == host]

    def wanted(self) -> dict[str, Wanted]:
        return dict(self.wishes)

    def took(self, host: str, **how: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.said.append((host, "in use", ""))

    def restored(self, host: str) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.said.append((host, "restored", ""))

    def say(self, host: str, state: str, why: str) -> None:
        self.said.append((host, state, why))


class ByHand(Executor):
    """Threads that do nothing before `run`."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, partial(fn, *args, **options)))
        return future

    def run(self) -> None:
        """Let everything that was begun end."""
        jobs, self.jobs = self.jobs, []
        for future, job in jobs:
            future.set_running_or_notify_cancel()
            try:
                result = job()
            except (AutotuneError, OSError) as error:
                future.set_exception(error)
            else:
                future.set_result(result)


def a_fleet(notes: Notes, *hosts: str, threads: Threads | None = None) -> Fleet:
    """Args:
    threads: Whose end ends the run; by default nobody is interrupted.
    """
    config = load_study("demo").replace_budget(trials=None, hours=None, hosts=hosts)
    return Fleet(
        config,
        owner=OWNER,
        roster=cast(Roster, notes),
        presence=cast(Presence, None),
        threads=threads or Threads(lambda: None),
    )


@contextmanager
def in_hand(fleet: Fleet) -> Iterator[ByHand]:
    """An open fleet whose threads run when the test says so; those left end before its end.

    What they found is then news that the end is the first to hear.
    """
    with fleet.accounted(), fleet.open():
        hand, pools = ByHand(), (fleet._pool, fleet._restorers)
        fleet._pool = fleet._restorers = cast(Any, hand)
        try:
            yield hand
        finally:
            hand.run()
            fleet._pool, fleet._restorers = pools
