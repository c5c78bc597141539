"""What a check found, as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from autotune.errors import AutotuneError

__all__ = ["HERE", "CheckState", "Finding", "tried"]

HERE = "this machine"
"""The place of what concerns no host."""


class CheckState(StrEnum):
    """Whether a study can run with what was found."""

    OK = "ok"
    NOTE = "note"
    """A study can run; whoever reads its numbers should know this."""
    BAD = "bad"
    """A study cannot run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table.

    Attributes:
        place: A host, or this machine.
        found: What was seen.
        todo: What to do; "" when nothing is.
    """

    place: str
    what: str
    state: CheckState
    found: str
    todo: str = ""


def tried(place: str, what: str, look: Callable[[], str | Finding]) -> Finding:
    """What `look` found; an error of ours is a finding that ends a study."""
    try:
        found = look()
    except AutotuneError as error:
        return Finding(place, what, CheckState.BAD, error.message, error.hint)
    return found if isinstance(found, Finding) else Finding(place, what, CheckState.OK, found)
