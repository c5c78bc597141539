"""A connection that idles is not forgotten on its way: ten minutes of a clock that we move."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko import packet

from autotune.remote.ssh_config import SshSettings
from autotune.remote.ssh_login import login
from tests.open_ssh_server import OpenServer

IDLE_S = 600.0
SILENT_MOST_S = 25.0
"""Under half of a minute, the shortest idle limit of firewalls and home routers in wide use."""


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s


class Server(OpenServer):
    """Takes everybody in and hears keep-alives."""

    def __init__(self) -> None:
        self.heard = threading.Semaphore(0)

    def check_global_request(self, kind: str, msg: paramiko.Message) -> bool:
        self.heard.release()
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(packet, "time", clock)
    return clock


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_ten_idle_minutes_are_never_silent_for_long(
    clock: Clock, link: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    ours, theirs = link
    host_key, own_key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    known = tmp_path / "known_hosts"
    known.write_text(f"gpu-a {host_key.get_name()} {host_key.get_base64()}\n")
    own_key.write_private_key_file(str(tmp_path / "key"))
    server = Server()
    with ExitStack() as open_:
        listening: Any = open_.enter_context(paramiko.Transport(theirs))
        listening.add_server_key(host_key)
        listening.start_server(event=threading.Event(), server=server)
        settings = SshSettings(
            alias="gpu-a",
            hostname="gpu-a",
            port=22,
            user="me",
            keys=(str(tmp_path / "key"),),
            known_hosts=(str(known),),
        )
        client = open_.enter_context(login(settings, ours))
        ours.settimeout(0.001)  # paramiko looks at its clock whenever this has passed
        idle_since_s = clock.now_s
        while clock.now_s < idle_since_s + IDLE_S:
            clock.now_s += SILENT_MOST_S
            assert server.heard.acquire(timeout=60.0), "nothing was said for too long"
        transport = client.get_transport()
        assert transport is not None
        assert transport.open_session(timeout=60.0).active
