"""Leaving a study restores every host, whatever else fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from autotune.config import load_study
from autotune.errors import ConnectError, RestoreFailed, StorageError
from autotune.opening import _restore
from autotune.repository import Repository
from autotune.session import HostSession


class Session:
    def __init__(self, host: str, error: Exception | None = None) -> None:
        self.host = host
        self.error = error
        self.restored = False

    def restore(self) -> None:
        self.restored = True
        if self.error is not None:
            raise self.error


class BrokenBook:
    """A repository whose database is gone."""

    def host_restored(self, name: str, host: str) -> None:
        raise StorageError("disk full")


def restore(sessions: list[Session]) -> None:
    by_host = cast(Mapping[str, HostSession], {s.host: s for s in sessions})
    _restore(load_study("demo"), by_host, cast(Repository, BrokenBook()), stopped=None)


def test_a_storage_that_fails_keeps_no_host_from_being_restored() -> None:
    sessions = [Session("a"), Session("b"), Session("c")]
    restore(sessions)
    assert all(session.restored for session in sessions)


@pytest.mark.parametrize("error", [ConnectError("a is gone"), OSError(28, "No space left")])
def test_a_host_that_fails_keeps_no_other_from_being_restored(error: Exception) -> None:
    sessions = [Session("a", error), Session("b"), Session("c", ConnectError("c is gone"))]
    with pytest.raises(RestoreFailed) as caught:
        restore(sessions)
    assert all(session.restored for session in sessions)
    assert "c is gone" in caught.value.message
