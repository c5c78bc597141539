"""Leaving a study restores every host, whatever else fails."""

from __future__ import annotations

from typing import cast

import pytest

from autotune.config import load_study
from autotune.errors import ConnectError, RestoreFailed, StorageError, StudyError
from autotune.fleet import Fleet
from autotune.presence import Presence
from autotune.roster import Roster
from autotune.session import HostSession
from autotune.stored import Wanted
from tests.scripted import OWNER


class Session:
    lost = None
    draining = False

    def __init__(self, host: str, error: Exception | None = None) -> None:
        self.host = host
        self.error = error
        self.restored = False

    def restore(self) -> None:
        self.restored = True
        if self.error is not None:
            raise self.error


class BrokenRoster:
    """The database is gone."""

    def wanted(self) -> dict[str, Wanted]:
        raise StorageError("disk full")

    def restored(self, host: str) -> None:
        raise StorageError("disk full")


def restore(sessions: list[Session], stopped: StudyError | None = None) -> Fleet:
    fleet = Fleet(
        load_study("demo"),
        owner=OWNER,
        roster=cast(Roster, BrokenRoster()),
        presence=cast(Presence, None),
    )
    fleet.sessions.update({s.host: cast(HostSession, s) for s in sessions})
    fleet._close(stopped)
    return fleet


def test_a_storage_that_fails_keeps_no_host_from_being_restored() -> None:
    sessions = [Session("a"), Session("b"), Session("c")]
    assert restore(sessions).unrestored is None
    assert all(session.restored for session in sessions)


@pytest.mark.parametrize("error", [ConnectError("a is gone"), OSError(28, "No space left")])
def test_a_host_that_fails_keeps_no_other_from_being_restored(error: Exception) -> None:
    sessions = [Session("a", error), Session("b"), Session("c", ConnectError("c is gone"))]
    fleet = restore(sessions)
    assert all(session.restored for session in sessions)
    assert fleet.unrestored is not None
    assert "c is gone" in fleet.unrestored.message


def test_why_the_study_ended_is_told_with_a_restore_that_fails() -> None:
    with pytest.raises(RestoreFailed) as caught:
        restore([Session("a", ConnectError("a is gone"))], StudyError("the link broke"))
    assert "the link broke; a is gone" in caught.value.message
