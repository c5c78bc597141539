"""The journal of one start of a unit.

`journalctl --all -o json`: without `--all` a line over 4 kB comes as null; a line with control
characters or bytes that are not UTF-8 comes as a list of byte numbers; journald splits lines at
48 kB.  Three matches find the lines of a start, and a line's own fields say what it proves::

    _SYSTEMD_INVOCATION_ID=X      written by the service in this start      SERVICE
    INVOCATION_ID=X               written by PID 1 about this start         MANAGER
    _SYSTEMD_UNIT=UNIT, no id     a dying process whose cgroup was gone     LOOSE
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from autotune.closing import Closing
from autotune.errors import ConnectError
from autotune.remote.connector import LineStream
from autotune.supervisors.log_lines import LogLine, LogSource

__all__ = ["FIELDS", "Entry", "JournalFollower", "last_lines", "parse_entry"]

FIELDS = "MESSAGE,_SYSTEMD_INVOCATION_ID,INVOCATION_ID,_SYSTEMD_UNIT"
"""Fields that journalctl is asked for; it adds the time and the cursor by itself."""

_LINE_ENDS = re.compile(r"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the journal.

    Attributes:
        lines: Its text, cut at line ends and carriage returns; empty when it belongs to another
            start.
        cursor: Its position.
    """

    lines: tuple[LogLine, ...]
    cursor: str


def parse_entry(raw: bytes, *, invocation_id: str) -> Entry | None:
    """One line of `journalctl -o json`, None when it is not one."""
    try:
        fields = json.loads(raw)
        cursor = str(fields["__CURSOR"])
        at_s = int(fields["__REALTIME_TIMESTAMP"]) / 1e6
    except (ValueError, KeyError, TypeError):
        return None
    source = _source(fields, invocation_id)
    if source is None:
        return Entry((), cursor)
    pieces = _LINE_ENDS.split(_text(fields.get("MESSAGE")))
    return Entry(tuple(LogLine(piece, at_s, source) for piece in pieces if piece), cursor)


def last_lines(raw: Iterable[bytes], *, invocation_id: str, cursor: str) -> list[str]:
    """Texts of a start's last entries, without the one at the cursor."""
    parsed = (parse_entry(entry, invocation_id=invocation_id) for entry in raw)
    return [
        line.text
        for entry in parsed
        if entry is not None and entry.cursor != cursor
        for line in entry.lines
    ]


def _source(fields: dict[str, Any], invocation_id: str) -> LogSource | None:
    own = fields.get("_SYSTEMD_INVOCATION_ID")
    about = fields.get("INVOCATION_ID")
    if invocation_id in (own, about):
        return LogSource.SERVICE if own == invocation_id else LogSource.MANAGER
    return LogSource.LOOSE if own is None and about is None else None


def _text(message: Any) -> str:
    """MESSAGE is text, a list of byte numbers, null, or a list of those when it came twice."""
    if isinstance(message, str):
        return message
    if isinstance(message, list):
        if all(isinstance(item, int) and 0 <= item <= 255 for item in message):
            return bytes(message).decode(errors="replace")
        return "\n".join(_text(item) for item in message)
    return ""


class JournalFollower(Closing):
    """Follows one start through the stream of `journalctl --follow`.

    A stream that breaks is opened again at the last entry, so nothing is lost or seen twice.

    Args:
        open_stream: Starts journalctl at a cursor, that entry included ("" for the first entry
            that is kept).
        cursor: Position right before the start; the entry there is none of this start.
    """

    def __init__(
        self, open_stream: Callable[[str], LineStream], *, invocation_id: str, cursor: str
    ) -> None:
        self._open_stream = open_stream
        self._invocation_id = invocation_id
        self._cursor = cursor
        self._pending: deque[LogLine] = deque()
        self._stream: LineStream | None = open_stream(cursor)
        self._opened_at = cursor
        self._moved = False
        """Whether the stream that is open has given an entry."""

    def read(self, timeout_s: float) -> LogLine | None:
        ends_at = time.monotonic() + timeout_s
        while not self._pending:
            raw = self._next(max(0.0, ends_at - time.monotonic()))
            if raw is None:
                return None
            entry = parse_entry(raw, invocation_id=self._invocation_id)
            if entry is not None:
                self._moved = True
                self._cursor = entry.cursor
                if entry.cursor != self._opened_at:
                    self._pending.extend(entry.lines)
            if not self._pending and time.monotonic() >= ends_at:
                return None
        return self._pending.popleft()

    def _next(self, timeout_s: float) -> bytes | None:
        if self._stream is None:
            self._stream = self._open_stream(self._cursor)
            self._opened_at = self._cursor
            self._moved = False
        try:
            return self._stream.read(timeout_s)
        except ConnectError:
            self.close()
            if not self._moved:
                raise
            return None

    def close(self) -> None:
        """End journalctl."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
