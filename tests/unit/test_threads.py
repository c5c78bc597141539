"""Threads beside a run: none ends unseen, and the run ends in order."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import NoReturn, cast

import psutil
import pytest

import autotune.fleet
import autotune.presence
from autotune.errors import RestoreFailed, StorageError, StudyError
from autotune.presence import Presence
from autotune.roster import Roster
from autotune.runners.ray import _dead
from autotune.stopping import Stop
from autotune.stored import Wanted
from autotune.supervisors.base import Owner
from autotune.threads import Threads, watched
from tests.fleets import Hosts, Notes, a_fleet
from tests.scripted import OWNER

PATIENCE_S = 60.0
DEFECT = "made up by a test"


class Interrupts:
    """Stands for the main thread, which is interrupted."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.came.set()


def broken() -> None:
    raise RuntimeError(DEFECT)


# -- the mechanism --------------------------------------------------------------------------------
def test_a_thread_that_ends_by_a_defect_is_logged_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[BaseException] = []
    thread = watched("one", broken, failed=told.append)
    thread.start()
    thread.join(PATIENCE_S)
    assert [str(error) for error in told] == [DEFECT]
    (record,) = caplog.records
    assert (record.levelno, record.exc_info is not None) == (logging.ERROR, True)
    assert "thread one has ended by a defect" in record.getMessage()


def test_a_thread_that_returns_is_no_failure() -> None:
    interrupts = Interrupts()
    threads = Threads(interrupts)
    thread = threads.make("one", lambda: None)
    thread.start()
    thread.join(PATIENCE_S)
    threads.require()
    assert not interrupts.count


def test_a_defect_interrupts_the_main_thread_even_where_signals_only_ask_to_stop() -> None:
    stop = Stop(finish=[signal.SIGTERM, signal.SIGINT])
    threads = Threads(stop.at_once)

    def run() -> None:
        with threads.heeded(), stop.heeded():
            threads.make("one", broken).start()
            threading.Event().wait(PATIENCE_S)

    with pytest.raises(StudyError, match=f"the thread 'one' .*{DEFECT}"):
        run()


def test_the_first_failure_is_the_reason_and_interrupts_once() -> None:
    interrupts = Interrupts()
    threads = Threads(interrupts)
    threads.fail(StudyError("first"))
    threads.fail(StudyError("second"))
    assert interrupts.count == 1
    with pytest.raises(StudyError, match="first"):
        threads.require()


def test_a_failure_at_the_very_end_still_ends_the_run_with_its_error() -> None:
    threads = Threads(lambda: None)
    with pytest.raises(StudyError, match="late"), threads.heeded():
        threads.fail(StudyError("late"))


def test_an_interrupt_by_hand_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt), Threads(lambda: None).heeded():
        raise KeyboardInterrupt


# -- who uses it ----------------------------------------------------------------------------------
class _Roster:
    """Joins and leaves; whatever comes between the two is said by the test."""

    shared = True

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.beats = 0
        self.left = False
        self.beaten = threading.Event()

    def beat(self, owner: Owner) -> None:
        self.beats += 1
        if self.beats > 1:
            self.beaten.set()
            raise self.error

    def leave(self, owner: Owner) -> None:
        self.left = True


def a_presence(roster: _Roster, threads: Threads) -> Presence:
    return Presence(cast(Roster, roster), OWNER, grace_s=0.05, threads=threads)


def test_a_presence_that_ends_by_a_defect_ends_the_run() -> None:
    interrupts = Interrupts()
    threads, roster = Threads(interrupts), _Roster(KeyError("beat_at_s"))
    with a_presence(roster, threads).here():
        assert interrupts.came.wait(PATIENCE_S)
    assert "the thread 'presence'" in str(threads.failure)
    assert "KeyError('beat_at_s')" in str(threads.failure)
    assert roster.left


def test_a_database_that_is_away_does_not_end_the_run() -> None:
    threads, roster = Threads(lambda: None), _Roster(StorageError("away"))
    with a_presence(roster, threads).here():
        assert roster.beaten.wait(PATIENCE_S)
    threads.require()


class _Wishless(Notes):
    """Its wishes can be read once."""

    def wanted(self) -> dict[str, Wanted]:
        self.wanted = self._broken  # type: ignore[method-assign]
        return {}

    def _broken(self) -> dict[str, Wanted]:
        raise RuntimeError(DEFECT)


def test_wishes_that_cannot_be_read_any_more_end_the_run_and_every_host_is_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autotune.fleet, "LOOK_S", 0.01)
    hosts, interrupts = Hosts(monkeypatch, "a", "b"), Interrupts()
    threads = Threads(interrupts)
    fleet = a_fleet(_Wishless(), "a", "b", threads=threads)
    held: list[str] = []

    def run() -> None:
        with fleet.accounted(), fleet.open():
            assert interrupts.came.wait(PATIENCE_S)
            held.extend(hosts.held())
            fleet.step(frozenset())

    with pytest.raises(StudyError, match=f"'wishes' .*{DEFECT}"):
        run()
    assert (sorted(held), hosts.held()) == (["a", "b"], [])


def test_what_else_ended_the_run_stands_beside_a_host_that_is_not_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts, threads = Hosts(monkeypatch, "a"), Threads(lambda: None)
    fleet = a_fleet(Notes(), "a", threads=threads)

    def unrestored() -> None:
        raise RestoreFailed("the original is not back")

    hosts.within["a"]["restore"] = unrestored

    def run() -> None:
        with fleet.accounted(), threads.heeded(), fleet.open():
            threads.fail(StudyError("no heartbeat any more"))
            raise KeyboardInterrupt

    with pytest.raises(RestoreFailed, match=r"no heartbeat any more; .*the original is not back"):
        run()


class _Unsaying(Notes):
    def say(self, host: str, state: str, why: str) -> None:
        raise RuntimeError(DEFECT)


def test_what_cannot_be_said_of_a_host_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Hosts(monkeypatch, "a")
    threads = Threads(lambda: None)
    fleet = a_fleet(_Unsaying(), "a", threads=threads)
    with fleet.accounted(), fleet.open():
        fleet._say("a", "away", "made up")
    with pytest.raises(StudyError, match=f"'roster' .*{DEFECT}"):
        threads.require()


def test_a_daemon_that_goes_while_it_is_asked_is_dead() -> None:
    class Going(psutil.Process):
        def status(self) -> NoReturn:
            raise psutil.NoSuchProcess(self.pid)

    assert _dead(Going(os.getpid()))
    assert not _dead(psutil.Process())
