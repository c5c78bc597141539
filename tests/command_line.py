"""The command line inside this process: what it prints and how it ends."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from autotune.cli.app import app, main

__all__ = ["Ended", "called", "command_tree"]


@dataclass(frozen=True, slots=True)
class Ended:
    """One call.

    Attributes:
        out, err: What it printed.
    """

    code: int
    out: str
    err: str


def called(*words: str, folder: Path) -> Ended:
    """Run `autotune WORDS` in a folder, with no storage of the user's own."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, Path.cwd(), os.environ.pop("AUTOTUNE_STORAGE", None)
    code = 0
    try:
        os.chdir(folder)
        sys.argv = ["autotune", *words]
        with redirect_stdout(out), redirect_stderr(err), _logging_to(err):
            try:
                main()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.argv = before[0]
        os.chdir(before[1])
        if before[2] is not None:
            os.environ["AUTOTUNE_STORAGE"] = before[2]
    return Ended(code, out.getvalue(), err.getvalue())


@contextmanager
def _logging_to(stream: io.StringIO) -> Any:
    root = logging.getLogger()
    handler = logging.StreamHandler(stream)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def command_tree() -> dict[str, Any]:
    """Every command by what is typed: `run`, `db upgrade`."""
    found: dict[str, Any] = {}

    def walk(command: Any, path: Sequence[str]) -> None:
        below = getattr(command, "commands", None)
        if below is None:
            found[" ".join(path)] = command
            return
        for name, one in below.items():
            walk(one, (*path, name))

    walk(typer.main.get_command(app), ())
    return found
