"""A host that takes a channel and never answers what is asked on it; descriptors beyond 1024."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paramiko
import pytest

from autotune.errors import CommandTimeout, ConnectError
from autotune.remote import ssh
from autotune.remote.ssh_config import SshOptions
from tests.open_ssh_server import OpenServer
from tests.waiting import PATIENCE_S

BEYOND_SELECT = 1024
"""FD_SETSIZE of glibc: select() takes no descriptor from here on."""


class Server(OpenServer):
    """Takes everybody in; answers a command by its own words, `silent` never."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.asked = threading.Event()

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if b"silent" in command:
            self.asked.set()
            self.over.wait()
            return False
        threading.Thread(target=self._answer, args=(channel, command), daemon=True).start()
        return True

    @staticmethod
    def _answer(channel: paramiko.Channel, command: bytes) -> None:
        while channel.recv(1024):
            pass  # the end of its input comes after the yes to the command has arrived
        channel.sendall(command)
        channel.send_exit_status(0)
        channel.close()


@pytest.fixture
def host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ssh.SshConnector, Server]]:
    ours, theirs = socket.socketpair()
    host_key, own_key = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    known = tmp_path / "known_hosts"
    known.write_text(f"gpu-a {host_key.get_name()} {host_key.get_base64()}\n")
    own_key.write_private_key_file(str(tmp_path / "key"))
    (tmp_path / "config").write_text("")
    monkeypatch.setattr(ssh, "dial", lambda settings: ours)
    server = Server()
    with ExitStack() as open_:
        open_.callback(theirs.close)
        listening: Any = open_.enter_context(paramiko.Transport(theirs))
        open_.callback(server.over.set)
        listening.add_server_key(host_key)
        listening.start_server(event=threading.Event(), server=server)
        options = SshOptions(
            user="me",
            key=str(tmp_path / "key"),
            known_hosts=str(known),
            config=str(tmp_path / "config"),
        )
        yield open_.enter_context(ssh.SshConnector("gpu-a", options)), server


def test_a_command_that_is_never_answered_ends_at_its_deadline(
    host: tuple[ssh.SshConnector, Server],
) -> None:
    connector, server = host
    with pytest.raises(CommandTimeout, match=r"`silent` did not end within 2 s"):
        connector.run(["silent"], deadline_s=2.0)
    assert server.asked.wait(PATIENCE_S)


def test_a_stream_that_is_never_answered_ends_too(
    host: tuple[ssh.SshConnector, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    connector, server = host
    monkeypatch.setattr(ssh, "DEADLINE_S", 2.0)
    with pytest.raises(ConnectError, match="no answer in time"):
        connector.stream(["silent"])
    assert server.asked.wait(PATIENCE_S)


def test_a_process_with_many_open_files_still_hears(
    host: tuple[ssh.SshConnector, Server],
) -> None:
    connector, _ = host
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = 2 * BEYOND_SELECT
    if hard != resource.RLIM_INFINITY and hard < room:
        pytest.skip(f"this machine lets a process have {hard} open files")
    held: list[int] = []
    try:
        if soft != resource.RLIM_INFINITY and soft < room:
            resource.setrlimit(resource.RLIMIT_NOFILE, (room, hard))
        while not held or held[-1] < BEYOND_SELECT:
            held.append(os.open(os.devnull, os.O_RDONLY))
        assert connector.run(["loud"]).stdout == b"loud"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
