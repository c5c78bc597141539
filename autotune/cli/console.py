"""The console of every command."""

from __future__ import annotations

from rich.console import Console as RichConsole

__all__ = ["Console", "table_console"]

_PLAIN_WIDTH = 160  # a file or a pipe has no width of its own


class Console(RichConsole):
    """Rich's, but a reader who has gone is an error of the output and not the end of the program:
    `main` decides what it means, and a run goes on without a reader."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def table_console() -> Console:
    """For tables of many columns: in a file or a pipe no column is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)
