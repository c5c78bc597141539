"""Whether a host is still ours, asked beside whatever takes long; no clock but our own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from autotune.errors import (
    AutotuneError,
    CommandTimeout,
    ConnectError,
    HostKeyError,
    LeaseLost,
)
from autotune.heartbeat import losing, until_lost
from autotune.hosts import HostPlan
from autotune.launch import Recipe
from autotune.session import HostSession
from autotune.supervisors.base import Lease, Original
from autotune.testing.fake_supervisor import FakeHost, FakeSupervisor
from tests.scripted import OWNER, Clock


def a_lease(restore_after_s: float) -> Lease:
    return Lease("1" * 32, "gpu-a", OWNER, restore_after_s)


class Beats(threading.Event):
    """An event that is never waited for: the clock moves on instead."""

    def __init__(self, clock: Clock, most: int) -> None:
        super().__init__()
        self._clock = clock
        self._left = most
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self._clock.wait(timeout)
        self._left -= 1
        return self._left < 0


def asked(
    *answers: AutotuneError | None, restore_after_s: float = 300.0
) -> tuple[AutotuneError | None, list[float]]:
    """What came of asking with these answers, and the waits between them."""
    clock = Clock()
    beats = Beats(clock, len(answers))
    left = list(answers)

    def ask() -> None:
        if (error := left.pop(0)) is not None:
            raise error

    reason = until_lost(ask, a_lease(restore_after_s), stopping=beats, clock=clock)
    return reason, beats.waited


@pytest.mark.parametrize(("restore_after_s", "every_s"), [(300.0, 30.0), (15.0, 3.0)])
def test_it_asks_five_times_before_the_host_goes_back(
    restore_after_s: float, every_s: float
) -> None:
    reason, waited = asked(None, None, restore_after_s=restore_after_s)
    assert reason is None
    assert set(waited) == {every_s}


@pytest.mark.parametrize("error", [LeaseLost("it went back"), HostKeyError("another machine")])
def test_a_host_that_is_not_ours_is_lost_at_once(error: AutotuneError) -> None:
    reason, waited = asked(None, error, None)
    assert reason is error
    assert len(waited) == 2


def test_a_silent_host_is_lost_when_it_restores_itself_and_not_before() -> None:
    silent = [ConnectError("no route"), CommandTimeout("no answer")] * 10
    reason, waited = asked(None, *silent)
    assert isinstance(reason, LeaseLost)
    assert sum(waited) == 30.0 + 330.0


def test_a_host_that_answers_again_is_not_lost() -> None:
    silent = [ConnectError("no route")] * 9
    reason, _ = asked(*silent, None, *silent, None)
    assert reason is None


def test_whoever_measures_is_told_from_another_thread() -> None:
    told: list[tuple[AutotuneError, str]] = []
    heard = threading.Event()

    def tell(reason: AutotuneError) -> None:
        told.append((reason, threading.current_thread().name))
        heard.set()

    lost = LeaseLost("it went back")
    with losing(a_lease(0.05), refuse(lost), tell=tell):
        assert heard.wait(60.0)
    assert told == [(lost, "lease-gpu-a")]


def test_nobody_is_told_when_nothing_is_lost_and_the_thread_ends_with_the_block() -> None:
    asked_once = threading.Event()
    told: list[AutotuneError] = []
    with losing(a_lease(0.05), asked_once.set, tell=told.append):
        assert asked_once.wait(60.0)
    assert told == []
    assert "lease-gpu-a" not in {thread.name for thread in threading.enumerate()}


def refuse(error: AutotuneError) -> Callable[[], None]:
    def ask() -> None:
        raise error

    return ask


def test_a_heartbeat_that_ends_by_a_defect_loses_the_host(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[AutotuneError] = []
    heard = threading.Event()

    def tell(reason: AutotuneError) -> None:
        told.append(reason)
        heard.set()

    with losing(a_lease(0.05), broken, tell=tell):
        assert heard.wait(60.0)
    assert isinstance(told[0], LeaseLost)
    assert "gpu-a" in told[0].message
    assert DEFECT in caplog.text


def test_a_session_whose_heartbeat_ends_by_a_defect_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(FakeSupervisor):
        def beat(self, lease: Lease) -> None:
            beaten.set()
            broken()

    beaten = threading.Event()
    session = HostSession(
        cast(HostPlan, SimpleNamespace(host="gpu-a")),
        Broken(FakeHost()),
        lease=a_lease(0.05),
        original=cast(Original, None),
        recipe=cast(Recipe, None),
    )
    assert beaten.wait(60.0)
    session.leave()
    assert isinstance(session.lost, LeaseLost)
    assert not session.usable
    assert DEFECT in caplog.text


DEFECT = "filedescriptor out of range in select()"


def broken() -> None:
    raise ValueError(DEFECT)
