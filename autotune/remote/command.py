"""A command for a host: words, quoting, and values that never show.

Quoting happens in one place, `shell_line`, by `shlex.join`; nobody builds command strings by hand.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Masked", "Words", "plain", "shell_line", "shown"]

MASK = "***"


@dataclass(frozen=True, slots=True, repr=False)
class Masked:
    """A secret word of a command: it is sent, and every text about the command shows `***`."""

    value: str

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Masked({MASK!r})"

    def __reduce__(self) -> tuple[type[Masked], tuple[str]]:
        return Masked, (self.value,)


Words = Sequence[str | Masked]


def plain(words: Words) -> list[str]:
    """The words that are run.

    Raises:
        ValueError: A word holds a NUL byte, which no command line can carry.
    """
    texts = [word.value if isinstance(word, Masked) else word for word in words]
    if any("\0" in text for text in texts):
        raise ValueError("a word of a command line cannot hold a NUL byte")
    return texts


def shown(words: Words) -> tuple[str, ...]:
    """The words for messages and records: secrets are masked."""
    return tuple(str(word) for word in words)


def shell_line(words: Words) -> str:
    """One line for a POSIX shell (ssh gives the host a line, not words)."""
    return shlex.join(plain(words))
