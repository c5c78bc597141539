"""Hosts that are lost, tried again, drained, added and refused while a study runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import autotune.fleet
from autotune.errors import (
    AutotuneError,
    CommandError,
    ConnectError,
    DropInConflict,
    HostBusy,
    HostKeyError,
    LeaseLost,
    RestoreFailed,
    StorageAway,
    UnitRefused,
)
from autotune.fleet import Fleet
from autotune.stored import Wanted
from autotune.taking import side_by_side
from tests.fleets import ByHand, Hosts, Notes, a_fleet, in_hand

FREE: frozenset[str] = frozenset()
PATIENCE_S = 10.0
"""How long a thread waits for another before the test has failed."""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.fleet, "TRY_AGAIN_S", 0.0)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch, "a", "b")


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def fleet(hosts: Hosts, notes: Notes) -> Fleet:
    return a_fleet(notes, "a", "b")


def wish(fleet: Fleet, notes: Notes, host: str, wanted: Wanted) -> None:
    notes.wishes[host] = wanted
    fleet._wanted = notes.wanted()


def lose(fleet: Fleet, hosts: Hosts, host: str) -> None:
    """The host restores itself: what is tried next opens it anew."""
    hosts[host].lease = None
    fleet.sessions[host].lose(LeaseLost(f"{host} has restored itself"))


def beating() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeat-")}


def cut_off(fleet: Fleet, hosts: Hosts, host: str) -> None:
    """The network goes away and comes back: the lease is still ours."""
    fleet.sessions[host].lose(ConnectError(f"{host} does not answer"))


# -- drained while a thread looks for it ----------------------------------------------------------
@pytest.mark.parametrize("goes", [cut_off, lose])
def test_a_host_that_is_drained_while_it_is_tried_leaves_when_it_is_back(
    goes: Callable[[Fleet, Hosts, str], None], fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    with in_hand(fleet) as hand:
        goes(fleet, hosts, "b")
        fleet.step(FREE)
        wish(fleet, notes, "b", Wanted.DRAIN)
        fleet.step(FREE)
        hand.run()
        fleet.step(FREE)
        assert not fleet.sessions["b"].usable
        hand.run()
        fleet.step(FREE)
        assert (set(fleet.sessions), hosts.held()) == ({"a"}, ["a"])
        assert fleet.sessions["a"].usable
        assert beating() == {"heartbeat-a"}
    assert hosts.held() == []


@pytest.mark.parametrize("goes", [cut_off, lose])
def test_what_a_thread_found_is_heard_by_the_end_and_every_host_restored(
    goes: Callable[[Fleet, Hosts, str], None], fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    with in_hand(fleet):
        goes(fleet, hosts, "b")
        fleet.step(FREE)
        wish(fleet, notes, "b", Wanted.DRAIN)
        fleet.step(FREE)
    assert hosts.held() == []
    assert beating() == set()


def test_a_host_that_nothing_is_on_is_drained_without_a_visit(
    fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    hosts["b"].fail("original", ConnectError("b does not answer"))
    with in_hand(fleet) as hand:
        wish(fleet, notes, "b", Wanted.DRAIN)
        fleet.step(FREE)
        hand.run()
        fleet.step(FREE)
        assert hand.jobs == []
        assert not fleet.expecting()
    assert hosts["b"].methods() == ["original"]
    assert notes.of("b")[-1] == ("drained", "")


# -- drained and added again ----------------------------------------------------------------------
def test_a_drained_host_that_is_wanted_again_while_its_start_runs_stays(
    fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    def usable(wanted: Wanted, busy: frozenset[str]) -> bool:
        wish(fleet, notes, "b", wanted)
        fleet.step(busy)
        return fleet.sessions["b"].usable

    with in_hand(fleet) as hand:
        assert not usable(Wanted.DRAIN, frozenset({"b"}))
        assert usable(Wanted.ADD, frozenset({"b"}))
        assert usable(Wanted.ADD, FREE)
        assert hand.jobs == []
    assert hosts.held() == []


def test_a_drained_host_that_is_wanted_again_while_it_is_restored_comes_back(
    fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    with in_hand(fleet) as hand:
        first = fleet.sessions["b"]
        wish(fleet, notes, "b", Wanted.DRAIN)
        fleet.step(FREE)
        wish(fleet, notes, "b", Wanted.ADD)
        fleet.step(FREE)
        assert not first.usable
        assert fleet.expecting()
        hand.run()  # the restore
        fleet.step(FREE)
        assert fleet.expecting()
        hand.run()  # the try
        fleet.step(FREE)
        assert fleet.sessions["b"].usable
        assert fleet.sessions["b"] is not first
    assert hosts.held() == []


def test_a_run_with_one_host_waits_for_it_when_it_was_added_again(
    hosts: Hosts, notes: Notes
) -> None:
    fleet = a_fleet(notes, "a")
    with in_hand(fleet) as hand:
        wish(fleet, notes, "a", Wanted.DRAIN)
        fleet.step(FREE)
        hand.run()
        wish(fleet, notes, "a", Wanted.ADD)
        fleet.step(FREE)
        assert fleet.sessions == {}
        assert fleet.expecting()


def test_a_new_host_is_used_by_the_run_that_takes_it(
    monkeypatch: pytest.MonkeyPatch, notes: Notes
) -> None:
    hosts = Hosts(monkeypatch, "a", "c")
    fleet = a_fleet(notes, "a")
    with in_hand(fleet) as hand:
        wish(fleet, notes, "c", Wanted.ADD)
        fleet.step(FREE)
        hand.run()
        fleet.step(FREE)
        assert fleet.sessions["c"].usable
    assert hosts.held() == []


# -- tried again ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "reason", [UnitRefused("two ExecStart"), DropInConflict("edited"), HostKeyError("another key")]
)
def test_a_host_that_comes_back_unfit_is_refused_once(
    reason: AutotuneError, fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    hosts["b"].fail("original", reason, at=2)
    with in_hand(fleet) as hand:
        lose(fleet, hosts, "b")
        fleet.step(FREE)
        hand.run()
        for _ in range(3):
            fleet.step(FREE)
        assert hand.jobs == []
        assert fleet.sessions["b"].lost is reason
        assert fleet.sessions["a"].usable
    assert [said for said in notes.of("b") if said[0] == "refused"] == [("refused", str(reason))]


@pytest.mark.parametrize(
    "reason", [CommandError(("systemctl",), 1, "no bus yet"), StorageAway("no database")]
)
def test_what_passes_by_itself_refuses_no_host(
    reason: AutotuneError, fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    with in_hand(fleet) as hand:
        hosts["b"].fail("original", reason, at=2)
        lose(fleet, hosts, "b")
        for _ in range(2):
            fleet.step(FREE)
            hand.run()
        fleet.step(FREE)
        assert fleet.sessions["b"].usable


def test_why_a_host_is_away_is_said_once_and_again_when_it_changes(
    fleet: Fleet, hosts: Hosts, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    reasons = ["x holds it"] * 3 + ["y holds it"] * 2
    for number, text in enumerate(reasons):
        hosts["b"].fail("take_lease", HostBusy(text), at=2 + number)
    with in_hand(fleet) as hand:
        lose(fleet, hosts, "b")
        for _ in reasons:
            fleet.step(FREE)
            hand.run()
        fleet.step(FREE)
    away = [why for state, why in notes.of("b") if state == "away"]
    assert away == ["b has restored itself", "x holds it", "y holds it"]
    assert caplog.text.count("x holds it") == caplog.text.count("y holds it") == 1


def test_a_refused_host_that_is_drained_and_added_is_tried_again(
    fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    hosts["b"].fail("original", UnitRefused("two ExecStart"), at=2)
    with in_hand(fleet) as hand:
        lose(fleet, hosts, "b")
        fleet.step(FREE)
        hand.run()
        fleet.step(FREE)
        for wanted in (Wanted.DRAIN, Wanted.ADD):
            wish(fleet, notes, "b", wanted)
            fleet.step(FREE)
            hand.run()
        fleet.step(FREE)
        hand.run()
        fleet.step(FREE)
        assert fleet.sessions["b"].usable


# -- the end --------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["restore", "take_lease"])
def test_the_end_restores_the_others_while_a_thread_is_at_one_host(
    method: str, fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    other_restored, there = threading.Event(), threading.Event()
    seen: list[bool] = []

    def within() -> None:
        there.set()
        seen.append(other_restored.wait(PATIENCE_S))

    with fleet.accounted(), fleet.open():
        hosts.within["a"]["restore"] = other_restored.set
        hosts.within["b"][method] = within
        if method == "restore":
            wish(fleet, notes, "b", Wanted.DRAIN)
        else:
            lose(fleet, hosts, "b")
        fleet.step(FREE)
        assert there.wait(PATIENCE_S)
    assert seen == [True]
    assert hosts.held() == []


def test_an_interrupt_within_a_step_leaves_no_host_without_its_thread(
    fleet: Fleet, hosts: Hosts, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(hand: ByHand, *work: Any) -> Future[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return begin(hand, *work)

    begin = ByHand.submit

    def interrupted() -> None:
        with in_hand(fleet) as hand:
            monkeypatch.setattr(ByHand, "submit", submit)
            wish(fleet, notes, "b", Wanted.DRAIN)
            try:
                fleet.step(FREE)
            finally:
                assert len(hand.jobs) == 1

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert hosts.held() == []


def test_a_drained_host_that_is_not_restored_is_told_at_the_end(
    fleet: Fleet, hosts: Hosts, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        hosts["b"].fail("restore", RestoreFailed("b does not serve"), at=number)

    def drained() -> None:
        with in_hand(fleet) as hand:
            wish(fleet, notes, "b", Wanted.DRAIN)
            for _ in range(3):
                fleet.step(FREE)
                hand.run()
            fleet.step(FREE)
            assert not fleet.sessions["b"].usable
            assert hosts["b"].methods().count("restore") == 1

    with pytest.raises(RestoreFailed, match="b does not serve"):
        drained()
    assert ("not restored", "b does not serve") in notes.of("b")
    assert "ERROR" in caplog.text


def test_a_drained_host_that_the_end_restores_after_all_is_no_failure(
    fleet: Fleet, hosts: Hosts, notes: Notes
) -> None:
    hosts["b"].fail("restore", ConnectError("b does not answer"))
    with in_hand(fleet) as hand:
        wish(fleet, notes, "b", Wanted.DRAIN)
        fleet.step(FREE)
        hand.run()
        fleet.step(FREE)
    assert hosts.held() == []
    assert fleet.unrestored == {}


def test_a_mistake_of_ours_at_one_host_keeps_no_other_from_being_restored(
    fleet: Fleet, hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    def slip() -> None:
        raise ZeroDivisionError

    hosts.within["a"]["restore"] = slip
    with (
        pytest.raises(RestoreFailed, match="a: ZeroDivisionError"),
        fleet.accounted(),
        fleet.open(),
    ):
        pass
    assert hosts.held() == ["a"]
    assert "Traceback" in caplog.text


# -- side by side ---------------------------------------------------------------------------------
class Signalling(ThreadPoolExecutor):
    """A signal comes whenever a thread begins."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        return super().submit(fn, *args, **options)


def test_an_interrupt_while_threads_begin_leaves_none_that_its_pool_does_not_know() -> None:
    """Such a thread would go on to take a host after the run has given all back."""
    begun: list[str] = []
    with Signalling(2) as pool, pytest.raises(KeyboardInterrupt):
        side_by_side(pool, {"a": None, "b": None}, begun.append)
    assert sorted(begun) == ["a", "b"]
