"""What may become of one host of a run: its states, what happens to it, and where that leads.

Pure: `moved` is the only way from one state to another, so whatever happens while a thread is at a
host leads somewhere that is written down here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from autotune.errors import (
    AuthenticationError,
    CommandError,
    CommandTimeout,
    ConnectError,
    HostBusy,
    HostKeyError,
    LeaseLost,
    StorageAway,
)

__all__ = ["AT_WORK", "KEPT", "Event", "State", "lost", "may_return", "missed", "moved"]


class State(StrEnum):
    """Where a host is."""

    ABSENT = "absent"
    """It is not of this run, or no more: nothing of ours is on it."""
    USED = "used"
    """It is ours and gets starts."""
    DRAINING = "draining"
    """An operator wants it back: its start ends, there is no further one."""
    LEAVING = "leaving"
    """A thread restores it."""
    AWAY = "away"
    """It is not there and may come."""
    TRYING = "trying"
    """A thread looks whether it is back."""
    REFUSED = "refused"
    """It is not used again; what we may have left on it is restored at the end."""
    UNPROVEN = "unproven"
    """It could not be restored; the end of the run tries it once more."""


class Event(StrEnum):
    """What happens to a host."""

    WANTED = "wanted"
    """An operator or the study file wants it used."""
    UNWANTED = "unwanted"
    """An operator wants it back."""
    FREE = "free"
    """No start runs on it."""
    LOST = "lost"
    """The hold on it was lost, and it may come back."""
    SPOILT = "spoilt"
    """The hold on it was lost for good."""
    DUE = "due"
    """It is time to look whether it is back."""
    BACK = "back"
    """Who looked has a hold on it."""
    MISSED = "missed"
    """Who looked has not found it, and it may come."""
    UNFIT = "unfit"
    """Who looked has found that it cannot be used."""
    RESTORED = "restored"
    """It is as it was found."""
    FAILED = "failed"
    """It could not be restored."""
    END = "end"
    """The run ends, and there is a hold on it."""


_MOVES: Mapping[State, Mapping[Event, State]] = {
    State.ABSENT: {
        Event.WANTED: State.AWAY,
        # The opening of the run:
        Event.BACK: State.USED,
        Event.MISSED: State.AWAY,
        Event.UNFIT: State.REFUSED,
        Event.END: State.LEAVING,  # it was interrupted
    },
    State.USED: {
        Event.UNWANTED: State.DRAINING,
        Event.LOST: State.AWAY,
        Event.SPOILT: State.REFUSED,
        Event.END: State.LEAVING,
    },
    State.DRAINING: {
        Event.WANTED: State.USED,
        Event.FREE: State.LEAVING,
        Event.END: State.LEAVING,
    },
    # Whatever is wanted meanwhile: the thread ends first.
    State.LEAVING: {Event.RESTORED: State.ABSENT, Event.FAILED: State.UNPROVEN},
    State.AWAY: {
        Event.UNWANTED: State.LEAVING,
        Event.DUE: State.TRYING,
        Event.END: State.LEAVING,
    },
    State.TRYING: {
        Event.BACK: State.USED,
        Event.MISSED: State.AWAY,
        Event.UNFIT: State.REFUSED,
    },
    # Drained and added again, a host that was mended is used again.
    State.REFUSED: {Event.UNWANTED: State.LEAVING, Event.END: State.LEAVING},
    State.UNPROVEN: {Event.END: State.LEAVING},
}

AT_WORK = frozenset({State.TRYING, State.LEAVING})
"""A thread is at the host: only what it says moves it."""

KEPT = frozenset({State.DRAINING, State.LEAVING, State.UNPROVEN})
"""The hold on it stands, but it gets no start."""


def moved(state: State, event: Event) -> State:
    """Where an event leads; most mean nothing to most states."""
    return _MOVES[state].get(event, state)


def may_return(error: BaseException) -> bool:
    """Whether a host that is away for this reason may be used again.

    A host whose key has changed may be another machine: it is never used again.
    """
    if isinstance(error, HostKeyError | AuthenticationError):
        return False
    return isinstance(error, ConnectError | CommandTimeout | LeaseLost | HostBusy)


def lost(reason: BaseException) -> Event:
    """What it is when the hold on a host was lost for this reason."""
    return Event.LOST if may_return(reason) else Event.SPOILT


def missed(reason: BaseException) -> Event:
    """What it is when a host that was away could not be opened for this reason.

    A machine that has just booted refuses commands, and our own database says nothing about it.
    """
    passing = may_return(reason) or isinstance(reason, CommandError | StorageAway)
    return Event.MISSED if passing else Event.UNFIT
