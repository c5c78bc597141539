"""Who listens on a port."""

from __future__ import annotations

import os
import socket

import pytest

from autotune.supervisors.sockets import SocketOwner, command_text, owners_of_port


def test_listener_is_found_and_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert owners_of_port(port) == (SocketOwner(os.getpid(), "127.0.0.1"),)
        assert f"pid {os.getpid()} (" in owners_of_port(port)[0].description
    assert owners_of_port(port) == ()


def test_both_families_are_seen() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        with socket.create_server(("127.0.0.1", port)):
            addresses = [owner.address for owner in owners_of_port(port)]
    assert addresses == ["127.0.0.1", "::1"]


def test_a_client_is_no_listener() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert owners_of_port(client.getsockname()[1]) == ()


def test_owner_that_the_kernel_does_not_name() -> None:
    assert "does not name" in SocketOwner(0, "0.0.0.0").description


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (("serve", "--port", "1"), "serve --port 1"),
        (("serve", "--api-key", "abc", "--tp", "8"), "serve --api-key *** --tp 8"),
        (("serve", "--admin-api-key=abc"), "serve --admin-api-key=***"),
        (("serve", "--hf_token=abc"), "serve --hf_token=***"),
        (("serve", "--api-key", "--api-key"), "serve --api-key ***"),
        (("key", "value"), "key value"),
    ],
)
def test_command_for_people(argv: tuple[str, ...], text: str) -> None:
    assert command_text(argv) == text


def test_long_command_is_shortened() -> None:
    text = command_text(("serve", "x" * 1000))
    assert len(text) == 160
    assert text.endswith("…")
