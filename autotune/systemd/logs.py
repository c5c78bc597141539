"""Where a unit's service logs: the journal, or a file that it appends to.

Of a file the part behind the byte offset taken right before the start is the log of that start:
everything of the service had ended by then.  The service manager's own lines come from the journal
in both cases.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from autotune.errors import ConnectError, UnitRefused
from autotune.remote.connector import LineStream
from autotune.supervisors.log_lines import LogFollower, LogLine

__all__ = ["FILE_KINDS", "FileFollower", "LogPlace", "log_place", "written_outputs"]

FILE_KINDS = ("append", "truncate", "file")
"""Kinds of output of which systemd does not tell the path over D-Bus."""

_JOURNAL = ("journal", "journal+console", "syslog", "syslog+console", "inherit", "")
_TURN_S = 0.05
"""How long one of two sources is waited for before the other has its turn."""
_PIECE_CHARACTERS = 48 * 1024


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the service logs.

    Attributes:
        path: The file; "" for the journal.
        emptied: Whether each start empties the file first.
    """

    path: str = ""
    emptied: bool = False


def log_place(output: str, error: str) -> LogPlace:
    """Where a service logs, from `StandardOutput=` and `StandardError=` as systemd shows them.

    SGLang logs to standard error and uvicorn to both, so both are needed in one place.

    Raises:
        UnitRefused: Nobody, or only a terminal, gets the log; or it goes to two places.
    """
    if error in ("inherit", ""):
        error = output
    if output in _JOURNAL and error in _JOURNAL:
        return LogPlace()
    kind, _, path = error.partition(":")
    if kind in ("append", "truncate") and path and output == error:
        return LogPlace(path, emptied=kind == "truncate")
    if kind == "file":
        raise UnitRefused(
            f"StandardError={error} overwrites the log of the start before in place, so the two "
            "cannot be told apart",
            hint=f"write append:{path}",
        )
    raise UnitRefused(
        f"its log cannot be read: StandardOutput={output}, StandardError={error}",
        hint="let both go to the journal, or both append to one file",
    )


def written_outputs(text: str, output: str, error: str) -> tuple[str, str]:
    """Both outputs with their paths, from the text of `systemctl cat`; the last line counts.

    Args:
        output, error: Their kinds, as systemd says.

    Raises:
        UnitRefused: A path has a specifier (`%i`), which only systemd replaces.
    """
    paths: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        kind, colon, path = value.strip().partition(":")
        if equals and colon and kind in FILE_KINDS:
            paths[key.strip()] = path
    found = []
    for key, kind in (("StandardOutput", output), ("StandardError", error)):
        path = paths.get(key, "") if kind in FILE_KINDS else ""
        if "%" in path:
            raise UnitRefused(
                f"its log cannot be read: {key}={kind}:{path} has a specifier",
                hint="write the path in full, in a drop-in",
            )
        found.append(f"{kind}:{path}" if path else kind)
    return found[0], found[1]


class FileFollower:
    """The log of one start in a file, with the service manager's lines from the journal.

    Args:
        open_file: Starts to follow the file at a byte offset; carriage returns come as line ends.
        manager: The same start in the journal.
        offset_bytes: Size of the file right before the start.
    """

    def __init__(
        self, open_file: Callable[[int], LineStream], manager: LogFollower, *, offset_bytes: int
    ) -> None:
        self._open_file = open_file
        self._offset_bytes = offset_bytes
        self._manager = manager
        self._stream: LineStream | None = open_file(offset_bytes)
        self._moved = False
        """Whether the stream that is open has given a line."""
        self._pieces: list[str] = []

    def read(self, timeout_s: float) -> LogLine | None:
        ends_at = time.monotonic() + timeout_s
        while True:
            if self._pieces:
                return LogLine(self._pieces.pop(), time.time())
            self._take(min(_TURN_S, max(0.0, ends_at - time.monotonic())))
            if self._pieces:
                continue
            line = self._manager.read(0.0)
            if line is not None or time.monotonic() >= ends_at:
                return line

    def _take(self, timeout_s: float) -> None:
        if self._stream is None:
            self._stream = self._open_file(self._offset_bytes)
            self._moved = False
        try:
            raw = self._stream.read(timeout_s)
        except ConnectError:
            self._stream.close()
            self._stream = None
            if not self._moved:
                raise
            return
        if raw is None:
            return
        self._moved = True
        self._offset_bytes += len(raw) + 1
        text = raw.decode(errors="replace")
        pieces = [
            text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS)
        ]
        self._pieces = pieces[::-1]

    def __enter__(self) -> Self:
        self._manager.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._manager.__exit__(kind, error, traceback)
