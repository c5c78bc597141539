"""The log of one start of a service, whoever keeps it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

__all__ = ["LogFollower", "LogLine", "LogSource"]


class LogSource(StrEnum):
    """Who wrote a log line."""

    SERVICE = "service"
    """The service in this start: proof."""
    MANAGER = "manager"
    """The service manager about this start: evidence of an ending."""
    LOOSE = "loose"
    """A line of the unit without the start's id: evidence of a failure, never proof."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log.

    Attributes:
        text: Text without its line end; bytes that are not UTF-8 are replaced, of a line with
            carriage returns the pieces are separate lines.
        at_s: Wall clock of the host when it was logged, Unix seconds.
    """

    text: str
    at_s: float
    source: LogSource = LogSource.SERVICE


class LogFollower(AbstractContextManager["LogFollower"], Protocol):
    """The log of one start, from its first line on, in bounded memory."""

    def read(self, timeout_s: float) -> LogLine | None:
        """The next line, or None when none came within `timeout_s` seconds.

        Raises:
            TargetError: The host cannot be read any more.
        """
