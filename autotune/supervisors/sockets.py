"""Who listens on a TCP port of this machine, as the kernel shows it."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from autotune.supervisors.process_state import process_facts

__all__ = ["SocketOwner", "command_text", "owners_of_port"]

_TEXT_LIMIT = 160
_SECRET_ENDINGS = ("key", "token", "password", "secret")


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """One listening socket.

    Attributes:
        pid: Its process, 0 when the kernel does not say (it belongs to another user).
        address: Its local address without the port.
    """

    pid: int
    address: str

    @property
    def description(self) -> str:
        """Process id and command for people, secrets masked."""
        facts = process_facts(self.pid) if self.pid else None
        if facts is None:
            return f"a process that the kernel does not name, on {self.address}"
        return f"pid {self.pid} ({command_text(facts.argv)}) on {self.address}"


def owners_of_port(port: int) -> tuple[SocketOwner, ...]:
    """All sockets that listen on a TCP port, IPv4 and IPv6, in this network namespace."""
    owners = set()
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            address, owned_port = connection.laddr
            if owned_port == port:
                owners.add(SocketOwner(connection.pid or 0, address))
    return tuple(sorted(owners, key=lambda owner: (owner.pid, owner.address)))


def command_text(argv: tuple[str, ...]) -> str:
    """A command line for people: shortened, and words that follow `--...key` and the like masked.

    >>> command_text(("serve", "--api-key", "abc", "--admin-token=abc"))
    'serve --api-key *** --admin-token=***'
    """
    shown: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and name.lower().endswith(_SECRET_ENDINGS)
        shown.append("***" if hide_next else f"{name}=***" if secret and equals else word)
        hide_next = secret and not equals and not hide_next
    text = " ".join(shown)
    return text if len(text) <= _TEXT_LIMIT else f"{text[: _TEXT_LIMIT - 1]}…"
