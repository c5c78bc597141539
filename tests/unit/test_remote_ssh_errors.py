"""Every error of paramiko and of the socket below it becomes one of ours."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Iterator

import paramiko
import pytest
from paramiko import ssh_exception

from autotune.errors import (
    AuthenticationError,
    ConnectError,
    HostKeyError,
    TargetError,
)
from autotune.remote.ssh_login import mapped

KEY = paramiko.ECDSAKey.generate()
EXAMPLES: dict[type[BaseException], BaseException] = {
    ssh_exception.BadHostKeyException: ssh_exception.BadHostKeyException("h", KEY, KEY),
    ssh_exception.BadAuthenticationType: ssh_exception.BadAuthenticationType("no", ["publickey"]),
    ssh_exception.PartialAuthentication: ssh_exception.PartialAuthentication(["publickey"]),
    ssh_exception.ChannelException: ssh_exception.ChannelException(1, "prohibited"),
    ssh_exception.ProxyCommandFailure: ssh_exception.ProxyCommandFailure("nc", "broken"),
    ssh_exception.NoValidConnectionsError: ssh_exception.NoValidConnectionsError(
        {("127.0.0.1", 22): OSError(111, "refused")}
    ),
}
WANTED: dict[type[BaseException], type[TargetError]] = {
    ssh_exception.BadHostKeyException: HostKeyError,
    ssh_exception.AuthenticationException: AuthenticationError,
}


def families(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for below in kind.__subclasses__():
        yield from families(below)


ALL = sorted(
    {
        *(
            kind
            for kind in families(paramiko.SSHException)
            if kind.__module__.startswith("paramiko")
        ),
        *(
            kind
            for _, kind in inspect.getmembers(ssh_exception, inspect.isclass)
            if issubclass(kind, Exception)
        ),
        OSError,
        EOFError,
        TimeoutError,
        socket.gaierror,
        ConnectionResetError,
    },
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_error_is_mapped(kind: type[BaseException]) -> None:
    error = EXAMPLES.get(kind) or kind("what it says")
    ours = mapped(error, where="me@gpu-a", tried="/keys/a")
    assert isinstance(ours, ConnectError)
    assert "me@gpu-a" in ours.message
    for above, wanted in WANTED.items():
        if issubclass(kind, above):
            assert isinstance(ours, wanted)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(113, "No route to host"), "No route to host"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            paramiko.SSHException("Timeout opening channel."),
            "no answer in time on a connection that was open",
        ),
        (TimeoutError(110, "Connection timed out"), "no answer in time"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
    ],
)
def test_what_a_host_out_of_reach_is_called(error: Exception, said: str) -> None:
    assert mapped(error, where="gpu-a").message == f"gpu-a: {said}"


def test_the_names_of_the_tree_are_covered() -> None:
    names = {kind.__name__ for kind in ALL}
    assert {"SSHException", "IncompatiblePeer", "MessageOrderError", "ConfigParseError"} <= names


def test_what_was_tried_is_named() -> None:
    refused = mapped(paramiko.AuthenticationException("no"), where="h", tried="/keys/a, /keys/b")
    assert "/keys/a, /keys/b" in refused.message
    hung_up = mapped(paramiko.SSHException("No existing session"), where="h", tried="the agent")
    assert isinstance(hung_up, AuthenticationError)
    assert "IdentityFile" in hung_up.hint
    nothing = mapped(paramiko.SSHException("No authentication methods available"), where="h")
    assert isinstance(nothing, AuthenticationError)


def test_a_passphrase_is_told() -> None:
    ours = mapped(paramiko.PasswordRequiredException("encrypted"), where="h")
    assert isinstance(ours, AuthenticationError)
    assert "agent" in ours.hint


def test_ours_stay_as_they_are() -> None:
    ours = HostKeyError("known")
    assert mapped(ours, where="h") is ours
