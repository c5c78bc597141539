"""The console of every command."""

from __future__ import annotations

from rich.console import Console as RichConsole

__all__ = ["Console"]


class Console(RichConsole):
    """Rich's, but a reader who has gone is an error of the output and not the end of the program:
    `main` decides what it means, and a run goes on without a reader."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
