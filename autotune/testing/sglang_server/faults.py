"""Faults that a simulated server can be told to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Fault", "Faults"]


class Fault(StrEnum):
    """What goes wrong; the text after a colon is its argument."""

    IGNORE_WINDOW = "ignore-window"
    """The window flag is accepted and has no effect; the log says None/False."""
    IGNORE_BUDGET = "ignore-budget"
    """The budget flag is accepted and has no effect."""
    OOM_LOAD = "oom-load"
    """Out of memory while the graphs are captured."""
    OOM_FIRST_BATCH = "oom-first-batch"
    """Out of memory at the first batch of at least N requests, 8 by default."""
    GARBLE_WIDE = "garble-wide"
    """Every answer is garbled when budget x top-k is at least N, 48 by default."""
    HANG_LOAD = "hang-load"
    """The weights never finish loading."""
    CRASH_BUCKET = "crash-bucket"
    """Dies by signal 9 after N generated requests, 200 by default."""
    SLOW_DRAIN = "slow-drain"
    """After SIGTERM it answers for AUTOTUNE_SIM_DRAIN_S seconds, idle or not."""
    ORPHAN = "orphan"
    """After SIGTERM a child in its own session keeps the port for N seconds, 5 by default."""
    TRUNCATE_STREAM = "truncate-stream"
    """Every Nth stream ends in the middle, without finish reason, usage and [DONE]."""
    CUT_STREAM = "cut-stream"
    """Every Nth stream ends in the middle because the connection breaks."""
    ERROR_200 = "error-200"
    """Every Nth stream carries an error event under status 200."""
    NO_USAGE = "no-usage"
    """Streams never carry usage."""
    REASONING_ONLY = "reasoning-only"
    """Chat answers arrive in reasoning_content alone."""
    STALL_BUCKET = "stall-bucket"
    """Stops emitting after N generated requests, 8 by default."""
    NO_ACCEPT_LOG = "no-accept-log"
    """Neither the decode lines nor /server_info name the accept length."""


_DEFAULTS: Mapping[Fault, float] = {
    Fault.OOM_FIRST_BATCH: 8,
    Fault.GARBLE_WIDE: 48,
    Fault.CRASH_BUCKET: 200,
    Fault.ORPHAN: 5,
    Fault.STALL_BUCKET: 8,
}


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one server with their arguments."""

    arguments: Mapping[Fault, float] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Read a comma list such as `no-usage,crash-bucket:200`.

        Raises:
            ValueError: A fault is unknown or its argument is not a positive number.
        """
        arguments: dict[Fault, float] = {}
        for word in filter(None, (part.strip() for part in text.split(","))):
            name, _, argument = word.partition(":")
            try:
                fault = Fault(name)
            except ValueError:
                known = ", ".join(fault.value for fault in Fault)
                raise ValueError(f"unknown fault {name!r}; known are {known}") from None
            value = float(argument) if argument else _DEFAULTS.get(fault, 1.0)
            if value <= 0:
                raise ValueError(f"the argument of fault {word!r} must be above 0")
            arguments[fault] = value
        return cls(arguments=arguments)

    def __contains__(self, fault: Fault) -> bool:
        return fault in self.arguments

    def argument(self, fault: Fault) -> float | None:
        """The argument of a fault, None when the server does not have it."""
        return self.arguments.get(fault)

    def hits(self, fault: Fault, count: int) -> bool:
        """Whether the `count`-th event, from 1, is one that the fault spoils."""
        every = self.arguments.get(fault)
        return every is not None and count % max(1, int(every)) == 0
