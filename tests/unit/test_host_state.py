"""The states of a host: what moves it, and what does not."""

from __future__ import annotations

import pytest

from autotune.errors import (
    AuthenticationError,
    AutotuneError,
    CommandError,
    ConfigError,
    ConnectError,
    DropInConflict,
    HostBusy,
    HostKeyError,
    LeaseLost,
    StorageAway,
    StudyError,
    UnitRefused,
)
from autotune.host_state import AT_WORK, KEPT, Event, State, lost, missed, moved

OF_THREADS = {Event.BACK, Event.MISSED, Event.UNFIT, Event.RESTORED, Event.FAILED}


@pytest.mark.parametrize("state", sorted(AT_WORK))
def test_a_host_that_a_thread_is_at_is_moved_by_that_thread_alone(state: State) -> None:
    movers = {event for event in Event if moved(state, event) is not state}
    assert movers
    assert movers <= OF_THREADS


@pytest.mark.parametrize("state", sorted(set(State) - AT_WORK))
def test_the_end_restores_whatever_no_thread_is_at(state: State) -> None:
    assert moved(state, Event.END) is State.LEAVING


@pytest.mark.parametrize("state", sorted(State))
def test_only_a_thread_that_was_there_brings_a_host_into_use_or_proves_it_restored(
    state: State,
) -> None:
    for event in set(Event) - OF_THREADS:
        after = moved(state, event)
        if after is not state:
            assert after is not State.ABSENT
            assert after is not State.USED or (state, event) == (State.DRAINING, Event.WANTED)


def test_no_host_in_use_is_kept_from_starts() -> None:
    assert State.USED not in KEPT


@pytest.mark.parametrize(
    ("error", "when_lost", "when_tried"),
    [
        (ConnectError("x"), Event.LOST, Event.MISSED),
        (LeaseLost("x"), Event.LOST, Event.MISSED),
        (HostBusy("x"), Event.LOST, Event.MISSED),
        (CommandError(("systemctl",), 1, "no bus yet"), Event.SPOILT, Event.MISSED),
        (StorageAway("x"), Event.SPOILT, Event.MISSED),
        (HostKeyError("x"), Event.SPOILT, Event.UNFIT),
        (AuthenticationError("x"), Event.SPOILT, Event.UNFIT),
        (UnitRefused("x"), Event.SPOILT, Event.UNFIT),
        (DropInConflict("x"), Event.SPOILT, Event.UNFIT),
        (StudyError("x"), Event.SPOILT, Event.UNFIT),
        (ConfigError("x"), Event.SPOILT, Event.UNFIT),
    ],
)
def test_the_reason_says_whether_a_host_may_come(
    error: AutotuneError, when_lost: Event, when_tried: Event
) -> None:
    assert (lost(error), missed(error)) == (when_lost, when_tried)
