"""What the kernel says of bytes that nobody has read yet."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from autotune.benchmark.unread import unread_ms

OLD_MS = 30.0
"""A few ticks of any kernel."""


class Connected:
    """A connection with this socket below it."""

    def __init__(self, below: object) -> None:
        self._below = below

    def get_extra_info(self, info: str) -> object:
        return self._below if info == "socket" else None


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with ours, theirs:
            yield ours, theirs


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
def test_bytes_that_lie_unread_get_older(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(b"token")
    assert ours.recv(5, socket.MSG_PEEK) == b"token"
    seen = [unread_ms(Connected(ours))]
    while (newest := seen[-1]) is not None and newest < OLD_MS:
        seen.append(unread_ms(Connected(ours)))
    waits = [ms for ms in seen if ms is not None]
    assert len(waits) == len(seen)
    assert waits == sorted(waits)


def test_what_is_not_known() -> None:
    assert unread_ms(None) is None
    assert unread_ms(Connected(None)) is None
    local, other = socket.socketpair()
    with local, other:
        assert unread_ms(Connected(local)) is None
