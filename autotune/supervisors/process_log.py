"""The log file that a guard writes, followed line by line in bounded memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from autotune.errors import TargetError
from autotune.supervisors.guard import main_exited_text
from autotune.supervisors.log_lines import LogLine, LogSource

__all__ = ["GuardLog", "parse_record"]

_CHUNK_BYTES = 64 * 1024
_POLL_S = 0.02
_SOURCES = {b"S": LogSource.SERVICE, b"M": LogSource.MANAGER}


def parse_record(record: bytes) -> LogLine:
    """One line of the file, `SECONDS KIND TEXT`, without its line end.

    Raises:
        ValueError: It is no such line.
    """
    at, kind, text = record.split(b" ", 2)
    if kind not in _SOURCES:
        raise ValueError(f"unknown kind {kind!r}")
    return LogLine(text.decode(errors="replace"), float(at), _SOURCES[kind])


class GuardLog:
    """A `LogFollower` over one file; at most one chunk of it is in memory.

    Args:
        path: The file; it exists since before the service started.
        ended: Whether the guard is gone, hence nothing more will be written.

    Raises:
        TargetError: The file is gone.
    """

    def __init__(self, path: Path, *, ended: Callable[[], bool]) -> None:
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise TargetError(f"the log of this start cannot be read: {error}") from error
        self._path = path
        self._ended = ended
        self._lines: deque[LogLine] = deque()
        self._pending = b""
        self._end_seen = False

    def read(self, timeout_s: float) -> LogLine | None:
        """The next line, or None when none came within `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while not self._lines:
            # The order counts: what a guard wrote before it went is read after that was seen.
            ended = self._ended()
            if self._load():
                continue
            if ended and not self._end_seen:
                # The guard was killed, so nobody wrote the end down; the kernel ended the service.
                self._end_seen = True
                return LogLine(main_exited_text(None, 9), time.time(), LogSource.MANAGER)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(_POLL_S, left_s))  # a file tells nobody that it has grown
        return self._lines.popleft()

    def _load(self) -> bool:
        """Take the next chunk of the file apart; False at its present end."""
        try:
            chunk = self._file.read(_CHUNK_BYTES)
        except OSError as error:
            raise TargetError(f"the log of this start cannot be read: {error}") from error
        *whole, self._pending = (self._pending + chunk).split(b"\n")
        for record in whole:
            try:
                line = parse_record(record)
            except ValueError as error:
                raise TargetError(f"{self._path} is not a log of ours: {error}") from error
            if line.source is LogSource.MANAGER and line.text.startswith("Main process exited"):
                self._end_seen = True
            self._lines.append(line)
        return bool(chunk)

    def __enter__(self) -> GuardLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
