"""How commands reach a host.

A connector only carries: it runs a command and gives back its bytes.  What a status or a text means
is the business of the caller, and what a command changes is nobody's business here.  A command is
never repeated by a connector: after a lost connection the next command connects anew, and the
caller asks for the state before it does anything again.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from autotune.errors import CommandError
from autotune.remote.command import Words

__all__ = [
    "CAP_BYTES",
    "DEADLINE_S",
    "Completed",
    "Connector",
    "LineSplitter",
    "LineStream",
]

DEADLINE_S = 30.0
"""Default limit of one command, seconds."""
CAP_BYTES = 8 * 1024 * 1024
"""Default limit of what is kept of each output stream, bytes."""
LINE_LIMIT_BYTES = 4 * 1024 * 1024
"""What is kept of one line of a stream.  journald splits lines at 48 kB; as a JSON list of byte
numbers such a line has up to 240 kB, so a longer one is no journal line."""


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended.

    Attributes:
        argv: Its words, secrets masked.
        exit_status: 0 to 255; -N when signal N ended it (on this machine), -1 over ssh.
        stdout: At most `cap_bytes` bytes.
        stderr: At most `cap_bytes` bytes.
        truncated: Whether an output was longer than that; the rest was read and dropped.
    """

    argv: tuple[str, ...]
    exit_status: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False

    @property
    def text(self) -> str:
        """Output as text; bytes that are not UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def stderr_tail(self) -> str:
        """The last 2000 characters of the error output."""
        return self.stderr.decode(errors="replace").strip()[-2000:]

    def checked(self, *, hint: str = "") -> Completed:
        """Itself.

        Raises:
            CommandError: The exit status is not 0.
        """
        if self.exit_status != 0:
            raise CommandError(self.argv, self.exit_status, self.stderr_tail, hint=hint)
        return self


class LineStream(Protocol):
    """The output of a command that goes on, line by line, in bounded memory.

    Nothing is read ahead beyond one chunk, so a reader who stops reading stops the command.
    """

    def read(self, timeout_s: float) -> bytes | None:
        """The next line without its line end, None when none came within `timeout_s` seconds.

        Raises:
            ConnectError: The command has ended or the connection is lost.
        """

    def close(self) -> None:
        """End the command; may be called twice."""


@runtime_checkable
class Connector(AbstractContextManager["Connector"], Protocol):
    """Carries commands to one host.  Safe to use from several threads."""

    host: str

    def run(
        self,
        argv: Words,
        *,
        input: bytes = b"",  # noqa: A002 - the name that subprocess.run uses
        deadline_s: float = DEADLINE_S,
        cap_bytes: int = CAP_BYTES,
    ) -> Completed:
        """Run a command to its end; any exit status is a result.

        Raises:
            ConnectError: The host cannot be reached or the connection broke; whether the command
                ran is unknown.
            CommandTimeout: It did not end within `deadline_s`; on this machine it was killed, over
                ssh its channel was closed.
        """
        ...

    def stream(self, argv: Words, *, input: bytes = b"") -> LineStream:  # noqa: A002
        """Start a command and read its output line by line."""
        ...

    def close(self) -> None:
        """Close every connection; the next command opens one again."""


class LineSplitter:
    """Cuts chunks of bytes into lines at LF; of a line that is too long only the head is kept."""

    def __init__(self, *, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._head = bytearray()
        self._lines: deque[bytes] = deque()

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk in."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._extend(piece)
            self._lines.append(bytes(self._head))
            self._head.clear()
        self._extend(rest)

    def pop(self) -> bytes | None:
        """The oldest whole line that was not taken yet."""
        return self._lines.popleft() if self._lines else None

    def _extend(self, piece: bytes) -> None:
        self._head += piece[: max(0, self._limit_bytes - len(self._head))]
