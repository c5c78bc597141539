"""One login over ssh: host keys, identities, and what each failure means.

Known host keys only, and nothing that is not configured: with a key configured, that key alone is
offered.  Every error of paramiko and of the socket below it becomes one of ours in `mapped`.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import paramiko
from paramiko.ssh_exception import NoValidConnectionsError

from autotune.errors import AuthenticationError, ConnectError, HostKeyError, TargetError
from autotune.remote.ssh_config import SshSettings

__all__ = ["dial", "login", "mapped"]

KEEP_ALIVE_S = 10
UNANSWERED_S = 40.0
"""A connection whose data nobody acknowledges for so long is given up by the kernel
(TCP_USER_TIMEOUT, man 7 tcp): paramiko sends keep-alives but does not miss their answers."""


class _UnknownHostKey(paramiko.SSHException):
    """No known key for the host."""


_BY_HAND = (
    "see whether ssh gets there by hand; --ssh-config, or ssh_config in a study, names its file"
)


class _Reject(paramiko.MissingHostKeyPolicy):
    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        raise _UnknownHostKey(f"{hostname} offers {key.get_name()} {key.fingerprint}")


def mapped(error: BaseException, *, where: str, tried: str = "") -> TargetError:
    """Our error for one of paramiko's or the socket's.

    Args:
        where: The host, for people.
        tried: Which identities were offered.
    """
    match error:
        case TargetError():
            return error
        case _UnknownHostKey():
            return HostKeyError(
                f"{where}: the host key is not known: {error}",
                hint="connect once with ssh and compare the fingerprint",
            )
        case paramiko.BadHostKeyException():
            return HostKeyError(
                f"{where}: the host key has changed: {error}",
                hint="if the host was reinstalled, remove its line with `ssh-keygen -R`",
            )
        case paramiko.PasswordRequiredException():
            return AuthenticationError(
                f"{where}: the private key has a passphrase", hint="add it to the ssh agent"
            )
        case paramiko.AuthenticationException():
            return AuthenticationError(
                f"{where}: refused: {error}; tried {tried or 'nothing'}",
                hint="put one of these keys into authorized_keys there",
            )
        case paramiko.SSHException() if "No authentication methods" in str(error):
            return AuthenticationError(
                f"{where}: there is no identity to offer; tried {tried or 'nothing'}",
                hint="add a key to the ssh agent, or an IdentityFile to the ssh configuration",
            )
        case paramiko.SSHException() if "No existing session" in str(error):
            # A server that got too many wrong keys hangs up without an answer.
            return AuthenticationError(
                f"{where}: the host hung up during authentication; tried {tried or 'nothing'}",
                hint="configure one IdentityFile for this host",
            )
        case NoValidConnectionsError():
            return ConnectError(f"{where}: {error}", hint=_BY_HAND)
        case TimeoutError():
            return ConnectError(f"{where}: no answer in time", hint=_BY_HAND)
        case paramiko.SSHException() if "Timeout opening channel" in str(error):
            return ConnectError(f"{where}: no answer in time on a connection that was open")
        case EOFError():
            return ConnectError(f"{where}: the connection was closed", hint=_BY_HAND)
        case OSError() if error.strerror:  # without its number
            return ConnectError(f"{where}: {error.strerror}", hint=_BY_HAND)
        case _:
            return ConnectError(f"{where}: {error or type(error).__name__}")


def dial(settings: SshSettings) -> socket.socket:
    """A TCP connection straight to the host.

    Raises:
        ConnectError: Nobody answers there.
    """
    try:
        sock = socket.create_connection(
            (settings.hostname, settings.port), timeout=settings.connect_timeout_s
        )
    except OSError as error:
        where = f"{settings.alias} ({settings.hostname}:{settings.port})"
        raise mapped(error, where=where) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNANSWERED_S * 1000))
    return sock


def login(settings: SshSettings, sock: socket.socket | paramiko.Channel) -> paramiko.SSHClient:
    """Log in over a byte path that is open already.

    Raises:
        HostKeyError: The host's key is not the known one.
        AuthenticationError: The host refused what was offered.
        ConnectError: The connection broke.
    """
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_Reject())
    tried = ", ".join(settings.keys) or "the ssh agent and the default keys"
    try:
        for path in settings.known_hosts:
            if os.path.exists(path):
                client.load_system_host_keys(path)
        with ExitStack() as held:
            client.connect(
                settings.host_key_alias or settings.hostname,
                port=22 if settings.host_key_alias else settings.port,
                username=settings.user,
                key_filename=None,
                pkey=_configured_key(settings, held),
                allow_agent=not settings.keys,
                look_for_keys=not settings.keys and not settings.identities_only,
                sock=sock,
                timeout=settings.connect_timeout_s,
                banner_timeout=settings.connect_timeout_s,
                auth_timeout=settings.connect_timeout_s,
                channel_timeout=settings.connect_timeout_s,
            )
    except TargetError:
        client.close()
        sock.close()
        raise
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        sock.close()
        where = f"{settings.user}@{settings.alias}"
        raise mapped(error, where=where, tried=tried) from error
    transport = client.get_transport()
    if transport is None:
        raise ConnectError(f"{settings.alias}: the connection was closed")
    transport.set_keepalive(KEEP_ALIVE_S)
    return client


def _configured_key(settings: SshSettings, held: ExitStack) -> paramiko.PKey | None:
    """The first configured key that can be used; None when none is configured.

    A key with a passphrase is used through the agent when the agent holds that same key.

    Args:
        held: Closes the agent after the login.
    """
    unread: list[str] = []
    for path in settings.keys:
        try:
            return paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):
            # TypeError: `cryptography` says so when it is given no passphrase.
            signer = _held_by_agent(path, held)
            if signer is not None:
                return signer
            unread.append(f"{path} has a passphrase and the ssh agent does not hold it")
        except (paramiko.SSHException, OSError, ValueError) as error:
            unread.append(f"{path}: {error}")
    if unread:
        raise AuthenticationError(
            f"{settings.alias}: no configured key can be used: {'; '.join(unread)}",
            hint="`ssh-add` puts a key into the agent",
        )
    return None


def _held_by_agent(path: str, held: ExitStack) -> paramiko.PKey | None:
    with suppress(OSError, IndexError):
        wanted = Path(f"{path}.pub").read_text(encoding="utf-8").split()[1]
        agent = paramiko.Agent()
        held.callback(agent.close)
        for key in agent.get_keys():
            if key.get_base64() == wanted:
                return key
    return None
